"""Matrix products on a GPU for operands in all memory orders."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import BF16, F16, F32, F64, DType
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from support.kernels import signature

pytestmark = pytest.mark.gpu

SIZES = [(3, 4, 5), (1, 7, 6), (6, 7, 1), (5, 1, 4), (1, 9, 1), (1, 1, 3), (64, 48, 10)]


def orders(cupy: Any, array: Any) -> list[Any]:
    """Return an array in C order, in Fortran order, and with gaps between its elements."""
    gaps = cupy.zeros((array.shape[0], 2 * array.shape[1]), array.dtype)[:, ::2]
    gaps[...] = cupy.asarray(array)
    rows = cupy.zeros((array.shape[0], array.shape[1] + 3), array.dtype)[:, : array.shape[1]]
    rows[...] = cupy.asarray(array)
    return [cupy.asarray(array), cupy.asarray(array.T.copy()).T, gaps, rows, rows.T.copy().T]


@pytest.mark.parametrize("dtype", [F32, F64, F16], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_products_are_those_of_numpy_in_all_orders(gpu: Any, sizes: Any, dtype: DType) -> None:
    cupy = gpu.array_module
    session = gpu.open_session()
    session.activate()
    rows, inner, columns = sizes
    draw = np.random.default_rng(0)
    left = draw.normal(size=(rows, inner)).astype(array_dtype(dtype))
    right = draw.normal(size=(inner, columns)).astype(array_dtype(dtype))
    run = session.bind(
        signature("Float.Matmul", TensorSpec(left.shape, dtype), TensorSpec(right.shape, dtype))
    )
    expected = left.astype(np.float64) @ right.astype(np.float64)
    tolerance = {F16: 2e-3, F32: 1e-5, F64: 1e-13}[dtype]
    for lhs, rhs in product(orders(cupy, left), orders(cupy, right)):
        found = run(lhs, rhs)
        assert found.dtype == left.dtype
        assert found.flags.c_contiguous
        np.testing.assert_allclose(
            found.get().astype(np.float64), expected, rtol=tolerance, atol=10 * tolerance
        )
        np.testing.assert_array_equal(found.get(), cupy.matmul(lhs, rhs).get())


def batches(cupy: Any, array: Any) -> list[Any]:
    """Return a batch of matrices in C order, transposed, with gaps, and with batch axes turned."""
    gaps = cupy.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)[..., ::2]
    gaps[...] = cupy.asarray(array)
    turned = cupy.asarray(array.swapaxes(-1, -2).copy()).swapaxes(-1, -2)
    others = cupy.asarray(array.swapaxes(0, 1).copy()).swapaxes(0, 1)
    return [cupy.asarray(array), turned, gaps, others, cupy.asarray(array[:1])]


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16], ids=str)
def test_batches_have_the_products_of_their_matrices_in_all_orders(gpu: Any, dtype: DType) -> None:
    cupy = gpu.array_module
    session = gpu.open_session()
    session.activate()
    draw = np.random.default_rng(0)
    left = draw.normal(size=(3, 70, 4, 5)).astype(array_dtype(dtype))
    right = draw.normal(size=(3, 70, 5, 6)).astype(array_dtype(dtype))
    tolerance = {BF16: 1e-2, F16: 2e-3, F32: 1e-5, F64: 1e-13}[dtype]
    turned = zip(batches(cupy, left), batches(cupy, -left), strict=True)
    for (lhs, opposite), rhs in product(turned, batches(cupy, right)):
        specs = TensorSpec(lhs.shape, dtype), TensorSpec(rhs.shape, dtype)
        run = session.bind(signature("Float.Matmul", *specs))
        expected = lhs.get().astype(np.float64) @ rhs.get().astype(np.float64)
        # The second product reuses the arguments of the first, with other addresses.
        for matrices, sign in ((lhs, 1), (opposite, -1)):
            found = run(matrices, rhs)
            assert found.dtype == left.dtype
            assert found.flags.c_contiguous
            np.testing.assert_allclose(
                found.get().astype(np.float64), sign * expected, rtol=tolerance, atol=10 * tolerance
            )
