"""What do the kernels of every subject share: the array module, its override points, the limits?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

import numpy as np

__all__ = ["WORKSPACE_BYTES", "Array", "Kernel", "Shape", "Subject", "blocks"]

Array = Any
Kernel = Callable[..., Any]
Shape = tuple[int, ...]

# Scratch memory that one kernel call may hold beside its inputs and outputs (a single image row or
# query that needs more takes what it needs). Larger: columns fall out of the caches between being
# written and being multiplied: on 2 cores with 32 MiB of shared cache, a 3x3 convolution of
# 8x3x224x224 took 60 ms with 16 MiB and 54 ms with 4 to 8 MiB. Smaller: the matrix products become
# too small to run at full speed (89 ms with 512 KiB).
WORKSPACE_BYTES: Final = 8 * 2**20


class Subject:
    """Kernels of one subject of neural-network modules, written against an array module ``xp``.

    Methods with an underscore and no further state are the places where another array module may
    have a better way (``_scatter_add``), and ``workspace_bytes`` may be larger on a device that
    wants few large launches.
    """

    workspace_bytes: ClassVar[int] = WORKSPACE_BYTES

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        raise NotImplementedError

    def _scatter_add(self, target: Array, indices: Array, values: Array) -> None:
        """Add ``values`` to ``target`` at ``indices`` (all one-dimensional); repeats add up.

        ``target`` is the kernel's own array.
        """
        self.xp.add.at(target, indices, values)

    def _to_device(self, host: np.ndarray[Any, Any], dtype: Any = None) -> Array:
        """Return a small table, computed with NumPy, as an array of ``xp``."""
        return self.xp.asarray(host, dtype=dtype)


def blocks(count: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield ``(start, stop)`` of the blocks that cover ``range(count)``, ``length`` or less each."""
    length = max(1, length)
    for start in range(0, count, length):
        yield start, min(count, start + length)
