"""A buffer for a message of which nothing is kept, because its connection is being closed."""

from __future__ import annotations

from typing import Final, final

__all__ = ["DroppedBuffer"]

# Connections write over each other's bytes here, which nobody reads.
_ROOM: Final = memoryview(bytearray(2**18))


@final
class DroppedBuffer:
    """The methods of a ``GrowingBuffer``; only the number of bytes is kept."""

    __slots__ = ("_size",)

    def __init__(self, size: int) -> None:
        """Begin with the number of bytes that were received before."""
        self._size = size

    def __len__(self) -> int:
        return self._size

    def extend(self, part: bytes | memoryview) -> None:
        """Drop bytes."""
        self._size += len(part)

    def room(self, most_bytes: int) -> memoryview:
        """Return memory for the next bytes."""
        return _ROOM[:most_bytes]

    def add(self, count: int, key: bytes) -> None:
        """Drop the first ``count`` bytes that were stored in ``room``."""
        self._size += count

    def view(self) -> memoryview:
        """Return no bytes."""
        return _ROOM[:0]
