"""Convolutions and their gradients as matrix products over columns, or without columns.

With ``X`` the columns of the input (see ``columns.py``), ``W`` the filters as rows and ``Y`` the
output, a convolution is ``Y = W X``; its gradients are ``W' dY``, added back to the input, and
``dY X'`` (Dumoulin & Visin, arXiv:1603.07285, section 4.1). Two kinds of layer need no columns:
pointwise ones (a plain matrix product) and depthwise ones (a sum over taps).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple, TypedDict

from burn_remote_server.backends.array.kernels.module.checks import (
    check_groups,
    check_rank,
    check_shape,
)
from burn_remote_server.backends.array.kernels.module.module_kernels import (
    Array,
    ModuleKernels,
    Shape,
    blocks,
)
from burn_remote_server.backends.array.kernels.module.windows import Windows

__all__ = ["AXES", "Block", "Correlation", "Geometry", "Layer", "WindowColumns", "checked_layer"]


AXES: Final = {
    1: "[batch, channels, length]",
    2: "[batch, channels, height, width]",
    3: "[batch, channels, depth, height, width]",
}

# Filters per channel up to which a depthwise layer adds up its taps. Larger: every tap costs a pass
# over the whole output, and a matrix product of so many rows is faster. Smaller: the product would
# have one or two rows, far from full speed.
DEPTHWISE_FILTERS: Final = 4


class Block(NamedTuple):
    """Images ``first_image..last_image`` and, of their windows, rows ``first_row..last_row`` of the
    outermost axis, which are elements ``first..last`` of the flattened windows."""

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
    """The two halves of convolution by matrix product, within ``workspace_bytes``."""

    def _blocks(self, images: int, rows: int, windows: Windows, itemsize: int) -> Iterator[Block]:
        """Yield blocks whose columns, ``rows`` high, fit into the workspace: whole images where one
        fits, otherwise some rows of windows of one image."""
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

        The columns are ``[images, groups, channels / groups * taps, windows]``, zero where a window
        reaches into the padding; they are overwritten by the next block.
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
            # Whole images leave the padding of the block before them as it was: zero.
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
        """Add ``columns``, laid out as ``_columns`` yields them, to the elements of ``out``
        ``[images, channels, *sizes]`` under their windows: the adjoint of ``_columns``."""
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
    """The options of a convolution, one value per spatial axis but for ``groups``."""

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
        """Whether each window is one element of the input."""
        return self.windows.taps == 1 and self.windows.inside

    @property
    def depthwise(self) -> bool:
        """Whether each filter sees one channel, and few share it."""
        return self.groups == self.channels and self.filters <= DEPTHWISE_FILTERS * self.channels

    @property
    def positions(self) -> int:
        """The number of windows in an image."""
        return math.prod(self.windows.outputs)


def checked_layer(operation: str, x: Array, weight: Array, options: Geometry) -> Layer:
    """Return what ``weight`` ``[filters, channels / groups, *kernel]`` does to ``x``.

    Raises ``ShapeMismatch`` naming the argument that does not fit.
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
        """Return the outputs ``[batch, filters, *outputs]`` of ``x``."""
        windows, groups = layer.windows, layer.groups
        shape = (x.shape[0], layer.filters, *windows.outputs)
        if not x.size or not weight.size:  # the kernel may have any size then
            return self.xp.zeros(shape, x.dtype)
        if layer.pointwise:
            strided = x[(..., *_under(windows))]
            strided = strided.reshape(x.shape[0], groups, layer.channels // groups, layer.positions)
            return self.xp.matmul(self._rows(weight, layer), strided).reshape(shape)
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
            self.xp.matmul(rows, columns, out=part)
        return out

    def _input_gradient(self, weight: Array, grad: Array, layer: Layer) -> Array:
        """Return the gradient ``[batch, channels, *sizes]`` of the input from the output's."""
        windows = layer.windows
        batch = grad.shape[0]
        shape = (batch, layer.channels, *windows.sizes)
        if not grad.size or not weight.size:
            return self.xp.zeros(shape, grad.dtype)
        rows = self._rows(weight, layer).swapaxes(-1, -2)
        grouped = grad.reshape(self._grouped(batch, layer))
        if layer.pointwise:
            found = self.xp.matmul(rows, grouped)
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
            self._add_back(self.xp.matmul(rows, part), out, windows, block)
        return out

    def _weight_gradient(self, x: Array, grad: Array, layer: Layer, shape: Shape) -> Array:
        """Return the gradient, of ``shape``, of the filters from the output's."""
        if not x.size or not grad.size:
            return self.xp.zeros(shape, x.dtype)
        windows, groups = layer.windows, layer.groups
        grouped = grad.reshape(self._grouped(x.shape[0], layer))
        out = self.xp.zeros((groups, layer.filters // groups, math.prod(shape[1:])), x.dtype)
        # Each image of a product has a gradient of its own, until they are added up.
        images_at_once = self.workspace_bytes // max(1, out.nbytes)
        for block, columns in self._columns(x, windows, groups):
            part = grouped[block.first_image : block.last_image, ..., block.first : block.last]
            for first, last in blocks(block.images, images_at_once):
                transposed = columns[first:last].swapaxes(-1, -2)
                out += self.xp.matmul(part[first:last], transposed).sum(axis=0)
        return out.reshape(shape)

    def _rows(self, weight: Array, layer: Layer) -> Array:
        """Return the filters as the rows of one matrix per group."""
        taps = layer.channels // layer.groups * layer.windows.taps
        return weight.reshape(layer.groups, layer.filters // layer.groups, taps)

    def _grouped(self, batch: int, layer: Layer) -> Shape:
        """Return the shape of the outputs with their filters by group and their windows in one."""
        return batch, layer.groups, layer.filters // layer.groups, layer.positions

    def _planes(self, x: Array, layer: Layer) -> Iterator[tuple[int, slice, slice]]:
        """Yield an image, channels of it and their filters, few enough to stay in the caches."""
        multiplier = layer.filters // layer.channels
        plane = (layer.positions * multiplier + math.prod(layer.windows.sizes)) * x.dtype.itemsize
        for image in range(x.shape[0]):
            for first, last in blocks(layer.channels, self.workspace_bytes // (4 * plane)):
                yield image, slice(first, last), slice(first * multiplier, last * multiplier)

    def _add_taps(self, x: Array, weight: Array, out: Array, layer: Layer) -> None:
        """Add to ``out`` ``[filters, *outputs]`` the products of ``x`` ``[channels, *sizes]``."""
        windows = layer.windows
        by_channel = (x.shape[0], layer.filters // layer.channels)
        out = out.reshape(*by_channel, *windows.outputs)
        filters = weight.reshape(*by_channel, *windows.kernel)
        axes = (1,) * len(windows)
        for index, outputs, elements in windows.positions(0, windows[0].outputs):
            tap = filters[(slice(None), slice(None), *index)].reshape(*by_channel, *axes)
            out[(..., *outputs)] += tap * x[(slice(None), None, *elements)]

    def _spread_taps(self, grad: Array, weight: Array, out: Array, layer: Layer) -> None:
        """Add to ``out`` ``[channels, *sizes]`` what ``grad`` ``[filters, *outputs]`` owes it."""
        windows = layer.windows
        by_channel = (out.shape[0], layer.filters // layer.channels)
        grad = grad.reshape(*by_channel, *windows.outputs)
        filters = weight.reshape(*by_channel, *windows.kernel)
        axes = (1,) * len(windows)
        for index, outputs, elements in windows.positions(0, windows[0].outputs):
            tap = filters[(slice(None), slice(None), *index)].reshape(*by_channel, *axes)
            out[(..., *elements)] += (tap * grad[(..., *outputs)]).sum(axis=1)


def _under(windows: Windows) -> tuple[slice, ...]:
    """Return the elements under windows of one tap each."""
    ((_, _, elements),) = windows.positions(0, windows[0].outputs)
    return elements
