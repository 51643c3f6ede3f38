"""Conversion of the IR's numbers to a tensor's dtype."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from burn_remote_server.backends.array.core.rounding import astype

__all__ = ["is_exact", "rounded", "scalar_array", "wrapped"]


def wrapped(value: float | int | bool, dtype: Any) -> int:
    """Return an integer as Rust's ``as`` makes it: fractions go, what is too large wraps around."""
    high = 2**64 - 1 if dtype.kind == "u" else 2**63 - 1
    if isinstance(value, float):
        # Beyond 64 bits it saturates, as in Rust.
        value = 0 if math.isnan(value) else max(min(value, high), -(2**63))
    bits: int = dtype.itemsize * 8
    number: int = int(value) & (2**bits - 1)
    is_negative = dtype.kind == "i" and number >= 2 ** (bits - 1)
    return number - 2**bits if is_negative else number


def scalar_array(xp: Any, value: float | int | bool, dtype: Any) -> Any:
    """Return a zero-dimensional array, so that a function need not convert the number each time."""
    if dtype.kind in "iu":
        return xp.asarray(wrapped(value, dtype), dtype=dtype)
    if dtype.kind == "b":
        return xp.asarray(value != 0, dtype=dtype)
    # A number too large for the dtype becomes infinite, as a tensor's would.
    with np.errstate(all="ignore"):
        return xp.asarray(_nearest(value, dtype))


def is_exact(value: float | int | bool, dtype: Any) -> bool:
    """Whether a floating-point dtype has exactly this number."""
    held = rounded(value, dtype)
    return held == value or held != held


def rounded(value: float | int | bool, dtype: Any) -> float:
    """Return the number that a floating-point dtype has in place of this one."""
    with np.errstate(all="ignore"):
        return float(_nearest(value, dtype))


def _nearest(value: float | int | bool, dtype: Any) -> Any:
    # An integer of 64 bits would be rounded for the first time on its way to float64.
    return astype(np, np.asarray(value), dtype)
