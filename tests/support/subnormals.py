"""Subnormal numbers, which some devices flush to zero.

CuPy compiles all kernels with ``-ftz=true``: computations in ``float32`` read and write zeros in
place of subnormal numbers. ``bfloat16`` is computed in ``float32`` and has the same exponents, so
it is affected too. ``float16`` and ``float64`` are not affected.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from support.kernels import BACKEND_NAME, BFLOAT16, Array

__all__ = ["FLUSHES", "FLUSHING_BACKENDS", "as_computed", "flushed", "has_flushable"]

FLUSHING_BACKENDS: Final = frozenset({"cupy"})

# Whether the tested backend flushes subnormal numbers.
FLUSHES: Final = BACKEND_NAME in FLUSHING_BACKENDS

_AFFECTED: Final = frozenset({np.dtype(np.float32), BFLOAT16})

# The smallest normal number of float32 and bfloat16.
_SMALLEST_NORMAL: Final = 2.0**-126


def _flushable(array: Array) -> Array:
    size = np.absolute(array.astype(np.float64))
    return np.asarray((size > 0) & (size < _SMALLEST_NORMAL))


def has_flushable(array: Array) -> bool:
    """Return whether an array has subnormal numbers of ``float32`` or ``bfloat16``."""
    return array.dtype in _AFFECTED and bool(_flushable(array).any())


def flushed(array: Array) -> Array:
    """Return an array with zeros of the same sign for those subnormal numbers."""
    if array.dtype not in _AFFECTED:
        return array
    zeros = np.copysign(0.0, array.astype(np.float64)).astype(array.dtype)
    return np.where(_flushable(array), zeros, array)


def as_computed(array: Array) -> Array:
    """Return the numbers that the tested backend reads or writes when it computes."""
    return flushed(array) if FLUSHES else array
