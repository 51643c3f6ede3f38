"""Pseudoinverses, ranks, norms, powers and least squares match NumPy's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import burn_remote as br

Array = np.ndarray[Any, Any]


def low_rank(*shape: int, rank: int) -> Array:
    """Return matrices of a rank below their sides."""
    random = np.random.default_rng(sum(shape))
    left = random.normal(size=(*shape[:-1], rank))
    return np.asarray(left @ random.normal(size=(*shape[:-2], rank, shape[-1])))


MATRICES = [
    np.random.default_rng(1).normal(size=shape)
    for shape in [(3, 3), (4, 3), (2, 3, 4), (0, 3), (3, 0), (2, 0, 3), (0, 2, 2), (1, 1)]
] + [low_rank(4, 4, rank=2), low_rank(2, 5, 3, rank=1), np.zeros((3, 2))]


@pytest.mark.parametrize("array", MATRICES, ids=lambda array: str(array.shape))
def test_pseudoinverses_and_ranks_are_those_of_numpy(array: Array, device: br.Device) -> None:
    x = br.tensor(array, device=device)
    if array.size:
        np.testing.assert_array_equal(
            br.linalg.matrix_rank(x).numpy(), np.linalg.matrix_rank(array), strict=False
        )
    tolerance = max(array.shape[-2:]) * 2.0**-52
    expected = np.linalg.pinv(array, rtol=tolerance)
    np.testing.assert_allclose(br.linalg.pinv(x).numpy(), expected, atol=1e-12, strict=True)


@pytest.mark.parametrize("array", MATRICES, ids=lambda array: str(array.shape))
def test_pseudoinverses_and_ranks_of_complex_matrices_are_those_of_numpy(
    array: Array, device: br.Device
) -> None:
    array = array * (1 + 2j) + 1j * array[..., ::-1]
    x = br.tensor(array, device=device)
    if array.size:
        expected_ranks = np.linalg.matrix_rank(array)
        np.testing.assert_array_equal(br.linalg.matrix_rank(x).numpy(), expected_ranks)
    expected = np.linalg.pinv(array, rtol=max(array.shape[-2:]) * 2.0**-52)
    np.testing.assert_allclose(br.linalg.pinv(x).numpy(), expected, atol=1e-12, strict=True)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_equations_of_least_squares_are_solved_as_in_numpy(
    dtype: Any, device: br.Device
) -> None:
    random = np.random.default_rng(12)
    drawn = random.normal(size=(2, 5, 5)) + 1j * random.normal(size=(2, 5, 5))
    left, right = drawn[0, :, :3].astype(dtype), drawn[1, :, :2].astype(dtype)
    found = br.linalg.lstsq(br.tensor(left, device=device), br.tensor(right, device=device))
    expected = np.linalg.lstsq(left, right, rcond=None)
    bound = 1e-4 if dtype is np.complex64 else 1e-12
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, atol=bound)
    real = np.zeros(0, dtype).real.dtype
    assert (found.residuals.numpy().dtype, found.singular_values.numpy().dtype) == (real, real)


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf])
def test_norms_of_complex_matrices_are_real_and_those_of_numpy(
    order: Any, device: br.Device
) -> None:
    random = np.random.default_rng(2)
    array = (random.normal(size=(2, 3, 4)) + 1j * random.normal(size=(2, 3, 4))).astype("complex64")
    found = br.linalg.matrix_norm(br.tensor(array, device=device), ord=order)
    expected = np.linalg.matrix_norm(array, ord=order)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, strict=True)
    assert br.linalg.norm(br.tensor(array, device=device)).dtype == br.float32


@pytest.mark.parametrize("power", [0, 3, -2])
def test_powers_of_complex_matrices_are_those_of_numpy(power: int, device: br.Device) -> None:
    random = np.random.default_rng(3)
    array = random.normal(size=(2, 3, 3)) + 1j * random.normal(size=(2, 3, 3))
    found = br.linalg.matrix_power(br.tensor(array, device=device), power)
    np.testing.assert_allclose(found.numpy(), np.linalg.matrix_power(array, power), rtol=1e-9)


@pytest.mark.parametrize("rtol", [0.1, 0.9])
def test_a_tolerance_counts_small_singular_values_as_zero(rtol: float, device: br.Device) -> None:
    array = np.stack([np.diag([1.0, 0.5, 0.05]), np.eye(3)])
    x = br.tensor(array, device=device)
    bounds = br.tensor([rtol, rtol], dtype=br.float64, device=device)
    for given in (rtol, bounds):
        expected = np.linalg.matrix_rank(array, rtol=rtol)
        np.testing.assert_array_equal(br.linalg.matrix_rank(x, rtol=given).numpy(), expected)
        found = br.linalg.pinv(x, rtol=given)
        np.testing.assert_allclose(found.numpy(), np.linalg.pinv(array, rtol=rtol), atol=1e-12)


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf])
@pytest.mark.parametrize("keepdims", [False, True])
def test_norms_are_those_of_numpy(order: Any, keepdims: bool, device: br.Device) -> None:
    array = np.random.default_rng(2).normal(size=(2, 3, 4))
    found = br.linalg.matrix_norm(br.tensor(array, device=device), ord=order, keepdims=keepdims)
    expected = np.linalg.matrix_norm(array, ord=order, keepdims=keepdims)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, strict=True)


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf])
@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0), (2, 0, 0)])
@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
def test_norms_of_empty_matrices_are_those_of_numpy(
    order: Any, shape: tuple[int, ...], dtype: Any, device: br.Device
) -> None:
    array = np.zeros(shape, dtype)
    x = br.tensor(array, device=device)
    try:
        expected = np.linalg.matrix_norm(array, ord=order)
    except ValueError:  # the least of no elements
        with pytest.raises(br.ShapeMismatch, match="is empty"):
            br.linalg.matrix_norm(x, ord=order)
    else:
        found = br.linalg.matrix_norm(x, ord=order)
        np.testing.assert_array_equal(found.numpy(), expected, strict=True)


def test_an_unknown_norm_is_refused(device: br.Device) -> None:
    with pytest.raises(br.UsageError, match="not 3"):
        br.linalg.matrix_norm(br.ones((2, 2), device=device), ord=3)


@pytest.mark.parametrize("power", [0, 1, 2, 3, 7, 10, -1, -3])
def test_powers_are_those_of_numpy(power: int, device: br.Device) -> None:
    array = np.random.default_rng(3).normal(size=(2, 3, 3))
    found = br.linalg.matrix_power(br.tensor(array, device=device), power)
    expected = np.linalg.matrix_power(array, power)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, strict=True)


def test_a_power_of_integers_stays_integer(device: br.Device) -> None:
    array = np.array([[1, 1], [1, 0]])
    found = br.linalg.matrix_power(br.tensor(array, device=device), 40)
    np.testing.assert_array_equal(found.numpy(), np.linalg.matrix_power(array, 40), strict=True)


@pytest.mark.parametrize("array", [MATRICES[0], MATRICES[1], low_rank(4, 4, rank=2)])
@pytest.mark.parametrize("columns", [None, 2])
def test_least_squares_are_those_of_numpy(
    array: Array, columns: int | None, device: br.Device
) -> None:
    rows = array.shape[0]
    right = np.random.default_rng(4).normal(size=(rows,) if columns is None else (rows, columns))
    found = br.linalg.lstsq(br.tensor(array, device=device), br.tensor(right, device=device))
    solution, _, rank, values = np.linalg.lstsq(array, right)
    np.testing.assert_allclose(found.solution.numpy(), solution, atol=1e-10, strict=True)
    residuals = ((array @ solution - right) ** 2).sum(axis=0)
    np.testing.assert_allclose(found.residuals.numpy(), residuals, atol=1e-10)
    assert found.rank.item() == rank
    np.testing.assert_allclose(found.singular_values.numpy(), values, atol=1e-10)


def test_the_gradient_of_a_pseudoinverse_is_that_among_matrices_of_its_rank(
    device: br.Device,
) -> None:
    random = np.random.default_rng(5)
    left, right, weights = (random.normal(size=size) for size in [(4, 2), (2, 3), (3, 4)])

    def total(factor: br.Tensor) -> br.Tensor:
        inverse = br.linalg.pinv(factor @ br.tensor(right, device=device))
        return (inverse * br.tensor(weights, device=device)).sum()

    x = br.tensor(left, device=device).requires_grad_()
    total(x).backward()
    expected = np.zeros(left.shape)
    for index in np.ndindex(*left.shape):
        step = np.zeros(left.shape)
        step[index] = 1e-6
        high, low = (total(br.tensor(left + sign * step, device=device)) for sign in (1, -1))
        expected[index] = (high.item() - low.item()) / 2e-6
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "arguments"),
    [
        ((3,), {}),
        ((2, 3), {}),
        ((2, 3, 4), {}),
        ((2, 3, 4), {"axis": 1, "keepdims": True}),
        ((3,), {"ord": 1}),
        ((2, 3), {"ord": "nuc"}),
        ((2, 3), {"ord": 2, "keepdims": True}),
        ((2, 3, 4), {"ord": 1, "axis": (0, 2)}),
        ((2, 3, 4), {"ord": "fro", "axis": (2, 0), "keepdims": True}),
        ((2, 3, 4), {"ord": np.inf, "axis": -1}),
    ],
)
def test_norm_chooses_between_vectors_and_matrices_as_numpy_does(
    shape: tuple[int, ...], arguments: dict[str, Any]
) -> None:
    array = np.random.default_rng(0).standard_normal(shape)
    with br.LocalDevice() as device:
        seen = br.linalg.norm(br.tensor(array, device=device), **arguments).numpy()
    np.testing.assert_allclose(seen, np.linalg.norm(array, **arguments), rtol=1e-12)


def test_norm_refuses_axes_that_are_no_vector_and_no_matrix() -> None:
    with br.LocalDevice() as device:
        x = br.ones((2, 3, 4), device=device)
        with pytest.raises(br.UsageError, match="one or two axes"):
            br.linalg.norm(x, 1)
        with pytest.raises(br.UsageError, match="norm of matrices"):
            br.linalg.norm(x, "fro", axis=0)
