"""Bilinear sampling of the input of a deformable convolution.

Tap ``k`` of window ``o`` reads at ``o * stride + k * dilation - padding + offset[o, k]``, between
four elements weighted by nearness (Dai et al., "Deformable convolutional networks",
arXiv:1703.06211, equations 3 and 4; Zhu et al., arXiv:1811.11168, for the mask). Elements outside
the image are zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from burn_remote_server.backends.array.kernels.module.subject import Array, Subject
from burn_remote_server.backends.array.kernels.module.windows import Axis, Windows

__all__ = ["Corner", "Places", "Sampling"]


class Corner(NamedTuple):
    """One of the four elements around each place, ``[offset groups, taps * windows]``: its index in
    the flattened channel (behind its end for an element outside), its weight, and how the weight
    grows as the place moves down and right."""

    indices: Array
    weights: Array
    down: Array
    right: Array


Places = tuple[Corner, Corner, Corner, Corner]


class Sampling(Subject):
    """Reading and its adjoint, for the windows of one block of rows of one image."""

    def _places(self, offset: Array, windows: Windows, first_row: int) -> Places:
        """Return the corners around each place.

        ``offset`` is ``[offset groups, taps, 2, rows, columns]``, rows counted from ``first_row``.
        """
        groups = offset.shape[0]
        height, width = windows.sizes
        down = self._grid(windows[0], first_row, offset.shape[3], offset.dtype)
        right = self._grid(windows[1], 0, offset.shape[4], offset.dtype)
        shape = (groups, *windows.kernel, *offset.shape[3:])
        rows = down[:, None, :, None] + offset[:, :, 0].reshape(shape)
        columns = right[None, :, None, :] + offset[:, :, 1].reshape(shape)
        low_row, row_part = self._split(rows.reshape(groups, -1), height)
        low_column, column_part = self._split(columns.reshape(groups, -1), width)

        def corner(below: int, beside: int) -> Corner:
            row, column = low_row + below, low_column + beside
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            indices = self.xp.where(inside, row * width + column, height * width)
            near_row = row_part if below else 1 - row_part
            near_column = column_part if beside else 1 - column_part
            return Corner(
                indices,
                near_row * near_column,
                near_column if below else -near_column,
                near_row if beside else -near_row,
            )

        return corner(0, 0), corner(0, 1), corner(1, 0), corner(1, 1)

    def _grid(self, axis: Axis, first: int, count: int, dtype: object) -> Array:
        """Return the undisplaced places ``[taps, windows]`` along one axis."""
        taps = np.arange(axis.kernel)[:, None] * axis.dilation
        starts = (np.arange(count) + first) * axis.stride - axis.padding
        return self._to_device(taps + starts, dtype)

    def _split(self, places: Array, size: int) -> tuple[Array, Array]:
        """Return the element at or before each place and how far the place lies behind it.

        A place a whole element or more outside goes to where both neighbours are outside; a NaN
        stays one, in the second result.
        """
        xp = self.xp
        places = xp.where(places <= -1, -2, xp.minimum(places, size))
        low = xp.floor(places)
        known = xp.where(low == low, low, -2)
        return known.astype(np.int64), places - low

    def _padded_planes(self, image: Array) -> Array:
        """Return ``[channels, height * width + 1]``: each channel and a zero for the outside."""
        channels = image.shape[0]
        planes = self.xp.zeros((channels, image.shape[1] * image.shape[2] + 1), image.dtype)
        planes[:, :-1] = image.reshape(channels, -1)
        return planes

    def _read(self, planes: Array, indices: Array) -> Array:
        """Return the elements ``[channels, taps * windows]`` at one corner's ``indices``."""
        groups = indices.shape[0]
        channels = planes.shape[0] // groups
        found = self.xp.empty((planes.shape[0], indices.shape[1]), planes.dtype)
        for group in range(groups):
            part = slice(group * channels, (group + 1) * channels)
            found[part] = self.xp.take(planes[part], indices[group], axis=1)
        return found

    def _add_read(self, planes: Array, indices: Array, values: Array) -> None:
        """Add ``values`` ``[channels, taps * windows]`` to the elements that ``_read`` reads."""
        groups = indices.shape[0]
        channels, length = planes.shape
        starts = self.xp.arange(channels, dtype=np.int64).reshape(groups, -1, 1) * length
        flat = (indices[:, None] + starts).reshape(-1)
        self._scatter_add(planes.reshape(-1), flat, values.reshape(-1))

    def _per_channel(self, values: Array, channels: int) -> Array:
        """Return ``values`` ``[offset groups, n]`` repeated to ``[channels, n]``."""
        groups, length = values.shape
        shape = (groups, channels // groups, length)
        return self.xp.broadcast_to(values[:, None], shape).reshape(channels, length)
