"""Memory for the elements of large reads, reused after the program has freed it."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import numpy as np

__all__ = ["ResultMemory"]

# The C library itself reuses smaller blocks.
MIN_BYTES: Final = 2**20
# Bounds the memory that a session holds in addition to the program's arrays.
MAX_BYTES: Final = 256 * 2**20


class _Loan(np.ndarray[Any, Any]):
    """A view of a whole block; returns the block to ``memory`` once nothing refers to the view."""

    memory: ResultMemory | None = None

    def __del__(self) -> None:
        if self.memory is not None and isinstance(self.base, np.ndarray):
            self.memory._take_back(self.base)


class ResultMemory:
    """Memory for results; keeps the last block that the program freed, for a result of its size.

    The operating system clears new memory page by page, which takes a third of the client's time
    for a large read. Programs read results of the same size again and again.

    Thread-safe, also for a ``__del__`` in any thread: each method uses one atomic operation of the
    deque.
    """

    def __init__(self) -> None:
        self._kept: deque[np.ndarray[Any, Any]] = deque(maxlen=1)
        self._was_idle = False  # nothing was allocated since the last ``expire``

    @property
    def kept_bytes(self) -> int:
        """The size of the block that is kept, in bytes; 0 if there is none."""
        return sum(block.nbytes for block in [*self._kept])

    def allocate(self, size: int) -> memoryview:
        """Return ``size`` writable bytes. Raises ``MemoryError``."""
        if not MIN_BYTES <= size <= MAX_BYTES:
            return np.empty(size, np.uint8).data
        self._was_idle = False
        try:
            block = self._kept.pop()
        except IndexError:
            block = None
        if block is None or block.nbytes != size:
            block = None  # freed before another is allocated
            block = np.empty(size, np.uint8)
        loan = block.view(_Loan)
        loan.memory = self
        return loan.data

    def expire(self) -> None:
        """Free the block that is kept if no result was allocated since the last call."""
        if self._was_idle:
            self._kept.clear()
        self._was_idle = True

    def close(self) -> None:
        """Free the block that is kept, and keep no other."""
        self._kept = deque(maxlen=0)

    def _take_back(self, block: np.ndarray[Any, Any]) -> None:
        self._kept.append(block)
