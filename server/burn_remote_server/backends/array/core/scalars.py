"""Conversion of scalar parameters to a tensor's dtype."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from burn_remote_server.backends.array.core.rounding import astype

__all__ = ["is_exact", "rounded", "scalar_array", "wrapped"]


def wrapped(value: float | int | bool, dtype: Any) -> int:
    """Convert a number to an integer as Rust's ``as`` does: truncate fractions, wrap around."""
    high = 2**64 - 1 if dtype.kind == "u" else 2**63 - 1
    if isinstance(value, float):
        # Floats beyond 64 bits saturate, as in Rust.
        value = 0 if math.isnan(value) else max(min(value, high), -(2**63))
    bits: int = dtype.itemsize * 8
    number: int = int(value) & (2**bits - 1)
    is_negative = dtype.kind == "i" and number >= 2 ** (bits - 1)
    return number - 2**bits if is_negative else number


def scalar_array(xp: Any, value: float | int | bool, dtype: Any) -> Any:
    """Return a number as a zero-dimensional array, so that kernels need not convert it per call."""
    if dtype.kind in "iu":
        return xp.asarray(wrapped(value, dtype), dtype=dtype)
    if dtype.kind == "b":
        return xp.asarray(value != 0, dtype=dtype)
    # A number beyond the dtype's range becomes infinite, like a tensor element.
    with np.errstate(all="ignore"):
        return xp.asarray(_nearest(value, dtype))


def is_exact(value: float | int | bool, dtype: Any) -> bool:
    """Whether a floating-point dtype represents this number exactly."""
    held = rounded(value, dtype)
    return held == value or held != held


def rounded(value: float | int | bool, dtype: Any) -> float:
    """Return a number rounded to a floating-point dtype."""
    with np.errstate(all="ignore"):
        return float(_nearest(value, dtype))


def _nearest(value: float | int | bool, dtype: Any) -> Any:
    # Not by way of float64, which would round 64-bit integers first.
    return astype(np, np.asarray(value), dtype)
