"""The memory that this process may use: the machine's, or a container's limit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["host_memory_bytes", "resident_bytes"]

_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")


def host_memory_bytes() -> int:
    """Return the bytes of memory that this process may use."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *filter(None, map(_read_limit, _limit_files()))])


def resident_bytes() -> int:
    """Return the resident bytes of this process, or 0 if the system does not report them."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _limit_files() -> Iterator[Path]:
    """Yield the limit files of the Linux control groups that contain this process.

    Inside a container, its own group appears as the root. A systemd service is in a group below the
    root, and the limits of all its ancestors apply too. Version 1 has a separate memory tree.
    """
    try:
        lines = _OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = _GROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _GROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        yield from (
            folder / name for folder in (group, *group.parents) if folder.is_relative_to(root)
        )


def _read_limit(path: Path) -> int | None:
    """Return the limit in a control group's file; ``None`` if there is no file or no limit."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
