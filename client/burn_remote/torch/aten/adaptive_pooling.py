"""The largest elements of windows that divide an axis into a given number of parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import burn_remote as br
from burn_remote.torch.aten.table import aten
from burn_remote_protocol.errors import UsageError

__all__: list[str] = []

Tensor = br.Tensor


@aten("adaptive_max_pool2d")
def adaptive_max_pool2d(x: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    return _adaptive_max_pool(x, output_size, 2)


@aten("adaptive_max_pool3d")
def adaptive_max_pool3d(x: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    return _adaptive_max_pool(x, output_size, 3)


def _adaptive_max_pool(
    x: Tensor, output_size: Sequence[int], spatial: int
) -> tuple[Tensor, Tensor]:
    """Return the largest element of each window, and its place in its plane."""
    counts = tuple(output_size) * spatial if len(output_size) == 1 else tuple(output_size)
    outer, sizes = x.shape[: x.ndim - spatial], x.shape[x.ndim - spatial :]
    if x.ndim not in (spatial + 1, spatial + 2) or 0 in sizes or 0 in outer[-1:]:
        raise UsageError(
            f"adaptive_max_pool{spatial}d expects {spatial + 1} or {spatial + 2} axes, of which "
            f"only the batch axis may have size 0, but the shape is {list(x.shape)}"
        )
    shape = (*outer, *counts)
    places = _places(sizes, counts)
    if 0 in shape:
        none = br.zeros(shape, dtype=br.int64, device=x.device)
        return br.zeros(shape, dtype=x.dtype, device=x.device), none
    sent = br.tensor(places, device=x.device)
    plane = br.reshape(x, (*outer, int(np.prod(sizes))))
    windows = br.take(plane, br.flatten(sent), axis=len(outer))
    windows = br.reshape(windows, (*outer, *places.shape))
    at = br.argmax(windows, axis=-1, keepdims=True)
    chosen = br.gather(br.broadcast_to(sent, windows.shape), windows.ndim - 1, at)
    return br.reshape(br.max(windows, axis=-1), shape), br.reshape(chosen, shape)


def _places(sizes: Sequence[int], counts: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the places in a plane of the elements of each window: ``[windows, elements]``.

    Windows differ in length. The last element of a shorter window is repeated, which changes
    neither the largest element nor where it is first.
    """
    places = np.zeros((1, 1), np.int64)
    for size, count in zip(sizes, counts, strict=True):
        starts = np.arange(count) * size // count
        ends = -(-(np.arange(count) + 1) * size // count)
        longest = int((ends - starts).max(initial=1))
        along = np.minimum(starts[:, None] + np.arange(longest), ends[:, None] - 1)
        grid = places[:, None, :, None] * size + along[None, :, None, :]
        places = grid.reshape(grid.shape[0] * count, grid.shape[2] * longest)
    return places
