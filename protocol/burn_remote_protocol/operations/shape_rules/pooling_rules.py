"""Rules of pooling and resampling. Images are ``[batch, channels, spatial…]``."""

from __future__ import annotations

from typing import Any

from burn_remote_protocol.operations.row import Call, Rule
from burn_remote_protocol.operations.shape_rules.checks import (
    FLOATS,
    INTEGERS,
    check_category,
    check_rank,
    check_same_dtype,
    check_shape,
    index_dtype,
    refuse_shape,
    result,
)
from burn_remote_protocol.operations.shape_rules.convolution_rules import window_count
from burn_remote_protocol.tensors import Shape, TensorSpec

__all__ = [
    "adaptive",
    "adaptive_backward",
    "grid_sample",
    "interpolate",
    "interpolate_backward",
    "pool",
    "pool_backward",
    "pool_with_indices",
    "pool_with_indices_backward",
]

Outputs = tuple[TensorSpec, ...]


def _per_axis(value: Any) -> tuple[int, ...]:
    # Operations with one spatial dimension have integers, those with two have pairs.
    return value if type(value) is tuple else (value,)


def _image(argument: str, spec: TensorSpec, spatial: int) -> TensorSpec:
    check_category(argument, spec, FLOATS)
    check_rank(argument, spec, spatial + 2)
    return spec


def _pooled(call: Call, spatial: int) -> Shape:
    x = _image("x", call.inputs[0], spatial)
    names = ("kernel_size", "stride", "padding")
    kernel, stride, padding = (_per_axis(call.parameters[name]) for name in names)
    dilation = _per_axis(call.parameters.get("dilation", (1,) * spatial))
    ceil = call.parameters["ceil_mode"]
    axes = zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
    return (*x.shape[:2], *[window_count(*axis, ceil=ceil) for axis in axes])


def pool(spatial: int) -> Rule:
    """Pool windows of the spatial axes."""

    def rule(call: Call) -> Outputs:
        return (result(_pooled(call, spatial), call.inputs[0].dtype),)

    return rule


def pool_backward(spatial: int) -> Rule:
    """Infer the gradient of pooling with respect to its input."""

    def rule(call: Call) -> Outputs:
        x, grad = call.inputs
        check_same_dtype(x, grad=grad)
        check_shape("grad", grad, _pooled(call, spatial))
        return (x,)

    return rule


def pool_with_indices(spatial: int) -> Rule:
    """Pool windows; also return the position of each result in the spatial axes."""

    def rule(call: Call) -> Outputs:
        shape = _pooled(call, spatial)
        pooled = result(shape, call.inputs[0].dtype)
        return pooled, TensorSpec(shape, index_dtype(call, 1))

    return rule


def pool_with_indices_backward(spatial: int) -> Rule:
    """Infer the gradient of pooling with respect to the positions in ``indices``."""

    def rule(call: Call) -> Outputs:
        x, grad, indices = call.inputs
        check_category("indices", indices, INTEGERS)
        check_same_dtype(x, grad=grad)
        shape = _pooled(call, spatial)
        check_shape("grad", grad, shape)
        check_shape("indices", indices, shape)
        return (x,)

    return rule


def _check_samples(x: TensorSpec) -> None:
    if 0 in x.shape[2:]:
        refuse_shape(f"x is {x}: there is nothing to sample in an empty axis")


def adaptive(spatial: int) -> Rule:
    """Pool to a given size."""

    def rule(call: Call) -> Outputs:
        x = _image("x", call.inputs[0], spatial)
        _check_samples(x)
        return (result((*x.shape[:2], *_per_axis(call.parameters["output_size"])), x.dtype),)

    return rule


def adaptive_backward(spatial: int) -> Rule:
    """Infer the gradient of adaptive pooling with respect to its input."""

    def rule(call: Call) -> Outputs:
        x, grad = call.inputs
        _image("x", x, spatial)
        check_same_dtype(x, grad=grad)
        check_rank("grad", grad, spatial + 2)
        check_shape("grad", grad, (*x.shape[:2], *grad.shape[2:]))
        return (x,)

    return rule


def interpolate(call: Call) -> Outputs:
    """Sample an image to a given size."""
    x = _image("x", call.inputs[0], 2)
    _check_samples(x)
    return (result((*x.shape[:2], *call.parameters["output_size"]), x.dtype),)


def interpolate_backward(call: Call) -> Outputs:
    """Infer the gradient of interpolation with respect to its input."""
    x, grad = call.inputs
    _image("x", x, 2)
    check_same_dtype(x, grad=grad)
    check_shape("grad", grad, (*x.shape[:2], *call.parameters["output_size"]))
    return (x,)


def grid_sample(call: Call) -> Outputs:
    """Sample an image at the points of a grid ``[batch, height, width, 2]``."""
    tensor, grid = call.inputs
    _image("tensor", tensor, 2)
    check_rank("grid", grid, 4)
    check_same_dtype(tensor, grid=grid)
    check_shape("grid", grid, (tensor.shape[0], *grid.shape[1:3], 2))
    return (result((*tensor.shape[:2], *grid.shape[1:3]), tensor.dtype),)
