"""Gradients of layers: the backward operations of Burn's IR.

Each function issues one of these operations, for programs that write the backward pass of a layer
by hand, as the recorded programs of Burn do. Other programs do not need them: ``Tensor.backward``
and ``burn_remote.grad`` compute gradients of whole programs by the rules of ``gradient_rules``,
which issue the same operations.

Names, arguments and shapes are Burn's: the weight of ``linear`` is ``[in, out]``. Each gradient has
the shape of the argument it belongs to. Stride, padding and dilation are one integer for all
spatial axes, or a sequence with one for each. All raise ``ShapeMismatch`` and ``DTypeMismatch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.diagnostics.advice import missing_from
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator
from burn_remote.functions.padding import pad
from burn_remote.nn.convolution import Sizes, per_axis
from burn_remote.nn.pooling import Windows
from burn_remote.nn.resampling import MODES
from burn_remote_protocol.errors import ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import (
    activations,
    convolution_rows,
    layers,
    pooling_rows,
    sampling,
)
from burn_remote_protocol.operations.shape_rules.convolution_rules import window_count

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "adaptive_avg_pool_backward",
    "avg_pool_backward",
    "conv_bias_backward",
    "conv_transpose_bias_backward",
    "conv_transpose_weight_backward",
    "conv_weight_backward",
    "conv_x_backward",
    "ctc_loss_backward",
    "deform_conv2d_backward",
    "embedding_backward",
    "gelu_backward",
    "interpolate_backward",
    "linear_bias_backward",
    "linear_weight_backward",
    "linear_x_backward",
    "log_sigmoid_backward",
    "max_pool_backward",
    "relu_backward",
    "sigmoid_backward",
]

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__)

EMBEDDING_BACKWARD: Final = Operator(layers.EMBEDDING_BACKWARD)
LINEAR_X_BACKWARD: Final = Operator(layers.LINEAR_X_BACKWARD)
LINEAR_WEIGHT_BACKWARD: Final = Operator(layers.LINEAR_WEIGHT_BACKWARD)
LINEAR_BIAS_BACKWARD: Final = Operator(layers.LINEAR_BIAS_BACKWARD)
CTC_LOSS_BACKWARD: Final = Operator(layers.CTC_LOSS_BACKWARD)
INTERPOLATE_BACKWARD: Final = Operator(sampling.INTERPOLATE_BACKWARD)
DEFORMABLE_CONV2D_BACKWARD: Final = Operator(convolution_rows.DEFORMABLE_CONV2D_BACKWARD)

# Number of spatial axes -> operator.
CONV_X_BACKWARD: Final = {
    1: Operator(convolution_rows.CONV1D_X_BACKWARD),
    2: Operator(convolution_rows.CONV2D_X_BACKWARD),
    3: Operator(convolution_rows.CONV3D_X_BACKWARD),
}
CONV_WEIGHT_BACKWARD: Final = {
    1: Operator(convolution_rows.CONV1D_WEIGHT_BACKWARD),
    2: Operator(convolution_rows.CONV2D_WEIGHT_BACKWARD),
    3: Operator(convolution_rows.CONV3D_WEIGHT_BACKWARD),
}
CONV_BIAS_BACKWARD: Final = {
    1: Operator(convolution_rows.CONV1D_BIAS_BACKWARD),
    2: Operator(convolution_rows.CONV2D_BIAS_BACKWARD),
    3: Operator(convolution_rows.CONV3D_BIAS_BACKWARD),
}
CONV_TRANSPOSE_WEIGHT_BACKWARD: Final = {
    1: Operator(convolution_rows.CONV_TRANSPOSE1D_WEIGHT_BACKWARD),
    2: Operator(convolution_rows.CONV_TRANSPOSE2D_WEIGHT_BACKWARD),
    3: Operator(convolution_rows.CONV_TRANSPOSE3D_WEIGHT_BACKWARD),
}
CONV_TRANSPOSE_BIAS_BACKWARD: Final = {
    1: Operator(convolution_rows.CONV_TRANSPOSE1D_BIAS_BACKWARD),
    2: Operator(convolution_rows.CONV_TRANSPOSE2D_BIAS_BACKWARD),
    3: Operator(convolution_rows.CONV_TRANSPOSE3D_BIAS_BACKWARD),
}
RELU_BACKWARD: Final = Operator(activations.RELU_BACKWARD)
GELU_BACKWARD: Final = Operator(activations.GELU_BACKWARD)
SIGMOID_BACKWARD: Final = Operator(activations.SIGMOID_BACKWARD)
LOG_SIGMOID_BACKWARD: Final = Operator(activations.LOG_SIGMOID_BACKWARD)
AVG_POOL_BACKWARD: Final = {
    1: Operator(pooling_rows.AVG_POOL1D_BACKWARD),
    2: Operator(pooling_rows.AVG_POOL2D_BACKWARD),
}
ADAPTIVE_AVG_POOL_BACKWARD: Final = {
    1: Operator(pooling_rows.ADAPTIVE_AVG_POOL1D_BACKWARD),
    2: Operator(pooling_rows.ADAPTIVE_AVG_POOL2D_BACKWARD),
    3: Operator(pooling_rows.ADAPTIVE_AVG_POOL3D_BACKWARD),
}
MAX_POOL_BACKWARD: Final = {
    1: Operator(pooling_rows.MAX_POOL1D_WITH_INDICES_BACKWARD),
    2: Operator(pooling_rows.MAX_POOL2D_WITH_INDICES_BACKWARD),
}


@explained
def linear_x_backward(weight: Tensor, output_grad: Tensor) -> Tensor:
    """Return ``output_grad @ weight.T``: weight ``[in, out]``, ``[…, out]`` to ``[…, in]``."""
    return LINEAR_X_BACKWARD.apply((weight, output_grad))


@explained
def linear_weight_backward(x: Tensor, output_grad: Tensor) -> Tensor:
    """Return ``x.T @ output_grad``: x ``[…, in]``, ``[…, out]`` to ``[in, out]``."""
    return LINEAR_WEIGHT_BACKWARD.apply((x, output_grad))


@explained
def linear_bias_backward(output_grad: Tensor) -> Tensor:
    """Return the sum over all axes but the last: ``[…, out]`` to ``[out]``."""
    return LINEAR_BIAS_BACKWARD.apply((output_grad,))


@explained
def embedding_backward(weights: Tensor, out_grad: Tensor, indices: Tensor) -> Tensor:
    """Return the gradient of ``embedding`` with respect to its weights.

    Shapes: weights ``[rows, n]``, gradient ``[…, n]``, indices ``[…]`` to ``[rows, n]``.
    """
    return EMBEDDING_BACKWARD.apply((weights, out_grad, indices))


@explained
def conv_x_backward(
    x: Tensor,
    weight: Tensor,
    output_grad: Tensor,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Return the gradient of ``conv1d``, ``conv2d`` or ``conv3d`` with respect to ``x``."""
    spatial = _spatial(x, 3)
    options = _options(spatial, stride, padding, dilation, groups)
    return CONV_X_BACKWARD[spatial].apply((x, weight, output_grad), (options,))


