"""Pooling over windows of images and signals, with PyTorch's names and shapes.

Tensors are floating-point. The batch axis is optional; the result lacks it if the input does. Sizes
are one integer for all spatial axes, or a sequence with one for each. ``stride=None`` means
``kernel_size``. ``ceil_mode`` keeps an incomplete last window that starts inside the input or the
padding before it. All raise ``ShapeMismatch`` and ``DTypeMismatch``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, reshaped
from burn_remote.dispatch.rows_with_fallbacks import preferring
from burn_remote.functions.manipulation import part
from burn_remote.nn.convolution import Sizes, batched, per_axis, unbatched
from burn_remote_protocol.errors import ShapeMismatch
from burn_remote_protocol.operations.families import pooling_rows

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "Windows",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
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
ADAPTIVE_AVG_POOL3D: Final = Operator(pooling_rows.ADAPTIVE_AVG_POOL3D)
MAX_POOL1D: Final = Operator(pooling_rows.MAX_POOL1D)
MAX_POOL2D: Final = Operator(pooling_rows.MAX_POOL2D)
MAX_POOL1D_WITH_INDICES: Final = Operator(pooling_rows.MAX_POOL1D_WITH_INDICES)
MAX_POOL2D_WITH_INDICES: Final = Operator(pooling_rows.MAX_POOL2D_WITH_INDICES)


class Windows(NamedTuple):
    """The sizes of a pooling's windows, with one integer for each spatial axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(
        cls, spatial: int, kernel: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes = 1
    ) -> Windows:
        """Return windows for ``spatial`` axes. Raises ``ShapeMismatch`` and ``UsageError``."""
        step = kernel if stride is None else stride
        return cls(*[per_axis(sizes, spatial) for sizes in (kernel, step, padding, dilation)])

    @property
    def parameters(self) -> tuple[tuple[int, ...] | int, ...]:
        """The parameters of an operation: integers for one spatial axis, else tuples."""
        return tuple([sizes[0] if len(sizes) == 1 else sizes for sizes in self])

    def rounded_up(self, sizes: Sequence[int]) -> tuple[Windows, tuple[int, ...]]:
        """Return the windows of ceil mode over an input of ``sizes``, and how many PyTorch keeps.

        Burn also keeps a last window that starts behind the input, and refuses a kernel that
        reaches past the padding. PyTorch accepts a kernel that reaches past it by less than a
        stride. Then there is one window. The largest kernel that fits gives the same elements, so
        this returns windows with that kernel.
        """
        if min(self.kernel + self.stride + self.dilation) < 1:
            return self, ()  # the operation refuses it
        kernel, counts = [], []
        for size, taps, step, pad, gap in zip(sizes, *self, strict=False):
            padded, reach = size + 2 * pad, gap * (taps - 1) + 1
            is_too_long = 0 < padded < reach < padded + step
            kernel.append((padded - 1) // gap + 1 if is_too_long else taps)
            count = (padded - reach + step - 1) // step + 1
            counts.append(count - 1 if (count - 1) * step >= size + pad else count)
        return self._replace(kernel=tuple(kernel)), tuple(counts)


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

    ``count_include_pad`` includes the padding in the mean.
    """
    windows = Windows.of(1, kernel_size, stride, padding)
    (means,) = _pooled(AVG_POOL1D, input, windows, ceil_mode, count_include_pad)
    return means


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
    row and column per window. ``count_include_pad`` includes the padding in the mean.
    """
    windows = Windows.of(2, kernel_size, stride, padding)
    (means,) = _pooled(AVG_POOL2D, input, windows, ceil_mode, count_include_pad)
    return means


@explained
def adaptive_avg_pool1d(input: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """Return the mean of each of ``output_size`` windows of nearly equal length.

    Shapes: ``[batch, channels, length]`` to ``[batch, channels, output_size]``.
    ``None`` keeps the length.
    """
    parameters = _output_sizes(input, output_size, 1)
    return unbatched(ADAPTIVE_AVG_POOL1D.apply((batched(input, 3),), parameters), input, 3)


@explained
def adaptive_avg_pool2d(input: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """Return the mean of each of ``output_size`` windows of nearly equal size.

    Shapes: ``[batch, channels, height, width]`` to ``[batch, channels, *output_size]``.
    A size of ``None`` keeps the size of the axis.
    """
    parameters = (_output_sizes(input, output_size, 2),)
    return unbatched(ADAPTIVE_AVG_POOL2D.apply((batched(input, 4),), parameters), input, 4)


@explained
def adaptive_avg_pool3d(input: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """Return the mean of each of ``output_size`` windows of nearly equal size.

    Shapes: ``[batch, channels, depth, height, width]`` to ``[batch, channels, *output_size]``. A
    size of ``None`` keeps the size of the axis. Burn 0.21 servers do not have the operation; on
    them, two operations pool the planes and then the depth.
    """
    sizes = _output_sizes(input, output_size, 3)
    x = batched(input, 5)
    if x.ndim != 5:
        raise ShapeMismatch(f"{input.handle.spec} must have 3 spatial axes")
    return unbatched(_adaptive_avg_pool3d(x, sizes), input, 5)


def _output_sizes(
    x: Tensor, sizes: int | Sequence[int | None] | None, spatial: int
) -> tuple[int, ...]:
    """Return the size of each spatial axis of the result; ``None`` keeps that of ``x``."""
    given = tuple(sizes) if isinstance(sizes, Sequence) else (sizes,)
    if len(given) == 1:
        given *= spatial
    # Wrong counts keep their None, which is refused.
    present = x.shape[-spatial:] if len(given) == spatial < x.ndim else given
    kept = [there if one is None else one for one, there in zip(given, present, strict=True)]
    checked = per_axis(cast("Sequence[int]", kept), spatial)
    # The operation itself refuses wrong ranks and empty axes.
    if x.ndim > spatial and min(checked) < 1 <= min(x.shape[-spatial:]):
        raise ShapeMismatch(f"output_size must be at least 1 on each axis, not {list(checked)}")
    return checked


@preferring(
    pooling_rows.ADAPTIVE_AVG_POOL3D, lambda x, sizes: ADAPTIVE_AVG_POOL3D.apply((x,), (sizes,))
)
def _adaptive_avg_pool3d(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    batch, channels, depth, height, width = x.shape
    planes = reshaped(x, (batch, channels * depth, height, width))
    pooled = ADAPTIVE_AVG_POOL2D.apply((planes,), (sizes[1:],))
    columns = reshaped(pooled, (batch, channels, depth, sizes[1] * sizes[2])).mT
    lines = reshaped(columns, (batch, channels * sizes[1] * sizes[2], depth))
    means = ADAPTIVE_AVG_POOL1D.apply((lines,), sizes[:1])
    return reshaped(
        reshaped(means, (batch, channels, sizes[1] * sizes[2], sizes[0])).mT,
        (batch, channels, *sizes),
    )


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
    windows = Windows.of(1, kernel_size, stride, padding, dilation)
    (maxima,) = _pooled(MAX_POOL1D, input, windows, ceil_mode)
    return maxima


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
    windows = Windows.of(2, kernel_size, stride, padding, dilation)
    (maxima,) = _pooled(MAX_POOL2D, input, windows, ceil_mode)
    return maxima


@explained
def max_pool1d_with_indices(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the maxima and, as int64, the index of each in its signal; see ``max_pool1d``.

    Of several NaN in a window, the index is that of the first; PyTorch returns the last.
    """
    windows = Windows.of(1, kernel_size, stride, padding, dilation)
    maxima, indices = _pooled(MAX_POOL1D_WITH_INDICES, input, windows, ceil_mode)
    return maxima, indices


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

    Of several NaN in a window, the index is that of the first in row-major order; PyTorch returns
    the last. See ``max_pool2d``.
    """
    windows = Windows.of(2, kernel_size, stride, padding, dilation)
    maxima, indices = _pooled(MAX_POOL2D_WITH_INDICES, input, windows, ceil_mode)
    return maxima, indices


def _pooled(
    operator: Operator,
    input: Tensor,
    windows: Windows,
    ceil_mode: bool,
    count_include_pad: bool | None = None,
) -> list[Tensor]:
    """Return the outputs of a pooling; only a mean has ``count_include_pad``."""
    rank = len(windows.kernel) + 2
    x = batched(input, rank)
    counts: tuple[int, ...] = ()
    if ceil_mode:
        windows, counts = windows.rounded_up(x.shape[2:])
    if count_include_pad is None:
        parameters = (*windows.parameters, ceil_mode)
    else:
        parameters = (*windows.parameters[:3], count_include_pad, ceil_mode)
    outputs = operator.apply_all((x,), parameters)
    return [unbatched(_first(output, counts), input, rank) for output in outputs]


def _first(output: Tensor, counts: tuple[int, ...]) -> Tensor:
    """Return the first windows along each axis."""
    for axis, count in enumerate(counts, start=2):
        if output.shape[axis] > count:
            output = part(output, axis, 0, count)
    return output
