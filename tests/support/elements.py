"""Hypothesis strategies for arrays of each dtype, and comparison of elements."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from support.kernels import BFLOAT16, Array
from support.subnormals import FLUSHES

__all__ = [
    "BOOL",
    "FLOATS",
    "INTEGERS",
    "NUMBERS",
    "arrays",
    "assert_same",
    "pairs",
    "shapes",
    "wrapped",
]

BOOL: Final = np.dtype("?")
INTEGERS: Final = tuple(np.dtype(f"{sign}{size}") for sign in "iu" for size in (1, 2, 4, 8))
FLOATS: Final = (np.dtype("f2"), BFLOAT16, np.dtype("f4"), np.dtype("f8"))
NUMBERS: Final = INTEGERS + FLOATS

shapes: Final = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


def _values(dtype: Any, finite: bool) -> st.SearchStrategy[Any]:
    if dtype in FLOATS:
        # For bfloat16 too: float32 numbers are rounded to it.
        width = {2: 16, 4: 32, 8: 64}[dtype.itemsize] if dtype != BFLOAT16 else 32
        bound = 1e3 if finite else None
        return st.floats(
            min_value=None if bound is None else -bound,
            max_value=bound,
            width=width,  # type: ignore[arg-type]
            allow_nan=not finite,
            allow_infinity=not finite,
            allow_subnormal=False if FLUSHES and width == 32 else None,
        )
    return hnp.from_dtype(dtype)


@st.composite
def arrays(draw: Any, dtype: Any, shape: Any = shapes, *, finite: bool = False) -> Array:
    """Arrays of a dtype, contiguous or not. ``finite`` keeps floating-point numbers below 1000."""
    chosen = draw(shape) if isinstance(shape, st.SearchStrategy) else shape
    base = np.dtype("f4") if dtype == BFLOAT16 else dtype
    array: Array = draw(hnp.arrays(base, chosen, elements=_values(dtype, finite)))
    with np.errstate(all="ignore"):
        array = array.astype(dtype)
    return array.T.copy().T if draw(st.booleans()) else array


@st.composite
def pairs(draw: Any, dtype: Any, *, finite: bool = False) -> tuple[Array, Array]:
    """Two arrays of a dtype whose shapes broadcast."""
    both = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=4, min_side=0))
    first, second = (draw(arrays(dtype, shape, finite=finite)) for shape in both.input_shapes)
    return first, second


def wrapped(exact: Any, dtype: Any) -> Array:
    """Return Python integers of any size, wrapped around to a dtype."""
    bits = 8 * dtype.itemsize
    low = 0 if dtype.kind == "u" else -(2 ** (bits - 1))
    exact = np.asarray(exact, dtype=object)
    flat = [(int(value) - low) % 2**bits + low for value in exact.reshape(-1)]
    return np.array(flat, dtype=dtype).reshape(exact.shape)


def assert_same(seen: Array, expected: Array) -> None:
    """Fail unless two arrays have the same shape and elements; NaN is the same as NaN."""
    if seen.dtype in FLOATS:
        # NumPy does not treat bfloat16 as a floating-point dtype, nor recognize its NaN.
        seen, expected = seen.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(seen, expected, strict=True)
