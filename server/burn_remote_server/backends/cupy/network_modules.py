"""GPU kernels of neural-network modules.

Array functions would launch several kernels for each tap of a window; here each step is one launch.
Matrix products run on cuBLAS, because cuDNN may not be installed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import cupy
import numpy as np

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.kernels.networks.attention import Attention
from burn_remote_server.backends.array.kernels.networks.average_pooling import AveragePooling
from burn_remote_server.backends.array.kernels.networks.checks import (
    check_integers,
    check_range,
    check_rank,
    check_shape,
)
from burn_remote_server.backends.array.kernels.networks.convolution_kernels import (
    Convolution,
    TransposedConvolution,
)
from burn_remote_server.backends.array.kernels.networks.correlation import (
    AXES,
    Block,
    Correlation,
    Layer,
    WindowColumns,
)
from burn_remote_server.backends.array.kernels.networks.deformable_convolution import (
    DeformableConvolution,
)
from burn_remote_server.backends.array.kernels.networks.embedding import Embedding
from burn_remote_server.backends.array.kernels.networks.max_pooling import MaxPooling
from burn_remote_server.backends.array.kernels.networks.module_kernels import Array, ModuleKernels
from burn_remote_server.backends.array.kernels.networks.unfolding import Unfolding
from burn_remote_server.backends.array.kernels.networks.windows import Axis, Windows
from burn_remote_server.backends.cupy.array_module import CUPY
from burn_remote_server.backends.cupy.index_updates import (
    update_slices_in_order,
    updates_slices,
)
from burn_remote_server.backends.cupy.range_checks import checked_positions
from burn_remote_server.backends.cupy.window_maxima import window_maxima
from burn_remote_server.backends.cupy.windows import has_kernels, launch

__all__ = ["cuda_module_families"]

# Scratch memory of one kernel call: enough for matrix products that occupy the whole GPU.
WORKSPACE_BYTES: Final = 256 * 2**20


class CudaColumns(WindowColumns):
    """Window columns, gathered and scattered in one launch per block."""

    workspace_bytes: ClassVar[int] = WORKSPACE_BYTES

    def _columns(self, x: Array, windows: Windows, groups: int) -> Iterator[tuple[Block, Array]]:
        if not has_kernels(x.dtype, windows):
            yield from super()._columns(x, windows, groups)
            return
        x = cupy.ascontiguousarray(x)
        rows = x.shape[1] * windows.taps
        for block in self._blocks(x.shape[0], rows, windows, x.dtype.itemsize):
            width = block.last - block.first
            columns = cupy.empty((block.images, groups, rows // groups, width), x.dtype)
            part = x[block.first_image : block.last_image]
            lines = block.images * x.shape[1]
            launch(
                "columns", windows, (part, columns), lines, width, block.first_row, block.last_row
            )
            yield block, columns

    def _add_back(self, columns: Array, out: Array, windows: Windows, block: Block) -> None:
        if not has_kernels(columns.dtype, windows):
            super()._add_back(columns, out, windows, block)
            return
        part = out[block.first_image : block.last_image]
        arrays = (cupy.ascontiguousarray(columns), part)
        lines, width = block.images * out.shape[1], math.prod(windows.sizes)
        launch("add_back", windows, arrays, lines, width, block.first_row, block.last_row)


class CudaCorrelation(CudaColumns, Correlation):
    """Correlation that computes layers with few filters per channel without a matrix product."""

    def _correlate(self, x: Array, weight: Array, layer: Layer) -> Array:
        if layer.pointwise or not layer.depthwise or not has_kernels(x.dtype, layer.windows):
            return super()._correlate(x, weight, layer)
        out = cupy.empty((x.shape[0], layer.filters, *layer.windows.outputs), x.dtype)
        arrays = (cupy.ascontiguousarray(x), cupy.ascontiguousarray(weight), out)
        each = layer.filters // layer.channels
        lines = x.shape[0] * layer.filters
        launch("depthwise", layer.windows, arrays, lines, layer.positions, layer.filters, each)
        return out

    def _input_gradient(self, weight: Array, grad: Array, layer: Layer) -> Array:
        if layer.pointwise or not has_kernels(grad.dtype, layer.windows):
            return super()._input_gradient(weight, grad, layer)
        if not layer.depthwise:
            if (
                any(axis.stride != 1 for axis in layer.windows)
                or layer.filters > 2 * layer.channels
            ):
                return super()._input_gradient(weight, grad, layer)
            return self._correlate(grad, _turned(weight, layer), _adjoint(layer))
        out = cupy.empty((grad.shape[0], layer.channels, *layer.windows.sizes), grad.dtype)
        arrays = (cupy.ascontiguousarray(grad), cupy.ascontiguousarray(weight), out)
        each = layer.filters // layer.channels
        lines, width = grad.shape[0] * layer.channels, math.prod(layer.windows.sizes)
        launch("depthwise_back", layer.windows, arrays, lines, width, layer.filters, each)
        return out


def _adjoint(layer: Layer) -> Layer:
    """Return the layer that computes the input gradient from the output gradient, at stride 1.

    Dumoulin & Visin, arXiv:1603.07285, section 4.2.
    """
    axes = [
        Axis(
            size=axis.outputs,
            kernel=axis.kernel,
            stride=1,
            padding=(axis.kernel - 1) * axis.dilation - axis.padding,
            dilation=axis.dilation,
            outputs=axis.size,
        )
        for axis in layer.windows
    ]
    return Layer(Windows(axes), layer.groups, layer.filters, layer.channels)


def _turned(weight: Array, layer: Layer) -> Array:
    """Return the filters of the adjoint layer: taps reversed, inputs and outputs exchanged."""
    groups, spatial = layer.groups, weight.shape[2:]
    grouped = weight.reshape(groups, layer.filters // groups, layer.channels // groups, *spatial)
    turned = cupy.flip(grouped.swapaxes(1, 2), axis=tuple(range(3, 3 + len(spatial))))
    return turned.reshape(layer.channels, layer.filters // groups, *spatial)


class CudaConvolution(CudaCorrelation, Convolution):
    """Convolution with columns gathered in one launch."""


class CudaTransposedConvolution(CudaCorrelation, TransposedConvolution):
    """Transposed convolution, the adjoint of a convolution."""


class CudaUnfolding(CudaColumns, Unfolding):
    """Windows as columns, in one launch per block."""


class CudaDeformableConvolution(DeformableConvolution):
    """Deformable convolution by array functions, in larger blocks."""

    workspace_bytes: ClassVar[int] = WORKSPACE_BYTES


class CudaAttention(Attention):
    """Attention by array functions, in larger blocks."""

    workspace_bytes: ClassVar[int] = WORKSPACE_BYTES


class CudaEmbedding(Embedding):
    """Embedding whose indices are checked by a kernel, so that it can be captured."""

    def _checked(self, operation: str, indices: Array, rows: int) -> Array:
        check_integers(operation, "indices", indices)
        if not indices.size or not rows:
            return super()._checked(operation, indices, rows)
        compare = super()._checked
        return checked_positions(indices, rows, lambda: compare(operation, indices, rows))

    def _scatter_add_rows(self, target: Array, rows: Array, values: Array) -> None:
        if not updates_slices(rows.size):
            super()._scatter_add_rows(target, rows, values)
            return
        update_slices_in_order(target, rows.astype(np.int64, copy=False), values, 0, "Add")


_GEOMETRY: Final = ("kernel_size", "stride", "padding", "dilation")


class CudaMaxPooling(MaxPooling):
    """Maxima, their positions and their gradients, in one launch each."""

    def _maxima(self, x: Array, windows: Windows) -> Array:
        if not has_kernels(x.dtype, windows):
            return super()._maxima(x, windows)
        return _largest(x, windows, None)

    def _maxima_and_indices(
        self, x: Array, windows: Windows, indices_out: TensorSpec
    ) -> tuple[Array, Array]:
        if not has_kernels(x.dtype, windows):
            return super()._maxima_and_indices(x, windows, indices_out)
        where = cupy.empty((*x.shape[:2], *windows.outputs), np.int64)
        best = _largest(x, windows, where)
        return best, where.astype(str(indices_out.dtype), copy=False)

    def max_pool1d_with_indices_backward(
        self, x: Array, grad: Array, indices: Array, *, out: TensorSpec, **options: Any
    ) -> Array:
        """Return the gradient with respect to ``x``."""
        geometry = tuple((options[name],) for name in _GEOMETRY)
        return self._gathered(1, x, grad, indices, geometry, options["ceil_mode"])

    def max_pool2d_with_indices_backward(
        self, x: Array, grad: Array, indices: Array, *, out: TensorSpec, **options: Any
    ) -> Array:
        """Return the gradient with respect to ``x``."""
        geometry = tuple(options[name] for name in _GEOMETRY)
        return self._gathered(2, x, grad, indices, geometry, options["ceil_mode"])

    def _gathered(
        self, rank: int, x: Array, grad: Array, indices: Array, geometry: Any, ceil_mode: bool
    ) -> Array:
        """Return, for each element of ``x``, the sum over the windows that contain it."""
        operation = f"MaxPool{rank}dWithIndicesBackward"
        check_rank(operation, "x", x, rank + 2, AXES[rank])
        windows = Windows.of(operation, x.shape[2:], *geometry, ceil_mode=ceil_mode)
        if not has_kernels(grad.dtype, windows):
            return self._backward(operation, x, grad, indices)
        check_shape(operation, "grad", grad, (*x.shape[:2], *windows.outputs))
        check_shape(operation, "indices", indices, grad.shape)
        size = math.prod(x.shape[2:])
        check_range(operation, "indices", indices, -1, size)
        sums = cupy.empty(x.shape, grad.dtype)
        where = cupy.ascontiguousarray(indices.astype(np.int64, copy=False))
        arrays = (cupy.ascontiguousarray(grad), where, sums)
        launch("largest_back", windows, arrays, x.shape[0] * x.shape[1], size, 0, 0)
        return sums


class CudaAveragePooling(AveragePooling):
    """Window means and their gradients, in one launch each."""

    def _means(self, x: Array, windows: Windows, count_include_pad: bool) -> Array:
        if not has_kernels(x.dtype, windows):
            return super()._means(x, windows, count_include_pad)
        sums = cupy.empty((*x.shape[:2], *windows.outputs), x.dtype)
        arrays = (cupy.ascontiguousarray(x), sums)
        width = math.prod(windows.outputs)
        launch("sums", windows, arrays, x.shape[0] * x.shape[1], width, 0, 0)
        sums /= self._counts(windows, count_include_pad, x.dtype)
        return sums


def _largest(x: Array, windows: Windows, where: Array | None) -> Array:
    shape = (*x.shape[:2], *windows.outputs)
    return window_maxima(cupy.ascontiguousarray(x), windows, shape, where)


def cuda_module_families() -> list[ModuleKernels]:
    """Return the kernel families that replace those of ``module_families``."""
    return [
        subject(CUPY)
        for subject in (
            CudaConvolution,
            CudaTransposedConvolution,
            CudaUnfolding,
            CudaDeformableConvolution,
            CudaAttention,
            CudaEmbedding,
            CudaMaxPooling,
            CudaAveragePooling,
        )
    ]
