"""Memory mappings, in huge pages where the system has them."""

from __future__ import annotations

import contextlib
import mmap
import sys
from typing import Final

__all__ = ["HUGE_PAGE_BYTES", "mapped"]

# The size of a huge page of x86-64, and of ARM with ordinary pages of 4 KiB.
HUGE_PAGE_BYTES: Final = 2**21


def mapped(size: int) -> mmap.mmap:
    """Return new memory, which is not shared with child processes. Raises ``OSError``."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # this kernel has no huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
