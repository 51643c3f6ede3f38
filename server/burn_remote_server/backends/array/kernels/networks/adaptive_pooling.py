"""Adaptive average pooling: means over a given number of windows that cover the input.

Output ``o`` of ``n`` averages the inputs ``floor(o * size / n) .. ceil((o + 1) * size / n)``, end
excluded. Windows may overlap. The definition is PyTorch's and Burn's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.kernels.networks.axis_resampling import (
    AxisMap,
    AxisMapping,
    kept,
)
from burn_remote_server.backends.array.kernels.networks.checks import (
    check_positive,
    check_rank,
    check_shape,
)
from burn_remote_server.backends.array.kernels.networks.correlation import AXES
from burn_remote_server.backends.array.kernels.networks.folding import along
from burn_remote_server.backends.array.kernels.networks.module_kernels import (
    Array,
    Kernel,
    Shape,
    Table,
)

__all__ = ["AdaptivePooling"]


class AdaptivePooling(AxisMapping):
    """Adaptive pooling of ``x`` ``[batch, channels, *sizes]``.

    The output and its gradient are ``[batch, channels, *output_size]``.
    """

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        return {
            "AdaptiveAvgPool1d": self.adaptive_avg_pool1d,
            "AdaptiveAvgPool1dBackward": self.adaptive_avg_pool1d_backward,
            "AdaptiveAvgPool2d": self.adaptive_avg_pool2d,
            "AdaptiveAvgPool2dBackward": self.adaptive_avg_pool2d_backward,
            "AdaptiveAvgPool3d": self.adaptive_avg_pool3d,
            "AdaptiveAvgPool3dBackward": self.adaptive_avg_pool3d_backward,
        }

    def adaptive_avg_pool1d(self, x: Array, *, output_size: int, out: TensorSpec) -> Array:
        """Return ``output_size`` means along ``x`` ``[batch, channels, length]``."""
        return self._means("AdaptiveAvgPool1d", x, (output_size,))

    def adaptive_avg_pool2d(self, x: Array, *, output_size: Shape, out: TensorSpec) -> Array:
        """Return the means of ``x`` ``[batch, channels, height, width]``."""
        return self._means("AdaptiveAvgPool2d", x, output_size)

    def adaptive_avg_pool1d_backward(self, x: Array, grad: Array, *, out: TensorSpec) -> Array:
        """Return the gradient with respect to ``x``; only the shape of ``x`` is used."""
        return self._backward("AdaptiveAvgPool1dBackward", x, grad, 1)

    def adaptive_avg_pool2d_backward(self, x: Array, grad: Array, *, out: TensorSpec) -> Array:
        """Return the gradient with respect to ``x``; only the shape of ``x`` is used."""
        return self._backward("AdaptiveAvgPool2dBackward", x, grad, 2)

    def adaptive_avg_pool3d(self, x: Array, *, output_size: Shape, out: TensorSpec) -> Array:
        """Return the means of ``x`` ``[batch, channels, depth, height, width]``."""
        return self._means("AdaptiveAvgPool3d", x, output_size)

    def adaptive_avg_pool3d_backward(self, x: Array, grad: Array, *, out: TensorSpec) -> Array:
        """Return the gradient with respect to ``x``; only the shape of ``x`` is used."""
        return self._backward("AdaptiveAvgPool3dBackward", x, grad, 3)

    def _means(self, operation: str, x: Array, output_size: Shape) -> Array:
        check_rank(operation, "x", x, len(output_size) + 2, AXES[len(output_size)])
        check_positive(operation, "output_size", output_size)
        check_positive(operation, "spatial size of x", x.shape[2:])
        if not x.size:  # no batch or channel: the output may be large, but has no elements either
            return self.xp.zeros((*x.shape[:2], *output_size), x.dtype)
        sums = x
        for axis, outputs in enumerate(output_size, start=2):
            sums = self._summed_windows(sums, axis, outputs)
        return sums / self._counts(x.shape[2:], output_size, x.dtype)

    def _backward(self, operation: str, x: Array, grad: Array, rank: int) -> Array:
        check_rank(operation, "x", x, rank + 2, AXES[rank])
        check_rank(operation, "grad", grad, rank + 2, AXES[rank])
        check_shape(operation, "grad", grad, (*x.shape[:2], *grad.shape[2:]))
        check_positive(operation, "spatial size of grad", grad.shape[2:])
        check_positive(operation, "spatial size of x", x.shape[2:])
        if not grad.size:
            return self.xp.zeros(x.shape, grad.dtype)
        spread = grad / self._counts(x.shape[2:], grad.shape[2:], grad.dtype)
        for axis in range(2, rank + 2):
            spread = self._spread_windows(spread, axis, x.shape[axis])
        return spread

    def _summed_windows(self, x: Array, axis: int, outputs: int) -> Array:
        """Return the sums of ``x`` over the windows along ``axis``."""
        size = x.shape[axis]
        longest = _longest(size, outputs)
        if outputs > longest:
            return self._resampled(partial(_sums, size, outputs), longest, x, axis, outputs)
        # Few long windows: a list of their taps would be many times as large as the input.
        out = self.xp.empty((*x.shape[:axis], outputs, *x.shape[axis + 1 :]), x.dtype)
        for number, window in enumerate(_windows(size, outputs)):
            out[along(axis, slice(number, number + 1))] = x[along(axis, window)].sum(
                axis=axis, keepdims=True
            )
        return out

    def _spread_windows(self, grad: Array, axis: int, size: int) -> Array:
        """Return the adjoint of ``_summed_windows``."""
        outputs = grad.shape[axis]
        longest = _longest(size, outputs)
        if outputs > longest:
            return self._spread_back(partial(_sums, size, outputs), longest, grad, axis, size)
        out = self.xp.zeros((*grad.shape[:axis], size, *grad.shape[axis + 1 :]), grad.dtype)
        for number, window in enumerate(_windows(size, outputs)):
            out[along(axis, window)] += grad[along(axis, slice(number, number + 1))]
        return out

    def _counts(self, sizes: Sequence[int], outputs: Sequence[int], dtype: object) -> Array:
        counts = self.xp.ones((), dtype)
        for size, count in zip(sizes, outputs, strict=True):
            starts, stops = _ranges(size, count)
            counts = counts[..., None] * self._to_device(stops - starts, dtype)
        return counts


def _ranges(
    size: int, outputs: int, first: int = 0, last: int | None = None
) -> tuple[Table, Table]:
    """Return the first inputs of windows ``first..last`` and the inputs after their last ones."""
    numbers = np.arange(first, outputs if last is None else last)
    return numbers * size // outputs, -(-(numbers + 1) * size // outputs)


def _windows(size: int, outputs: int) -> list[slice]:
    starts, stops = _ranges(size, outputs)
    return [slice(*pair) for pair in zip(starts.tolist(), stops.tolist(), strict=True)]


def _longest(size: int, outputs: int) -> int:
    """Return an upper bound on the length of a window."""
    return -(-size // outputs) + 1


@kept
def _sums(size: int, outputs: int, first: int, last: int) -> AxisMap:
    starts, stops = _ranges(size, outputs, first, last)
    sources = starts[:, None] + np.arange(int((stops - starts).max()))
    return AxisMap.of_taps(size, np.where(sources < stops[:, None], sources, -1), None)
