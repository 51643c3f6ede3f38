"""The file of an Iroh server's secret key is created once, for its owner only, and checked."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from burn_remote_server.access.node_key import InvalidNodeKey, read_node_key


def test_without_a_file_each_key_is_new() -> None:
    keys = {read_node_key(None) for _ in range(8)}
    assert len(keys) == 8
    assert {len(key) for key in keys} == {32}


def test_a_created_key_is_read_back_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    key = read_node_key(path)
    assert read_node_key(path) == key == path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [*tmp_path.iterdir()] == [path]


def test_servers_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        keys = {*threads.map(lambda _: read_node_key(tmp_path / "node.key"), range(8))}
    assert len(keys) == 1
    assert [*tmp_path.iterdir()] == [tmp_path / "node.key"]


@pytest.mark.parametrize("content", [b"", b"short", bytes(33), b"0" * 64])
def test_another_file_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "node.key"
    path.write_bytes(content)
    with pytest.raises(InvalidNodeKey, match=f"{len(content)} bytes instead of 32"):
        read_node_key(path)
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "node.key", tmp_path):
        with pytest.raises(InvalidNodeKey, match=str(path)):
            read_node_key(path)
