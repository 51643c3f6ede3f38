"""Functions of matrices match NumPy's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import burn_remote as br


@pytest.mark.parametrize("offset", range(-5, 6))
@pytest.mark.parametrize("shape", [(3, 4), (2, 4, 3), (2, 0, 3, 3), (0, 3), (3, 0), (1, 1)])
def test_a_diagonal_is_that_of_numpy(
    shape: tuple[int, ...], offset: int, device: br.Device
) -> None:
    array = np.arange(math.prod(shape)).reshape(shape)
    x = br.tensor(array, device=device)
    found = br.linalg.diagonal(x, offset=offset)
    np.testing.assert_array_equal(
        found.numpy(), np.linalg.diagonal(array, offset=offset), strict=True
    )
    np.testing.assert_array_equal(
        br.linalg.trace(x, offset=offset).numpy(), np.linalg.trace(array, offset=offset)
    )


def test_a_trace_is_summed_in_the_given_dtype(device: br.Device) -> None:
    x = br.full((3, 3), 100, dtype=br.int8, device=device)
    assert br.linalg.trace(x).dtype == br.int64
    assert br.linalg.trace(x).item() == 300
    assert br.linalg.trace(x, dtype=br.float32).dtype == br.float32


@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_tensor_of_less_than_two_axes_has_no_diagonal(
    shape: tuple[int, ...], device: br.Device
) -> None:
    with pytest.raises(br.ShapeMismatch, match="not a matrix"):
        br.linalg.diagonal(br.zeros(shape, device=device))


@pytest.mark.parametrize(
    "shapes", [((2,), (3,)), ((2, 3), (3, 2)), ((2, 3), (3, 1, 4)), ((2, 0), (3, 1)), ((), (2,))]
)
def test_a_kronecker_product_is_that_of_numpy(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], device: br.Device
) -> None:
    arrays = [np.arange(math.prod(shape), dtype=np.float32).reshape(shape) - 2 for shape in shapes]
    found = br.kron(*[br.tensor(array, device=device) for array in arrays])
    np.testing.assert_array_equal(found.numpy(), np.kron(*arrays), strict=True)


@pytest.mark.parametrize("order", [2, 1, 0, 3, -1, 0.5, -2, math.inf, -math.inf])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
def test_a_norm_of_each_order_is_that_of_numpy(
    order: float, axis: int | tuple[int, ...] | None, device: br.Device
) -> None:
    array = np.random.default_rng(7).normal(size=(3, 4, 2))
    found = br.vector_norm(br.tensor(array, device=device), ord=order, axis=axis)
    expected = np.linalg.vector_norm(array, ord=order, axis=axis)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13, strict=True)


@pytest.mark.parametrize("order", [2, 1, 0, 3, math.inf])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_the_norm_of_no_elements_is_zero(
    order: float, axis: int | None, dtype: Any, device: br.Device
) -> None:
    array = np.zeros((0, 3), dtype)
    found = br.vector_norm(br.tensor(array, device=device), ord=order, axis=axis)
    expected = np.linalg.vector_norm(array, ord=order, axis=axis).astype(array.real.dtype)
    np.testing.assert_array_equal(found.numpy(), expected, strict=True)
