"""The maximum or minimum of each element of a large array and one number.

NumPy's fast loop needs consecutive elements of both operands: the maximum of 131,072 floats and a
number took 41 µs, and that of these floats and an array of equal numbers 11 µs. So large arrays are
compared with a short row of equal numbers, which stays in the processor's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np

from burn_remote_protocol.tensors import Shape

__all__ = ["limited_by_row", "takes_row"]

# The longest row: 16 KiB of float32. Longer rows are no faster.
MAX_ROW: Final = 4096
# The shortest row. NumPy starts a loop for each row, which takes as long as 64 elements.
MIN_ROW: Final = 128
# The smallest array. For smaller ones, the additional calls take longer than they save.
MIN_SIZE: Final = 8192

_FLOATS: Final = frozenset({np.dtype(np.float32), np.dtype(np.float64)})

Function = Callable[..., Any]


def takes_row(xp: Any, shape: Shape, dtype: Any) -> bool:
    """Return whether arrays of a shape and dtype are compared with a row: large ones of floats."""
    size = math.prod(shape)
    return xp is np and dtype in _FLOATS and size >= MIN_SIZE and _row_length(size) >= MIN_ROW


def limited_by_row(function: Function, number: Any) -> Function:
    """Return ``run(array)`` with the bits of ``function(array, number)``; ``run`` takes ``out``.

    ``function`` is NumPy's maximum or minimum, and ``number`` a zero-dimensional array. An array
    that is not in C order is compared with the number itself.
    """
    key = (number.tobytes(), number.dtype)

    def run(array: Any, *, out: Any = None) -> Any:
        if not array.flags.c_contiguous or not (out is None or out.flags.c_contiguous):
            return function(array, number, out=out)
        if out is None:
            out = np.empty(array.shape, array.dtype)  # not a view of it: the result owns its memory
        length = _row_length(array.size)
        function(array.reshape(-1, length), _row(*key, length), out=out.reshape(-1, length))
        return out

    return run


def _row_length(size: int) -> int:
    """Return the longest row, of a power of 2 elements, that divides an array of a size."""
    return math.gcd(size, MAX_ROW)


# A plan must not keep its row: plans are many, and their memory is estimated without it.
@lru_cache(maxsize=32)
def _row(number: bytes, dtype: Any, length: int) -> Any:
    row = np.full(length, np.frombuffer(number, dtype)[0])
    row.flags.writeable = False
    return row
