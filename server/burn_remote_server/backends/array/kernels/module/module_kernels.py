"""The base class of the kernels of the family ``Module``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import numpy as np

from burn_remote_server.backends.array.core.kernel_forms import Array, Kernel, KernelFamily

__all__ = ["WORKSPACE_BYTES", "Array", "Kernel", "ModuleKernels", "Shape", "Table", "blocks"]

Shape = tuple[int, ...]

# A small table made on the host, whatever the array module.
Table = np.ndarray[Any, Any]

# Scratch memory that one kernel call may hold beside its inputs and outputs (a single image row or
# query that needs more takes what it needs). Larger: columns fall out of the caches between being
# written and being multiplied: on 2 cores with 32 MiB of shared cache, a 7x7 convolution of
# 8x3x224x224 took 60 ms with 16 MiB and 54 ms with 4 to 8 MiB. Smaller: the matrix products become
# too small to run at full speed (89 ms with 512 KiB).
WORKSPACE_BYTES: Final = 8 * 2**20


class ModuleKernels(KernelFamily):
    """Kernels of one subject of neural-network modules.

    ``workspace_bytes`` may be larger on a device that wants few large launches; methods named
    ``_scatter…`` and ``_to_device`` are where another array module may have a better way.
    """

    family = "Module"
    workspace_bytes: ClassVar[int] = WORKSPACE_BYTES

    def _scatter_add(self, target: Array, indices: Array, values: Array) -> None:
        """Add ``values`` to ``target`` at ``indices`` (all one-dimensional); repeats add up.

        ``target`` is the kernel's own array.
        """
        self.xp.add.at(target, indices, values)

    def _scatter_add_rows(self, target: Array, rows: Array, values: Array) -> None:
        """Add each row of ``values`` to the row of ``target`` that ``rows`` names."""
        # As one-dimensional additions: those of rows take NumPy ten times as long.
        width = target.shape[1]
        places = self.xp.arange(width, dtype=np.int64)
        for first, last in blocks(rows.shape[0], self.workspace_bytes // (16 * max(1, width))):
            flat = rows[first:last, None].astype(np.int64) * width + places
            self._scatter_add(target.reshape(-1), flat.reshape(-1), values[first:last].reshape(-1))

    def _to_device(self, table: Table, dtype: Any = None) -> Array:
        """Return a table as an array of ``xp``."""
        return self.xp.asarray(table, dtype=dtype)


def blocks(count: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield ``(start, stop)`` of blocks of ``length`` or less that cover ``range(count)``."""
    length = max(1, length)
    for start in range(0, count, length):
        yield start, min(count, start + length)
