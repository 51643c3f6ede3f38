"""Initializers draw from the distributions of the papers and of PyTorch's documentation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import burn_remote as br
from burn_remote import init

# With 200,000 numbers the standard error of the mean is std / 447, and that of the standard
# deviation std / 632. Bounds of five standard errors are exceeded once in two million runs, and
# seeds are fixed.
SHAPE = (500, 100, 2, 2)
COUNT = math.prod(SHAPE)
FAN_IN, FAN_OUT = 400, 2000


@pytest.fixture
def device() -> Iterator[br.Device]:
    with br.LocalDevice() as local:
        local.seed(20)
        yield local


def is_uniform(values: np.ndarray[Any, Any], low: float, high: float) -> None:
    """Apply the Kolmogorov-Smirnov test at the 0.1 % level."""
    found = np.sort(values.reshape(-1).astype(np.float64))
    assert low <= found[0]
    assert found[-1] <= high
    distance = np.abs((found - low) / (high - low) - np.arange(1, found.size + 1) / found.size)
    assert distance.max() < 1.95 / math.sqrt(found.size)


def is_normal(values: np.ndarray[Any, Any], mean: float, std: float) -> None:
    found = np.sort(values.reshape(-1).astype(np.float64))
    places = np.linspace(0, found.size - 1, 2001).astype(int)
    below = np.array([NormalDist(mean, std).cdf(number) for number in found[places]])
    assert np.abs(below - (places + 0.5) / found.size).max() < 1.95 / math.sqrt(found.size)
    assert abs(found.std() / std - 1) < 5 / math.sqrt(2 * found.size)


UNIFORM: list[tuple[Callable[..., br.Tensor], dict[str, Any], float]] = [
    (init.xavier_uniform, {}, math.sqrt(6 / 2400)),
    (init.xavier_uniform, {"gain": 3.0}, 3 * math.sqrt(6 / 2400)),
    (init.kaiming_uniform, {}, math.sqrt(6 / 400)),
    (init.kaiming_uniform, {"mode": "fan_out"}, math.sqrt(6 / 2000)),
    (init.kaiming_uniform, {"a": math.sqrt(5)}, math.sqrt(1 / 400)),
    (init.kaiming_uniform, {"nonlinearity": "tanh"}, 5 / 3 * math.sqrt(3 / 400)),
]
NORMAL: list[tuple[Callable[..., br.Tensor], dict[str, Any], float]] = [
    (init.xavier_normal, {}, math.sqrt(2 / 2400)),
    (init.kaiming_normal, {}, math.sqrt(2 / 400)),
    (init.kaiming_normal, {"nonlinearity": "linear", "mode": "fan_out"}, math.sqrt(1 / 2000)),
    (init.kaiming_normal, {"nonlinearity": "selu"}, 0.75 * math.sqrt(1 / 400)),
]


@pytest.mark.parametrize(("function", "options", "bound"), UNIFORM)
def test_uniform_initializers_have_their_distribution(
    device: br.Device, function: Callable[..., br.Tensor], options: dict[str, Any], bound: float
) -> None:
    values = function(SHAPE, **options, device=device).numpy()
    is_uniform(values, -bound * (1 + 1e-6), bound * (1 + 1e-6))


@pytest.mark.parametrize(("function", "options", "std"), NORMAL)
def test_normal_initializers_have_their_distribution(
    device: br.Device, function: Callable[..., br.Tensor], options: dict[str, Any], std: float
) -> None:
    is_normal(function(SHAPE, **options, device=device).numpy(), 0, std)


def test_plain_distributions_and_constants_match_their_arguments(device: br.Device) -> None:
    is_uniform(init.uniform(SHAPE, -2, 5, device=device).numpy(), -2, 5)
    is_normal(init.normal(SHAPE, 3, 0.5, device=device).numpy(), 3, 0.5)
    assert init.constant((2,), 1.5, device=device).tolist() == [1.5, 1.5]
    assert init.zeros((2,), device=device).tolist() == [0, 0]
    assert init.ones(2, device=device).tolist() == [1, 1]
    assert init.eye((2, 3), device=device).tolist() == [[1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    ("mean", "std", "a", "b"), [(0.0, 1.0, -2.0, 2.0), (0.0, 0.02, -2.0, 2.0), (1.0, 2.0, 2.0, 9.0)]
)
def test_a_truncated_normal_distribution_lies_between_its_bounds(
    device: br.Device, mean: float, std: float, a: float, b: float
) -> None:
    values = init.trunc_normal(SHAPE, mean, std, a, b, device=device).numpy().astype(np.float64)
    assert a <= values.min() <= values.max() <= b
    whole = NormalDist(mean, std)
    low, high = whole.cdf(a), whole.cdf(b)
    found = np.sort(values.reshape(-1))
    places = np.linspace(0, COUNT - 1, 2001).astype(int)
    below = np.array([(whole.cdf(number) - low) / (high - low) for number in found[places]])
    assert np.abs(below - (places + 0.5) / COUNT).max() < 1.95 / math.sqrt(COUNT)


@pytest.mark.parametrize("shape", [(7, 7), (4, 9), (9, 4), (6, 2, 3, 1), (1, 5), (5, 1)])
def test_rows_or_columns_are_orthogonal(device: br.Device, shape: tuple[int, ...]) -> None:
    weight = init.orthogonal(shape, gain=2.0, dtype=br.float64, device=device).numpy()
    assert weight.shape == shape
    matrix = weight.reshape(shape[0], -1)
    few = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    np.testing.assert_allclose(few @ few.T, 4 * np.eye(len(few)), atol=1e-12)


def test_orthogonal_matrices_are_uniformly_distributed(device: br.Device) -> None:
    # In the uniform distribution each element has mean 0 and mean square 1/n, and half of the
    # matrices have determinant 1.
    draws = np.array(
        [init.orthogonal((3, 3), dtype=br.float64, device=device).numpy() for _ in range(600)]
    )
    assert np.abs(draws.mean(0)).max() < 5 / math.sqrt(3 * 600)
    assert np.abs((draws**2).mean(0) - 1 / 3).max() < 5 * 0.3 / math.sqrt(600)
    assert abs(float(np.mean(np.linalg.det(draws) > 0)) - 0.5) < 2.5 / math.sqrt(600)


@pytest.mark.parametrize("dtype", [br.float16, br.bfloat16, br.float64], ids=str)
def test_every_initializer_returns_the_given_dtype(device: br.Device, dtype: br.DType) -> None:
    expected = ml_dtypes.bfloat16 if dtype is br.bfloat16 else str(dtype)
    for function in (init.kaiming_uniform, init.xavier_normal, init.trunc_normal, init.orthogonal):
        values = function((4, 8), dtype=dtype, device=device).numpy()
        assert values.dtype == expected
        assert np.isfinite(values.astype(np.float64)).all()


def test_the_same_seed_gives_the_same_weights(device: br.Device) -> None:
    first = init.kaiming_normal((3, 4), device=device).numpy()
    device.seed(20)
    np.testing.assert_array_equal(init.kaiming_normal((3, 4), device=device).numpy(), first)


def test_gains_match_pytorchs_documentation() -> None:
    assert init.calculate_gain("linear") == init.calculate_gain("conv2d") == 1
    assert init.calculate_gain("sigmoid") == 1
    assert init.calculate_gain("tanh") == 5 / 3
    assert init.calculate_gain("relu") == math.sqrt(2)
    assert init.calculate_gain("leaky_relu", 0.2) == math.sqrt(2 / 1.04)
    assert init.calculate_gain("leaky_relu") == math.sqrt(2 / 1.0001)
    assert init.calculate_gain("selu") == 0.75


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: init.kaiming_uniform((3,)), r"\[3\] must be the shape of a weight"),
        (lambda: init.xavier_normal((3, 0)), "must be the shape of a weight"),
        (
            lambda: init.kaiming_normal((3, 3), mode="fan"),
            "mode must be 'fan_in' or 'fan_out', not 'fan'",
        ),
        (
            lambda: init.kaiming_normal((3, 3), nonlinearity="rleu"),
            "nonlinearity must be one of .*relu.*, not 'rleu'",
        ),
        (lambda: init.trunc_normal((3,), a=2, b=1), "a must be less than b .*, not a=2, b=1"),
        (lambda: init.trunc_normal((3,), a=50, b=51), "too far from mean"),
        (lambda: init.orthogonal((3,)), "must be a shape \\[out, in"),
        (lambda: init.eye((3, 3, 3)), "must be the shape of a matrix"),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(br.UsageError, match=sentence):
        call()


@pytest.mark.parametrize("name", [name for name in init.__all__ if name != "calculate_gain"])
def test_initial_weights_can_be_tracked(device: br.Device, name: str) -> None:
    arguments = ((3, 4), 0.5) if name == "constant" else ((3, 4),)
    made = getattr(init, name)(*arguments, device=device, requires_grad=True)
    assert made.requires_grad
    assert made.is_leaf
    assert not getattr(init, name)(*arguments, device=device).requires_grad
