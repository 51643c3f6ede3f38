"""Element-wise functions that cannot raise on arrays of the right shapes and dtypes.

A program may overwrite its inputs only if each of its functions cannot raise or is replaced by a
kernel, because it then never has to be repeated.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from burn_remote_server.backends.interface import Run

__all__ = ["cannot_raise"]

# The loops of these ufuncs accept every pair of elements and allocate nothing. They report division
# by zero and similar conditions by flags that the server ignores. ``power`` is not among them,
# because it refuses negative exponents of integers. Other operations on integers that can fail are
# not ufuncs.
_UFUNCS: Final[frozenset[Any]] = frozenset({
    np.add, np.subtract, np.multiply, np.true_divide, np.reciprocal, np.negative, np.sqrt,
    np.absolute, np.rint, np.floor, np.ceil, np.trunc, np.maximum, np.minimum,
    np.equal, np.not_equal, np.greater, np.greater_equal, np.less, np.less_equal,
    np.isnan, np.isinf, np.logical_and, np.logical_or, np.logical_not, np.logical_xor,
    np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert,
    np.exp, np.log, np.log1p, np.cos, np.cosh, np.sin, np.sinh, np.tan, np.tanh,
    np.arccos, np.arccosh, np.arcsin, np.arcsinh, np.arctan, np.arctanh, np.arctan2,
})  # fmt: skip


def cannot_raise(function: Run, into: Run | None) -> bool:
    """Whether an element-wise call cannot raise on arrays of the right shapes and dtypes."""
    return into is function and function in _UFUNCS
