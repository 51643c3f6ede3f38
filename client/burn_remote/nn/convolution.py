"""Convolutions, with PyTorch's names and shapes.

All tensors have the same floating-point dtype. The batch axis is optional; the result lacks it if
the input does. Stride, padding and dilation are one integer for all spatial axes, or a sequence
with one for each. All raise ``ShapeMismatch`` and ``DTypeMismatch``.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Final

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, reshaped
from burn_remote.functions.padding import pad
from burn_remote_protocol.errors import ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import convolution_rows

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "Sizes",
    "batched",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "deform_conv2d",
    "per_axis",
    "unbatched",
]

# One integer for all spatial axes, or one for each.
Sizes = int | Sequence[int]

CONV1D: Final = Operator(convolution_rows.CONV1D)
CONV2D: Final = Operator(convolution_rows.CONV2D)
CONV3D: Final = Operator(convolution_rows.CONV3D)
CONV_TRANSPOSE1D: Final = Operator(convolution_rows.CONV_TRANSPOSE1D)
CONV_TRANSPOSE2D: Final = Operator(convolution_rows.CONV_TRANSPOSE2D)
CONV_TRANSPOSE3D: Final = Operator(convolution_rows.CONV_TRANSPOSE3D)
DEFORMABLE_CONV2D: Final = Operator(convolution_rows.DEFORMABLE_CONV2D)


@explained
def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve signals (cross-correlation, as in PyTorch).

    Shapes: ``[batch, in, length]``, weight ``[out, in / groups, kernel]``, bias ``[out]`` to
    ``[batch, out, windows]``. ``padding`` may be ``"valid"`` (none) or ``"same"``.
    """
    return _convolve(CONV1D, 1, input, weight, bias, stride, padding, dilation, groups)


@explained
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve images (cross-correlation, as in PyTorch).

    Shapes: ``[batch, in, height, width]``, weight ``[out, in / groups, kernel, kernel]``, bias
    ``[out]`` to ``[batch, out, windows, windows]``. ``padding`` may be ``"valid"`` or ``"same"``.
    """
    return _convolve(CONV2D, 2, input, weight, bias, stride, padding, dilation, groups)


@explained
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve volumes (cross-correlation, as in PyTorch).

    Shapes: ``[batch, in, depth, height, width]``, weight ``[out, in / groups, kernel, kernel,
    kernel]``, bias ``[out]`` to ``[batch, out, windows, windows, windows]``. ``padding`` may be
    ``"valid"`` or ``"same"``.
    """
    return _convolve(CONV3D, 3, input, weight, bias, stride, padding, dilation, groups)


@explained
def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Apply the transposed convolution of signals: the gradient of ``conv1d`` by its ``input``.

    Shapes: ``[batch, in, length]``, weight ``[in, out / groups, kernel]``, bias ``[out]`` to
    ``[batch, out, (length - 1) * stride - 2 * padding + dilation * (kernel - 1) +
    output_padding + 1]``.
    """
    options = (stride, padding, output_padding, dilation)
    return _transposed(CONV_TRANSPOSE1D, 1, input, weight, bias, options, groups)


@explained
def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Apply the transposed convolution of images; see ``conv_transpose1d``.

    Shapes: ``[batch, in, height, width]``, weight ``[in, out / groups, kernel, kernel]``.
    """
    options = (stride, padding, output_padding, dilation)
    return _transposed(CONV_TRANSPOSE2D, 2, input, weight, bias, options, groups)


