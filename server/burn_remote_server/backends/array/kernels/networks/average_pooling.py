"""Average pooling.

``y[o] = (sum over taps inside the input) / count``. ``count`` is the number of taps inside the
input, or with ``count_include_pad`` inside the padded input; it excludes what ceil mode adds beyond
the padding. The backward kernels divide by the same count, so they compute the exact gradient, as
in PyTorch. Burn's backward kernels divide by the whole kernel size where ceil mode truncates a
window.
"""

from __future__ import annotations

from collections.abc import Mapping

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.kernels.networks.checks import check_rank, check_shape
from burn_remote_server.backends.array.kernels.networks.correlation import AXES
from burn_remote_server.backends.array.kernels.networks.folding import Folding
from burn_remote_server.backends.array.kernels.networks.module_kernels import Array, Kernel, Shape
from burn_remote_server.backends.array.kernels.networks.windows import Windows

__all__ = ["AveragePooling"]


class AveragePooling(Folding):
    """Average pooling of ``x`` ``[batch, channels, *sizes]``.

    The output and its gradient are ``[batch, channels, *outputs]``.
    """

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        return {
            "AvgPool1d": self.avg_pool1d,
            "AvgPool1dBackward": self.avg_pool1d_backward,
            "AvgPool2d": self.avg_pool2d,
            "AvgPool2dBackward": self.avg_pool2d_backward,
        }

    def avg_pool1d(
        self,
        x: Array,
        *,
        kernel_size: int,
        stride: int,
        padding: int,
        count_include_pad: bool,
        ceil_mode: bool,
        out: TensorSpec,
    ) -> Array:
        """Return the means along ``x`` ``[batch, channels, length]``."""
        windows = _windows("AvgPool1d", x, (kernel_size,), (stride,), (padding,), ceil_mode)
        return self._means(x, windows, count_include_pad)

    def avg_pool2d(
        self,
        x: Array,
        *,
        kernel_size: Shape,
        stride: Shape,
        padding: Shape,
        count_include_pad: bool,
        ceil_mode: bool,
        out: TensorSpec,
    ) -> Array:
        """Return the means of ``x`` ``[batch, channels, height, width]``."""
        windows = _windows("AvgPool2d", x, kernel_size, stride, padding, ceil_mode)
        return self._means(x, windows, count_include_pad)

    def avg_pool1d_backward(
        self,
        x: Array,
        grad: Array,
        *,
        kernel_size: int,
        stride: int,
        padding: int,
        count_include_pad: bool,
        ceil_mode: bool,
        out: TensorSpec,
    ) -> Array:
        """Return the gradient with respect to ``x``."""
        operation = "AvgPool1dBackward"
        windows = _windows(operation, x, (kernel_size,), (stride,), (padding,), ceil_mode)
        return self._backward(operation, x, grad, windows, count_include_pad)

    def avg_pool2d_backward(
        self,
        x: Array,
        grad: Array,
        *,
        kernel_size: Shape,
        stride: Shape,
        padding: Shape,
        count_include_pad: bool,
        ceil_mode: bool,
        out: TensorSpec,
    ) -> Array:
        """Return the gradient with respect to ``x``."""
        operation = "AvgPool2dBackward"
        windows = _windows(operation, x, kernel_size, stride, padding, ceil_mode)
        return self._backward(operation, x, grad, windows, count_include_pad)

    def _means(self, x: Array, windows: Windows, count_include_pad: bool) -> Array:
        sums = x
        for axis, window in enumerate(windows, start=2):
            sums = self._fold(sums, axis, window, self.xp.add, self.xp.sum, 0.0)
        return sums / self._counts(windows, count_include_pad, x.dtype) if sums.size else sums

    def _backward(
        self, operation: str, x: Array, grad: Array, windows: Windows, count_include_pad: bool
    ) -> Array:
        check_shape(operation, "grad", grad, (*x.shape[:2], *windows.outputs))
        if not x.size:
            return self.xp.zeros(x.shape, grad.dtype)
        spread = grad / self._counts(windows, count_include_pad, grad.dtype)
        for axis, window in reversed(list(enumerate(windows, start=2))):
            spread = self._unfold_sum(spread, axis, window)
        return spread

    def _counts(self, windows: Windows, include_padding: bool, dtype: object) -> Array:
        """Return the divisor of each window; 1 for an empty window, whose sum is 0."""
        counts = self.xp.ones((), dtype)
        for window in windows:
            along_axis = self._to_device(window.counts(include_padding), dtype)
            counts = counts[..., None] * along_axis
        return self.xp.maximum(counts, 1)


def _windows(
    operation: str, x: Array, kernel: Shape, stride: Shape, padding: Shape, ceil_mode: bool
) -> Windows:
    rank = len(kernel)
    check_rank(operation, "x", x, rank + 2, AXES[rank])
    dilation = (1,) * rank
    return Windows.of(
        operation, x.shape[2:], kernel, stride, padding, dilation, ceil_mode=ceil_mode
    )
