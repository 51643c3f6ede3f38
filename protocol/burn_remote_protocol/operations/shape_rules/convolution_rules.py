"""Rules of convolutions: plain, transposed and deformable, and their gradients.

Inputs are ``[batch, channels, spatial…]``; formulas are those of Burn 0.21 and PyTorch.
"""

from __future__ import annotations

import math

from burn_remote_protocol.errors import Unsupported
from burn_remote_protocol.operations.row import Call, Rule
from burn_remote_protocol.operations.shape_rules.checks import (
    FLOATS,
    check_category,
    check_rank,
    check_same_dtype,
    check_shape,
    refuse_shape,
    result,
)
from burn_remote_protocol.tensors import Shape, TensorSpec

__all__ = [
    "bias_backward",
    "convolution",
    "deformable",
    "deformable_backward",
    "transposed",
    "transposed_weight_backward",
    "unfolded",
    "weight_backward",
    "window_count",
    "x_backward",
]

Outputs = tuple[TensorSpec, ...]


def window_count(
    size: int, kernel: int, stride: int, padding: int, dilation: int, *, ceil: bool = False
) -> int:
    """Return how many windows of a kernel fit an axis."""
    if min(kernel, stride, dilation) < 1:
        refuse_shape(f"kernel {kernel}, stride {stride} and dilation {dilation} must be 1 or more")
    free = size + 2 * padding - dilation * (kernel - 1) - 1
    if free < 0:
        refuse_shape(
            f"a kernel of {kernel} with dilation {dilation} does not fit an axis of {size} "
            f"with padding {padding}"
        )
    return (-(-free // stride) if ceil else free // stride) + 1


def _check_layer(rank: int, x: TensorSpec, weight: TensorSpec, bias: TensorSpec | None) -> None:
    check_category("x", x, FLOATS)
    check_rank("x", x, rank)
    check_rank("weight", weight, rank)
    check_same_dtype(x, weight=weight, bias=bias)


def _check_groups(groups: int, channels: int, weight: TensorSpec) -> None:
    if groups < 1 or channels % groups:
        refuse_shape(
            f"{channels} channels, axis 0 of weight {weight}, "
            f"cannot be divided into {groups} groups"
        )


def _in_groups(groups: int) -> str:
    return f"in {groups} groups " if groups > 1 else ""


def _check_channels(x: TensorSpec, weight: TensorSpec, groups: int, bias: TensorSpec | None) -> int:
    channels = weight.shape[0]
    _check_groups(groups, channels, weight)
    if x.shape[1] != weight.shape[1] * groups:
        refuse_shape(
            f"x {x} has {x.shape[1]} channels (axis 1), but weight {weight} "
            f"{_in_groups(groups)}takes {weight.shape[1] * groups}"
        )
    if bias is not None:
        check_shape("bias", bias, (channels,))
    return channels


def _convolved(call: Call, x: TensorSpec, weight: TensorSpec) -> Shape:
    stride, padding, dilation = (call.parameters[n] for n in ("stride", "padding", "dilation"))
    for axis, ends in enumerate(padding):
        if type(ends) is tuple:
            raise Unsupported(
                f"axis {axis} is padded with {ends[0]} before and {ends[1]} after; convolutions "
                "pad both ends alike, so pad the tensor first"
            )
    axes = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    return (x.shape[0], weight.shape[0], *[window_count(*axis) for axis in axes])


def convolution(spatial: int) -> Rule:
    """Slide kernels ``[channels out, channels in / groups, spatial…]`` over the input."""

    def rule(call: Call) -> Outputs:
        x, weight, bias = call.inputs
        _check_layer(spatial + 2, x, weight, bias)
        _check_channels(x, weight, call.parameters["groups"], bias)
        return (result(_convolved(call, x, weight), x.dtype),)

    return rule


def _check_gradient(call: Call, spatial: int) -> None:
    x, weight, grad = call.inputs
    _check_layer(spatial + 2, x, weight, None)
    check_same_dtype(x, output_grad=grad)
    _check_channels(x, weight, call.parameters["groups"], None)
    check_shape("output_grad", grad, _convolved(call, x, weight))


def x_backward(spatial: int) -> Rule:
    """Infer the gradient of a convolution with respect to its input."""

    def rule(call: Call) -> Outputs:
        _check_gradient(call, spatial)
        return (call.inputs[0],)

    return rule


def weight_backward(spatial: int) -> Rule:
    """Infer the gradient of a convolution with respect to its kernels."""

    def rule(call: Call) -> Outputs:
        _check_gradient(call, spatial)
        return (call.inputs[1],)

    return rule


def bias_backward(spatial: int) -> Rule:
    """Infer the gradient of a convolution with respect to its bias."""

    def rule(call: Call) -> Outputs:
        x, bias, grad = call.inputs
        check_category("x", x, FLOATS)
        check_same_dtype(x, bias=bias, output_grad=grad)
        check_rank("output_grad", grad, spatial + 2)
        check_shape("bias", bias, (grad.shape[1],))
        return (bias,)

    return rule


def transposed(spatial: int) -> Rule:
    """Spread kernels ``[channels in, channels out / groups, spatial…]`` over the output."""

    def rule(call: Call) -> Outputs:
        x, weight, bias = call.inputs
        _check_layer(spatial + 2, x, weight, bias)
        shape = _transposed_shape(call, x, weight)
        if bias is not None:
            check_shape("bias", bias, shape[1:2])
        return (result(shape, x.dtype),)

    return rule


def _transposed_shape(call: Call, x: TensorSpec, weight: TensorSpec) -> Shape:
    groups = call.parameters["groups"]
    _check_groups(groups, weight.shape[0], weight)
    if x.shape[1] != weight.shape[0]:
        refuse_shape(
            f"x {x} has {x.shape[1]} channels (axis 1), but weight {weight} takes {weight.shape[0]}"
        )
    names = ("stride", "padding", "padding_out", "dilation")
    axes = zip(
        x.shape[2:], weight.shape[2:], *(call.parameters[name] for name in names), strict=True
    )
    return (x.shape[0], weight.shape[1] * groups, *[_spread(*axis) for axis in axes])


def transposed_weight_backward(spatial: int) -> Rule:
    """Infer the gradient of a transposed convolution with respect to its kernels."""

    def rule(call: Call) -> Outputs:
        x, weight, grad = call.inputs
        _check_layer(spatial + 2, x, weight, None)
        check_same_dtype(x, output_grad=grad)
        check_shape("output_grad", grad, _transposed_shape(call, x, weight))
        return (weight,)

    return rule


def unfolded(call: Call) -> Outputs:
    """Copy the windows of images ``[batch, channels, height, width]``.

    The result is ``[batch, channels * taps, windows]``.
    """
    (x,) = call.inputs
    check_category("x", x, FLOATS)
    check_rank("x", x, 4)
    kernel = call.parameters["kernel_size"]
    names = ("stride", "padding", "dilation")
    axes = zip(x.shape[2:], kernel, *(call.parameters[name] for name in names), strict=True)
    windows = math.prod([window_count(*axis) for axis in axes])
    return (result((x.shape[0], x.shape[1] * math.prod(kernel), windows), x.dtype),)


def _spread(size: int, kernel: int, stride: int, padding: int, extra: int, dilation: int) -> int:
    if min(size, kernel, stride, dilation) < 1:
        refuse_shape(
            f"size {size}, kernel {kernel}, stride {stride} and dilation {dilation} must be 1 or "
            "more"
        )
    spread = (size - 1) * stride + dilation * (kernel - 1) + 1 + extra - 2 * padding
    if spread < 0:
        refuse_shape(
            f"padding {padding} removes {2 * padding} elements of an output axis, which has "
            f"{spread + 2 * padding}"
        )
    return spread


def _check_deformed(call: Call) -> Shape:
    x, offset, weight, mask, bias = call.inputs[:5]
    _check_layer(4, x, weight, bias)
    check_same_dtype(x, offset=offset, mask=mask)
    _check_channels(x, weight, call.parameters["weight_groups"], bias)
    groups = call.parameters["offset_groups"]
    if groups < 1 or x.shape[1] % groups:
        refuse_shape(f"x is {x}, but {groups} offset groups must divide its channels")
    shape = _convolved(call, x, weight)
    points = groups * math.prod(weight.shape[2:])
    check_shape("offset", offset, (x.shape[0], 2 * points, *shape[2:]))
    if mask is not None:
        check_shape("mask", mask, (x.shape[0], points, *shape[2:]))
    return shape


def deformable(call: Call) -> Outputs:
    """Convolve at points moved by offsets and weighted by a mask."""
    return (result(_check_deformed(call), call.inputs[0].dtype),)


def deformable_backward(call: Call) -> Outputs:
    """Infer the gradient with respect to each input that was given."""
    x, offset, weight, mask, bias, grad = call.inputs
    check_same_dtype(x, out_grad=grad)
    check_shape("out_grad", grad, _check_deformed(call))
    return tuple([spec for spec in (x, offset, weight, mask, bias) if spec is not None])
