"""How are activations normalized? Composed under the names and with the shapes of PyTorch.

Tensors are floating-point and of one dtype. Variances are divided by the number of elements, as
PyTorch does here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from burn_remote.arithmetic import add, divide, multiply, pow, subtract
from burn_remote.axes import Axes
from burn_remote.elementwise import abs, rsqrt, square
from burn_remote.linear_algebra import vector_norm
from burn_remote.operators import reshaped
from burn_remote.selection import clip
from burn_remote.statistics import mean, sum
from burn_remote_protocol.errors import ShapeMismatch

if TYPE_CHECKING:
    from burn_remote.tensor import Tensor

__all__ = [
    "batch_norm",
    "cosine_similarity",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "normalize",
    "rms_norm",
]


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Give the last axes mean 0 and variance 1, then scale and move them.

    ``normalized_shape`` is the shape of these axes, and of weight and bias.
    """
    axes = _last_axes(input, normalized_shape)
    return _scaled(_standardized(input, axes, eps), weight, bias)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Give the last axes a mean square of 1, then scale them; ``weight`` has their shape."""
    axes = _last_axes(input, normalized_shape)
    scale = rsqrt(add(mean(square(input), axis=axes, keepdims=True), eps))
    return _scaled(multiply(input, scale), weight, None)


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
    size = math.prod(shape[2:]) * (shape[1] // num_groups)
    groups = reshaped(input, (shape[0], num_groups, size))
    normal = reshaped(_standardized(groups, -1, eps), shape)
    return _scaled(normal, _by_channel(weight, shape), _by_channel(bias, shape))


def instance_norm(
    input: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Give each channel of each of ``[batch, channels, …]`` mean 0 and variance 1.

    weight and bias, ``[channels]``, scale and move them afterwards.
    """
    channels = input.shape[1] if input.ndim > 1 else 0
    return group_norm(input, channels, weight, bias, eps)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """Give the channels of ``[batch, channels, …]`` mean 0 and variance 1; scale and move them.

    Mean and variance are the running ones, ``[channels]``, and of the batch in ``training``, or
    where there are none. Tensors do not change: running values are the caller's to keep.
    """
    shape = input.shape
    if len(shape) < 2:
        raise ShapeMismatch(f"{input.handle.spec} has no channels; it needs 2 axes or more")
    center, spread = _by_channel(running_mean, shape), _by_channel(running_var, shape)
    if training or center is None or spread is None:
        normal = _standardized(input, (0, *range(2, len(shape))), eps)
    else:
        normal = multiply(subtract(input, center), rsqrt(add(spread, eps)))
    return _scaled(normal, _by_channel(weight, shape), _by_channel(bias, shape))


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Divide vectors along an axis by their length, at least ``eps``."""
    if p in (1, 2, math.inf):
        length = vector_norm(input, axis=dim, keepdims=True, ord=p)
    else:
        length = pow(sum(pow(abs(input), p), axis=dim, keepdims=True), 1 / p)
    return divide(input, clip(length, min=eps))


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angle between vectors along an axis, which the result lacks."""
    product = sum(multiply(x1, x2), axis=dim)
    lengths = multiply(vector_norm(x1, axis=dim), vector_norm(x2, axis=dim))
    return divide(product, clip(lengths, min=eps))


def _last_axes(x: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    count = len(shape)
    if not count or x.shape[-count:] != tuple(shape):
        raise ShapeMismatch(f"{x.handle.spec} does not end in the axes {list(shape)}")
    return tuple(range(x.ndim - count, x.ndim))


def _standardized(x: Tensor, axes: Axes, eps: float) -> Tensor:
    distance = subtract(x, mean(x, axis=axes, keepdims=True))
    variance = mean(square(distance), axis=axes, keepdims=True)
    return multiply(distance, rsqrt(add(variance, eps)))


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = x if weight is None else multiply(x, weight)
    return scaled if bias is None else add(scaled, bias)


def _by_channel(x: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    return None if x is None else reshaped(x, (x.size, *(1,) * (len(shape) - 2)))
