"""Where do large tensors that arrive get their memory? From those that are gone, if it fits.

Memory that the system gives out anew is mapped and cleared page by page while it is first written.
Where that is slow (1.7 GB/s in a virtual machine, beside 22 GB/s the second time), it bounds how
fast tensors come in.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import numpy as np

__all__ = ["Recycling", "is_recycled"]

# Smaller memory the C library keeps by itself. Larger: arrivals below it are slower. Smaller: what
# keeping costs (2 µs) shows.
LEAST_BYTES: Final = 2**20
# How much of the memory a smaller array may leave unused. Larger: more of it serves again, and more
# is held than arrays count for. Smaller: only arrays of the same size follow each other.
MOST_UNUSED: Final = 1 / 16
# Larger: more small tensors find memory, and the search through what is kept takes longer.
MOST_KEPT: Final = 64
# Larger: memory that nobody needs stays longer. Smaller: tensors that arrive now and then are slow.
KEPT_SECONDS: Final = 2.0


class _Memory(np.ndarray[Any, Any]):
    """Bytes that one array after another lies in.

    A class of its own because NumPy would make a plain array the base of all views, past the array
    that they were made of; but who holds an array has to show in the references to it.
    """


class _Loan(_Memory):
    """What an array refers to that lies in such memory; when the array is gone, so is this."""

    recycling: Recycling | None = None

    def __del__(self) -> None:
        if self.recycling is not None and isinstance(self.base, _Memory):
            self.recycling._take_back(self.base)


class Recycling:
    """Memory of some arrays that are gone, at most ``limit_bytes``. Any thread may use it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes: Final = limit_bytes
        self._kept: list[tuple[float, _Memory]] = []  # the oldest first
        self._lock: Final = threading.Lock()

    @property
    def kept_bytes(self) -> int:
        """How much is kept now."""
        return sum(memory.nbytes for _, memory in [*self._kept])

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an array whose elements are yet to be written. Raises ``MemoryError``."""
        size = dtype.itemsize
        for length in shape:
            size *= length
        if not LEAST_BYTES <= size <= self._limit_bytes:
            return np.empty(shape, dtype)
        loan = self._found(size).view(_Loan)
        loan.recycling = self
        return np.ndarray(shape, dtype, buffer=loan)

    def _found(self, size: int) -> _Memory:
        with self._lock:
            for position, (_, memory) in enumerate(self._kept):
                if size <= memory.nbytes <= size * (1 + MOST_UNUSED):
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
        # An array may end anywhere, also where this thread holds the lock: then it is let go.
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._kept.append((time.monotonic(), memory))
            while len(self._kept) > MOST_KEPT or self.kept_bytes > self._limit_bytes:
                del self._kept[0]
        finally:
            self._lock.release()

    def expire(self, seconds: float = KEPT_SECONDS) -> None:
        """Give memory back to the system that nobody has needed for so long."""
        oldest = time.monotonic() - seconds
        with self._lock:
            expired = [memory for since, memory in self._kept if since <= oldest]
            del self._kept[: len(expired)]


def is_recycled(array: Any) -> bool:
    """Whether an array's memory is its own, and goes back when the array is gone."""
    return type(array.base) is _Loan
