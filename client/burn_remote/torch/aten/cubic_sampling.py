"""Bicubic samples of images at the points of a grid, as a function that has gradients."""

from __future__ import annotations

from typing import Final

import burn_remote as br
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.separable import CUBIC
from burn_remote.torch.aten.volume_sampling import BORDER, REFLECTION, reflected

__all__ = ["cubic_sample"]

Tensor = br.Tensor

# The taps along one axis, relative to the last place that is not after the point.
_TAPS: Final = (-1, 0, 1, 2)


def _weights(t: Tensor) -> list[Tensor]:
    """Return the weights of the taps for points ``t`` behind the second one."""

    def near(away: Tensor) -> Tensor:
        return ((CUBIC + 2) * away - (CUBIC + 3)) * away * away + 1

    def far(away: Tensor) -> Tensor:
        return ((CUBIC * away - 5 * CUBIC) * away + 8 * CUBIC) * away - 4 * CUBIC

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _taps(
    at: Tensor, count: int, padding: int, corners: bool
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return the places, whether they are inside, and the weights of the taps along one axis."""
    place = (at + 1) * ((count - 1) / 2) if corners else ((at + 1) * count - 1) / 2
    first = br.floor(place.detach())
    weights = _weights(place - first)
    places, inside = [], []
    for step in _TAPS:
        tap = first + step
        if padding == REFLECTION:
            tap, _ = reflected(tap, count, corners)
        if padding in (BORDER, REFLECTION):
            tap = br.clip(tap, 0.0, float(count - 1))
        is_inside = br.logical_and(tap >= 0, tap <= count - 1)
        places.append(converted_to(br.where(is_inside, tap, 0.0), br.int64))
        inside.append(is_inside)
    return places, inside, weights


def cubic_sample(x: Tensor, grid: Tensor, padding: int, corners: bool) -> Tensor:
    """Return ``[batch, channels, *points]`` of images at a grid ``[batch, *points, 2]``.

    Coordinates go from -1 to 1, the horizontal one first; ``padding`` is PyTorch's number.
    """
    batch, channels, height, width = x.shape
    points = br.reshape(grid, (batch, -1, 2))
    across = _taps(points[..., 0], width, padding, corners)
    down = _taps(points[..., 1], height, padding, corners)
    flat = br.reshape(x, (batch, channels, height * width))
    total: Tensor | None = None
    for row, is_row, row_weight in zip(*down, strict=True):
        for column, is_column, column_weight in zip(*across, strict=True):
            position = br.expand_dims(row * width + column, 1)
            position = br.broadcast_to(position, (batch, channels, position.shape[-1]))
            is_inside = br.logical_and(is_row, is_column)
            weight = br.where(is_inside, row_weight * column_weight, 0.0)
            part = br.gather(flat, 2, position) * br.expand_dims(weight, 1)
            total = part if total is None else total + part
    assert total is not None
    return br.reshape(total, (batch, channels, *grid.shape[1:-1]))
