"""Buffers of the bytes of tensors in host memory, and copies without the interpreter's lock."""

from __future__ import annotations

import numpy as np

__all__ = ["copy_bytes", "empty_bytes"]


def copy_bytes(target: memoryview, source: memoryview | bytes) -> None:
    """Copy bytes of equal number. Other threads run meanwhile, unlike with ``target[:] = source``.

    The system may have to provide the memory of a whole tensor, which takes up to 3 ms for each
    MiB.
    """
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def empty_bytes(size: int) -> memoryview:
    """Return new memory of undefined contents, in constant time. Raises ``MemoryError``.

    A ``bytearray`` would be cleared, and the lock held meanwhile.
    """
    return np.empty(size, np.uint8).data
