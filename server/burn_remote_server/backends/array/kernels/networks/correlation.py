"""Convolutions and their gradients as matrix products, and their window columns (im2col).

With ``X`` the input's columns, ``W`` the filters as rows and ``Y`` the output, a convolution is
``Y = W X``. Its gradients are ``W' dY``, added back to the input, and ``dY X'`` (Dumoulin & Visin,
arXiv:1603.07285, section 4.1). Two kinds of layer need no columns: pointwise layers (a plain matrix
product) and depthwise layers (a sum over taps).

``WindowColumns`` writes the windows of a block of images as the columns of one matrix (Chellapilla,
Puri & Simard, "High performance convolutional neural networks for document processing", 2006), tap
by tap: each tap is a strided view of the input, so no padded copy is made. For 32x64x56x56 with 64
filters of 3x3, on 2 cores, this took 44 ms; padding and copying ``sliding_window_view`` took 53 ms,
the matrix product alone 39 ms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple, TypedDict

from burn_remote_server.backends.array.kernels.matrix_products import matmul
from burn_remote_server.backends.array.kernels.networks.checks import (
    check_groups,
    check_rank,
    check_shape,
)
from burn_remote_server.backends.array.kernels.networks.module_kernels import (
    Array,
    ModuleKernels,
    Shape,
    blocks,
)
from burn_remote_server.backends.array.kernels.networks.windows import Windows

__all__ = ["AXES", "Block", "Correlation", "Geometry", "Layer", "WindowColumns", "checked_layer"]


AXES: Final = {
    1: "[batch, channels, length]",
    2: "[batch, channels, height, width]",
    3: "[batch, channels, depth, height, width]",
}

# Depthwise layers with more filters per channel use matrix products. With fewer, a sum over taps is
# faster, although it passes over the whole output once per tap, because a matrix product would have
# only few rows.
DEPTHWISE_FILTERS: Final = 4


class Block(NamedTuple):
    """A part of the windows: images ``first_image..last_image``, rows ``first_row..last_row``.

    Rows lie along the outermost axis. ``first..last`` are the windows of these rows among the
    flattened windows of an image.
    """

    first_image: int
    last_image: int
    first_row: int
    last_row: int
    first: int
    last: int

    @property
    def images(self) -> int:
        """The number of images."""
        return self.last_image - self.first_image


class WindowColumns(ModuleKernels):
    """Window columns (im2col) and their adjoint, in blocks that fit into ``workspace_bytes``."""

    def _blocks(self, images: int, rows: int, windows: Windows, itemsize: int) -> Iterator[Block]:
        """Yield blocks whose columns, ``rows`` high, fit into the workspace.

        A block has whole images if one fits, otherwise some rows of windows of one image.
        """
        inner = math.prod(windows.outputs[1:])
        height = windows.outputs[0]
        row_bytes = max(1, rows * inner * itemsize)
        images_at_once = self.workspace_bytes // (row_bytes * height)
        rows_at_once = height if images_at_once else self.workspace_bytes // row_bytes
        for first_image, last_image in blocks(images, images_at_once):
            for first, last in blocks(height, rows_at_once):
                yield Block(first_image, last_image, first, last, first * inner, last * inner)

    def _columns(self, x: Array, windows: Windows, groups: int) -> Iterator[tuple[Block, Array]]:
        """Yield the columns of ``x`` ``[images, channels, *sizes]``, block by block.

        The columns are ``[images, groups, channels / groups * taps, windows]``, zero in the
        padding. The next block overwrites them.
        """
        images, channels = x.shape[:2]
        rows = channels * windows.taps
        scratch = None
        seen = None
        for block in self._blocks(images, rows, windows, x.dtype.itemsize):
            shape = (
                block.images,
                channels,
                *windows.kernel,
                block.last_row - block.first_row,
                *windows.outputs[1:],
            )
            if scratch is None:
                scratch = self.xp.empty(math.prod(shape), x.dtype)
            columns = scratch[: math.prod(shape)].reshape(shape)
            # The padding's zeros are written once: they stay valid while the shape and rows of the
            # blocks do not change.
            kept = (shape, block.first_row, block.last_row)
            if not windows.inside and seen != kept:
                columns[...] = 0
            seen = kept
            part = x[block.first_image : block.last_image]
            for index, outputs, elements in windows.positions(block.first_row, block.last_row):
                columns[(slice(None), slice(None), *index, *outputs)] = part[(..., *elements)]
            yield (
                block,
                columns.reshape(block.images, groups, rows // groups, block.last - block.first),
            )

    def _add_back(self, columns: Array, out: Array, windows: Windows, block: Block) -> None:
        """Add columns to the elements of ``out`` under their windows: the adjoint of ``_columns``.

        ``columns`` has the layout of ``_columns``, ``out`` is ``[images, channels, *sizes]``.
        """
        shape = (
            block.images,
            out.shape[1],
            *windows.kernel,
            block.last_row - block.first_row,
            *windows.outputs[1:],
        )
        columns = columns.reshape(shape)
        part = out[block.first_image : block.last_image]
        for index, outputs, elements in windows.positions(block.first_row, block.last_row):
            part[(..., *elements)] += columns[(slice(None), slice(None), *index, *outputs)]


class Geometry(TypedDict):
    """The options of a convolution: one value per spatial axis, except for ``groups``."""

    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int


class Layer(NamedTuple):
    """A checked convolution: its windows, groups, input channels and filters."""

    windows: Windows
    groups: int
    channels: int
    filters: int

    @property
    def pointwise(self) -> bool:
        """Whether each window covers a single element and no padding occurs."""
        return self.windows.taps == 1 and self.windows.inside

    @property
    def depthwise(self) -> bool:
        """Whether each filter has one input channel, and few filters share a channel."""
        return self.groups == self.channels and self.filters <= DEPTHWISE_FILTERS * self.channels

    @property
    def positions(self) -> int:
        """The number of windows per image."""
        return math.prod(self.windows.outputs)


def checked_layer(operation: str, x: Array, weight: Array, options: Geometry) -> Layer:
    """Return the layer that applies ``weight`` ``[filters, channels / groups, *kernel]`` to ``x``.

    Raises ``ShapeMismatch``, which names the mismatched argument.
    """
    stride, groups = options["stride"], options["groups"]
    check_rank(operation, "x", x, len(stride) + 2, AXES[len(stride)])
    check_rank(operation, "weight", weight, x.ndim, "[filters, channels / groups, *kernel]")
    filters, channels = weight.shape[0], x.shape[1]
    check_groups(operation, "groups", groups, channels=channels, filters=filters)
    kernel = weight.shape[2:]
    expected = (filters, channels // groups, *kernel)
    check_shape(operation, "weight", weight, expected, f"{channels} channels in {groups} groups")
    windows = Windows.of(
        operation, x.shape[2:], kernel, stride, options["padding"], options["dilation"]
    )
    return Layer(windows, groups, channels, filters)


class Correlation(WindowColumns):
    """The three matrix products of a layer, each within ``workspace_bytes`` of scratch memory."""

    def _correlate(self, x: Array, weight: Array, layer: Layer) -> Array:
        """Return the outputs ``[batch, filters, *outputs]`` for ``x``."""
        windows, groups = layer.windows, layer.groups
        shape = (x.shape[0], layer.filters, *windows.outputs)
        if not x.size or not weight.size:  # there is nothing to sum, whatever the sizes
            return self.xp.zeros(shape, x.dtype)
        if layer.pointwise:
            strided = x[(..., *_under(windows))]
            strided = strided.reshape(x.shape[0], groups, layer.channels // groups, layer.positions)
            return matmul(self.xp, self._rows(weight, layer), strided).reshape(shape)
        out = self.xp.empty(shape, x.dtype)
        if layer.depthwise:
            out[...] = 0
            for image, channels, filters in self._planes(x, layer):
                self._add_taps(x[image, channels], weight[filters], out[image, filters], layer)
            return out
        grouped = out.reshape(self._grouped(shape[0], layer))
        rows = self._rows(weight, layer)
        for block, columns in self._columns(x, windows, groups):
            part = grouped[block.first_image : block.last_image, ..., block.first : block.last]
            matmul(self.xp, rows, columns, out=part)
        return out

    def _input_gradient(self, weight: Array, grad: Array, layer: Layer) -> Array:
        """Return the input's gradient ``[batch, channels, *sizes]`` from the output's."""
        windows = layer.windows
        batch = grad.shape[0]
        shape = (batch, layer.channels, *windows.sizes)
        if not grad.size or not weight.size:
            return self.xp.zeros(shape, grad.dtype)
        rows = self._rows(weight, layer).swapaxes(-1, -2)
        grouped = grad.reshape(self._grouped(batch, layer))
        if layer.pointwise:
            found = matmul(self.xp, rows, grouped)
            if windows.outputs == windows.sizes:
                return found.reshape(shape)
            out = self.xp.zeros(shape, grad.dtype)
            out[(..., *_under(windows))] = found.reshape(batch, layer.channels, *windows.outputs)
            return out
        out = self.xp.zeros(shape, grad.dtype)
        if layer.depthwise:
            for image, channels, filters in self._planes(out, layer):
                self._spread_taps(
                    grad[image, filters], weight[filters], out[image, channels], layer
                )
            return out
        height = layer.channels * windows.taps
        for block in self._blocks(batch, height, windows, grad.dtype.itemsize):
            part = grouped[block.first_image : block.last_image, ..., block.first : block.last]
            self._add_back(matmul(self.xp, rows, part), out, windows, block)
        return out

    def _weight_gradient(self, x: Array, grad: Array, layer: Layer, shape: Shape) -> Array:
        """Return the filters' gradient, of ``shape``, from the output's."""
        if not x.size or not grad.size:
            return self.xp.zeros(shape, x.dtype)
        windows, groups = layer.windows, layer.groups
        grouped = grad.reshape(self._grouped(x.shape[0], layer))
        out = self.xp.zeros((groups, layer.filters // groups, math.prod(shape[1:])), x.dtype)
        # The batched product holds one gradient per image before they are summed.
        images_at_once = self.workspace_bytes // max(1, out.nbytes)
        for block, columns in self._columns(x, windows, groups):
            part = grouped[block.first_image : block.last_image, ..., block.first : block.last]
            for first, last in blocks(block.images, images_at_once):
                transposed = columns[first:last].swapaxes(-1, -2)
                out += matmul(self.xp, part[first:last], transposed).sum(axis=0)
        return out.reshape(shape)

    def _rows(self, weight: Array, layer: Layer) -> Array:
        """Return the filters as one matrix per group, a filter per row."""
        taps = layer.channels // layer.groups * layer.windows.taps
        return weight.reshape(layer.groups, layer.filters // layer.groups, taps)

    def _grouped(self, batch: int, layer: Layer) -> Shape:
        """Return the outputs' shape with filters split by group and windows flattened."""
        return batch, layer.groups, layer.filters // layer.groups, layer.positions

    def _planes(self, x: Array, layer: Layer) -> Iterator[tuple[int, slice, slice]]:
        """Yield an image, some of its channels and their filters, few enough to stay in cache."""
        multiplier = layer.filters // layer.channels
        plane = (layer.positions * multiplier + math.prod(layer.windows.sizes)) * x.dtype.itemsize
        for image in range(x.shape[0]):
            for first, last in blocks(layer.channels, self.workspace_bytes // (4 * plane)):
                yield image, slice(first, last), slice(first * multiplier, last * multiplier)

    def _add_taps(self, x: Array, weight: Array, out: Array, layer: Layer) -> None:
        """Add the products of ``x`` and the filters to ``out``.

        ``x`` is ``[channels, *sizes]``, ``out`` is ``[filters, *outputs]``.
        """
        windows = layer.windows
        by_channel = (x.shape[0], layer.filters // layer.channels)
        out = out.reshape(*by_channel, *windows.outputs)
        filters = weight.reshape(*by_channel, *windows.kernel)
        axes = (1,) * len(windows)
        for index, outputs, elements in windows.positions(0, windows[0].outputs):
            tap = filters[(slice(None), slice(None), *index)].reshape(*by_channel, *axes)
            out[(..., *outputs)] += tap * x[(slice(None), None, *elements)]

    def _spread_taps(self, grad: Array, weight: Array, out: Array, layer: Layer) -> None:
        """Add the input's gradient to ``out``.

        ``out`` is ``[channels, *sizes]``, ``grad`` is ``[filters, *outputs]``.
        """
        windows = layer.windows
        by_channel = (out.shape[0], layer.filters // layer.channels)
        grad = grad.reshape(*by_channel, *windows.outputs)
        filters = weight.reshape(*by_channel, *windows.kernel)
        axes = (1,) * len(windows)
        for index, outputs, elements in windows.positions(0, windows[0].outputs):
            tap = filters[(slice(None), slice(None), *index)].reshape(*by_channel, *axes)
            out[(..., *elements)] += (tap * grad[(..., *outputs)]).sum(axis=1)


def _under(windows: Windows) -> tuple[slice, ...]:
    """Return the elements under windows of a single tap."""
    ((_, _, elements),) = windows.positions(0, windows[0].outputs)
    return elements
