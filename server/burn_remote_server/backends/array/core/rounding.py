"""Correctly rounded conversion to float16 and bfloat16.

Array libraries convert by way of float32, which rounds twice: float64 1 + 2**-8 + 2**-40 becomes
the midpoint 1 + 2**-8 of two bfloat16 numbers, and the midpoint becomes 1. Rounding *to odd* to
float32 (truncate, then set the last bit of an inexact number) keeps a number on its side of every
midpoint of a format with at least two bits less, so the second rounding gives the correct result
(Boldo and Melquiond, "When double rounding is odd", IMACS 2005).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from burn_remote_server.backends.array.core.array_dtypes import LOW_PRECISION

__all__ = ["astype", "needs_odd_rounding"]

# Integers below this size are exact in float64. In larger integers the lowest 12 bits only decide
# whether the number lies on a midpoint, so a sticky bit 11 replaces them; the rest fits float64.
_EXACT_BITS: Final = 53
_LOW_BITS: Final = 0xFFF
_STICKY_BIT: Final = 0x800


def needs_odd_rounding(source: Any, target: Any) -> bool:
    """Whether a conversion to ``target``, a 16-bit float, by way of float32 rounds twice."""
    return target in LOW_PRECISION and source.kind in "iuf" and source.itemsize * 8 > _bits(source)


def _bits(source: Any) -> int:
    return 32 if source.kind == "f" else 16


def astype(xp: Any, array: Any, target: Any) -> Any:
    """Convert an array of any dtype to a floating-point dtype, rounding each number once."""
    if needs_odd_rounding(array.dtype, target):
        array = _float32_rounded_to_odd(xp, array)
    return array.astype(target)


def _float32_rounded_to_odd(xp: Any, array: Any) -> Any:
    exact = _float64_with_sticky_bit(xp, array)
    near = xp.asarray(exact.astype(np.float32))
    back = near.astype(np.float64)
    inexact = back != exact  # also true for NaN, whose last bit is arbitrary
    beyond = xp.absolute(back) > xp.absolute(exact)
    bits = near.view(np.uint32)
    return ((bits - beyond) | inexact).astype(np.uint32).view(np.float32)


def _float64_with_sticky_bit(xp: Any, array: Any) -> Any:
    if array.dtype.kind == "f" or array.itemsize < 8:
        return array.astype(np.float64)
    kind = array.dtype.type
    beyond = array >> kind(_EXACT_BITS)
    is_large = beyond != 0
    if array.dtype.kind == "i":
        is_large = is_large & (beyond != -1)
    low = array & kind(_LOW_BITS)
    short = array - low + xp.where(low != 0, kind(_STICKY_BIT), kind(0))
    return xp.where(is_large, short, array).astype(np.float64)
