"""Samples of images at the points of a grid.

The operation of Burn's IR has the modes ``"bilinear"`` and ``"nearest"``. Bicubic samples are
weighted sums of gathered pixels, so their gradients are those of these operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, reshaped
from burn_remote.functions.arithmetic import add, divide, multiply, remainder, subtract
from burn_remote.functions.casting import converted_to, rounded_once
from burn_remote.functions.elementwise import abs, floor
from burn_remote.functions.gathering import gather
from burn_remote.functions.logic import equal, greater_equal, less_equal, logical_and
from burn_remote.functions.manipulation import broadcast_to
from burn_remote.functions.selection import clip, where
from burn_remote.nn.resampling import CUBIC
from burn_remote_protocol.dtypes import I64
from burn_remote_protocol.errors import DTypeMismatch, UsageError
from burn_remote_protocol.operations.families import floats
from burn_remote_protocol.operations.shape_rules.checks import (
    check_rank,
    check_same_dtype,
    check_shape,
)

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["grid_sample"]

GRID_SAMPLE2D: Final = Operator(floats.GRID_SAMPLE2D)

# PyTorch's name -> the wire's name.
MODES: Final = {"bilinear": "Bilinear", "nearest": "Nearest", "bicubic": "Bicubic"}
PADDING_MODES: Final = {"zeros": "Zeros", "border": "Border", "reflection": "Reflection"}
# The pixels along one axis of which a bicubic sample is the weighted sum, relative to the last one
# that is not after the point.
CUBIC_TAPS: Final = (-1, 0, 1, 2)


@explained
def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """Sample images at the points of a grid.

    Shapes: ``[batch, channels, height, width]``, grid ``[batch, rows, columns, 2]`` to ``[batch,
    channels, rows, columns]``. A point is ``(x, y)``; -1 and 1 are opposite edges of the image.
    ``mode`` is ``"bilinear"``, ``"nearest"`` or ``"bicubic"``. ``padding_mode`` for points outside
    is ``"zeros"``, ``"border"`` or ``"reflection"``.

    Two rules are Burn's, not PyTorch's. The nearest pixel of a point halfway between two pixels is
    the one farther from pixel 0. A point with an infinite or NaN coordinate samples the centre
    of the image with ``"border"``; otherwise, it gives NaN with ``"bilinear"``. With ``"bicubic"``,
    which Burn does not have, the sample of such a point is unspecified.

    Raises ``UsageError``, ``ShapeMismatch`` and ``DTypeMismatch``.
    """
    if mode not in MODES:
        raise UsageError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    if padding_mode not in PADDING_MODES:
        raise UsageError(
            f"padding_mode must be one of {', '.join(PADDING_MODES)}, not {padding_mode!r}"
        )
    if mode == "bicubic":
        _check(input, grid)
        return _bicubic_sample(input, grid, padding_mode, bool(align_corners))
    options = (MODES[mode], PADDING_MODES[padding_mode], align_corners)
    return GRID_SAMPLE2D.apply((input, grid), (options,))


def _check(images: Tensor, grid: Tensor) -> None:
    """Raise what the operation of the other modes raises for these shapes and dtypes."""
    image, points = images.handle.spec, grid.handle.spec
    if not image.dtype.is_floating:
        raise DTypeMismatch(f"input {image} must be floating-point")
    check_rank("input", image, 4)
    check_rank("grid", points, 4)
    check_same_dtype(image, grid=points)
    check_shape("grid", points, (image.shape[0], *points.shape[1:3], 2))


@rounded_once
def _bicubic_sample(images: Tensor, grid: Tensor, padding_mode: str, align_corners: bool) -> Tensor:
    """Return ``[batch, channels, rows, columns]`` by cubic convolution (Keys, 1981)."""
    batch, channels, height, width = images.shape
    count = grid.shape[1] * grid.shape[2]
    shape = (batch, channels, *grid.shape[1:3])
    points = reshaped(grid, (batch, count, 2))
    across = _cubic_taps(points[..., 0], width, padding_mode, align_corners)
    down = _cubic_taps(points[..., 1], height, padding_mode, align_corners)
    flat = reshaped(images, (batch, channels, height * width))
    total: Tensor | None = None
    for row, is_row, row_weight in down:
        for column, is_column, column_weight in across:
            place = add(multiply(row, width), column)
            places = broadcast_to(reshaped(place, (batch, 1, count)), (batch, channels, count))
            is_inside = logical_and(is_row, is_column)
            weight = where(is_inside, multiply(row_weight, column_weight), 0.0)
            part = multiply(gather(flat, 2, places), reshaped(weight, (batch, 1, count)))
            total = part if total is None else add(total, part)
    assert total is not None, "there are 16 taps"
    return reshaped(total, shape)


def _cubic_taps(
    coordinate: Tensor, size: int, padding_mode: str, align_corners: bool
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return the taps of points ``[batch, points]`` along an axis of ``size`` pixels.

    Each is its place, whether it is inside of the image, and its weight. A place outside is 0.
    """
    scale = (size - 1) / 2 if align_corners else size / 2
    position = subtract(multiply(add(coordinate, 1), scale), 0.0 if align_corners else 0.5)
    first = floor(position.detach())
    taps = []
    for step, weight in zip(CUBIC_TAPS, _cubic_weights(subtract(position, first)), strict=True):
        place = add(first, step)
        if padding_mode == "reflection":
            place = _reflected(place, size, align_corners)
        if padding_mode != "zeros":
            place = clip(place, 0.0, float(size - 1))
        is_inside = logical_and(greater_equal(place, 0), less_equal(place, size - 1))
        taps.append((converted_to(where(is_inside, place, 0.0), I64), is_inside, weight))
    return taps


def _cubic_weights(after: Tensor) -> list[Tensor]:
    """Return the weights of the taps of points that are ``after`` the second tap, from 0 to 1."""

    def near(away: Tensor) -> Tensor:
        line = subtract(multiply(away, CUBIC + 2), CUBIC + 3)
        return add(multiply(multiply(line, away), away), 1)

    def far(away: Tensor) -> Tensor:
        line = subtract(multiply(away, CUBIC), 5 * CUBIC)
        square = add(multiply(line, away), 8 * CUBIC)
        return subtract(multiply(square, away), 4 * CUBIC)

    before = subtract(1, after)
    return [far(add(after, 1)), near(after), near(before), far(add(before, 1))]


def _reflected(place: Tensor, size: int, align_corners: bool) -> Tensor:
    """Reflect places at the centres of the outermost pixels, or else at the image's edges."""
    low = 0.0 if align_corners else -0.5
    span = float(size - 1 if align_corners else size)
    if not span:
        return multiply(place, 0.0)
    away = abs(subtract(place, low))
    flips = floor(divide(away, span))
    rest = subtract(away, multiply(flips, span))
    is_odd = equal(remainder(flips, 2.0), 1.0)
    return add(where(is_odd, subtract(span, rest), rest), low)
