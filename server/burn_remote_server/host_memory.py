"""How much memory may this process use? What the machine has, or less where a container says so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["host_memory_bytes"]

# Version 2 and version 1 of Linux control groups, as a container sees its own limit.
_LIMIT_FILES: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def host_memory_bytes() -> int:
    """Return the bytes of memory that this process may use at most."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for limit in map(_read_limit, _LIMIT_FILES) if limit)])


def _read_limit(path: Path) -> int | None:
    """Return the limit in a control group's file; ``None`` for no file and for ``max``."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
