"""Memory limits of containers and services."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from burn_remote_server.backends.numpy import memory_limits


class Groups:
    """A fake tree of control groups, and the group of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def limit(self, file: str, text: str) -> None:
        path = self._folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def found(self, own: str = "0::/\n") -> int:
        self.limit("own", own)
        return memory_limits.host_memory_bytes()


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Groups:
    monkeypatch.setattr(memory_limits, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory_limits, "_OWN_GROUPS", tmp_path / "own")
    return Groups(tmp_path)


@pytest.mark.parametrize("text", ["max\n", "", str(2**63 - 4096)])
def test_without_a_limit_all_memory_of_the_machine_counts(groups: Groups, text: str) -> None:
    groups.limit("cgroup/memory.max", text)
    assert groups.found() == psutil.virtual_memory().total


def test_a_system_without_control_groups_has_no_limit(groups: Groups) -> None:
    assert memory_limits.host_memory_bytes() == psutil.virtual_memory().total


def test_the_limit_of_a_container_applies(groups: Groups) -> None:
    groups.limit("cgroup/memory.max", "1073741824\n")
    assert groups.found() == 2**30


def test_the_limit_of_a_container_of_version_1_applies(groups: Groups) -> None:
    groups.limit("cgroup/memory/memory.limit_in_bytes", "1073741824\n")
    assert groups.found("3:cpuset:/docker/a1\n2:memory:/docker/a1\n0::/docker/a1\n") == 2**30


def test_the_limit_of_a_services_own_group_applies(groups: Groups) -> None:
    groups.limit("cgroup/system.slice/a.service/memory.max", "1073741824\n")
    groups.limit("cgroup/system.slice/memory.max", "max\n")
    groups.limit("cgroup/system.slice/b.service/memory.max", "4096\n")
    assert groups.found("0::/system.slice/a.service\n") == 2**30


def test_the_limit_of_a_parent_group_applies(groups: Groups) -> None:
    groups.limit("cgroup/system.slice/a.service/memory.max", "1073741824\n")
    groups.limit("cgroup/system.slice/memory.max", "536870912\n")
    assert groups.found("0::/system.slice/a.service\n") == 2**29
