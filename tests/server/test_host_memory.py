"""A container's limit counts as its memory."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from burn_remote_server import host_memory


def with_limit(monkeypatch: pytest.MonkeyPatch, *files: Path) -> int:
    monkeypatch.setattr(host_memory, "_LIMIT_FILES", files)
    return host_memory.host_memory_bytes()


@pytest.mark.parametrize("text", ["max\n", "", str(2**63 - 4096)])
def test_without_a_limit_all_memory_of_the_machine_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    (tmp_path / "memory.max").write_text(text)
    found = with_limit(monkeypatch, tmp_path / "none", tmp_path / "memory.max")
    assert found == psutil.virtual_memory().total


def test_a_container_has_what_its_limit_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "memory.max").write_text("1073741824\n")
    assert with_limit(monkeypatch, tmp_path / "memory.max") == 2**30
