"""Blocks of host memory in which the bytes of an upload wait to be copied to a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np

__all__ = ["HostBlocks"]


class HostBlocks(ABC):
    """A sequence of ``total_bytes`` that is passed on in blocks of ``block_bytes``."""

    def __init__(self, total_bytes: int, block_bytes: int) -> None:
        self._left = total_bytes  # for which no block has been allocated yet
        self._block_bytes: Final = block_bytes
        self._block: Any = None
        self._filled = 0

    @abstractmethod
    def allocate(self, size: int) -> Any:
        """Return a byte array. Raises ``MemoryError``."""

    @abstractmethod
    def send(self, block: Any) -> None:
        """Pass on a full block; the last one may be shorter than the others."""

    def write(self, data: memoryview | bytes) -> None:
        """Append bytes. Raises ``MemoryError``."""
        source = np.frombuffer(data, np.uint8)
        start = 0
        while start < source.size:
            block = self._current()
            stop = min(source.size, start + block.size - self._filled)
            block[self._filled : self._filled + stop - start] = source[start:stop]
            self.advance(stop - start)
            start = stop

    def room(self, size: int) -> memoryview | None:
        """Return memory for the next ``size`` bytes; ``None`` if a block ends within them.

        Raises ``MemoryError``.
        """
        block = self._current()
        end = self._filled + size
        return memoryview(block[self._filled : end]) if end <= block.size else None

    def advance(self, size: int) -> None:
        """Append ``size`` bytes that were stored in ``room``."""
        self._filled += size
        if self._filled == self._current().size:
            block, self._block, self._filled = self._block, None, 0
            self.send(block)

    def _current(self) -> Any:
        if self._block is None:
            self._block = self.allocate(min(self._block_bytes, self._left))
            self._left -= self._block.size
        return self._block
