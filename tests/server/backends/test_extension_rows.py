"""The kernels of extension rows against NumPy.

Burn wrote no traffic for these rows, so each is compared with NumPy's own function of float64 or
complex128 copies of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from burn_remote_protocol.operations.releases import EXTENSION
from burn_remote_protocol.operations.table import TABLE
from burn_remote_protocol.tensors import TensorSpec
from support.kernels import compute

Array = np.ndarray[Any, Any]

RANDOM: Final = np.random.default_rng(20261122)


class Comparison(NamedTuple):
    """A call of an extension row, and what it must agree with.

    ``reference`` receives the tensors in double precision and the parameters; it returns one array,
    or a tuple for several outputs.
    """

    reference: Callable[..., Any]
    tensors: tuple[Array, ...]
    parameters: dict[str, Any]
    out: tuple[TensorSpec, ...]
    tolerance: float


COMPARISONS: Final[dict[str, list[Comparison]]] = {}


def compare(
    name: str,
    reference: Callable[..., Any],
    *tensors: Array,
    out: tuple[TensorSpec, ...] = (),
    tolerance: float = 1e-6,
    **parameters: Any,
) -> None:
    COMPARISONS.setdefault(name, []).append(
        Comparison(reference, tensors, parameters, out, tolerance)
    )


def floats(*shape: int, dtype: Any = np.float32) -> Array:
    return np.asarray(RANDOM.normal(size=shape)).astype(dtype)


# -- Elementwise ----------------------------------------------------------------------------------

for _dtype in (np.float32, np.float64):
    compare("Float.Hypot", np.hypot, floats(3, 4, dtype=_dtype), floats(3, 4, dtype=_dtype))
    compare("Float.Hypot", np.hypot, floats(3, 1, dtype=_dtype), floats(1, 4, dtype=_dtype))
compare("Float.Hypot", np.hypot, np.full(2, 1e38, np.float32), np.full(2, 1e38, np.float32))
compare("Float.Hypot", np.hypot, floats(9, dtype=np.float16), floats(9, dtype=np.float16),
        tolerance=1e-3)  # fmt: skip


# -- Linear algebra -------------------------------------------------------------------------------


def definite(*shape: int, dtype: Any = np.float32) -> Array:
    factor = RANDOM.normal(size=shape)
    product = factor @ np.swapaxes(factor, -1, -2) / max(1, shape[-1])
    return np.asarray(product + np.eye(shape[-1])).astype(dtype)


def of_columns(array: Array) -> Array:
    """Return the same matrices with columns instead of rows in consecutive memory."""
    return np.swapaxes(np.ascontiguousarray(np.swapaxes(array, -1, -2)), -1, -2)


# A transposed, an empty and a large matrix, and batches, also empty ones.
_SQUARES: Final = [(1, 1), (3, 3), (2, 3, 3), (2, 1, 4, 4), (0, 3, 3), (2, 0, 0), (40, 40)]
_MATRICES: Final = [*_SQUARES, (4, 3), (3, 4), (2, 5, 2), (0, 3), (3, 0), (2, 0, 3), (2, 3, 0)]


for _each, _bound in ((np.float16, 2e-2), (np.float32, 1e-4), (np.float64, 1e-10)):
    for _shape in _SQUARES:
        for _matrix in (
            definite(*_shape, dtype=_each),
            of_columns(definite(*_shape, dtype=_each)),
        ):
            _L = "LinearAlgebra"
            if _each is not np.float16 or _shape[-1] < 10:  # a large one overflows
                compare(f"{_L}.Det", np.linalg.det, _matrix, tolerance=_bound)
            compare(f"{_L}.Slogdet", np.linalg.slogdet, _matrix, tolerance=_bound)
            compare(f"{_L}.Inv", np.linalg.inv, _matrix, tolerance=_bound)
            compare(f"{_L}.Eigvalsh", np.linalg.eigvalsh, _matrix, tolerance=_bound)
            for _upper in (False, True):
                compare(
                    f"{_L}.Cholesky", np.linalg.cholesky, _matrix, upper=_upper, tolerance=_bound
                )
            _right = floats(*_shape[:-1], 2, dtype=_each)
            compare(f"{_L}.Solve", np.linalg.solve, _matrix, _right, tolerance=_bound)
    for _shape in _MATRICES:
        compare(
            "LinearAlgebra.Svdvals",
            np.linalg.svdvals,
            floats(*_shape, dtype=_each),
            tolerance=_bound,
        )
compare(
    "LinearAlgebra.Solve", np.linalg.solve, definite(2, 1, 3, 3), floats(1, 4, 3, 2), tolerance=1e-4
)
compare("LinearAlgebra.Solve", np.linalg.solve, definite(1, 3, 3), floats(4, 3, 2), tolerance=1e-4)

# Vectors are unique up to their signs: absolute values are compared, of distinct values in double
# precision. test_matrix_kernels.py tests the properties of the factors in each precision.
UP_TO_SIGNS: Final = {f"LinearAlgebra.{name}" for name in ("Eigh", "Svd", "Qr")}
for _shape in _SQUARES:
    compare("LinearAlgebra.Eigh", np.linalg.eigh, definite(*_shape, dtype=np.float64))
for _shape in _MATRICES:
    _matrix = floats(*_shape, dtype=np.float64)
    for _is_larger in (False, True):
        compare("LinearAlgebra.Svd", np.linalg.svd, _matrix, full_matrices=_is_larger)
        compare(
            "LinearAlgebra.Qr",
            lambda array, complete: np.linalg.qr(array, "complete" if complete else "reduced"),
            _matrix,
            complete=_is_larger,
        )


# -- Searches -------------------------------------------------------------------------------------


def repeated(*shape: int, dtype: Any = np.float32) -> Array:
    """Return few distinct numbers, with zeros, NaN and infinity among floats."""
    drawn = RANDOM.integers(-2, 3, shape) if np.dtype(dtype).kind != "u" else None
    array = np.asarray(RANDOM.integers(0, 3, shape) if drawn is None else drawn).astype(dtype)
    if array.dtype.kind == "f" and array.size > 5:
        array.reshape(-1)[:4] = [np.nan, np.inf, -0.0, np.nan]
    return array


def order_of(array: Array) -> tuple[Array, Array]:
    count = np.unique(array, equal_nan=False).size
    return np.argsort(array, kind="stable"), np.array([count])


def parts_of(array: Array, order: Array, count: int) -> tuple[Array, ...]:
    return tuple(
        np.unique(
            array, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
        )
    )[1:]


_KINDS: Final = (np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float32, np.float64)
for _kind in _KINDS:
    for _shape in [(12,), (3, 4), (2, 3, 4), (0, 3), (1, 1, 7)]:
        _array = repeated(*_shape, dtype=_kind)
        compare(
            "Search.Nonzero",
            lambda array, count: np.stack(np.nonzero(array)),
            _array,
            count=int(np.count_nonzero(_array)),
        )
    for _size in (0, 1, 40):
        _array = repeated(_size, dtype=_kind)
        compare("Search.UniqueOrder", order_of, _array)
        _order, (_count,) = order_of(_array)
        compare("Search.Unique", parts_of, _array, _order, count=int(_count))
        compare(
            "Search.Unique", parts_of, _array[::-1], order_of(_array[::-1])[0], count=int(_count)
        )
        for _behind in (False, True):
            compare(
                "Search.SearchSorted",
                lambda ordered, values, right: np.searchsorted(
                    ordered, values, side="right" if right else "left"
                ),
                np.sort(_array),
                repeated(3, 4, dtype=_kind),
                right=_behind,
            )


# -- The comparison -------------------------------------------------------------------------------

CASES: Final = [
    pytest.param(name, case, id=f"{name}-{place}")
    for name, cases in COMPARISONS.items()
    for place, case in enumerate(cases)
]


def doubled(array: Array) -> Array:
    """Return floating-point and complex elements in double precision, others as they are."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


@pytest.mark.parametrize("name, case", CASES)
def test_the_kernel_agrees_with_numpy(name: str, case: Comparison) -> None:
    found = compute(name, *case.tensors, out=case.out, **case.parameters)
    expected = case.reference(*map(doubled, case.tensors), **case.parameters)

    found, expected = (one if isinstance(one, tuple) else (one,) for one in (found, expected))
    for seen, right in zip(found, expected, strict=True):
        assert seen.shape == right.shape
        if name in UP_TO_SIGNS:
            seen, right = np.abs(seen), np.abs(right)
        np.testing.assert_allclose(doubled(seen), right, rtol=case.tolerance, atol=case.tolerance)


def test_every_extension_row_is_compared() -> None:
    extensions = {str(row) for row in TABLE.values() if row.lifetime == EXTENSION}

    assert extensions <= set(COMPARISONS)
