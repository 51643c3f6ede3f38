"""Element-wise functions that cannot raise once they run.

Inputs may be overwritten by a program of such functions only, because it need never be repeated.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from burn_remote_server.backends.interface import Run

__all__ = ["cannot_raise"]

# Their loops compute every pair of elements, allocate nothing, and report division by zero and the
# like by flags that the server ignores. Not so ``power`` of integers, which refuses exponents below
# 0; the operations on integers that can fail are no ufuncs.
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
