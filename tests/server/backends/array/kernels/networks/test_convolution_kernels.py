"""Convolutions and their gradients follow the definition on every code path."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burn_remote_protocol.errors import ShapeMismatch
from burn_remote_server.backends.array.kernels.networks.module_kernels import WORKSPACE_BYTES
from support.gradients import numeric_gradient
from support.layers import Convolution, convolutions, convolve
from support.module_kernels import BFLOAT16, call_kernel, normal, run

# Bytes for one row of windows, for a few, for all of a small test's images.
WORKSPACES = st.sampled_from([1, 512, 2048, WORKSPACE_BYTES])
OPTIONS: dict[str, Any] = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}


@given(convolutions(), WORKSPACES)
@settings(deadline=None)
def test_a_convolution_matches_its_definition(layer: Convolution, workspace: int) -> None:
    name = f"Conv{layer.rank}d"
    found = run(
        name,
        layer.x,
        layer.weight,
        layer.bias,
        **layer.options,
        settings={"workspace_bytes": workspace},
    )
    np.testing.assert_allclose(found, convolve(layer), rtol=1e-10, atol=1e-10)


@given(convolutions(), WORKSPACES)
@settings(deadline=None, max_examples=40)
def test_gradients_match_finite_differences(layer: Convolution, workspace: int) -> None:
    name, options = f"Conv{layer.rank}d", layer.options
    limit = {"workspace_bytes": workspace}

    def forward(x: Any, weight: Any, bias: Any) -> Any:
        return run(name, x, weight, bias, **options)

    x, weight, bias = layer.x, layer.weight, layer.bias
    grad = normal(7, *forward(x, weight, bias).shape)
    tensors = (x, weight, grad)
    x_grad = run(f"{name}XBackward", *tensors, **options, settings=limit)
    weight_grad = run(f"{name}WeightBackward", *tensors, **options, settings=limit)
    # Linear in each tensor, so finite differences are exact up to rounding for any step.
    expected = numeric_gradient(lambda x: forward(x, weight, bias), x, grad, step=1.0)
    np.testing.assert_allclose(x_grad, expected, rtol=1e-9, atol=1e-9)
    expected = numeric_gradient(lambda weight: forward(x, weight, bias), weight, grad, step=1.0)
    np.testing.assert_allclose(weight_grad, expected, rtol=1e-9, atol=1e-9)
    if bias is not None:
        bias_grad = run(f"{name}BiasBackward", x, bias, grad)
        expected = numeric_gradient(lambda bias: forward(x, weight, bias), bias, grad, step=1.0)
        np.testing.assert_allclose(bias_grad, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
def test_low_precision_sums_in_float32(dtype: Any) -> None:
    # A sum of 4096 ones: float16 represents it, a bfloat16 sum would stop at 256.
    x, weight = np.ones((1, 4096, 1), dtype), np.ones((1, 4096, 1), dtype)
    options: dict[str, Any] = {"stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1}
    found = run("Conv1d", x, weight, None, **options)
    assert found.dtype == dtype
    assert float(found[0, 0, 0]) == 4096.0


def test_infinities_affect_only_their_own_windows() -> None:
    x = np.zeros((1, 1, 5), np.float32)
    x[0, 0, 0] = np.inf
    options: dict[str, Any] = {"stride": (1,), "padding": (1,), "dilation": (1,), "groups": 1}
    found = run("Conv1d", x, np.ones((1, 1, 3), np.float32), None, **options)
    np.testing.assert_array_equal(found[0, 0], [np.inf, np.inf, 0, 0, 0])


def test_a_strided_view_is_convolved_like_its_copy() -> None:
    x = normal(1, 6, 5, 4, 2, dtype=np.float32).transpose(3, 2, 1, 0)
    weight = normal(2, 3, 4, 2, 2, dtype=np.float32)
    found = run("Conv2d", x, weight, None, **OPTIONS)
    np.testing.assert_array_equal(
        found, run("Conv2d", np.ascontiguousarray(x), weight, None, **OPTIONS)
    )


@pytest.mark.parametrize("name", ["Conv2d", "Conv2dXBackward", "Conv2dWeightBackward"])
def test_scratch_memory_stays_below_twice_the_workspace(name: str) -> None:
    x, weight = np.zeros((8, 16, 96, 96), np.float32), np.zeros((4, 16, 3, 3), np.float32)
    third = None if name == "Conv2d" else np.zeros((8, 4, 94, 94), np.float32)
    result = run(name, x, weight, third, **OPTIONS)
    tracemalloc.start()
    call_kernel(name, x, weight, third, **OPTIONS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # All columns at once would take 39 MiB.
    assert peak - result.nbytes < 2 * WORKSPACE_BYTES


@pytest.mark.parametrize(
    ("shapes", "changed", "words"),
    [
        (((1, 4, 5), (2, 4, 3, 3), None), {}, r"shape of x is \[1, 4, 5\], expected 4 axes"),
        (((1, 4, 5, 5), (2, 4, 3), None), {}, r"shape of weight is \[2, 4, 3\], expected 4 axes"),
        (((1, 4, 5, 5), (2, 3, 3, 3), None), {}, r"shape of weight .* expected \[2, 4, 3, 3\]"),
        (((1, 4, 5, 5), (2, 4, 3, 3), (3,)), {}, r"shape of bias is \[3\], expected \[2\]"),
        (((1, 4, 5, 5), (3, 2, 3, 3), None), {"groups": 2}, "groups is 2, .* divisor of filters=3"),
        (((1, 3, 5, 5), (2, 1, 3, 3), None), {"groups": 2}, "groups is 2, .* of channels=3"),
        (((1, 4, 5, 5), (2, 4, 3, 3), None), {"groups": 0}, "groups is 0"),
        (((1, 4, 5, 5), (2, 4, 6, 3), None), {}, r"kernel_size is \[6, 3\], .* \[5, 5\]"),
    ],
)
def test_a_mismatched_layer_is_refused_by_name(
    shapes: tuple[Any, ...], changed: dict[str, Any], words: str
) -> None:
    tensors = [None if shape is None else np.zeros(shape) for shape in shapes]
    with pytest.raises(ShapeMismatch, match=f"^Conv2d: {words}"):
        call_kernel("Conv2d", *tensors, **(OPTIONS | changed))


@pytest.mark.parametrize("name", ["Conv2dXBackward", "Conv2dWeightBackward"])
def test_a_gradient_of_another_shape_is_refused(name: str) -> None:
    x, weight, grad = np.zeros((1, 2, 5, 5)), np.zeros((3, 2, 3, 3)), np.zeros((1, 3, 4, 3))
    with pytest.raises(ShapeMismatch, match=rf"^{name}: shape of output_grad .* \[1, 3, 3, 3\]"):
        call_kernel(name, x, weight, grad, **OPTIONS)


def test_a_bias_gradient_needs_as_many_channels_as_the_bias() -> None:
    with pytest.raises(ShapeMismatch, match=r"shape of bias is \[2\], expected \[3\]"):
        call_kernel(
            "Conv2dBiasBackward", np.zeros((1, 2, 5, 5)), np.zeros(2), np.zeros((1, 3, 4, 3))
        )


def test_a_kernel_without_channels_costs_nothing_however_large_it_is() -> None:
    x, weight = np.zeros((1, 0, 8)), np.zeros((4, 0, 2**40))
    options: dict[str, Any] = {"stride": (1,), "padding": (2**39,), "dilation": (1,), "groups": 1}
    y = run("Conv1d", x, weight, None, **options)
    np.testing.assert_array_equal(y, np.zeros((1, 4, 9)))
    assert run("Conv1dXBackward", x, weight, y, **options).shape == x.shape
    assert run("Conv1dWeightBackward", x, weight, y, **options).shape == weight.shape
