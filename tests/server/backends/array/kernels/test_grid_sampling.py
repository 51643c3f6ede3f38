"""Tests of sampling images."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.errors import ShapeMismatch, Unsupported
from support.elements import FLOATS
from support.kernels import Array, compute

MODES = ("Nearest", "Bilinear")
PADDINGS = ("Zeros", "Border", "Reflection")


def placed(coordinate: float, size: int, padding: str, align: bool) -> float:
    """Return a position along an axis, as Burn's reference computes it."""
    position = (coordinate + 1) * (size - 1) / 2 if align else (coordinate + 1) * size / 2 - 0.5
    if padding == "Border":
        return min(max(position, 0), size - 1)
    if padding == "Reflection":
        low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
        span = high - low
        if span <= 0:
            return low
        distance = math.fmod(abs(position - low), 2 * span)
        return span - abs(distance - span) + low
    return position


def pixel(image: Array, x: int, y: int, padding: str) -> float:
    height, width = image.shape
    if padding == "Zeros" and not (0 <= x < width and 0 <= y < height):
        return 0.0
    return float(image[min(max(y, 0), height - 1), min(max(x, 0), width - 1)])


def sampled(image: Array, point: Any, mode: str, padding: str, align: bool) -> float:
    height, width = image.shape
    x = placed(float(point[0]), width, padding, align)
    y = placed(float(point[1]), height, padding, align)
    if mode == "Nearest":
        nearest = [math.floor(abs(value) + 0.5) * (1 if value >= 0 else -1) for value in (x, y)]
        return pixel(image, nearest[0], nearest[1], padding)
    left, top = math.floor(x), math.floor(y)
    right_share, bottom_share = x - left, y - top
    return sum(
        pixel(image, left + dx, top + dy, padding)
        * (right_share if dx else 1 - right_share)
        * (bottom_share if dy else 1 - bottom_share)
        for dx, dy in itertools.product((0, 1), repeat=2)
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_points_are_sampled_inside_and_outside(
    mode: str, padding: str, align: bool, dtype: Any
) -> None:
    generator = np.random.default_rng(3)
    images = generator.normal(size=(2, 3, 4, 5)).astype(dtype)
    grid = generator.uniform(-2.3, 2.3, (2, 6, 7, 2)).astype(dtype)

    seen = compute(
        "Float.GridSample2d", images, grid, mode=mode, padding_mode=padding, align_corners=align
    )

    expected = np.empty((2, 3, 6, 7))
    for batch, channel, row, column in np.ndindex(expected.shape):
        point = grid[batch, row, column]
        image = images[batch, channel]
        expected[batch, channel, row, column] = sampled(image, point, mode, padding, align)
    bound = {2: 1e-2, 4: 1e-6, 8: 1e-12}[dtype.itemsize]
    np.testing.assert_allclose(seen.astype(np.float64), expected, bound, bound)


def sample(image: Array, grid: Array, mode: str, padding: str) -> Array:
    result: Array = compute(
        "Float.GridSample2d", image, grid, mode=mode, padding_mode=padding, align_corners=False
    )
    return result


@pytest.mark.parametrize("mode", MODES)
def test_nan_points_are_outside_or_in_the_middle(mode: str) -> None:
    image = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    grid = np.array([[[[np.inf, 0], [0, -np.inf]]]], dtype=np.float32)

    if mode == "Nearest":
        assert sample(image, grid, mode, "Zeros").tolist() == [[[[0, 0]]]]
    assert sample(image, grid, mode, "Border").tolist() == [[[[4, 4]]]]


def test_reflection_of_a_single_pixel_gives_that_pixel_everywhere() -> None:
    image, grid = np.full((1, 1, 1, 1), 7, np.float32), np.full((1, 1, 1, 2), 0.4, np.float32)

    seen = compute(
        "Float.GridSample2d",
        image,
        grid,
        mode="Bilinear",
        padding_mode="Reflection",
        align_corners=True,
    )

    assert seen.tolist() == [[[[7]]]]


def test_an_empty_image_and_an_unknown_mode_are_refused() -> None:
    empty, image = np.empty((1, 1, 0, 3), np.float32), np.zeros((1, 1, 2, 2), np.float32)
    grid = np.zeros((1, 1, 1, 2), np.float32)

    with pytest.raises(ShapeMismatch, match="0x3 pixels"):
        sample(empty, grid, "Nearest", "Zeros")
    with pytest.raises(Unsupported, match="not Bicubic"):
        sample(image, grid, "Bicubic", "Zeros")
    assert sample(empty, grid[:, :0], "Nearest", "Zeros").shape == (1, 1, 0, 1)
