"""Remainders and rounded quotients on a GPU, as NumPy defines them.

CuPy computes the remainder of floats as ``x - floor(x / y) * y``. That is NaN where ``x / y`` or
``y`` is infinite, and has the wrong sign for a ``y`` much larger than ``x``. CuPy computes rounded
quotients as ``floor(x / y)``, which is one too large where ``x / y`` is rounded up to an integer.
It computes ``fmod`` of integers in ``float64``, which represents integers of up to 53 bits exactly.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import cupy
import numpy as np

__all__ = ["floor_divide", "fmod", "remainder"]

# For each dtype, the C type of the computation, and its C functions. CuPy's header converts
# ``float16``.
_FUNCTIONS: Final = {
    np.dtype(np.float16): ("float", "fmodf", "copysignf"),
    np.dtype(np.float32): ("float", "fmodf", "copysignf"),
    np.dtype(np.float64): ("double", "fmod", "copysign"),
}

# NumPy's npy_remainder (numpy/_core/src/npymath/npy_math_internal.h.src). fmod is exact. NaN is
# unequal to 0, and adding to it gives NaN, so a NaN stays NaN.
_FLOAT_REMAINDER: Final = """
    const {type} x = static_cast<{type}>(lhs), y = static_cast<{type}>(rhs);
    {type} rest = {fmod}(x, y);
    if (rest == 0) {{
        rest = {copysign}(static_cast<{type}>(0), y);
    }} else if ((rest < 0) != (y < 0)) {{
        rest += y;
    }}
    out = rest;
"""

# NumPy's npy_floor_divide, in the same file.
_FLOAT_FLOOR_DIVIDE: Final = """
    const {type} x = static_cast<{type}>(lhs), y = static_cast<{type}>(rhs);
    {type} quotient = x / y;
    if (y != 0) {{
        const {type} rest = {fmod}(x, y);
        {type} size = (x - rest) / y;
        if (rest != 0 && (rest < 0) != (y < 0)) {{
            size -= 1;
        }}
        const {type} lower = floor(size);
        quotient = size == 0 ? {copysign}(static_cast<{type}>(0), quotient)
            : size - lower > static_cast<{type}>(0.5) ? lower + 1 : lower;
    }}
    out = quotient;
"""

# The division of the smallest integer by -1 overflows, which is undefined in C++.
_INTEGER_FMOD: Final = """
    const bool is_minus_one = static_cast<T>(-1) < static_cast<T>(0) && rhs == static_cast<T>(-1);
    out = rhs == 0 || is_minus_one ? static_cast<T>(0) : static_cast<T>(lhs % rhs);
"""


@cache
def _float_kernel(source: str, name: str, dtype: Any) -> Any:
    kind, fmod_name, copysign_name = _FUNCTIONS[dtype]
    return cupy.ElementwiseKernel(
        "T lhs, T rhs",
        "T out",
        source.format(type=kind, fmod=fmod_name, copysign=copysign_name),
        f"burn_remote_{name}_{dtype.name}",
    )


@cache
def _integer_fmod() -> Any:
    return cupy.ElementwiseKernel("T lhs, T rhs", "T out", _INTEGER_FMOD, "burn_remote_fmod")


def remainder(lhs: Any, rhs: Any, out: Any = None) -> Any:
    """Return the remainders of two arrays of one dtype that broadcast, with the divisor's sign.

    The remainder of a division of floats by 0 is NaN. Stores the result in ``out`` if given.
    """
    if lhs.dtype not in _FUNCTIONS:
        return cupy.remainder(lhs, rhs, out=out)
    kernel = _float_kernel(_FLOAT_REMAINDER, "remainder", lhs.dtype)
    return kernel(lhs, rhs) if out is None else kernel(lhs, rhs, out)


def floor_divide(lhs: Any, rhs: Any, out: Any = None) -> Any:
    """Return the quotients, rounded down, of two arrays of one dtype that broadcast.

    A float divided by 0 is infinite or NaN. Stores the result in ``out`` if given.
    """
    if lhs.dtype not in _FUNCTIONS:
        return cupy.floor_divide(lhs, rhs, out=out)
    kernel = _float_kernel(_FLOAT_FLOOR_DIVIDE, "floor_divide", lhs.dtype)
    return kernel(lhs, rhs) if out is None else kernel(lhs, rhs, out)


def fmod(lhs: Any, rhs: Any, out: Any = None) -> Any:
    """Return the remainders of two arrays of one dtype that broadcast, with the dividend's sign.

    The remainder of an integer divided by 0 is 0. Stores the result in ``out`` if given.
    """
    if lhs.dtype.kind not in "iu":
        return cupy.fmod(lhs, rhs, out=out)
    kernel = _integer_fmod()
    return kernel(lhs, rhs) if out is None else kernel(lhs, rhs, out)