@explained
def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Apply the transposed convolution of volumes; see ``conv_transpose1d``.

    Shapes: ``[batch, in, depth, height, width]``, weight ``[in, out / groups, kernel, kernel,
    kernel]``.
    """
    options = (stride, padding, output_padding, dilation)
    return _transposed(CONV_TRANSPOSE3D, 3, input, weight, bias, options, groups)


@explained
def deform_conv2d(
    input: Tensor,
    offset: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """Apply a deformable convolution of images, as ``torchvision.ops.deform_conv2d`` does.

    ``offset`` moves the sampling points, and ``mask`` weights them (Zhu et al., 2018).

    Shapes: ``[batch, in, height, width]``, offset ``[batch, 2 * points, out_height, out_width]``
    and mask ``[batch, points, out_height, out_width]`` with ``points = offset_groups * kernel *
    kernel``, weight ``[out, in / groups, kernel, kernel]``, bias ``[out]`` to ``[batch, out,
    out_height, out_width]``. The numbers of groups are inferred from the shapes.
    """
    if input.ndim != 4 or weight.ndim != 4 or offset.ndim != 4:
        raise ShapeMismatch(
            f"input {input.handle.spec}, offset {offset.handle.spec} and weight "
            f"{weight.handle.spec} must have 4 axes"
        )
    weight_groups = max(1, input.shape[1] // max(1, weight.shape[1]))
    points = 2 * weight.shape[2] * weight.shape[3]
    offset_groups = max(1, offset.shape[1] // max(1, points))
    axes = (per_axis(stride, 2), per_axis(padding, 2), per_axis(dilation, 2))
    options = (*axes, weight_groups, offset_groups)
    return DEFORMABLE_CONV2D.apply((input, offset, weight, mask, bias), (options,))


def per_axis(sizes: Sizes, spatial: int) -> tuple[int, ...]:
    """Return one integer for each spatial axis.

    Raises ``ShapeMismatch`` for a wrong count and ``UsageError`` if a size is not an integer.
    """
    try:
        given = tuple(map(index, sizes)) if isinstance(sizes, Sequence) else (index(sizes),)
    except TypeError:
        raise UsageError(
            f"{sizes!r} is neither an integer nor a sequence of one for each axis"
        ) from None
    if len(given) not in (1, spatial):
        raise ShapeMismatch(
            f"{list(given)} must have 1 or {spatial} sizes, one for each spatial axis"
        )
    return given * spatial if len(given) == 1 else given


def batched(x: Tensor, rank: int) -> Tensor:
    """Prepend a batch axis to ``x`` if it has only ``rank - 1`` axes."""
    return reshaped(x, (1, *x.shape)) if x.ndim == rank - 1 else x


def unbatched(result: Tensor, x: Tensor, rank: int) -> Tensor:
    """Remove the batch axis of ``result`` if ``batched(x, rank)`` added one."""
    return reshaped(result, result.shape[1:]) if x.ndim == rank - 1 else result


def _convolve(
    operator: Operator,
    spatial: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes | str,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    strides, dilations = per_axis(stride, spatial), per_axis(dilation, spatial)
    x = batched(input, spatial + 2)
    if isinstance(padding, str):
        x, paddings = _padded(x, weight, padding, strides, dilations)
    else:
        paddings = per_axis(padding, spatial)
    options = (strides, paddings, dilations, groups)
    return unbatched(operator.apply((x, weight, bias), (options,)), input, spatial + 2)


def _padded(
    x: Tensor, weight: Tensor, padding: str, strides: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...]]:
    if padding == "valid":
        return x, (0,) * len(strides)
    if padding != "same" or any(stride != 1 for stride in strides):
        raise UsageError(
            f"padding must be 'valid', or 'same' with a stride of 1, not {padding!r} with a stride "
            f"of {list(strides)}"
        )
    kernels = weight.shape[2:]
    totals = [d * (k - 1) for d, k in zip(dilations, kernels, strict=False)]
    # An odd total adds one more element at the end than at the start, as in PyTorch.
    if any(total % 2 for total in totals):
        uneven: list[Any] = []
        for total in reversed(totals):
            uneven += [0, total % 2]
        x = pad(x, uneven)
    return x, tuple([total // 2 for total in totals])


def _transposed(
    operator: Operator,
    spatial: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    options: tuple[Sizes, ...],
    groups: int,
) -> Tensor:
    x = batched(input, spatial + 2)
    sizes = tuple([per_axis(option, spatial) for option in options])
    result = operator.apply((x, weight, bias), ((*sizes, groups),))
    return unbatched(result, input, spatial + 2)
