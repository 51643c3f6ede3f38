"""Samples of volumes at the points of a grid, and their gradients (``grid_sample``, 5 axes)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import burn_remote as br
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.indexing import scatter_add
from burn_remote.torch.aten.table import aten
from burn_remote_protocol.errors import UsageError

Tensor = br.Tensor

# PyTorch's numbers of the modes.
_LINEAR, _NEAREST = 0, 1
_BORDER, _REFLECTION = 1, 2

# The axes of a grid's coordinates: x is the last axis of the volume.
_AXES: Final = (2, 1, 0)


def _reflected(at: Tensor, count: int, corners: bool) -> tuple[Tensor, Tensor]:
    """Reflect places at the border; return them, and the derivatives 1 and -1."""
    low = 0.0 if corners else -0.5
    span = float(count - 1 if corners else count)
    if not span:
        return br.zeros_like(at), br.zeros_like(at)
    away = at - low
    sign = br.where(away < 0, -1.0, 1.0)
    away = br.abs(away)
    flips = br.floor(away / span)
    rest = away - flips * span
    is_odd = br.equal(br.remainder(flips, 2.0), 1.0)
    return br.where(is_odd, span - rest, rest) + low, br.where(is_odd, br.negative(sign), sign)


def _place(at: Tensor, count: int, padding: int, corners: bool) -> tuple[Tensor, Tensor]:
    """Return the places along one axis of coordinates from -1 to 1, and their derivatives."""
    slope = (count - 1) / 2 if corners else count / 2
    place = (at + 1) * slope - (0.0 if corners else 0.5)
    slopes = br.full_like(place, slope)
    if padding == _REFLECTION:
        place, sign = _reflected(place, count, corners)
        slopes = slopes * sign
    if padding in (_BORDER, _REFLECTION):
        is_inside = br.logical_and(place > 0, place < count - 1)
        slopes = br.where(is_inside, slopes, 0.0)
        place = br.clip(place, 0.0, float(count - 1))
    return place, slopes


class _Samples:
    """The corners around each point, their weights, and the derivatives of these."""

    def __init__(self, x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> None:
        if mode not in (_LINEAR, _NEAREST):
            raise UsageError("grid_sample of volumes has the modes 'bilinear' and 'nearest'")
        self.shape = x.shape
        self.points = grid.shape[1:4]
        self.is_linear = mode == _LINEAR
        flat = br.reshape(grid, (grid.shape[0], -1, 3))
        found = [
            _place(flat[..., at], x.shape[2 + axis], padding, corners)
            for at, axis in sorted(enumerate(_AXES), key=lambda pair: pair[1])
        ]
        self.places = [place for place, _ in found]
        self.slopes = [slope for _, slope in found]
        self.first = [br.floor(one) if self.is_linear else br.round(one) for one in self.places]

    def corners(self) -> Iterator[tuple[Tensor, Tensor, list[Tensor]]]:
        """Yield for each corner: positions in the flat volume, whether inside, weights by axis."""
        for steps in itertools.product((0, 1) if self.is_linear else (0,), repeat=3):
            position: Tensor | None = None
            is_inside: Tensor | None = None
            weights = []
            for axis, step in enumerate(steps):
                count = self.shape[2 + axis]
                corner = self.first[axis] + step
                inside = br.logical_and(corner >= 0, corner <= count - 1)
                part = converted_to(br.where(inside, corner, 0.0), br.int64)
                position = part if position is None else position * count + part
                is_inside = inside if is_inside is None else br.logical_and(is_inside, inside)
                fraction = self.places[axis] - self.first[axis]
                weights.append(fraction if step else 1 - fraction)
            assert position is not None and is_inside is not None
            yield position, is_inside, weights

    def spread(self, positions: Tensor) -> Tensor:
        """Repeat positions for each channel."""
        batch, channels = self.shape[:2]
        return br.broadcast_to(br.expand_dims(positions, 1), (batch, channels, positions.shape[-1]))

    def weight(self, weights: Sequence[Tensor], is_inside: Tensor) -> Tensor:
        product = weights[0] * weights[1] * weights[2]
        if not self.is_linear:
            product = br.ones_like(product)
        return br.expand_dims(br.where(is_inside, product, 0.0), 1)


def _flat(x: Tensor) -> Tensor:
    return br.reshape(x, (*x.shape[:2], -1))


@aten("grid_sampler_3d")
def grid_sampler(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    samples = _Samples(x, grid, mode, padding, align_corners)
    flat = _flat(x)
    result: Tensor | None = None
    for position, is_inside, weights in samples.corners():
        taken = br.gather(flat, 2, samples.spread(position)) * samples.weight(weights, is_inside)
        result = taken if result is None else result + taken
    assert result is not None
    return br.reshape(result, (*x.shape[:2], *samples.points))


@aten("grid_sampler_3d_backward")
def grid_sampler_backward(
    grad: Tensor,
    x: Tensor,
    grid: Tensor,
    mode: int,
    padding: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor]:
    samples = _Samples(x, grid, mode, padding, align_corners)
    flat, flat_grad = _flat(x), _flat(grad)
    of_volume = br.zeros_like(flat)
    of_places = [br.zeros_like(one) for one in samples.places]
    steps = itertools.product((-1, 1) if samples.is_linear else (0,), repeat=3)
    for (position, is_inside, weights), signs in zip(samples.corners(), steps, strict=True):
        spread = samples.spread(position)
        if output_mask[0]:
            added = flat_grad * samples.weight(weights, is_inside)
            of_volume = scatter_add(of_volume, 2, spread, added)
        if samples.is_linear:
            taken = br.sum(br.gather(flat, 2, spread) * flat_grad, axis=1)
            taken = br.where(is_inside, taken, 0.0)
            for axis, sign in enumerate(signs):
                first, second = (weights[other] for other in range(3) if other != axis)
                of_places[axis] = of_places[axis] + taken * first * second * sign
    found = [of_places[axis] * samples.slopes[axis] for axis in _AXES]
    of_grid = br.reshape(br.stack(found, axis=-1), grid.shape)
    return br.reshape(of_volume, x.shape) if output_mask[0] else None, of_grid
