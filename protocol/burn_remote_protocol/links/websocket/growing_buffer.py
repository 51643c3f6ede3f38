"""A buffer for a long message that arrives in parts; it grows without repeated copies."""

from __future__ import annotations

import contextlib
import mmap
from typing import Final, final

import numpy as np

from burn_remote_protocol.links.interface import Allocate
from burn_remote_protocol.links.websocket.frames import unmask_in_place
from burn_remote_protocol.mapped_memory import mapped

__all__ = ["GROWING_BYTES", "GrowingBuffer"]

# Shorter messages are collected in memory of the C library, which reuses it. The first write to new
# memory of the system takes 20 times as long as a later one.
GROWING_BYTES: Final = 2**20

# A message may reserve this many times the bytes that have arrived, and ``GROWING_BYTES`` for its
# header. With a larger factor, a peer's claim reserves more. With a smaller one, more bytes are
# copied when memory for the whole message is allocated: with 8, at most an eighth of them.
TRUSTED_FACTOR: Final = 8

# The most address space that is reserved for bytes that were only announced. A mapping that grows
# further may move to an address where its huge pages have to be divided.
MAX_RESERVED_BYTES: Final = 256 * 2**20

# How many earlier bytes are moved to larger memory with each part that arrives. New memory of the
# system takes up to 5 ms for each MiB in a virtual machine: 16 MiB at once blocked a server's event
# loop for 92 ms.
MOVED_AT_ONCE: Final = 2**19


@final
class GrowingBuffer:
    """Bytes that are appended, in a memory mapping of their own from ``GROWING_BYTES`` on.

    A ``bytearray`` is copied when it grows, up to 32 MiB in one step where the C library takes its
    memory from a heap: that blocked a server's event loop for 50 ms. Linux moves the pages of a
    mapping instead. It provides pages only as they are written, so the reserved rest takes no
    memory. The mapping uses huge pages if the system has them: in a virtual machine, first writes
    to 8 MiB took 2 ms with huge pages and 25 ms with ordinary ones. Where bytes have to move to
    other memory, each call moves some of them.
    """

    __slots__ = ("_allocate", "_earlier", "_expected", "_memory", "_moved", "_room", "_size")

    def __init__(
        self, first: bytes, expected_bytes: int = 0, allocate: Allocate | None = None
    ) -> None:
        """Begin with some bytes; ``expected_bytes`` is the peer's claim of how many there will be.

        Memory for the whole claim is taken from ``allocate``, if given, when more than
        ``GROWING_BYTES`` and an eighth of the claim have arrived.
        """
        self._expected = expected_bytes
        self._allocate = allocate
        size = max(len(first) + 1, min(expected_bytes, GROWING_BYTES))
        self._memory: mmap.mmap | memoryview = (
            mapped(size) if size > GROWING_BYTES else np.empty(size, np.uint8).data
        )
        self._room = memoryview(b"")
        self._size = 0
        # Bytes in the memory before the present one, and how many of them have been moved.
        self._earlier: memoryview | None = None
        self._moved = 0
        self.extend(first)

    def __len__(self) -> int:
        return self._size

    def extend(self, part: bytes | memoryview) -> None:
        """Append bytes. Raises ``OSError`` if the system has no memory."""
        end = self._size + len(part)
        self._reserve(end)
        self._move(MOVED_AT_ONCE)
        self._memory[self._size : end] = part
        self._size = end

    def room(self, most_bytes: int) -> memoryview:
        """Return memory for the next bytes, valid until the next call of any method but ``add``.

        Raises ``OSError`` if the system has no memory.
        """
        if self._size == len(self._memory):
            self._reserve(self._size + 1)
        self._move(MOVED_AT_ONCE)
        end = min(len(self._memory), self._size + most_bytes)
        self._room = memoryview(self._memory)[self._size : end]
        return self._room

    def add(self, count: int, key: bytes) -> None:
        """Append the first ``count`` bytes that were stored in ``room``, and remove their mask."""
        unmask_in_place(self._room[:count], key)
        self._size += count

    def view(self) -> memoryview:
        """Return all bytes, without a copy. The buffer cannot grow any more."""
        self._move(self._size)
        return memoryview(self._memory)[: self._size]

    def _reserve(self, size: int) -> None:
        if size <= len(self._memory):
            return
        self._room.release()  # a mapping to which a view refers cannot grow
        self._move(self._size)
        expected = self._expected
        trusted = TRUSTED_FACTOR * size + GROWING_BYTES
        if self._allocate is not None and size <= expected <= trusted:
            larger: mmap.mmap | memoryview = self._allocate(expected)
        else:
            capacity = max(size, 2 * len(self._memory), min(expected, trusted, MAX_RESERVED_BYTES))
            if size <= expected:
                # With ``allocate``, only what arrives before the whole claim is trusted.
                most = expected if self._allocate is None else expected // TRUSTED_FACTOR
                capacity = max(size, min(capacity, most))
            if isinstance(self._memory, mmap.mmap):
                with contextlib.suppress(SystemError):  # only Linux can
                    self._memory.resize(capacity)
                    return
            larger = mapped(capacity)
        self._earlier = memoryview(self._memory)[: self._size]
        self._memory, self._moved = larger, 0

    def _move(self, most_bytes: int) -> None:
        """Copy earlier bytes to the present memory."""
        if self._earlier is None:
            return
        end = min(len(self._earlier), self._moved + most_bytes)
        self._memory[self._moved : end] = self._earlier[self._moved : end]
        self._moved = end
        if end == len(self._earlier):
            self._earlier = None
