"""Pooling over windows of images and signals, with PyTorch's names and shapes.

Tensors are floating-point. The batch axis is optional; the result lacks it if the input does. Sizes
are one integer for all spatial axes, or a sequence with one for each. ``stride=None`` means
``kernel_size``. All raise ``ShapeMismatch`` and ``DTypeMismatch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator
from burn_remote.nn.convolution import Sizes, batched, per_axis, unbatched
from burn_remote_protocol.operations.families import pooling_rows

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool2d",
    "max_pool2d_with_indices",
]

AVG_POOL1D: Final = Operator(pooling_rows.AVG_POOL1D)
AVG_POOL2D: Final = Operator(pooling_rows.AVG_POOL2D)
ADAPTIVE_AVG_POOL1D: Final = Operator(pooling_rows.ADAPTIVE_AVG_POOL1D)
ADAPTIVE_AVG_POOL2D: Final = Operator(pooling_rows.ADAPTIVE_AVG_POOL2D)
MAX_POOL1D: Final = Operator(pooling_rows.MAX_POOL1D)
MAX_POOL2D: Final = Operator(pooling_rows.MAX_POOL2D)
MAX_POOL1D_WITH_INDICES: Final = Operator(pooling_rows.MAX_POOL1D_WITH_INDICES)
MAX_POOL2D_WITH_INDICES: Final = Operator(pooling_rows.MAX_POOL2D_WITH_INDICES)


@explained
def avg_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Return the mean of each window: ``[batch, channels, length]`` to ``[…, windows]``.

    ``ceil_mode`` keeps an incomplete last window. ``count_include_pad`` includes the padding in the
    mean.
    """
    (kernel,), (step,), (border,) = _windows(1, kernel_size, stride, padding)
    parameters = (kernel, step, border, count_include_pad, ceil_mode)
    return unbatched(AVG_POOL1D.apply((batched(input, 3),), parameters), input, 3)


@explained
def avg_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Return the mean of each window.

    Shapes: ``[batch, channels, height, width]`` to ``[batch, channels, rows, columns]``, with one
    row and column per window. ``ceil_mode`` keeps incomplete last windows. ``count_include_pad``
    includes the padding in the mean.
    """
    parameters = (*_windows(2, kernel_size, stride, padding), count_include_pad, ceil_mode)
    return unbatched(AVG_POOL2D.apply((batched(input, 4),), parameters), input, 4)


@explained
def adaptive_avg_pool1d(input: Tensor, output_size: Sizes) -> Tensor:
    """Return the mean of each of ``output_size`` windows of nearly equal length.

    Shapes: ``[batch, channels, length]`` to ``[batch, channels, output_size]``.
    """
    parameters = per_axis(output_size, 1)
    return unbatched(ADAPTIVE_AVG_POOL1D.apply((batched(input, 3),), parameters), input, 3)


@explained
def adaptive_avg_pool2d(input: Tensor, output_size: Sizes) -> Tensor:
    """Return the mean of each of ``output_size`` windows of nearly equal size.

    Shapes: ``[batch, channels, height, width]`` to ``[batch, channels, *output_size]``.
    """
    parameters = (per_axis(output_size, 2),)
    return unbatched(ADAPTIVE_AVG_POOL2D.apply((batched(input, 4),), parameters), input, 4)


@explained
def max_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Return the maximum of each window: ``[batch, channels, length]`` to ``[…, windows]``."""
    (kernel,), (step,), (border,) = _windows(1, kernel_size, stride, padding)
    parameters = (kernel, step, border, *per_axis(dilation, 1), ceil_mode)
    return unbatched(MAX_POOL1D.apply((batched(input, 3),), parameters), input, 3)


@explained
def max_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Return the maximum of each window; shapes as for ``avg_pool2d``."""
    windows = _windows(2, kernel_size, stride, padding)
    parameters = (*windows, per_axis(dilation, 2), ceil_mode)
    return unbatched(MAX_POOL2D.apply((batched(input, 4),), parameters), input, 4)


@explained
def max_pool1d_with_indices(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the maxima and, as int64, the index of each in its signal; see ``max_pool1d``."""
    (kernel,), (step,), (border,) = _windows(1, kernel_size, stride, padding)
    parameters = (kernel, step, border, *per_axis(dilation, 1), ceil_mode)
    values, indices = MAX_POOL1D_WITH_INDICES.apply_all((batched(input, 3),), parameters)
    return unbatched(values, input, 3), unbatched(indices, input, 3)


@explained
def max_pool2d_with_indices(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the maxima and, as int64, the index of each in its flattened image.

    See ``max_pool2d``.
    """
    windows = _windows(2, kernel_size, stride, padding)
    parameters = (*windows, per_axis(dilation, 2), ceil_mode)
    values, indices = MAX_POOL2D_WITH_INDICES.apply_all((batched(input, 4),), parameters)
    return unbatched(values, input, 4), unbatched(indices, input, 4)


def _windows(
    spatial: int, kernel_size: Sizes, stride: Sizes | None, padding: Sizes
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    kernel = per_axis(kernel_size, spatial)
    step = kernel if stride is None else per_axis(stride, spatial)
    return kernel, step, per_axis(padding, spatial)
