"""Rearrangement of image windows and pixels, with PyTorch's names and shapes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, counted, reshaped
from burn_remote.dispatch.rows_with_fallbacks import preferring
from burn_remote.functions.casting import astype
from burn_remote.functions.logic import equal
from burn_remote.functions.manipulation import permute_dims, stack
from burn_remote.functions.padding import pad
from burn_remote.functions.repetition import tile
from burn_remote.nn.convolution import Sizes, batched, conv_transpose2d, per_axis, unbatched
from burn_remote_protocol.errors import ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import layers
from burn_remote_protocol.operations.shape_rules.convolution_rules import window_count

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["fold", "pixel_shuffle", "pixel_unshuffle", "unfold"]


UNFOLD4D: Final = Operator(layers.UNFOLD4D)

Pair = tuple[int, ...]


@explained
def unfold(
    input: Tensor,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> Tensor:
    """Extract the windows of images as columns.

    Shapes: ``[batch, channels, height, width]`` to ``[batch, channels * kernel * kernel,
    windows]``; the batch axis is optional. On a Burn 0.21 server, issues one operation per element
    of the kernel. Raises ``ShapeMismatch``.
    """
    x = batched(input, 4)
    if x.ndim != 4:
        raise ShapeMismatch(f"{input.handle.spec} must be images [batch, channels, height, width]")
    (kernel, apart, border, step) = _sizes(kernel_size, dilation, padding, stride)
    _counts(x.shape[2:], kernel, apart, border, step)  # checks the sizes
    columns = _unfolded(x, kernel, step, border, apart)
    return unbatched(columns, input, 4)


def _unfold4d(x: Tensor, kernel: Pair, step: Pair, border: Pair, apart: Pair) -> Tensor:
    return UNFOLD4D.apply((x,), (kernel, (step, border, apart)))


@preferring(layers.UNFOLD4D, _unfold4d)
def _unfolded(x: Tensor, kernel: Pair, step: Pair, border: Pair, apart: Pair) -> Tensor:
    counts = _counts(x.shape[2:], kernel, apart, border, step)
    x = pad(x, (border[1], border[1], border[0], border[0])) if any(border) else x
    columns = [
        x[
            :,
            :,
            row * apart[0] : row * apart[0] + (counts[0] - 1) * step[0] + 1 : step[0],
            column * apart[1] : column * apart[1] + (counts[1] - 1) * step[1] + 1 : step[1],
        ]
        for row in range(kernel[0])
        for column in range(kernel[1])
    ]
    shape = (x.shape[0], x.shape[1] * math.prod(kernel), math.prod(counts))
    return reshaped(stack(columns, axis=2), shape)


@explained
def fold(
    input: Tensor,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> Tensor:
    """Sum columns into images, at the positions from which ``unfold`` extracts them.

    Shapes: ``[batch, channels * kernel * kernel, windows]`` to ``[batch, channels, height,
    width]``, where ``output_size`` is ``(height, width)``; the batch axis is optional. Raises
    ``ShapeMismatch``.
    """
    x = batched(input, 3)
    sizes = per_axis(output_size, 2)
    kernel, apart, border, step = _sizes(kernel_size, dilation, padding, stride)
    counts = _counts(sizes, kernel, apart, border, step)
    area = math.prod(kernel)
    if x.ndim != 3 or x.shape[1] % area or x.shape[2] != math.prod(counts):
        raise ShapeMismatch(
            f"{input.handle.spec} must be [batch, channels * {area}, {math.prod(counts)}] "
            f"to be folded to {list(sizes)}"
        )
    channels = x.shape[1] // area
    places = counted(x.__class__, x.handle.client, area)
    ones = equal(reshaped(places, (area, 1)), reshaped(places, (1, area)))
    weight = reshaped(tile(astype(ones, x.dtype), (channels, 1)), (x.shape[1], 1, *kernel))
    reached = [
        (count - 1) * s + d * (k - 1) + 1 - 2 * p
        for count, s, d, k, p in zip(counts, step, apart, kernel, border, strict=True)
    ]
    extra = tuple([size - reach for size, reach in zip(sizes, reached, strict=True)])
    windows = reshaped(x, (*x.shape[:2], *counts))
    whole = conv_transpose2d(windows, weight, None, step, border, extra, channels, apart)
    return unbatched(whole, input, 3)


@explained
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Rearrange channels into blocks of ``r * r`` pixels, where ``r`` is ``upscale_factor``.

    Shapes: ``[…, channels * r * r, h, w]`` to ``[…, channels, h * r, w * r]``.

    Raises ``ShapeMismatch`` and ``UsageError``.
    """
    r = _factor(upscale_factor)
    *batch, channels, height, width = _image(input)
    if channels % (r * r):
        raise ShapeMismatch(f"the channels of {input.handle.spec} are not divisible by {r} * {r}")
    split = reshaped(input, (math.prod(batch), channels // (r * r), r, r, height, width))
    moved = permute_dims(split, (0, 1, 4, 2, 5, 3))
    return reshaped(moved, (*batch, channels // (r * r), height * r, width * r))


@explained
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Rearrange blocks of ``r * r`` pixels into channels, where ``r`` is ``downscale_factor``.

    Shapes: ``[…, channels, h * r, w * r]`` to ``[…, channels * r * r, h, w]``.

    Raises ``ShapeMismatch`` and ``UsageError``.
    """
    r = _factor(downscale_factor)
    *batch, channels, height, width = _image(input)
    if height % r or width % r:
        raise ShapeMismatch(f"height and width of {input.handle.spec} are not divisible by {r}")
    split = reshaped(input, (math.prod(batch), channels, height // r, r, width // r, r))
    moved = permute_dims(split, (0, 1, 3, 5, 2, 4))
    return reshaped(moved, (*batch, channels * r * r, height // r, width // r))


def _sizes(*sizes: Sizes) -> tuple[tuple[int, ...], ...]:
    return tuple([per_axis(one, 2) for one in sizes])


def _counts(
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    apart: tuple[int, ...],
    border: tuple[int, ...],
    step: tuple[int, ...],
) -> list[int]:
    axes = zip(sizes, kernel, step, border, apart, strict=True)
    return [window_count(*axis) for axis in axes]


def _factor(r: int) -> int:
    if not isinstance(r, int | np.integer) or isinstance(r, bool) or r < 1:
        raise UsageError(f"the factor must be a positive integer, not {r!r}")
    return int(r)


def _image(x: Tensor) -> tuple[int, ...]:
    if x.ndim < 3:
        raise ShapeMismatch(f"{x.handle.spec} must be an image […, channels, height, width]")
    return x.shape
