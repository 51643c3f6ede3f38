"""Sampling of an image at the points of a grid.

A grid point is ``(x, y)``, each from -1 to 1. With ``align_corners`` these are the centres of the
outermost pixels, otherwise their outer edges. Points outside the image are 0 (``Zeros``), take the
nearest edge pixel (``Border``) or are reflected into the image (``Reflection``). The definition is
that of PyTorch's ``grid_sample``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from burn_remote_protocol.errors import ShapeMismatch, Unsupported
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.array.core.kernel_forms import Array, Kernel, KernelFamily

__all__ = ["FloatGridSampling"]


class FloatGridSampling(KernelFamily):
    """Grid sampling, computed in ``float64`` as in Burn.

    ``tensor`` is ``[batch, channels, height, width]``, ``grid`` ``[batch, rows, columns, 2]``, the
    output ``[batch, channels, rows, columns]``.
    """

    family = "Float"
    low_precision = frozenset({"GridSample2d"})

    def table(self) -> Mapping[str, Kernel]:
        return {"GridSample2d": self.grid_sample}

    def grid_sample(
        self,
        tensor: Array,
        grid: Array,
        *,
        mode: str,
        padding_mode: str,
        align_corners: bool,
        out: TensorSpec,
    ) -> Array:
        """Return the image at the grid's points, from the nearest pixel or bilinear."""
        xp = self.xp
        dtype = array_dtype(out.dtype)
        if mode not in ("Nearest", "Bilinear"):
            raise Unsupported(f"GridSample2d has the modes Nearest and Bilinear, not {mode}")
        if 0 in out.shape:
            return xp.zeros(out.shape, dtype)
        height, width = tensor.shape[2:]
        if height * width == 0:
            raise ShapeMismatch(f"GridSample2d cannot sample an image of {height}x{width} pixels")
        image = tensor.astype(np.float64)
        points = grid.astype(np.float64)
        x = self._placed(points[..., 0], width, padding_mode, align_corners)
        y = self._placed(points[..., 1], height, padding_mode, align_corners)
        if padding_mode == "Border":
            # As in Burn, a point with an infinite or NaN coordinate samples the image's centre.
            finite = xp.isfinite(x) & xp.isfinite(y)
            x = xp.clip(xp.where(finite, x, (width - 1) / 2.0), 0.0, width - 1.0)
            y = xp.clip(xp.where(finite, y, (height - 1) / 2.0), 0.0, height - 1.0)
        if mode == "Nearest":
            return self._read(image, _rounded(xp, x), _rounded(xp, y), padding_mode).astype(dtype)
        left, top = xp.floor(x), xp.floor(y)
        right_share, bottom_share = x - left, y - top
        sampled: Array = 0.0
        for column, column_share in ((left, 1.0 - right_share), (left + 1.0, right_share)):
            for row, row_share in ((top, 1.0 - bottom_share), (top + 1.0, bottom_share)):
                share = (column_share * row_share)[:, None]
                sampled = sampled + self._read(image, column, row, padding_mode) * share
        return sampled.astype(dtype)

    def _placed(
        self, coordinates: Array, size: int, padding_mode: str, align_corners: bool
    ) -> Array:
        """Convert grid coordinates to positions in pixels along an axis of ``size``.

        Positions outside the image are reflected with ``Reflection`` and kept otherwise.
        """
        if align_corners:
            position = (coordinates + 1.0) * ((size - 1) / 2.0)
        else:
            position = (coordinates + 1.0) * (size / 2.0) - 0.5
        if padding_mode == "Reflection":
            return self._reflected(position, size, align_corners)
        return position

    def _reflected(self, position: Array, size: int, align_corners: bool) -> Array:
        xp = self.xp
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        span = high - low
        if span <= 0.0:
            return xp.full_like(position, low)
        distance = xp.absolute(position - low)
        distance = distance - xp.floor(distance / (2.0 * span)) * (2.0 * span)
        return span - xp.absolute(distance - span) + low

    def _read(self, image: Array, column: Array, row: Array, padding_mode: str) -> Array:
        """Return the pixels ``[batch, channels, rows, columns]`` at integral positions."""
        xp = self.xp
        batch, channels, height, width = image.shape
        inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        # Positions outside, also NaN, are clipped to valid indices and masked below.
        columns = xp.clip(xp.nan_to_num(column), 0, width - 1).astype(np.intp)
        rows = xp.clip(xp.nan_to_num(row), 0, height - 1).astype(np.intp)
        positions = (rows * width + columns).reshape(batch, 1, -1)
        pixels = xp.take_along_axis(image.reshape(batch, channels, height * width), positions, 2)
        pixels = pixels.reshape(batch, channels, *column.shape[1:])
        return xp.where(inside[:, None], pixels, 0.0) if padding_mode == "Zeros" else pixels


def _rounded(xp: Any, position: Array) -> Array:
    # Halves round away from zero, as in Rust; the array module rounds halves to even.
    return xp.copysign(xp.floor(xp.absolute(position) + 0.5), position)
