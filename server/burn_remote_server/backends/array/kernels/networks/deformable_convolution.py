"""Deformable convolutions and their gradients.

Tap ``k`` of window ``o`` reads the input at ``o * stride + k * dilation - padding + offset[o, k]``
by bilinear interpolation between four elements, times the mask (Dai et al., "Deformable
convolutional networks", arXiv:1703.06211, equations 3 and 4; Zhu et al., arXiv:1811.11168, for the
mask). Elements outside the image are zero.

With the sampled columns ``X``, filters ``W`` and output ``Y``: ``Y = W X``, ``dW = dY X'``,
``dX = W' dY``. The gradients of input, offset and mask follow from ``dX`` by way of the four
elements around each place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import EllipsisType
from typing import NamedTuple

import numpy as np

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.kernels.matrix_products import matmul
from burn_remote_server.backends.array.kernels.networks.checks import (
    check_groups,
    check_positive,
    check_rank,
    check_shape,
)
from burn_remote_server.backends.array.kernels.networks.correlation import AXES
from burn_remote_server.backends.array.kernels.networks.module_kernels import (
    Array,
    Kernel,
    ModuleKernels,
    Shape,
    blocks,
)
from burn_remote_server.backends.array.kernels.networks.windows import Axis, Windows

__all__ = ["Corner", "DeformableConvolution", "Places", "Sampling"]


class Corner(NamedTuple):
    """One of the four elements around each place, as arrays ``[offset groups, taps * windows]``.

    The fields are the index of the element in the flattened channel (past its end for an element
    outside), its weight, and the derivatives of the weight as the place moves down and right.
    """

    indices: Array
    weights: Array
    down: Array
    right: Array


Places = tuple[Corner, Corner, Corner, Corner]


class Sampling(ModuleKernels):
    """Bilinear sampling and its adjoint for a block of rows of windows of one image."""

    def _places(self, offset: Array, windows: Windows, first_row: int) -> Places:
        """Return the four corners around each place.

        ``offset`` is ``[offset groups, taps, 2, rows, columns]``; its first row is ``first_row``.
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
        """Return the places ``[taps, windows]`` along one axis without offsets."""
        taps = np.arange(axis.kernel)[:, None] * axis.dilation
        starts = (np.arange(count) + first) * axis.stride - axis.padding
        return self._to_device(taps + starts, dtype)

    def _split(self, places: Array, size: int) -> tuple[Array, Array]:
        """Return the element at or before each place, and the place's distance from it.

        A place that is at least one element outside is clamped to a position whose neighbours are
        both outside. For NaN, the distance is NaN.
        """
        xp = self.xp
        places = xp.where(places <= -1, -2, xp.minimum(places, size))
        low = xp.floor(places)
        known = xp.where(low == low, low, -2)
        return known.astype(np.int64), places - low

    def _padded_planes(self, image: Array) -> Array:
        """Return ``[channels, height * width + 1]``: channels with a zero appended for outside."""
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
        """Add ``values`` ``[channels, taps * windows]`` at ``indices``: adjoint of ``_read``."""
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


class _Layer(NamedTuple):
    """A checked layer with its tensors reshaped for the loops over blocks.

    ``offset`` is ``[batch, offset groups, taps, 2, rows, columns]``, ``mask`` ``[batch, offset
    groups, taps, rows, columns]``, ``filters`` ``[weight groups, filters, channels * taps]``.
    """

    windows: Windows
    offset: Array
    mask: Array | None
    filters: Array


class _Rows(NamedTuple):
    """Rows ``first..last`` of the windows of an image, ``width`` windows per row."""

    image: int
    first: int
    last: int
    width: int

    @property
    def rows(self) -> tuple[int, EllipsisType, slice, slice]:
        """The index of these rows in ``[batch, ..., rows, columns]``."""
        return self.image, ..., slice(self.first, self.last), slice(None)

    @property
    def flat(self) -> tuple[int, EllipsisType, slice]:
        """The index of these rows in ``[batch, ..., rows * columns]``."""
        return self.image, ..., slice(self.first * self.width, self.last * self.width)


