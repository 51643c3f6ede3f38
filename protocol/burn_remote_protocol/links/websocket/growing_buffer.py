"""A buffer for a long message that arrives in parts, which grows without being copied."""

from __future__ import annotations

import mmap
import sys
from typing import Final, final

__all__ = ["GrowingBuffer"]


@final
class GrowingBuffer:
    """Bytes in a memory mapping of their own.

    A ``bytearray`` is copied when it grows, up to 32 MiB in one step where the C library takes its
    memory from a heap: that blocked a server's event loop for 50 ms. Linux moves the pages of a
    mapping instead. It provides pages only as they are written, so the reserved rest takes no
    memory.
    """

    __slots__ = ("_memory", "_size")

    def __init__(self, first: bytes) -> None:
        self._memory = _mapped(2 * len(first) + 1)
        self._size = 0
        self.extend(first)

    def __len__(self) -> int:
        return self._size

    def extend(self, part: bytes | memoryview) -> None:
        """Append bytes. Raises ``OSError`` if the system has no memory."""
        end = self._size + len(part)
        if end > len(self._memory):
            self._grow(max(end, 2 * len(self._memory)))
        self._memory[self._size : end] = part
        self._size = end

    def view(self) -> memoryview:
        """Return all bytes, without a copy. The buffer cannot grow any more."""
        return memoryview(self._memory)[: self._size]

    def _grow(self, capacity: int) -> None:
        try:
            self._memory.resize(capacity)
        except SystemError:  # only Linux can
            larger: Final = _mapped(capacity)
            larger[: self._size] = self._memory[: self._size]
            self._memory = larger


def _mapped(size: int) -> mmap.mmap:
    """Return new memory, which is not shared with child processes."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
