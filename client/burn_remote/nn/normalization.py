"""How are activations normalized? Composed under the names and with the shapes of PyTorch.

Tensors are floating-point and of one dtype. Variances are divided by the number of elements, as
PyTorch does here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from burn_remote.arguments.axes import Axes, normal_shape
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import reshaped
from burn_remote.functions.arithmetic import add, divide, multiply, pow, subtract
from burn_remote.functions.casting import astype, at_least_float32
from burn_remote.functions.elementwise import abs, rsqrt, square
from burn_remote.functions.linear_algebra import vector_norm
from burn_remote.functions.selection import clip
from burn_remote.functions.statistics import mean, sum
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import ShapeMismatch, UsageError

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "batch_norm",
    "cosine_similarity",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "normalize",
    "rms_norm",
]


@explained
def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Give the last axes mean 0 and variance 1, then scale and move them.

    ``normalized_shape`` is the shape of these axes, and of weight and bias.
    """
    shape = normal_shape(normalized_shape)
    axes = _last_axes(input, shape)
    _check_shapes(shape, weight=weight, bias=bias)
    return _scaled(_standardized(input, axes, eps), weight, bias, input.dtype)


@explained
def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Give the last axes a mean square of 1, then scale them; ``weight`` has their shape."""
    axes = _last_axes(input, normalized_shape)
    _check_shapes(tuple(normalized_shape), weight=weight)
    wide = at_least_float32(input)
    scale = rsqrt(add(mean(square(wide), axis=axes, keepdims=True), eps))
    return _scaled(multiply(wide, scale), weight, None, input.dtype)


@explained
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Give each group of channels of ``[batch, channels, …]`` mean 0 and variance 1.

    weight and bias, ``[channels]``, scale and move them afterwards.
    """
    shape = input.shape
    if len(shape) < 2 or num_groups < 1 or shape[1] % num_groups:
        raise ShapeMismatch(f"{input.handle.spec} has no channels for {num_groups} equal groups")
    _check_shapes(shape[1:2], weight=weight, bias=bias)
    size = math.prod(shape[2:]) * (shape[1] // num_groups)
    groups = reshaped(input, (shape[0], num_groups, size))
    normal = reshaped(_standardized(groups, -1, eps), shape)
    return _scaled(normal, _by_channel(weight, shape), _by_channel(bias, shape), input.dtype)


@explained
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Give each channel of each of ``[batch, channels, …]`` mean 0 and variance 1.

    weight and bias, ``[channels]``, scale and move them afterwards. Without ``use_input_stats``
    mean and variance are the running ones, as in ``batch_norm``.
    """
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    channels = input.shape[1] if input.ndim > 1 else 0
    return group_norm(input, channels, weight, bias, eps)


@explained
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Give the channels of ``[batch, channels, …]`` mean 0 and variance 1; scale and move them.

    Mean and variance are the running ones, ``[channels]``, and of the batch in ``training``, or
    where there are none. Tensors do not change: running values are the caller's to keep, and
    ``momentum`` is only there because PyTorch's calls have it.
    """
    shape = input.shape
    if len(shape) < 2:
        raise ShapeMismatch(f"{input.handle.spec} has no channels; it needs 2 axes or more")
    running = {"running_mean": running_mean, "running_var": running_var}
    _check_shapes(shape[1:2], **running, weight=weight, bias=bias)
    center, spread = _by_channel(running_mean, shape), _by_channel(running_var, shape)
    if training or center is None or spread is None:
        normal = _standardized(input, (0, *range(2, len(shape))), eps)
    else:
        distance = subtract(at_least_float32(input), at_least_float32(center))
        normal = multiply(distance, rsqrt(add(at_least_float32(spread), eps)))
    return _scaled(normal, _by_channel(weight, shape), _by_channel(bias, shape), input.dtype)


@explained
def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Divide vectors along an axis by their length, at least ``eps``."""
    if not p > 0:
        raise UsageError(f"p={p} must be above 0")
    wide = at_least_float32(input)
    if p in (1, 2, math.inf):
        length = vector_norm(wide, axis=dim, keepdims=True, ord=p)
    else:
        length = pow(sum(pow(abs(wide), p), axis=dim, keepdims=True), 1 / p)
    return astype(divide(wide, clip(length, min=eps)), input.dtype)


@explained
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angle between vectors along an axis, which the result lacks."""
    first, second = at_least_float32(x1), at_least_float32(x2)
    product = sum(multiply(first, second), axis=dim)
    lengths = multiply(vector_norm(first, axis=dim), vector_norm(second, axis=dim))
    return astype(divide(product, clip(lengths, min=eps)), x1.dtype)


def _last_axes(x: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    count = len(shape)
    if not count or x.shape[-count:] != tuple(shape):
        raise ShapeMismatch(f"{x.handle.spec} does not end in the axes {list(shape)}")
    return tuple(range(x.ndim - count, x.ndim))


def _check_shapes(expected: tuple[int, ...], **arguments: Tensor | None) -> None:
    for argument, x in arguments.items():
        if x is not None and x.shape != expected:
            raise ShapeMismatch(f"{argument} is {x.handle.spec}, must have shape {list(expected)}")


def _standardized(x: Tensor, axes: Axes, eps: float) -> Tensor:
    wide = at_least_float32(x)
    distance = subtract(wide, mean(wide, axis=axes, keepdims=True))
    variance = mean(square(distance), axis=axes, keepdims=True)
    return multiply(distance, rsqrt(add(variance, eps)))


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: DType) -> Tensor:
    scaled = x if weight is None else multiply(x, at_least_float32(weight))
    moved = scaled if bias is None else add(scaled, at_least_float32(bias))
    return astype(moved, dtype)


def _by_channel(x: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    return None if x is None else reshaped(x, (x.size, *(1,) * (len(shape) - 2)))
