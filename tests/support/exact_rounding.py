"""Conversions between dtypes in exact arithmetic: a slow oracle, one element at a time."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from support.kernels import BFLOAT16, Array

__all__ = ["exact_cast", "nearest"]

# Bits of the significand without the leading one, and the exponent of the smallest normal number.
_FORMATS: dict[Any, tuple[int, int, Fraction]] = {
    np.dtype(np.float16): (10, -14, Fraction(65504)),
    BFLOAT16: (7, -126, Fraction(2) ** 128 - Fraction(2) ** 120),
    np.dtype(np.float32): (23, -126, Fraction(2) ** 128 - Fraction(2) ** 104),
    np.dtype(np.float64): (52, -1022, Fraction(2) ** 1024 - Fraction(2) ** 971),
}


def nearest(value: Fraction, dtype: Any) -> float:
    """Return the number of a floating-point dtype nearest to a value, ties to even."""
    bits, least_exponent, largest = _FORMATS[dtype]
    size = abs(value)
    if not size:
        return 0.0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, least_exponent) - bits)
    rounded = round(size / step) * step  # Python rounds halves to even
    result = float("inf") if rounded > largest else float(rounded)
    return -result if value < 0 else result


def exact_cast(array: Array, target: Any) -> Array:
    """Convert each element as Rust's ``as`` does, in exact arithmetic."""
    converted = [_element(value, array.dtype, target) for value in array.reshape(-1)]
    floats = np.array(converted, np.float64 if target in _FORMATS else np.object_)
    return floats.astype(target).reshape(array.shape)


def _element(value: Any, source: Any, target: Any) -> Any:
    if target.kind == "b":
        return bool(value)
    if source in _FORMATS:
        number = float(value)
        if target in _FORMATS:
            finite = np.isfinite(number) and number
            return nearest(Fraction(number), target) if finite else number
        limits = np.iinfo(target)
        if number != number:
            return 0
        if np.isinf(number):
            return limits.max if number > 0 else limits.min
        return min(max(int(number), limits.min), limits.max)
    if target in _FORMATS:
        return nearest(Fraction(int(value)), target)
    bits = 8 * target.itemsize
    low = 0 if target.kind == "u" else -(2 ** (bits - 1))
    return (int(value) - low) % 2**bits + low
