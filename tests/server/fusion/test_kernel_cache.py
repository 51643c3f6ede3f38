"""The disk cache of compiled kernels stays within its bound."""

from __future__ import annotations

import os
from pathlib import Path

from burn_remote_server.fusion.cuda.kernel_cache import trim


def kernels(folder: Path, count: int) -> None:
    for number in range(count):
        path = folder / f"{number}.cubin"
        path.write_bytes(bytes(100))
        os.utime(path, (1000 + number, 1000 + number))


def test_a_cache_within_its_limit_is_left_alone(tmp_path: Path) -> None:
    kernels(tmp_path, 10)
    assert trim(tmp_path, 1000) == 0
    assert len([*tmp_path.iterdir()]) == 10


def test_the_kernels_used_least_recently_are_removed(tmp_path: Path) -> None:
    kernels(tmp_path, 10)
    os.utime(tmp_path / "0.cubin", (2000, 1000))
    (tmp_path / "notes.txt").write_bytes(bytes(5000))
    assert trim(tmp_path, 900) == 6
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"0.cubin", "7.cubin", "8.cubin", "9.cubin", "notes.txt"}


def test_a_folder_that_does_not_exist_is_an_empty_cache(tmp_path: Path) -> None:
    assert trim(tmp_path / "none") == 0
