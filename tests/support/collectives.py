"""Collectives in NumPy: what each member must get, bit for bit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np

__all__ = ["COMBINE", "FLOATS", "INTEGERS", "elements", "same_bits"]

Array = np.ndarray[Any, Any]

FLOATS: Final = ("float16", "bfloat16", "float32", "float64")
INTEGERS: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def _combined(function: Callable[[Any, Any], Any], arrays: Sequence[Array]) -> Array:
    """Combine arrays one after the other; low precision is combined in float32."""
    dtype = arrays[0].dtype
    wide = np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind in "fV" else dtype
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(functools.reduce(function, [one.astype(wide) for one in arrays]))


def _mean(arrays: Sequence[Array]) -> Array:
    total = _combined(np.add, arrays)
    return np.asarray(total / total.dtype.type(len(arrays)))


COMBINE: Final[Mapping[str, Callable[[Sequence[Array]], Array]]] = {
    "sum": functools.partial(_combined, np.add),
    "mean": _mean,
    "min": functools.partial(_combined, np.minimum),
    "max": functools.partial(_combined, np.maximum),
    "product": functools.partial(_combined, np.multiply),
}


def elements(seed: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Return random elements of any size that the sums of a few members do not exceed."""
    random = np.random.default_rng(seed)
    if dtype in INTEGERS:
        bounds = np.iinfo(dtype)
        return np.asarray(random.integers(bounds.min, bounds.max, shape, dtype, endpoint=True))
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return np.asarray(random.normal(scale=3, size=shape)).astype(kind)


def same_bits(seen: Array, wanted: Array) -> bool:
    """Return whether two arrays have the same shape, dtype and bits."""
    return (
        seen.shape == wanted.shape
        and seen.dtype == wanted.dtype
        and seen.tobytes() == wanted.tobytes()
    )
