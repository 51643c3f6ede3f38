"""When is a batch full?"""

from __future__ import annotations

from typing import Final

__all__ = ["BATCH_BYTES", "BATCH_TASKS", "DROP_BYTES", "DROP_TENSORS"]

# Larger: the server starts later on a burst and its replies wait behind bigger frames. Smaller: the
# cost per frame, some 20 µs on both sides, is shared by fewer operations.
BATCH_TASKS: Final = 256
BATCH_BYTES: Final = 64 * 1024

# Dropped tensors are freed in the middle of a batch once this many wait, or once the operations
# since have made this many bytes. Larger: a chain of operations on large tensors holds more of
# them on the server than the program does. Smaller: more tasks that only drop.
DROP_TENSORS: Final = 64
DROP_BYTES: Final = 4 * 1024 * 1024
