"""Collectives in NumPy: what each member must get, bit for bit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np

__all__ = [
    "COMBINE",
    "FLOATS",
    "INTEGERS",
    "all_reduced_in_ring",
    "elements",
    "reduced_in_ring",
    "same_bits",
]

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


_STEP: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "sum": np.add,
    "mean": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
}


def reduced_in_ring(op: str, arrays: Sequence[Array], first: int) -> Array:
    """Combine arrays along a ring of members, beginning with one of them.

    Low precision is combined in float32 and rounded at each step.
    """
    dtype = arrays[0].dtype
    wide = np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind in "fV" else dtype
    count = len(arrays)
    total = arrays[first]
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(1, count):
            own = arrays[(first + step) % count].astype(wide)
            combined = _STEP[op](own, total.astype(wide))
            if op == "mean" and step == count - 1:
                combined = combined / wide.type(count)
            total = np.asarray(combined).astype(dtype)
    return total


def all_reduced_in_ring(op: str, arrays: Sequence[Array]) -> Array:
    """Cut flat arrays into one part for each member, and combine each from its own member on."""
    count, size = len(arrays), arrays[0].size
    edges = [size * part // count for part in range(count + 1)]
    flat = [one.reshape(-1) for one in arrays]
    parts = [
        reduced_in_ring(op, [one[edges[part] : edges[part + 1]] for one in flat], part)
        for part in range(count)
    ]
    return np.concatenate(parts).reshape(arrays[0].shape)


def elements(seed: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Return random elements: integers of the dtype's whole range, or normal numbers.

    So sums of integers wrap around.
    """
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
