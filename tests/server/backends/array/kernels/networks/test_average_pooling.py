"""Average pooling and its gradients follow the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burn_remote_protocol.errors import ShapeMismatch
from support.gradients import numeric_gradient
from support.kernels import compute
from support.layers import Pooling, poolings
from support.module_kernels import Array, call_kernel, normal, run


def means(layer: Pooling, include_padding: bool) -> Array:
    """Average by definition, element by element of each window."""
    y = np.zeros((*layer.x.shape[:2], *layer.outputs))
    sizes = layer.x.shape[2:]
    kernel, stride, padding, _ = layer.geometry
    for window in np.ndindex(*layer.outputs):
        count = 0
        for tap in np.ndindex(*kernel):
            place = tuple(
                o * s + k - p for o, s, k, p in zip(window, stride, tap, padding, strict=True)
            )
            inside = all(0 <= at < n for at, n in zip(place, sizes, strict=True))
            padded = all(-p <= at < n + p for at, n, p in zip(place, sizes, padding, strict=True))
            count += padded if include_padding else inside
            if inside:
                y[(..., *window)] += layer.x[(..., *place)]
        y[(..., *window)] /= max(count, 1)
    return y


@given(poolings(dilated=False), st.booleans())
@settings(deadline=None)
def test_means_match_their_definition(layer: Pooling, include_padding: bool) -> None:
    options = layer.options() | {"count_include_pad": include_padding}
    found = run(f"AvgPool{layer.rank}d", layer.x, **options)
    np.testing.assert_allclose(found, means(layer, include_padding), rtol=1e-12, atol=1e-12)


@given(poolings(dilated=False), st.booleans())
@settings(deadline=None, max_examples=40)
def test_gradients_match_finite_differences(layer: Pooling, include_padding: bool) -> None:
    name = f"AvgPool{layer.rank}d"
    options = layer.options() | {"count_include_pad": include_padding}
    grad = normal(1, *layer.x.shape[:2], *layer.outputs)
    found = run(f"{name}Backward", layer.x, grad, **options)
    expected = numeric_gradient(lambda x: run(name, x, **options), layer.x, grad, step=1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_infinities_affect_only_their_own_windows() -> None:
    x = np.array([[[np.inf, 0, 2, 4]]], np.float32)
    options: dict[str, Any] = {"kernel_size": 2, "stride": 2, "padding": 0}
    options |= {"count_include_pad": True, "ceil_mode": False}
    np.testing.assert_array_equal(run("AvgPool1d", x, **options), [[[np.inf, 3]]])


def test_a_gradient_of_another_shape_is_refused() -> None:
    options: dict[str, Any] = {"kernel_size": 2, "stride": 2, "padding": 0}
    options |= {"count_include_pad": True, "ceil_mode": False}
    with pytest.raises(ShapeMismatch, match=r"AvgPool1dBackward: shape of grad .* \[1, 1, 2\]"):
        call_kernel("AvgPool1dBackward", np.zeros((1, 1, 4)), np.zeros((1, 1, 3)), **options)


@pytest.mark.parametrize("count_include_pad", [False, True])
def test_windows_far_larger_than_the_input_cost_no_more_than_it(count_include_pad: bool) -> None:
    x = np.arange(12, dtype=np.float64).reshape(1, 2, 6)
    count = 2**33 if count_include_pad else 6
    options: dict[str, Any] = {"kernel_size": 2**33, "stride": 2**33, "padding": 2**32}
    options |= {"count_include_pad": count_include_pad, "ceil_mode": False}
    means = run("AvgPool1d", x, **options)
    np.testing.assert_array_equal(means, x.sum(axis=2, keepdims=True) / count)
    grad = run("AvgPool1dBackward", x, np.ones_like(means), **options)
    np.testing.assert_array_equal(grad, np.full(x.shape, 1 / count))


def test_an_empty_batch_costs_nothing_however_long_its_axes_are() -> None:
    x = np.zeros((0, 1, 2**33), np.float32)
    options: dict[str, Any] = {"kernel_size": 2**32, "stride": 1, "padding": 0}
    options |= {"count_include_pad": True, "ceil_mode": False}
    means = run("AvgPool1d", x, **options)
    assert means.shape == (0, 1, 2**32 + 1)
    assert run("AvgPool1dBackward", x, means, **options).shape == x.shape


def test_a_stride_beyond_all_tensors_is_refused() -> None:
    image = np.ones((1, 1, 4), np.float32)
    options: dict[str, Any] = {
        "kernel_size": 2,
        "padding": 0,
        "count_include_pad": True,
        "ceil_mode": False,
    }
    with pytest.raises(ShapeMismatch, match="at most"):
        compute("Module.AvgPool1d", image, stride=2**64 - 1, **options)
