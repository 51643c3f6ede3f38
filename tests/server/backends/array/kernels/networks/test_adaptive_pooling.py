"""Adaptive pooling averages ranges that cover the input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burn_remote_protocol.errors import ShapeMismatch
from support.gradients import numeric_gradient
from support.module_kernels import Array, call_kernel, normal, run

SIZES = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 9)), min_size=1, max_size=2)


def means(x: Array, outputs: tuple[int, ...]) -> Array:
    y = np.zeros((*x.shape[:2], *outputs))
    everywhere = (slice(None), slice(None))
    for window in np.ndindex(*outputs):
        ranges = [
            slice(math.floor(o * size / n), math.ceil((o + 1) * size / n))
            for o, size, n in zip(window, x.shape[2:], outputs, strict=True)
        ]
        axes = tuple(range(2, x.ndim))
        y[(..., *window)] = x[(*everywhere, *ranges)].mean(axis=axes)
    return y


@given(SIZES, st.integers(0, 2))
@settings(deadline=None)
def test_means_and_gradients_match_their_definition(
    sizes: list[tuple[int, int]], batch: int
) -> None:
    rank = len(sizes)
    x = normal(1, batch, 2, *[size for size, _ in sizes])
    outputs = tuple(n for _, n in sizes)
    name = f"AdaptiveAvgPool{rank}d"
    parameter = outputs if rank == 2 else outputs[0]
    found = run(name, x, output_size=parameter)
    np.testing.assert_allclose(found, means(x, outputs), rtol=1e-12, atol=1e-12)
    grad = normal(2, *found.shape)
    back = run(f"{name}Backward", x, grad)
    expected = numeric_gradient(lambda x: means(x, outputs), x, grad, step=1.0)
    np.testing.assert_allclose(back, expected, rtol=1e-9, atol=1e-9)


def test_infinities_affect_only_their_own_windows() -> None:
    x = np.array([[[np.inf, 0, 2, 4]]], np.float32)
    np.testing.assert_array_equal(run("AdaptiveAvgPool1d", x, output_size=2), [[[np.inf, 3]]])


def test_empty_outputs_and_empty_inputs_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match=r"output_size is \[0\], expected values of at least 1"):
        call_kernel("AdaptiveAvgPool1d", np.zeros((1, 1, 4)), output_size=0)
    with pytest.raises(ShapeMismatch, match=r"spatial size of x is \[0\]"):
        call_kernel("AdaptiveAvgPool1d", np.zeros((1, 1, 0)), output_size=2)
    with pytest.raises(ShapeMismatch, match=r"shape of grad is \[2, 1, 3\]"):
        call_kernel("AdaptiveAvgPool1dBackward", np.zeros((1, 1, 4)), np.zeros((2, 1, 3)))


def test_a_long_axis_takes_few_steps_forward_and_backward() -> None:
    x = normal(7, 1, 1, 300_000)
    means = run("AdaptiveAvgPool1d", x, output_size=3)
    np.testing.assert_allclose(means[0, 0], x.reshape(3, -1).mean(axis=1), atol=1e-12)
    spread = run("AdaptiveAvgPool1dBackward", means, x)
    np.testing.assert_allclose(spread[0, 0], x.reshape(3, -1).sum(axis=1))


def test_an_empty_batch_costs_nothing_however_long_its_axes_are() -> None:
    x = np.zeros((0, 1, 8), np.float32)
    means = run("AdaptiveAvgPool1d", x, output_size=2**40)
    assert means.shape == (0, 1, 2**40)
    assert run("AdaptiveAvgPool1dBackward", x, means).shape == x.shape
