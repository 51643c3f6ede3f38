"""Convolutions match their definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from burn_remote import gradients as G
from support.values import same

RNG = np.random.default_rng(0)


def correlate(
    x: np.ndarray,
    w: np.ndarray,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> np.ndarray:
    """Convolve ``[batch, in, spatial…]`` by the definition, one output element at a time."""
    x = np.pad(x, [(0, 0), (0, 0), *[(p, p) for p in padding]])
    spatial = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(x.shape[2:], w.shape[2:], stride, dilation, strict=True)
    ]
    out = np.zeros((x.shape[0], w.shape[0], *spatial))
    share, width = w.shape[0] // groups, w.shape[1]
    for place in np.ndindex(*spatial):
        window = tuple(
            slice(p * s, p * s + d * (k - 1) + 1, d)
            for p, s, d, k in zip(place, stride, dilation, w.shape[2:], strict=True)
        )
        for channel in range(w.shape[0]):
            first = (channel // share) * width
            part = x[(slice(None), slice(first, first + width), *window)]
            out[(slice(None), channel, *place)] = (part * w[channel]).reshape(len(x), -1).sum(1)
    return out


CONVOLUTIONS = [
    (F.conv1d, (2, 4, 9), (6, 2, 3), {"stride": 2, "padding": 1, "dilation": 1, "groups": 2}),
    (F.conv2d, (1, 2, 6, 7), (3, 2, 3, 2), {"stride": (1, 2), "padding": (1, 0), "dilation": 1}),
    (F.conv2d, (1, 2, 7, 7), (3, 2, 3, 3), {"dilation": 2}),
    (F.conv3d, (1, 2, 4, 5, 4), (2, 2, 2, 3, 2), {"padding": 1}),
]


@pytest.mark.parametrize("function, shape, kernel, options", CONVOLUTIONS)
def test_convolutions_match_their_definition(
    device: br.Device, function: Any, shape: Any, kernel: Any, options: dict[str, Any]
) -> None:
    a, w, b = RNG.random(shape), RNG.random(kernel), RNG.random(kernel[0])
    spatial = len(shape) - 2

    def each(name: str, default: int) -> tuple[int, ...]:
        value = options.get(name, default)
        return value if isinstance(value, tuple) else (value,) * spatial

    groups = options.get("groups", 1)
    expected = correlate(
        a, w, each("stride", 1), each("padding", 0), each("dilation", 1), groups
    ) + b.reshape(-1, *(1,) * spatial)
    x, weight, bias = (br.tensor(one, device=device) for one in (a, w, b))
    same(function(x, weight, bias, **options), expected, 1e-12)
    same(function(x[0], weight, bias, **options), expected[0], 1e-12)


@pytest.mark.parametrize("size", [2, 3])
def test_same_padding_keeps_the_size(device: br.Device, size: int) -> None:
    a, w = RNG.random((1, 2, 6)), RNG.random((3, 2, size))
    x, weight = br.tensor(a, device=device), br.tensor(w, device=device)
    left = (size - 1) // 2
    padded = np.pad(a, ((0, 0), (0, 0), (left, size - 1 - left)))
    same(F.conv1d(x, weight, padding="same"), correlate(padded, w, (1,), (0,), (1,), 1), 1e-12)
    same(F.conv1d(x, weight, padding="valid"), correlate(a, w, (1,), (0,), (1,), 1), 1e-12)
    with pytest.raises(br.UsageError, match="same"):
        F.conv1d(x, weight, padding="same", stride=2)


@pytest.mark.parametrize("stride, padding, extra", [(1, 0, 0), (2, 1, 1)])
def test_transposed_convolutions_are_gradients(
    device: br.Device, stride: int, padding: int, extra: int
) -> None:
    a, w = RNG.random((1, 3, 4, 4)), RNG.random((3, 2, 3, 3))
    x, weight = br.tensor(a, device=device), br.tensor(w, device=device)
    spread = F.conv_transpose2d(x, weight, None, stride, padding, extra)
    like = br.zeros(spread.shape, dtype=br.float64, device=device)
    same(spread, G.conv_x_backward(like, weight, x, stride, padding).numpy(), 1e-12)