class DeformableConvolution(Sampling):
    """Deformable convolution and its gradients.

    ``x`` is ``[batch, channels, height, width]``, ``offset`` ``[batch, offset groups * taps * 2,
    *outputs]``, ``weight`` ``[filters, channels / weight groups, *kernel]``, ``mask`` ``[batch,
    offset groups * taps, *outputs]``, ``bias`` ``[filters]``.
    """

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        return {
            "DeformableConv2d": self.deformable_conv2d,
            "DeformableConv2dBackward": self.deformable_conv2d_backward,
        }

    def deformable_conv2d(
        self,
        x: Array,
        offset: Array,
        weight: Array,
        mask: Array | None,
        bias: Array | None,
        *,
        stride: Shape,
        padding: Shape,
        dilation: Shape,
        weight_groups: int,
        offset_groups: int,
        out: TensorSpec,
    ) -> Array:
        """Return the outputs ``[batch, filters, *outputs]``."""
        groups = (weight_groups, offset_groups)
        layer = _checked(
            "DeformableConv2d", x, offset, weight, mask, bias, (stride, padding, dilation), groups
        )
        shape = (x.shape[0], weight.shape[0], *layer.windows.outputs)
        grouped = (x.shape[0], *layer.filters.shape[:2], shape[2] * shape[3])
        out_array = self.xp.empty(grouped, x.dtype)
        for image in range(x.shape[0]):
            planes = self._padded_planes(x[image])
            for part in self._parts(planes, image, layer.windows):
                columns = self._sampled(planes, layer, part)
                matmul(self.xp, layer.filters, columns, out=out_array[part.flat])
        result = out_array.reshape(shape)
        if bias is not None:
            result += bias.reshape(-1, 1, 1)
        return result

    def _parts(self, planes: Array, image: int, windows: Windows) -> Iterator[_Rows]:
        """Yield rows of windows whose columns fit into the workspace."""
        height, width = windows.outputs
        row_bytes = planes.shape[0] * windows.taps * width * planes.dtype.itemsize
        for first, last in blocks(height, self.workspace_bytes // max(1, row_bytes)):
            yield _Rows(image, first, last, width)

    def _sampled(self, planes: Array, layer: _Layer, part: _Rows) -> Array:
        """Return the columns ``[weight groups, channels * taps, windows]``."""
        channels = planes.shape[0]
        places = self._places(layer.offset[part.rows], layer.windows, part.first)
        columns = self.xp.zeros((channels, places[0].indices.shape[1]), planes.dtype)
        for corner in places:
            found = self._read(planes, corner.indices)
            found *= self._per_channel(corner.weights, channels)
            columns += found
        if layer.mask is not None:
            mask = layer.mask[part.rows].reshape(layer.mask.shape[1], -1)
            columns *= self._per_channel(mask, channels)
        return columns.reshape(layer.filters.shape[0], layer.filters.shape[2], -1)

    def deformable_conv2d_backward(
        self,
        x: Array,
        offset: Array,
        weight: Array,
        mask: Array | None,
        bias: Array | None,
        out_grad: Array,
        *,
        stride: Shape,
        padding: Shape,
        dilation: Shape,
        weight_groups: int,
        offset_groups: int,
        out: tuple[TensorSpec | None, ...],
    ) -> tuple[Array | None, ...]:
        """Return the gradients of ``x``, ``offset``, ``weight``, ``mask`` and ``bias``.

        The gradient of an absent mask or bias is ``None``.
        """
        operation = "DeformableConv2dBackward"
        geometry, groups = (stride, padding, dilation), (weight_groups, offset_groups)
        layer = _checked(operation, x, offset, weight, mask, bias, geometry, groups)
        xp, windows = self.xp, layer.windows
        expected = (x.shape[0], weight.shape[0], *windows.outputs)
        check_shape(operation, "out_grad", out_grad, expected)
        grads = out_grad.reshape(x.shape[0], *layer.filters.shape[:2], math.prod(windows.outputs))
        x_grad = xp.empty(x.shape, x.dtype)
        offset_grad = xp.empty(layer.offset.shape, offset.dtype)
        filters_grad = xp.zeros(layer.filters.shape, weight.dtype)
        mask_grad = None if layer.mask is None else xp.empty(layer.mask.shape, layer.mask.dtype)
        for image in range(x.shape[0]):
            planes = self._padded_planes(x[image])
            planes_grad = xp.zeros(planes.shape, planes.dtype)
            for part in self._parts(planes, image, windows):
                moved, mask_block_grad = self._spread(
                    planes, planes_grad, filters_grad, grads[part.flat], layer, part
                )
                offset_part = offset_grad[part.rows]
                offset_part[...] = moved.reshape(offset_part.shape)
                if mask_grad is not None:
                    mask_part = mask_grad[part.rows]
                    mask_part[...] = mask_block_grad.reshape(mask_part.shape)
            x_grad[image] = planes_grad[:, :-1].reshape(x.shape[1:])
        return (
            x_grad,
            offset_grad.reshape(offset.shape),
            filters_grad.reshape(weight.shape),
            None if mask is None or mask_grad is None else mask_grad.reshape(mask.shape),
            None if bias is None else out_grad.sum(axis=(0, 2, 3)),
        )

    def _spread(
        self,
        planes: Array,
        planes_grad: Array,
        filters_grad: Array,
        grad: Array,
        layer: _Layer,
        part: _Rows,
    ) -> tuple[Array, Array]:
        """Add a block's share to the gradients of the image and the filters.

        Returns the gradients of its offsets, ``[offset groups, taps, 2, windows]``, and of its
        mask, ``[offset groups, taps, windows]``.
        """
        xp = self.xp
        channels = planes.shape[0]
        groups, taps = layer.offset.shape[1:3]
        places = self._places(layer.offset[part.rows], layer.windows, part.first)
        columns_grad = matmul(xp, layer.filters.swapaxes(-1, -2), grad).reshape(channels, -1)
        mask = None
        masked_grad = columns_grad
        if layer.mask is not None:
            mask = layer.mask[part.rows].reshape(groups, -1)
            masked_grad = columns_grad * self._per_channel(mask, channels)
        columns = xp.zeros(columns_grad.shape, planes.dtype)
        down = xp.zeros(places[0].weights.shape, planes.dtype)
        right, mask_block_grad = xp.zeros(down.shape, down.dtype), xp.zeros(down.shape, down.dtype)
        for corner in places:
            found = self._read(planes, corner.indices)
            # The gradient of each corner's weight, before the mask.
            owed = (columns_grad * found).reshape(groups, channels // groups, -1).sum(axis=1)
            down += owed * corner.down
            right += owed * corner.right
            mask_block_grad += owed * corner.weights
            weights = self._per_channel(corner.weights, channels)
            columns += found * weights
            self._add_read(planes_grad, corner.indices, masked_grad * weights)
        if mask is not None:
            down *= mask
            right *= mask
            columns *= self._per_channel(mask, channels)
        columns = columns.reshape(layer.filters.shape[0], layer.filters.shape[2], -1)
        filters_grad += matmul(xp, grad, columns.swapaxes(-1, -2))
        moved = xp.stack([down.reshape(groups, taps, -1), right.reshape(groups, taps, -1)], axis=2)
        return moved, mask_block_grad.reshape(groups, taps, -1)


def _checked(
    operation: str,
    x: Array,
    offset: Array,
    weight: Array,
    mask: Array | None,
    bias: Array | None,
    geometry: tuple[Shape, Shape, Shape],
    groups: tuple[int, int],
) -> _Layer:
    weight_groups, offset_groups = groups
    check_rank(operation, "x", x, 4, AXES[2])
    check_rank(operation, "weight", weight, 4, "[filters, channels / groups, height, width]")
    batch, channels = x.shape[:2]
    check_positive(operation, "channels of x", (channels,))
    filters = weight.shape[0]
    check_groups(operation, "weight_groups", weight_groups, channels=channels, filters=filters)
    check_groups(operation, "offset_groups", offset_groups, channels=channels)
    kernel = weight.shape[2:]
    check_shape(operation, "weight", weight, (filters, channels // weight_groups, *kernel))
    windows = Windows.of(operation, x.shape[2:], kernel, *geometry)
    taps, outputs = windows.taps, windows.outputs
    check_shape(operation, "offset", offset, (batch, offset_groups * taps * 2, *outputs))
    if mask is not None:
        check_shape(operation, "mask", mask, (batch, offset_groups * taps, *outputs))
        mask = mask.reshape(batch, offset_groups, taps, *outputs)
    if bias is not None:
        check_shape(operation, "bias", bias, (filters,))
    return _Layer(
        windows,
        offset.reshape(batch, offset_groups, taps, 2, *outputs),
        mask,
        weight.reshape(weight_groups, filters // weight_groups, channels // weight_groups * taps),
    )
