"""The base class of the kernels of neural-network modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import numpy as np

from burn_remote_server.backends.array.core.kernel_forms import Array, Kernel, KernelFamily

__all__ = ["WORKSPACE_BYTES", "Array", "Kernel", "ModuleKernels", "Shape", "Table", "blocks"]

Shape = tuple[int, ...]

# A small table computed on the host for any array module.
Table = np.ndarray[Any, Any]

# Scratch memory of a kernel call besides its inputs and outputs; a single image row or query may
# need more. On 2 cores with 32 MiB of shared cache, a 7x7 convolution of 8x3x224x224 took 54 ms
# with 4 to 8 MiB, 60 ms with 16 MiB (columns no longer stay in the cache), and 89 ms with 512 KiB
# (the matrix products are too small).
WORKSPACE_BYTES: Final = 8 * 2**20


class ModuleKernels(KernelFamily):
    """Kernels of one subject of neural-network modules.

    ``workspace_bytes`` may be larger on a device that prefers few large launches.
    """

    family = "Module"
    workspace_bytes: ClassVar[int] = WORKSPACE_BYTES

    def _scatter_add(self, target: Array, indices: Array, values: Array) -> None:
        """Add one-dimensional ``values`` to ``target`` at ``indices``; repeated indices add up.

        The kernel owns ``target``.
        """
        self.xp.add.at(target, indices, values)

    def _scatter_add_rows(self, target: Array, rows: Array, values: Array) -> None:
        """Add each row of ``values`` to the row of ``target`` at the index in ``rows``."""
        # One-dimensional, because adding whole rows takes NumPy ten times as long.
        width = target.shape[1]
        places = self.xp.arange(width, dtype=np.int64)
        for first, last in blocks(rows.shape[0], self.workspace_bytes // (16 * max(1, width))):
            flat = rows[first:last, None].astype(np.int64) * width + places
            self._scatter_add(target.reshape(-1), flat.reshape(-1), values[first:last].reshape(-1))

    def _to_device(self, table: Table, dtype: Any = None) -> Array:
        """Return a table as an array of ``xp``."""
        return self.xp.asarray(table, dtype=dtype)


def blocks(count: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield ``(start, stop)`` of blocks of at most ``length`` that cover ``range(count)``."""
    length = max(1, length)
    for start in range(0, count, length):
        yield start, min(count, start + length)
