"""Fourier transforms, distances and sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import burn_remote as br
import burn_remote.functional as F
from burn_remote.torch.aten.table import aten
from burn_remote_protocol.errors import UsageError

__all__: list[str] = []

Tensor = br.Tensor

# The ``norm`` of our forward and inverse transforms, by PyTorch's number of the normalization.
_FORWARD: Final = ("backward", "ortho", "forward")
_INVERSE: Final = ("forward", "ortho", "backward")


@aten("_fft_r2c")
def fft_r2c(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    norm: Any = _FORWARD[normalization]
    if onesided:
        return br.fft.rfftn(x, axes=tuple(dim), norm=norm)
    return br.fft.fftn(br.complex(x, br.zeros_like(x)), axes=tuple(dim), norm=norm)


@aten("_fft_c2r")
def fft_c2r(x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    norm: Any = _INVERSE[normalization]
    sizes = [*[x.shape[one] for one in dim[:-1]], last_dim_size]
    return br.fft.irfftn(x, s=sizes, axes=tuple(dim), norm=norm)


@aten("_fft_c2c")
def fft_c2c(x: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Tensor:
    norm: Any = (_FORWARD if forward else _INVERSE)[normalization]
    return (br.fft.fftn if forward else br.fft.ifftn)(x, axes=tuple(dim), norm=norm)


def _apart(x: Tensor, y: Tensor) -> Tensor:
    """Return the differences of all pairs of rows: ``[…, p, q, n]``."""
    return br.expand_dims(x, x.ndim - 1) - br.expand_dims(y, y.ndim - 2)


def _norm(away: Tensor, p: float) -> Tensor:
    size = br.abs(away)
    last = away.ndim - 1
    if not away.shape[-1]:
        return br.zeros(away.shape[:-1], dtype=away.dtype, device=away.device)
    if p == 0:
        return br.astype(br.count_nonzero(away, axis=last), away.dtype)
    if p == 1:
        return br.sum(size, axis=last)
    if p == 2:
        return br.sqrt(br.sum(away * away, axis=last))
    if math.isinf(p):
        return br.max(size, axis=last)
    return br.pow(br.sum(br.pow(size, float(p)), axis=last), 1 / p)


def _slopes(away: Tensor, distance: Tensor, p: float) -> Tensor:
    """Return the derivative of each distance with respect to the differences; 0 at distance 0."""
    distance = br.expand_dims(distance, distance.ndim)
    if p == 0:
        return br.zeros_like(away)
    if p == 1:
        return br.sign(away)
    if p == 2:
        slopes = away / distance
    elif math.isinf(p):
        slopes = br.sign(away) * br.astype(br.abs(away) == distance, away.dtype)
    else:
        slopes = br.sign(away) * br.pow(br.abs(away) / distance, float(p - 1))
    return br.mask_fill(slopes, br.broadcast_to(distance == 0, away.shape), 0)


@aten("_cdist_forward")
def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    for x in (x1, x2):
        if not x.dtype.is_floating:
            raise UsageError(f"cdist takes tensors of floating-point numbers, not of {x.dtype}")
    return _norm(_apart(x1, x2), p)


@aten("_cdist_backward")
def cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, distance: Tensor) -> Tensor:
    slopes = _slopes(_apart(x1, x2), distance, p)
    return br.sum(br.expand_dims(grad, grad.ndim) * slopes, axis=slopes.ndim - 2)


def _pairs(count: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return both rows of each pair, in the order of ``torch.pdist``."""
    rows = [(i, j) for i in range(count) for j in range(i + 1, count)]
    first = br.tensor([i for i, _ in rows], dtype=br.int64, device=x.device)
    return first, br.tensor([j for _, j in rows], dtype=br.int64, device=x.device)


@aten("_pdist_forward")
def pdist(x: Tensor, p: float = 2) -> Tensor:
    first, second = _pairs(x.shape[0], x)
    return _norm(br.take(x, first, axis=0) - br.take(x, second, axis=0), p)


@aten("_pdist_backward")
def pdist_backward(grad: Tensor, x: Tensor, p: float, distance: Tensor) -> Tensor:
    first, second = _pairs(x.shape[0], x)
    away = br.take(x, first, axis=0) - br.take(x, second, axis=0)
    slopes = br.expand_dims(grad, 1) * _slopes(away, distance, p)
    total = br.zeros_like(x)
    if not slopes.size:
        return total
    total = br.update_along(total, 0, first, slopes, update="add")
    return br.update_along(total, 0, second, -slopes, update="add")


_MODES: Final = ("bilinear", "nearest", "bicubic")
_PADDINGS: Final = ("zeros", "border", "reflection")


@aten("grid_sampler_2d_backward")
def grid_sampler_backward(
    grad: Tensor,
    x: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    mode, padding = _MODES[interpolation_mode], _PADDINGS[padding_mode]

    def sample(image: Tensor, points: Tensor) -> Tensor:
        return F.grid_sample(image, points, mode, padding, align_corners)

    _, pull = br.vjp(sample, x, grid)
    to_x, to_grid = pull(grad)
    return to_x if output_mask[0] else None, to_grid