@explained
def conv_weight_backward(
    x: Tensor,
    weight: Tensor,
    output_grad: Tensor,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Return the gradient of ``conv1d``, ``conv2d`` or ``conv3d`` with respect to ``weight``."""
    spatial = _spatial(x, 3)
    options = _options(spatial, stride, padding, dilation, groups)
    return CONV_WEIGHT_BACKWARD[spatial].apply((x, weight, output_grad), (options,))


@explained
def conv_bias_backward(x: Tensor, bias: Tensor, output_grad: Tensor) -> Tensor:
    """Return the gradient of ``conv1d``, ``conv2d`` or ``conv3d`` with respect to ``bias``."""
    return CONV_BIAS_BACKWARD[_spatial(x, 3)].apply((x, bias, output_grad))


@explained
def conv_transpose_weight_backward(
    x: Tensor,
    weight: Tensor,
    output_grad: Tensor,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Return the gradient of ``conv_transpose1d``, ``2d`` or ``3d`` with respect to ``weight``.

    Burn 0.21 servers do not have the operation.
    """
    spatial = _spatial(x, 3)
    axes = [per_axis(each, spatial) for each in (stride, padding, output_padding, dilation)]
    operator = CONV_TRANSPOSE_WEIGHT_BACKWARD[spatial]
    return operator.apply((x, weight, output_grad), ((*axes, groups),))


@explained
def conv_transpose_bias_backward(x: Tensor, bias: Tensor, output_grad: Tensor) -> Tensor:
    """Return the gradient of ``conv_transpose1d``, ``2d`` or ``3d`` with respect to ``bias``.

    Burn 0.21 servers do not have the operation.
    """
    return CONV_TRANSPOSE_BIAS_BACKWARD[_spatial(x, 3)].apply((x, bias, output_grad))


@explained
def relu_backward(output: Tensor, grad: Tensor) -> Tensor:
    """Return ``grad`` where the result of ``relu`` is positive, else 0.

    Burn 0.21 servers do not have the operation.
    """
    return RELU_BACKWARD.binary(output, grad)


@explained
def gelu_backward(x: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of ``gelu`` at ``x``.

    Burn 0.21 servers do not have the operation.
    """
    return GELU_BACKWARD.binary(x, grad)


@explained
def sigmoid_backward(output: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of ``sigmoid``, given its result ``output``.

    Burn 0.21 servers do not have the operation.
    """
    return SIGMOID_BACKWARD.binary(output, grad)


@explained
def log_sigmoid_backward(x: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of ``logsigmoid`` at ``x``.

    Burn 0.21 servers do not have the operation.
    """
    return LOG_SIGMOID_BACKWARD.binary(x, grad)


@explained
def deform_conv2d_backward(
    x: Tensor,
    offset: Tensor,
    weight: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    out_grad: Tensor,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    weight_groups: int = 1,
    offset_groups: int = 1,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of ``deform_conv2d`` with respect to x, offset, weight, mask and bias.

    The gradient of an absent mask or bias is ``None``.
    """
    axes = (per_axis(stride, 2), per_axis(padding, 2), per_axis(dilation, 2))
    gradients = DEFORMABLE_CONV2D_BACKWARD.apply_all(
        (x, offset, weight, mask, bias, out_grad), ((*axes, weight_groups, offset_groups),)
    )
    to_x, to_offset, to_weight, *optional = gradients
    to_bias = None if bias is None else optional.pop()
    to_mask = None if mask is None else optional.pop()
    return to_x, to_offset, to_weight, to_mask, to_bias


@explained
def avg_pool_backward(
    x: Tensor,
    grad: Tensor,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes = 0,
    count_include_pad: bool = True,
    ceil_mode: bool = False,
) -> Tensor:
    """Return the gradient of ``avg_pool1d`` or ``avg_pool2d`` with respect to ``x``."""
    spatial = _spatial(x, 2)
    windows = Windows.of(spatial, kernel_size, stride, padding)
    if ceil_mode:
        windows, (grad,) = _with_all_windows(windows, x, grad)
    parameters = (*windows.parameters[:3], count_include_pad, ceil_mode)
    return AVG_POOL_BACKWARD[spatial].apply((x, grad), parameters)


@explained
def adaptive_avg_pool_backward(x: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of ``adaptive_avg_pool1d``, ``2d`` or ``3d`` for ``x``.

    Burn 0.21 servers do not have the operation for three dimensions.
    """
    return ADAPTIVE_AVG_POOL_BACKWARD[_spatial(x, 3)].apply((x, grad))


@explained
def max_pool_backward(
    x: Tensor,
    grad: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Return the gradient of ``max_pool1d_with_indices`` or the 2d function for ``x``."""
    spatial = _spatial(x, 2)
    windows = Windows.of(spatial, kernel_size, stride, padding, dilation)
    if ceil_mode:
        windows, (grad, indices) = _with_all_windows(windows, x, grad, indices)
    parameters = (*windows.parameters, ceil_mode)
    return MAX_POOL_BACKWARD[spatial].apply((x, grad, indices), parameters)


@explained
def interpolate_backward(
    x: Tensor,
    grad: Tensor,
    output_size: Sizes,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Tensor:
    """Return the gradient of ``interpolate`` of images with respect to ``x``.

    Raises ``UsageError`` for an unknown ``mode``.
    """
    if mode not in MODES:
        raise UsageError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    options = (MODES[mode], align_corners)
    return INTERPOLATE_BACKWARD.apply((x, grad), (per_axis(output_size, 2), options))


@explained
def ctc_loss_backward(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    grad_loss: Tensor,
    blank: int = 0,
) -> Tensor:
    """Return the gradient of unreduced CTC losses ``[batch]`` with respect to ``log_probs``."""
    inputs = (log_probs, targets, input_lengths, target_lengths, grad_loss)
    return CTC_LOSS_BACKWARD.apply(inputs, (blank,))


def _spatial(x: Tensor, most: int) -> int:
    spatial = x.ndim - 2
    if not 1 <= spatial <= most:
        raise ShapeMismatch(f"x {x.handle.spec} must have 1 to {most} spatial axes")
    return spatial


def _options(
    spatial: int, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> tuple[tuple[int, ...] | int, ...]:
    return (*[per_axis(sizes, spatial) for sizes in (stride, padding, dilation)], groups)


def _with_all_windows(
    windows: Windows, x: Tensor, *outputs: Tensor
) -> tuple[Windows, list[Tensor]]:
    """Append zeros for the windows of ceil mode that Burn keeps and ``functional`` drops.

    ``outputs`` have the shape of the pooling's output. Those that already have all windows of Burn
    are returned unchanged.
    """
    windows, kept = windows.rounded_up(x.shape[2:])
    axes = zip(x.shape[2:], *windows, strict=True)
    made = [window_count(*axis, ceil=True) for axis in axes]
    if all(output.shape[2:] == kept for output in outputs):
        borders = [(0, there - here) for here, there in zip(kept, made, strict=True)]
        flat = [size for border in reversed(borders) for size in border]
        outputs = tuple([pad(output, flat) for output in outputs])
    return windows, [*outputs]
