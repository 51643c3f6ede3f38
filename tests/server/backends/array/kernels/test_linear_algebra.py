"""Tests of products of matrices and vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from support.elements import FLOATS, INTEGERS, arrays, assert_same, wrapped
from support.kernels import compute

BATCHES = hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=2, max_side=3, min_side=0)
SIDE = st.integers(0, 4)
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-4, "float64": 1e-12}


@given(st.data(), st.sampled_from(INTEGERS), BATCHES, st.tuples(SIDE, SIDE, SIDE))
def test_products_of_integer_matrices_wrap_around(
    data: st.DataObject, dtype: Any, batches: Any, sides: tuple[int, int, int]
) -> None:
    first, second = batches.input_shapes
    rows, inner, columns = sides
    lhs = data.draw(arrays(dtype, (*first, rows, inner)))
    rhs = data.draw(arrays(dtype, (*second, inner, columns)))

    product = np.einsum("...ij,...jk->...ik", lhs.astype(np.uint64), rhs.astype(np.uint64))
    assert_same(compute("Int.Matmul", lhs, rhs), product.astype(dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_large_products_of_integers_are_the_same_by_way_of_float64(dtype: Any) -> None:
    generator = np.random.default_rng(1)
    limits = np.iinfo(dtype)
    for low, high in ((max(limits.min, -99), 99), (limits.min, limits.max)):
        lhs, rhs = generator.integers(low, high, (2, 64, 64), dtype=dtype, endpoint=True)

        exact = lhs.astype(object) @ rhs.astype(object)
        assert_same(compute("Int.Matmul", lhs, rhs), wrapped(exact, dtype))


@given(st.data(), st.sampled_from(FLOATS), BATCHES, st.tuples(SIDE, SIDE, SIDE))
def test_products_of_matrices_broadcast(
    data: st.DataObject, dtype: Any, batches: Any, sides: tuple[int, int, int]
) -> None:
    first, second = batches.input_shapes
    rows, inner, columns = sides
    lhs = data.draw(arrays(dtype, (*first, rows, inner), finite=True))
    rhs = data.draw(arrays(dtype, (*second, inner, columns), finite=True))

    seen = compute("Float.Matmul", lhs, rhs)

    expected = lhs.astype(np.float64) @ rhs.astype(np.float64)
    with np.errstate(over="ignore"):
        rounded = expected.astype(dtype).astype(np.float64)
    bound = TOLERANCE[str(dtype)]
    np.testing.assert_allclose(seen.astype(np.float64), rounded, rtol=bound, atol=bound * 1e6)


def test_low_precision_is_multiplied_in_float32() -> None:
    ones = np.ones((1, 5000), np.float16)

    assert compute("Float.Matmul", ones, ones.T).tolist() == [[5000]]


@given(st.data(), st.sampled_from(FLOATS))
def test_cross_products_are_those_of_numpy(data: st.DataObject, dtype: Any) -> None:
    dim = data.draw(st.integers(0, 2))
    both = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=2, min_dims=2, max_dims=2))
    shapes = [(*shape[:dim], 3, *shape[dim:]) for shape in both.input_shapes]
    lhs, rhs = (data.draw(arrays(dtype, shape, finite=True)) for shape in shapes)

    seen = compute("Float.Cross", lhs, rhs, dim=dim)

    a, b = (np.moveaxis(tensor.astype(np.float64), dim, -1) for tensor in (lhs, rhs))
    expected = np.moveaxis(np.cross(a, b), -1, dim)
    bound = TOLERANCE[str(dtype)]
    with np.errstate(over="ignore"):
        rounded = expected.astype(dtype).astype(np.float64)
    np.testing.assert_allclose(seen.astype(np.float64), rounded, rtol=bound, atol=bound * 1e6)
