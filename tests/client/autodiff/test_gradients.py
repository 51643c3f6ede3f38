"""Gradients by the tape, compared with finite differences."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from support.differences import numeric_gradients

RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.uniform(0.5, 1.5, (3, 4))
OTHER = RANDOM.uniform(0.5, 1.5, (3, 4))
ROW = RANDOM.uniform(0.5, 1.5, 4)
WIDE = RANDOM.uniform(-1.0, 1.0, (4, 2))

Function = Callable[..., br.Tensor]

CASES: dict[str, tuple[Function, tuple[np.ndarray[Any, Any], ...]]] = {
    "reshape": (lambda x, y: (x.reshape(12) * y.reshape(12)).sum(), (MATRIX, OTHER)),
    "expand": (lambda x: (br.broadcast_to(x, (3, 4)) * br.broadcast_to(x, (3, 4))).sum(), (ROW,)),
    "swap": (lambda x, y: (x.mT * y.mT).sum(), (MATRIX, OTHER)),
    "permute": (
        lambda x, y: (
            br.permute_dims(x.reshape((2, 3, 2)), (2, 0, 1))
            * br.permute_dims(y.reshape((2, 3, 2)), (2, 0, 1))
        ).sum(),
        (MATRIX, OTHER),
    ),
    "add": (lambda x, y: ((x + y + 2.0) * y).sum(), (MATRIX, ROW)),
    "subtract": (lambda x, y: ((x - y - 2.0) * (1.0 - y)).sum(), (MATRIX, ROW)),
    "multiply": (lambda x, y: (x * y * 3.0 * y).sum(), (MATRIX, ROW)),
    "divide": (lambda x, y: (x / y / 3.0).sum(), (MATRIX, ROW)),
    "matmul": (lambda x, y: ((x @ y) * (x @ y)).sum(), (MATRIX, WIDE)),
    "sum": (lambda x: (x.sum(axis=0) * x.sum(axis=0)).sum() * x.sum(), (MATRIX,)),
    "mean": (lambda x: (x.mean(axis=1) * x.mean(axis=1)).sum() * x.mean(), (MATRIX,)),
    "exp": (lambda x: br.exp(x).sum(), (MATRIX,)),
    "log": (lambda x: br.log(x).sum(), (MATRIX,)),
    "tanh": (lambda x: br.tanh(x).sum(), (MATRIX,)),
    "repeated input": (lambda x: (x * x * x).sum(), (MATRIX,)),
    "unused broadcast": (lambda x, y: (y + x).sum() * x.sum(), (ROW[:1], MATRIX)),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences(name: str, device: br.Device) -> None:
    function, arrays = CASES[name]
    leaves = [device.tensor(array).requires_grad_() for array in arrays]
    function(*leaves).backward()
    for leaf, expected in zip(leaves, numeric_gradients(function, device, *arrays), strict=True):
        assert leaf.grad is not None
        np.testing.assert_allclose(leaf.grad.numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_second_gradients_are_those_of_finite_differences(name: str, device: br.Device) -> None:
    function, arrays = CASES[name]

    def of_gradients(*tensors: br.Tensor) -> br.Tensor:
        found = br.grad(function, range(len(arrays)))(*tensors)
        parts = [(one * one).sum() * (place + 1.0) for place, one in enumerate(found)]
        total: br.Tensor = functools.reduce(br.add, parts)
        return total

    found = br.grad(of_gradients, range(len(arrays)))(*[device.tensor(one) for one in arrays])
    for gradient, expected in zip(
        found, numeric_gradients(of_gradients, device, *arrays), strict=True
    ):
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_a_compiled_step_with_gradients_is_one_task(device: br.Device) -> None:
    @br.compile
    def step(w: br.Tensor, x: br.Tensor, rate: float) -> tuple[br.Tensor, br.Tensor]:
        loss, gradient = br.value_and_grad(lambda w: br.tanh(x @ w * rate).sum())(w)
        return w - gradient * rate, loss

    w, x = device.tensor(WIDE), device.tensor(MATRIX)
    expected = WIDE
    for rate in (0.5, 0.25, 0.125):
        w, loss = step(w, x, rate)
        hidden = np.tanh(MATRIX @ expected * rate)
        np.testing.assert_allclose(loss.item(), hidden.sum())
        expected = expected - rate * rate * (MATRIX.T @ (1 - hidden**2))
        np.testing.assert_allclose(w.numpy(), expected)
    assert repr(step).endswith("1 graph>")
