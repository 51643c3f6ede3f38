"""A quota of a container limits the cores that a process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from burn_remote_protocol.links.websocket import background_sender, busy_polling, usable_cores
from burn_remote_protocol.links.websocket.background_sender import has_spare_core
from burn_remote_protocol.links.websocket.busy_polling import is_crowded


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the control groups of a process with 64 cores."""
    own = tmp_path / "own"
    own.write_text("0::/\n")
    monkeypatch.setattr(usable_cores, "_GROUPS", tmp_path)
    monkeypatch.setattr(usable_cores, "_OWN_GROUPS", own)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(64)}, raising=False)
    usable_cores._quota.cache_clear()
    yield tmp_path
    usable_cores._quota.cache_clear()


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "unknown\n"}, 64),
        ({"cpu.max": "6500000 100000\n"}, 64),
        ({}, 64),
    ],
)
def test_the_quota_of_a_container_counts(groups: Path, files: dict[str, str], cores: float) -> None:
    write(groups, files)
    assert usable_cores.usable_cores() == cores


def test_the_quotas_of_all_groups_around_a_service_count(groups: Path) -> None:
    (groups / "own").write_text("0::/system.slice/burn.service\n")
    write(groups / "system.slice", {"cpu.max": "200000 100000\n"})
    write(groups / "system.slice" / "burn.service", {"cpu.max": "800000 100000\n"})
    assert usable_cores.usable_cores() == 2


@pytest.mark.parametrize(("quota", "cores"), [("50000", 0.5), ("-1", 64)])
def test_quotas_of_version_1_count(groups: Path, quota: str, cores: float) -> None:
    (groups / "own").write_text("5:memory:/\n4:cpu,cpuacct:/\n")
    write(groups / "cpu", {"cpu.cfs_quota_us": f"{quota}\n", "cpu.cfs_period_us": "100000\n"})
    assert usable_cores.usable_cores() == cores


def test_without_control_groups_all_cores_of_the_affinity_count(groups: Path) -> None:
    (groups / "own").unlink()
    assert usable_cores.usable_cores() == 64


def test_a_container_with_less_than_two_cores_does_not_poll(
    groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = groups / "loadavg"
    load.write_bytes(b"0.20 0.18 0.12 1/80 11206\n")
    monkeypatch.setattr(busy_polling, "_LOAD", str(load))
    assert not is_crowded()
    usable_cores._quota.cache_clear()
    write(groups, {"cpu.max": "190000 100000\n"})
    assert is_crowded()


def test_a_container_with_two_cores_has_none_for_a_thread_that_sends(groups: Path) -> None:
    assert has_spare_core()
    usable_cores._quota.cache_clear()
    write(groups, {"cpu.max": "200000 100000\n"})
    assert background_sender.BUSY_CORES == 3
    assert not has_spare_core()
