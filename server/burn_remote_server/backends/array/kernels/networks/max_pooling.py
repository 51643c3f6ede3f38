"""Max pooling, with and without the positions of the maxima.

``y[o] = max over taps of x[o * stride + tap * dilation - padding]``; elements in the padding are
ignored. Of equal elements the first in row-major order counts, as in Burn and PyTorch; NaN is
larger than any number, as in PyTorch (Burn's CPU backends disagree with each other). In ceil mode
Burn keeps windows that are wholly outside the input: their maximum is -inf, their index -1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.kernels.networks.checks import (
    check_range,
    check_rank,
    check_shape,
)
from burn_remote_server.backends.array.kernels.networks.correlation import AXES
from burn_remote_server.backends.array.kernels.networks.folding import (
    Folding,
    along,
    taps_of,
    windows_of,
)
from burn_remote_server.backends.array.kernels.networks.module_kernels import Array, Kernel, Shape
from burn_remote_server.backends.array.kernels.networks.windows import Axis, Windows

__all__ = ["MaxPooling"]


class MaxPooling(Folding):
    """Max pooling and its gradients.

    ``x`` is ``[batch, channels, *sizes]``; outputs, their indices and gradient are ``[batch,
    channels, *outputs]``. An index counts the elements of one channel in row-major order.
    """

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        return {
            "MaxPool1d": self.max_pool1d,
            "MaxPool1dWithIndices": self.max_pool1d_with_indices,
            "MaxPool1dWithIndicesBackward": self.max_pool1d_with_indices_backward,
            "MaxPool2d": self.max_pool2d,
            "MaxPool2dWithIndices": self.max_pool2d_with_indices,
            "MaxPool2dWithIndicesBackward": self.max_pool2d_with_indices_backward,
        }

    def max_pool1d(
        self,
        x: Array,
        *,
        kernel_size: int,
        stride: int,
        padding: int,
        dilation: int,
        ceil_mode: bool,
        out: TensorSpec,
    ) -> Array:
        """Return the maxima along ``x`` ``[batch, channels, length]``."""
        windows = _windows(
            "MaxPool1d", x, (kernel_size,), (stride,), (padding,), (dilation,), ceil_mode
        )
        return self._maxima(x, windows)

    def max_pool2d(
        self,
        x: Array,
        *,
        kernel_size: Shape,
        stride: Shape,
        padding: Shape,
        dilation: Shape,
        ceil_mode: bool,
        out: TensorSpec,
    ) -> Array:
        """Return the maxima of ``x`` ``[batch, channels, height, width]``."""
        windows = _windows("MaxPool2d", x, kernel_size, stride, padding, dilation, ceil_mode)
        return self._maxima(x, windows)

    def max_pool1d_with_indices(
        self,
        x: Array,
        *,
        kernel_size: int,
        stride: int,
        padding: int,
        dilation: int,
        ceil_mode: bool,
        out: tuple[TensorSpec, TensorSpec],
    ) -> tuple[Array, Array]:
        """Return the maxima along ``x`` ``[batch, channels, length]`` and their indices."""
        operation = "MaxPool1dWithIndices"
        windows = _windows(
            operation, x, (kernel_size,), (stride,), (padding,), (dilation,), ceil_mode
        )
        return self._maxima_and_indices(x, windows, out[1])

    def max_pool2d_with_indices(
        self,
        x: Array,
        *,
        kernel_size: Shape,
        stride: Shape,
        padding: Shape,
        dilation: Shape,
        ceil_mode: bool,
        out: tuple[TensorSpec, TensorSpec],
    ) -> tuple[Array, Array]:
        """Return the maxima of ``x`` ``[batch, channels, height, width]`` and their indices."""
        operation = "MaxPool2dWithIndices"
        windows = _windows(operation, x, kernel_size, stride, padding, dilation, ceil_mode)
        return self._maxima_and_indices(x, windows, out[1])

    def max_pool1d_with_indices_backward(
        self, x: Array, grad: Array, indices: Array, *, out: TensorSpec, **_: Any
    ) -> Array:
        """Return the gradient with respect to ``x``, of which only the shape is used."""
        return self._backward("MaxPool1dWithIndicesBackward", x, grad, indices)

    def max_pool2d_with_indices_backward(
        self, x: Array, grad: Array, indices: Array, *, out: TensorSpec, **_: Any
    ) -> Array:
        """Return the gradient with respect to ``x``, of which only the shape is used."""
        return self._backward("MaxPool2dWithIndicesBackward", x, grad, indices)

    def _maxima(self, x: Array, windows: Windows) -> Array:
        for axis, window in enumerate(windows, start=2):
            x = self._fold(x, axis, window, self.xp.maximum, self.xp.max, -math.inf)
        return x

    def _maxima_and_indices(
        self, x: Array, windows: Windows, indices_out: TensorSpec
    ) -> tuple[Array, Array]:
        # Innermost axis first: of equal elements, each row keeps its first and the first row wins,
        # which is row-major order. In the other order a lower row could win.
        indices: Array = None
        scale = 1
        for axis, window in reversed(list(enumerate(windows, start=2))):
            x, indices = self._fold_indices(x, indices, axis, window, scale)
            scale *= window.size
        return x, indices.astype(str(indices_out.dtype), copy=False)

    def _fold_indices(
        self, x: Array, indices: Array | None, axis: int, window: Axis, scale: int
    ) -> tuple[Array, Array]:
        """Return the maxima along ``axis`` and their flat indices.

        A flat index is ``scale`` times the position along ``axis`` plus the entry of ``indices`` at
        that position; -1 for a window without elements.
        """
        shape = (*x.shape[:axis], window.outputs, *x.shape[axis + 1 :])
        best = self.xp.full(shape, -math.inf, dtype=x.dtype)
        where = self.xp.full(shape, -1, dtype=np.int64)
        if not x.size or window.outputs < window.kernel:
            for number, elements in windows_of(window, best):
                under, part = along(axis, elements), along(axis, slice(number, number + 1))
                first = self.xp.expand_dims(self.xp.argmax(x[under], axis=axis), axis)
                best[part] = self.xp.take_along_axis(x[under], first, axis=axis)
                place = (elements.start + first * elements.step) * scale
                if indices is not None:
                    # A window of the inner axis is empty at all positions of this axis or at none.
                    inner = self.xp.take_along_axis(indices[under], first, axis=axis)
                    place = self.xp.where(inner < 0, inner, place + inner)
                where[part] = place
            return best, where
        places = self.xp.arange(window.size, dtype=np.int64) * scale
        places = places.reshape(-1, *(1,) * (x.ndim - axis - 1))
        for _, fresh, seen in taps_of(window):
            under, part = along(axis, fresh[1]), along(axis, fresh[0])
            best[part] = x[under]
            where[part] = self._combined(places[fresh[1]], indices, under)
            under, part = along(axis, seen[1]), along(axis, seen[0])
            challenger, holder, place = x[under], best[part], where[part]
            # A NaN wins against a number; nothing wins against a NaN.
            wins = ~(challenger <= holder) & (holder == holder)
            if indices is not None:
                # An empty window of the inner axis has -inf, which must not win.
                wins = (wins | (place < 0)) & (indices[under] >= 0)
            self.xp.copyto(holder, challenger, where=wins)
            self.xp.copyto(place, self._combined(places[seen[1]], indices, under), where=wins)
        return best, where

    def _combined(self, places: Array, indices: Array | None, under: tuple[slice, ...]) -> Array:
        if indices is None:
            return places
        inner = indices[under]
        return self.xp.where(inner < 0, inner, places + inner)

    def _backward(self, operation: str, x: Array, grad: Array, indices: Array) -> Array:
        rank = 1 if "1d" in operation else 2
        check_rank(operation, "x", x, rank + 2, AXES[rank])
        check_rank(operation, "grad", grad, rank + 2, AXES[rank])
        check_shape(operation, "grad", grad, (*x.shape[:2], *grad.shape[2:]))
        check_shape(operation, "indices", indices, grad.shape)
        size = math.prod(x.shape[2:])
        check_range(operation, "indices", indices, -1, size)
        planes = x.shape[0] * x.shape[1]
        # One extra element per channel receives the gradient of empty windows.
        sums = self.xp.zeros((planes, size + 1), grad.dtype)
        starts = self.xp.arange(planes, dtype=np.int64)[:, None] * (size + 1)
        flat = indices.reshape(planes, math.prod(grad.shape[2:])).astype(np.int64)
        flat = self.xp.where(flat < 0, size, flat) + starts
        self._scatter_add(sums.reshape(-1), flat.reshape(-1), grad.reshape(-1))
        return sums[:, :size].reshape(x.shape)


def _windows(
    operation: str,
    x: Array,
    kernel_size: Shape,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    ceil_mode: bool,
) -> Windows:
    rank = len(kernel_size)
    check_rank(operation, "x", x, rank + 2, AXES[rank])
    return _kept_windows(
        operation, x.shape[2:], tuple(kernel_size), tuple(stride), tuple(padding),
        tuple(dilation), ceil_mode,
    )  # fmt: skip


# A program has few layers. Checking the sizes and counting the windows takes 9 µs.
@lru_cache(maxsize=1024)
def _kept_windows(
    operation: str,
    sizes: Shape,
    kernel_size: Shape,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    ceil_mode: bool,
) -> Windows:
    return Windows.of(operation, sizes, kernel_size, stride, padding, dilation, ceil_mode=ceil_mode)
