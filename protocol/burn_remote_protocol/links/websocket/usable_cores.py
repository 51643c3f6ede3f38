"""The cores that this process may use: those of its affinity, or the quota of a container."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = ["usable_cores"]

_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")


def usable_cores() -> float:
    """Return the number of cores that this process may use; it may be a fraction.

    A container with ``--cpus=1.5`` sees all cores of its machine. If its threads use more time, the
    system stops all of them for up to 0.1 s. Raises ``AttributeError`` where the system does not
    tell the affinity.
    """
    return min(len(os.sched_getaffinity(0)), _quota())


@functools.cache
def _quota() -> float:
    """Return the smallest quota of the Linux control groups that contain this process.

    Read once, because it hardly ever changes, and this is asked on event loops.
    """
    return min(filter(None, map(_cores_of, _groups())), default=float("inf"))


def _groups() -> Iterator[Path]:
    """Yield the folders of the control groups that contain this process.

    Inside a container, its own group appears as the root. A systemd service is in a group below the
    root, and the quotas of all its ancestors apply too. Version 1 has a separate tree for cores.
    """
    try:
        lines = _OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        pass_on_of_signal_handler(error)
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root = _GROUPS
        elif "cpu" in controllers.split(","):
            root = _GROUPS / "cpu"
        else:
            continue
        group = root / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _cores_of(group: Path) -> float | None:
    """Return the quota of a control group in cores; ``None`` if it has none."""
    try:
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError) as error:
        pass_on_of_signal_handler(error)
        try:
            quota = (group / "cpu.cfs_quota_us").read_text(encoding="ascii")
            period = (group / "cpu.cfs_period_us").read_text(encoding="ascii")
        except OSError as missing:
            pass_on_of_signal_handler(missing)
            return None
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError) as error:  # "max" in place of a number
        pass_on_of_signal_handler(error)
        return None
    return cores if cores > 0 else None  # -1 in version 1 means none
