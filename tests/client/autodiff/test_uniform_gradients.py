"""Gradients whose elements are all one number: their values, and the operations they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from support.runners import RecordingDevice

# A function of a matrix [2, 3] of ones whose gradient is uniform, and that gradient, by hand.
CASES: Final[dict[str, tuple[Callable[[Any], Any], float]]] = {
    "sum": (br.sum, 1.0),
    "mean": (br.mean, 1 / 6),
    "mean of means": (lambda x: x.mean(axis=1).mean(), 1 / 6),
    "sum of means": (lambda x: x.mean(axis=0, keepdims=True).sum(), 1 / 2),
    "scaled": (lambda x: (x * 3.0 / 4.0).sum(), 0.75),
    "scaled by integers": (lambda x: (x * 3 / 4).sum(), 0.75),
    "shifted": (lambda x: (1.0 + x - 2.0).mean(), 1 / 6),
    "subtracted": (lambda x: (5.0 - x).sum(), -1.0),
    "views": (lambda x: br.flip(x.T.reshape(6), 0).permute_dims((0,)).sum(), 1.0),
    "repeated": (lambda x: br.broadcast_to(x, (5, 2, 3)).sum(), 5.0),
    "broadcast": (
        lambda x: (
            x.reshape(2, 3, 1) + br.zeros((2, 3, 4), dtype=br.float64, device=x.device)
        ).sum(),
        4.0,
    ),
    "subtracted and broadcast": (
        lambda x: (br.zeros((4, 2, 3), dtype=br.float64, device=x.device) - x).mean(),
        -1 / 6,
    ),
    "used twice": (lambda x: (x + x * 2.0).sum(), 3.0),
    "cancelled": (lambda x: (x - x).sum(), 0.0),
}


@pytest.mark.parametrize("name", CASES)
def test_a_uniform_gradient_is_that_of_the_formula(name: str, device: br.Device) -> None:
    function, expected = CASES[name]
    gradient = br.grad(function)(device.tensor(np.ones((2, 3))))
    np.testing.assert_allclose(gradient.numpy(), np.full((2, 3), expected), rtol=1e-15)


@pytest.mark.parametrize("name", CASES)
def test_a_uniform_gradient_is_filled_by_one_operation(name: str) -> None:
    function, _ = CASES[name]
    device = RecordingDevice()
    x = device.tensor(np.ones((2, 3))).requires_grad_()
    loss = function(x)
    before = len(device.runner.names)
    loss.backward()
    assert device.runner.names[before:] == ["NumericFloat.Full"]


def test_a_formula_of_elements_gets_a_tensor_of_the_uniform_gradient() -> None:
    device = RecordingDevice()
    x = device.tensor(np.ones((2, 3))).requires_grad_()
    loss = br.exp(x).mean()
    before = len(device.runner.names)
    loss.backward()
    assert device.runner.names[before:] == ["NumericFloat.Full", "NumericFloat.Mul"]


def test_the_gradient_of_an_empty_mean_is_empty(device: br.Device) -> None:
    gradient = br.grad(lambda x: (x * 2.0).sum())(device.tensor(np.ones((0, 3))))
    assert gradient.shape == (0, 3)
    gradient = br.grad(lambda x: (x + br.ones((1, 3), dtype=br.float64, device=device)).sum())(
        device.tensor(np.ones((0, 3)))
    )
    assert gradient.shape == (0, 3)


def test_a_division_by_zero_gives_an_infinite_gradient(device: br.Device) -> None:
    gradient = br.grad(lambda x: (x / 0.0).sum())(device.tensor([1.0, 2.0]))
    assert np.all(np.isinf(gradient.numpy()))


def test_a_changing_number_of_a_compiled_function_stays_live(device: br.Device) -> None:
    @br.compile
    def gradient(x: br.Tensor, scale: float) -> br.Tensor:
        found: br.Tensor = br.grad(lambda x: (x * scale).sum())(x)
        return found

    x = device.tensor([1.0, 2.0])
    for scale in (3.0, 5.0, 7.0):
        np.testing.assert_array_equal(gradient(x, scale).numpy(), [scale, scale])


def test_the_gradient_of_a_result_between_is_a_tensor(device: br.Device) -> None:
    x = device.tensor([1.0, 3.0]).requires_grad_()
    y = br.exp(x)
    (gradient,) = br.autograd.grad(y.mean(), y)
    assert gradient is not None
    np.testing.assert_array_equal(gradient.numpy(), [0.5, 0.5])


def test_cross_entropy_by_matrices_trains_with_at_most_42_operations() -> None:
    device = RecordingDevice()
    shapes = ((784, 128), (128,), (128, 10), (10,))
    weights = [device.tensor(np.zeros(shape, np.float32)) for shape in shapes]
    x = device.tensor(np.zeros((64, 784), np.float32))
    labels = device.tensor(np.zeros(64, np.int64))

    def loss_of(weights: list[br.Tensor]) -> br.Tensor:
        hidden = F.relu(x @ weights[0] + weights[1])
        logits = hidden @ weights[2] + weights[3]
        return F.cross_entropy(logits, labels, ignore_index=None)

    before = len(device.runner.names)
    _, grads = br.value_and_grad(loss_of)(weights)
    for weight, grad in zip(weights, grads, strict=True):
        weight - grad * 0.1  # the update
    assert 31 <= len(device.runner.names) - before <= 42
