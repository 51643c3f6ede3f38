"""Deformable convolutions and their gradients sample bilinearly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burn_remote_protocol.errors import ShapeMismatch
from burn_remote_server.backends.array.kernels.networks.module_kernels import WORKSPACE_BYTES
from support.gradients import numeric_gradient
from support.module_kernels import Array, call_kernel, normal, run


@dataclass(frozen=True, slots=True)
class Layer:
    x: Array
    offset: Array
    weight: Array
    mask: Array | None
    bias: Array | None
    options: dict[str, Any]

    @property
    def tensors(self) -> tuple[Array | None, ...]:
        return self.x, self.offset, self.weight, self.mask, self.bias


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    def pair(low: int, high: int) -> tuple[int, int]:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    weight_groups, offset_groups = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]))
    channels, filters = 2 * draw(st.integers(1, 2)), 2 * draw(st.integers(1, 2))
    kernel, stride, padding, dilation = pair(1, 2), pair(1, 2), pair(0, 1), pair(1, 2)
    sizes, batch, seed = pair(3, 4), draw(st.integers(0, 2)), draw(st.integers(0, 2**32))
    outputs = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip(sizes, kernel, stride, padding, dilation, strict=True)
    ]
    taps = math.prod(kernel) * offset_groups
    return Layer(
        normal(seed, batch, channels, *sizes),
        normal(seed + 1, batch, 2 * taps, *outputs) * draw(st.sampled_from([0.4, 3.0])),
        normal(seed + 2, filters, channels // weight_groups, *kernel),
        draw(st.sampled_from([None, normal(seed + 3, batch, taps, *outputs)])),
        draw(st.sampled_from([None, normal(seed + 4, filters)])),
        {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "weight_groups": weight_groups,
            "offset_groups": offset_groups,
        },
    )


def sample(plane: Array, row: float, column: float) -> float:
    """Sample bilinearly by weighting all elements; those a step or more away have weight 0."""
    rows = np.maximum(0, 1 - np.abs(np.arange(plane.shape[0]) - row))
    columns = np.maximum(0, 1 - np.abs(np.arange(plane.shape[1]) - column))
    return float(rows @ plane @ columns)


def convolve(layer: Layer) -> Array:
    x, options = layer.x, layer.options
    filters, per_group, *kernel = layer.weight.shape
    outputs = layer.offset.shape[2:]
    taps = math.prod(kernel)
    y = np.zeros((x.shape[0], filters, *outputs))
    for n, o, *at in np.ndindex(*y.shape):
        for c, *tap in np.ndindex(per_group, *kernel):
            channel = o // (filters // options["weight_groups"]) * per_group + c
            group = channel // (x.shape[1] // options["offset_groups"])
            number = group * taps + tap[0] * kernel[1] + tap[1]
            places = [
                at[i] * options["stride"][i]
                + tap[i] * options["dilation"][i]
                - options["padding"][i]
                + layer.offset[(n, 2 * number + i, *at)]
                for i in (0, 1)
            ]
            value = sample(x[n, channel], *places) * layer.weight[(o, c, *tap)]
            y[(n, o, *at)] += value * (1 if layer.mask is None else layer.mask[(n, number, *at)])
        y[(n, o, *at)] += 0 if layer.bias is None else layer.bias[o]
    return y


@given(layers(), st.sampled_from([1, WORKSPACE_BYTES]))
@settings(deadline=None, max_examples=60)
def test_a_deformable_convolution_matches_its_definition(layer: Layer, limit: int) -> None:
    limits: dict[str, Any] = {"settings": {"workspace_bytes": limit}}
    found = run("DeformableConv2d", *layer.tensors, **layer.options, **limits)
    np.testing.assert_allclose(found, convolve(layer), rtol=1e-9, atol=1e-9)


@given(layers(), st.sampled_from([1, WORKSPACE_BYTES]))
@settings(deadline=None, max_examples=25)
def test_gradients_match_finite_differences(layer: Layer, limit: int) -> None:
    limits: dict[str, Any] = {"settings": {"workspace_bytes": limit}}
    grad = normal(9, layer.x.shape[0], layer.weight.shape[0], *layer.offset.shape[2:])
    found = run("DeformableConv2dBackward", *layer.tensors, grad, **layer.options, **limits)
    for position, (tensor, gradient) in enumerate(zip(layer.tensors, found, strict=True)):
        if tensor is None:
            assert gradient is None
            continue

        def forward(moved: Array, position: int = position) -> Any:
            tensors = list(layer.tensors)
            tensors[position] = moved
            return run("DeformableConv2d", *tensors, **layer.options)

        expected = numeric_gradient(forward, tensor, grad, step=1e-6)
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)


def test_without_offsets_it_is_a_convolution() -> None:
    x, weight = normal(1, 2, 4, 6, 5), normal(2, 6, 2, 3, 2)
    geometry: dict[str, Any] = {"stride": (2, 1), "padding": (1, 1), "dilation": (1, 2)}
    plain = run("Conv2d", x, weight, None, **geometry, groups=2)
    offset = np.zeros((2, 12, *plain.shape[2:]))
    groups: dict[str, Any] = {"weight_groups": 2, "offset_groups": 1}
    found = run("DeformableConv2d", x, offset, weight, None, None, **geometry, **groups)
    np.testing.assert_allclose(found, plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("shift", "expected"), [(1e30, 0), (-np.inf, 0), (np.nan, np.nan)])
def test_huge_offsets_read_zero_and_nan_offsets_give_nan(shift: float, expected: float) -> None:
    x, weight = np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 1, 1), np.float32)
    offset = np.full((1, 2, 3, 3), shift, np.float32)
    found = run("DeformableConv2d", x, offset, weight, None, None, **OPTIONS)
    np.testing.assert_array_equal(found, np.full((1, 1, 3, 3), expected))


OPTIONS: dict[str, Any] = {
    "stride": (1, 1),
    "padding": (0, 0),
    "dilation": (1, 1),
    "weight_groups": 1,
    "offset_groups": 1,
}


@pytest.mark.parametrize(
    ("position", "shape", "words"),
    [
        (0, (1, 2, 5), "shape of x"),
        (0, (1, 0, 5, 5), "channels of x"),
        (1, (1, 7, 4, 4), r"shape of offset is \[1, 7, 4, 4\], expected \[1, 8, 4, 4\]"),
        (2, (3, 1, 2, 2), r"shape of weight .* expected \[3, 2, 2, 2\]"),
        (3, (1, 8, 4, 4), r"shape of mask is \[1, 8, 4, 4\], expected \[1, 4, 4, 4\]"),
        (4, (2,), r"shape of bias is \[2\], expected \[3\]"),
    ],
)
def test_a_mismatched_tensor_is_refused_by_name(
    position: int, shape: tuple[int, ...], words: str
) -> None:
    shapes: list[tuple[int, ...]] = [(1, 2, 5, 5), (1, 8, 4, 4), (3, 2, 2, 2), (1, 4, 4, 4), (3,)]
    shapes[position] = shape
    with pytest.raises(ShapeMismatch, match=f"^DeformableConv2d: {words}"):
        call_kernel("DeformableConv2d", *[np.zeros(shape) for shape in shapes], **OPTIONS)


@pytest.mark.parametrize("name", ["weight_groups", "offset_groups"])
def test_groups_that_do_not_divide_are_refused(name: str) -> None:
    tensors = [np.zeros(shape) for shape in [(1, 2, 5, 5), (1, 8, 4, 4), (3, 2, 2, 2)]]
    with pytest.raises(ShapeMismatch, match=f"{name} is 3, expected a divisor of channels=2"):
        call_kernel("DeformableConv2d", *tensors, None, None, **(OPTIONS | {name: 3}))
