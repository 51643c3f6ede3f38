"""Memory that is reused after it was freed: of large reads, and of copies of what is sent."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import numpy as np

from burn_remote_protocol.errors import detached
from burn_remote_protocol.interrupted_finalizers import repeatable
from burn_remote_protocol.mapped_memory import HUGE_PAGE_BYTES, mapped
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = ["ReusedMemory"]


class _Loan(np.ndarray[Any, Any]):
    """A view of a whole block; returns the block to ``memory`` once nothing refers to the view."""

    memory: ReusedMemory | None = None

    @repeatable
    def __del__(self) -> None:
        # Forgotten first: a block that is returned twice would be lent twice.
        memory, self.memory = self.memory, None
        if memory is not None and isinstance(self.base, np.ndarray):
            memory._take_back(self.base)


class ReusedMemory:
    """A source of memory that keeps the last ``most_blocks`` freed blocks for others of their size.

    The operating system clears new memory page by page: in a virtual machine, first writes to 8 MiB
    took 6 ms, later ones 0.3 ms. Programs read and send tensors of the same size again and again.

    Thread-safe, also for a ``__del__`` in any thread: each method uses one atomic operation of the
    deque.
    """

    def __init__(
        self, min_bytes: int, max_bytes: int, most_blocks: int, *, in_huge_pages: bool = False
    ) -> None:
        """Keep blocks of ``min_bytes`` to ``max_bytes``.

        ``in_huge_pages``: blocks of at least ``HUGE_PAGE_BYTES`` are mappings of their own. Making
        one takes longer, and then every pass over its bytes takes less time.
        """
        self._make: Final = _mapped_block if in_huge_pages else _block
        self._min_bytes: Final = min_bytes
        self._max_bytes: Final = max_bytes
        self._kept: deque[np.ndarray[Any, Any]] = deque(maxlen=most_blocks)
        # Whether nothing was allocated since the last ``expire``.
        self._was_idle = False

    @property
    def kept_bytes(self) -> int:
        """The size of the blocks that are kept, in bytes."""
        return sum(block.nbytes for block in [*self._kept])

    def allocate(self, size: int) -> memoryview:
        """Return ``size`` writable bytes. Raises ``MemoryError``."""
        if not self._min_bytes <= size <= self._max_bytes:
            return self._make(size).data
        self._was_idle = False
        try:
            block = self._kept.pop()
        except IndexError as error:
            pass_on_of_signal_handler(error)
            block = None
        if block is None or block.nbytes != size:
            block = None  # freed before another is allocated
            block = self._make(size)
        loan = block.view(_Loan)
        loan.memory = self
        return loan.data

    def expire(self) -> None:
        """Free the blocks that are kept if nothing was allocated since the last call."""
        if self._was_idle:
            self._kept.clear()
        self._was_idle = True

    def close(self) -> None:
        """Free the blocks that are kept, and keep no others."""
        self._kept = deque(maxlen=0)

    def _take_back(self, block: np.ndarray[Any, Any]) -> None:
        self._kept.append(block)


def _block(size: int) -> np.ndarray[Any, Any]:
    return np.empty(size, np.uint8)


def _mapped_block(size: int) -> np.ndarray[Any, Any]:
    if size < HUGE_PAGE_BYTES:
        return _block(size)
    try:
        # Linux aligns only mappings of whole huge pages to them.
        memory = mapped(-(-size // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES)
    except OSError as error:
        raise MemoryError(f"no memory for {size:,} bytes") from detached(error)
    return np.frombuffer(memory, np.uint8, size)
