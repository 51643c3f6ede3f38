"""Reuse of the memory of freed tensors for tensors that arrive.

The operating system maps and clears newly allocated memory page by page during the first write. In
a virtual machine, the first write ran at 1.7 GB/s and the second at 22 GB/s, so the first write can
limit the rate at which tensors arrive.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import numpy as np

__all__ = ["Recycling", "is_recycled"]

# The C library itself reuses smaller blocks, and for them the 2 µs of this pool would not pay off.
MIN_BYTES: Final = 2**20
# Share of a block that an array may leave unused. A larger share would occupy memory that no quota
# counts. With a smaller one, blocks would be reused only for arrays of the same size.
MAX_UNUSED_SHARE: Final = 1 / 16
# Bounds the linear search through the kept blocks.
MAX_BLOCKS: Final = 64
# An array may take over a message with at most this many bytes that are not its elements. Decoders
# copy elements of other tensors that are so short, so nothing refers to these bytes.
MAX_OTHER_BYTES: Final = 4096
# Elements at such addresses may have any dtype. The C library aligns its blocks so as well.
ALIGNMENT: Final = 16
# Message sizes whose shift is known; at this number, all are forgotten. A client that uploads
# tensors of a few shapes sends messages of a few sizes, because their other tasks differ.
SIZES_KEPT: Final = 64
# Long enough for a stream of tensors, short enough that an idle server soon frees the memory.
KEPT_SECONDS: Final = 2.0


class _Memory(np.ndarray[Any, Any]):
    """A block of memory that holds one array after another.

    A subclass, because NumPy makes the memory of plain arrays the base of a view, not the array
    that the view was made of. Reuse counts references to that array, so views must refer to it.
    """


class _Loan(_Memory):
    """The base object of an array in a ``_Memory``; returns the block when the array dies."""

    recycling: Recycling | None = None
    # The block holds a message of which no array has been made.
    holds_message = False

    def __del__(self) -> None:
        if self.recycling is not None and isinstance(self.base, _Memory):
            self.recycling._take_back(self.base)


class Recycling:
    """A pool of freed blocks, of at most ``limit_bytes``. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes: Final = limit_bytes
        self._kept: list[tuple[float, _Memory]] = []  # the oldest first
        self._lock: Final = threading.Lock()
        # Where a message begins in its block, so that its elements are aligned if they begin as far
        # into the message as those of the last one of this size, or else of the last one.
        self._shifts: dict[int, int] = {}
        self._last_shift = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes in the pool."""
        return sum(memory.nbytes for _, memory in [*self._kept])

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an array of undefined elements. Raises ``MemoryError``."""
        size = dtype.itemsize
        for length in shape:
            size *= length
        if not MIN_BYTES <= size <= self._limit_bytes:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, buffer=self._lent(size))

    def message_memory(self, size: int) -> memoryview:
        """Return memory for a message. Raises ``MemoryError``."""
        if size < MIN_BYTES:
            return np.empty(size, np.uint8).data
        whole = size + ALIGNMENT  # more than any shift, so that all such messages fit into a block
        loan = self._lent(whole) if whole <= self._limit_bytes else self._made(whole).view(_Loan)
        loan.holds_message = True
        shift = self._shifts.get(size, self._last_shift)
        return np.ndarray(size, np.uint8, buffer=loan, offset=shift).data

    def would_take_over(self, elements: memoryview) -> bool:
        """Return whether ``taken_over`` makes an array of these elements without moving them."""
        return self._is_owned(elements) and not (
            _address(np.frombuffer(elements, np.uint8)) % ALIGNMENT
        )

    def taken_over(self, elements: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an array in the memory of the message that has these elements, without a copy.

        Afterwards, the message must not be used any more. Returns ``None`` if its memory does not
        come from ``message_memory``, or if it has too many other bytes.
        """
        if not self._is_owned(elements):
            return None
        message: Any = elements.obj
        loan = message.base
        size = elements.nbytes
        address = _address(np.frombuffer(elements, np.uint8))
        if len(self._shifts) >= SIZES_KEPT:
            self._shifts.clear()
        shift = (_address(message) - address) % ALIGNMENT
        self._shifts[message.nbytes] = self._last_shift = shift
        start = address - _address(loan)
        loan.holds_message = False
        if address % ALIGNMENT:  # arithmetic on unaligned elements is slower
            block = np.ndarray(start + size, np.uint8, buffer=loan)
            np.copyto(block[:size], block[start:])
            start = 0
        return np.ndarray(shape, dtype, buffer=loan, offset=start)

    def _is_owned(self, elements: memoryview) -> bool:
        """Return whether elements are nearly all of a message in memory of this module."""
        message: Any = elements.obj
        loan = getattr(message, "base", None)
        return (
            isinstance(loan, _Loan)
            and loan.holds_message
            and bool(message.nbytes - elements.nbytes <= MAX_OTHER_BYTES)
        )

    def _lent(self, size: int) -> _Loan:
        loan = self._found(size).view(_Loan)
        loan.recycling = self
        return loan

    def _found(self, size: int) -> _Memory:
        with self._lock:
            for position, (_, memory) in enumerate(self._kept):
                if size <= memory.nbytes <= size * (1 + MAX_UNUSED_SHARE):
                    del self._kept[position]
                    return memory
        try:
            return self._made(size)
        except MemoryError:
            self.expire(0)
            return self._made(size)

    def _made(self, size: int) -> _Memory:
        return _Memory(size, np.uint8)

    def _take_back(self, memory: _Memory) -> None:
        # The garbage collector may run this in a thread that holds the lock. Then free the block.
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._kept.append((time.monotonic(), memory))
            while len(self._kept) > MAX_BLOCKS or self.kept_bytes > self._limit_bytes:
                del self._kept[0]
        finally:
            self._lock.release()

    def expire(self, seconds: float = KEPT_SECONDS) -> None:
        """Free the blocks that have been in the pool for at least ``seconds``."""
        oldest = time.monotonic() - seconds
        with self._lock:
            expired = [memory for since, memory in self._kept if since <= oldest]
            del self._kept[: len(expired)]


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def is_recycled(array: Any) -> bool:
    """Whether an array owns a block of a pool."""
    return type(array.base) is _Loan
