"""Limits at which a client sends a batch and frees dropped tensors."""

from __future__ import annotations

from typing import Final

__all__ = ["BATCH_BYTES", "BATCH_TASKS", "DROP_BYTES", "DROP_TENSORS"]

# A batch shares the cost of a frame, some 20 µs on both sides, among its operations. A larger batch
# makes the server start later, and its replies wait behind longer frames.
BATCH_TASKS: Final = 256
BATCH_BYTES: Final = 64 * 1024

# Dropped tensors are freed within a batch once this many are pending, or once the operations since
# the first of them have produced this many bytes. Otherwise a chain of operations on large tensors
# would hold many more of them on the server than the program does.
DROP_TENSORS: Final = 64
DROP_BYTES: Final = 4 * 1024 * 1024
