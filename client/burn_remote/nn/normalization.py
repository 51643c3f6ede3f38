"""Normalization layers, with PyTorch's names and shapes.

All tensors have the same floating-point dtype. Variances are divided by the number of elements, as
in PyTorch's layers. Statistics of float16 and bfloat16 are computed in float32. All raise
``ShapeMismatch``, and ``DTypeMismatch`` unless the input is floating-point; ``normalize`` and
``cosine_similarity`` also take complex numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from burn_remote.arguments.axes import Axes, normal_axes, normal_shape
from burn_remote.autodiff.custom_vjp import custom_vjp
from burn_remote.autodiff.grad_mode import no_grad
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, reshaped
from burn_remote.dispatch.rows_with_fallbacks import preferring
from burn_remote.functions.arithmetic import add, divide, multiply, subtract
from burn_remote.functions.casting import astype, at_least_float32
from burn_remote.functions.elementwise import rsqrt, square
from burn_remote.functions.linear_algebra import vector_norm
from burn_remote.functions.manipulation import broadcast_arrays
from burn_remote.functions.operands import alike
from burn_remote.functions.selection import clip
from burn_remote.functions.statistics import mean, sum, var
from burn_remote_protocol.dtypes import F64, DType
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import layers
from burn_remote_protocol.operations.wire_values import Scalar

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
    "running_statistics",
]

EPSILON_F32: Final = 2.0**-23
EPSILON_F64: Final = 2.0**-52

LAYER_NORM: Final = Operator(layers.LAYER_NORM)
BATCH_NORM: Final = Operator(layers.BATCH_NORM)


@explained
def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize the last axes to mean 0 and variance 1, then multiply by weight and add bias.

    ``normalized_shape`` is the shape of these axes, and of weight and bias (Ba et al., 2016).
    """
    _check_floating(input)
    shape = normal_shape(normalized_shape)
    axes = _last_axes(input, shape)
    _check_shapes(shape, weight=weight, bias=bias)
    if weight is not None and len(shape) == 1 and not _are_tracked(input, weight, bias):
        return _layer_norm(input, weight, bias, axes, eps)
    return _scaled(_standardized(input, axes, eps), weight, bias, input.dtype)


def _layer_norm_at_once(
    x: Tensor, weight: Tensor, bias: Tensor | None, axes: Axes, eps: float
) -> Tensor:
    return LAYER_NORM.apply((x, weight, bias), (Scalar.of(eps),))


# One operation only where no gradient is wanted: the composition keeps the normalized tensor for
# its gradient, which the operation would have to compute again.
@preferring(layers.LAYER_NORM, _layer_norm_at_once)
def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, axes: Axes, eps: float) -> Tensor:
    return _scaled(_standardized(x, axes, eps), weight, bias, x.dtype)


def _are_tracked(*tensors: Tensor | None) -> bool:
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


@explained
def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Divide the last axes by their root mean square, then multiply by weight.

    ``normalized_shape`` is the shape of these axes and of weight (Zhang and Sennrich, 2019). The
    root is that of the mean square plus ``eps``. By default, ``eps`` is the machine epsilon of
    float64 for float64, and of float32 for other dtypes, as in PyTorch; Burn's default is 1e-5.
    """
    _check_floating(input)
    shape = normal_shape(normalized_shape)
    axes = _last_axes(input, shape)
    _check_shapes(shape, weight=weight)
    wide = at_least_float32(input)
    if eps is None:
        eps = EPSILON_F64 if wide.dtype == F64 else EPSILON_F32
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
    """Normalize each group of channels to mean 0 and variance 1, then apply weight and bias.

    Shapes: ``[batch, channels, …]``, weight and bias ``[channels]`` (Wu and He, 2018).
    """
    _check_floating(input)
    shape = input.shape
    if len(shape) < 2 or num_groups < 1 or shape[1] % num_groups:
        raise ShapeMismatch(
            f"{input.handle.spec} has no channels that form {num_groups} equal groups"
        )
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
    """Normalize each channel of each batch element, then apply weight and bias.

    Shapes: ``[batch, channels, …]``, weight and bias ``[channels]`` (Ulyanov et al., 2016). If
    ``use_input_stats`` is false, the running mean and variance are used, as in ``batch_norm``. If
    it is true, running statistics raise ``UsageError``, because they would have to be updated.
    """
    if use_input_stats and not (running_mean is None and running_var is None):
        raise UsageError(
            "instance_norm with the statistics of its input cannot update running_mean and "
            "running_var, because tensors are immutable; pass None for both"
        )
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
    """Normalize each channel over the batch, then apply weight and bias.

    Shapes: ``[batch, channels, …]``, all other tensors ``[channels]``. Without running statistics,
    those of the batch are used (Ioffe and Szegedy, 2015). Tensors are immutable, so ``training``
    with running statistics, which would have to be updated, raises ``UsageError``; pass ``None``
    for both, and update them by ``running_statistics``. ``momentum`` is accepted but not used.
    """
    _check_floating(input)
    shape = input.shape
    if training and not (running_mean is None and running_var is None):
        raise UsageError(
            "batch_norm(training=True) cannot update running_mean and running_var, because tensors "
            "are immutable; pass None for both, and update them with running_mean, running_var = "
            "functional.running_statistics(input, running_mean, running_var, momentum)"
        )
    _check_channels(input)
    running = {"running_mean": running_mean, "running_var": running_var}
    _check_shapes(shape[1:2], **running, weight=weight, bias=bias)
    given = [x for x in (running_mean, running_var, weight, bias) if x is not None]
    if len(given) == 4 and not _are_tracked(input, *given):
        return _batch_norm(input, given, eps)
    center, spread = _by_channel(running_mean, shape), _by_channel(running_var, shape)
    if training or center is None or spread is None:
        normal = _standardized(input, (0, *range(2, len(shape))), eps)
    else:
        normal = _with_statistics(input, center, spread, eps)
    return _scaled(normal, _by_channel(weight, shape), _by_channel(bias, shape), input.dtype)


def _with_statistics(x: Tensor, center: Tensor, spread: Tensor, eps: float) -> Tensor:
    distance = subtract(at_least_float32(x), at_least_float32(center))
    return multiply(distance, rsqrt(add(at_least_float32(spread), eps)))


def _batch_norm_at_once(x: Tensor, statistics: Sequence[Tensor], eps: float) -> Tensor:
    center, spread, weight, bias = statistics
    return BATCH_NORM.apply((x, weight, bias, center, spread), (Scalar.of(eps),))


@preferring(layers.BATCH_NORM, _batch_norm_at_once)
def _batch_norm(x: Tensor, statistics: Sequence[Tensor], eps: float) -> Tensor:
    shape = (x.shape[1], *(1,) * (x.ndim - 2))
    center, spread, weight, bias = [reshaped(each, shape) for each in statistics]
    return _scaled(_with_statistics(x, center, spread, eps), weight, bias, x.dtype)


@explained
def running_statistics(
    input: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float = 0.1
) -> tuple[Tensor, Tensor]:
    """Return the running mean and variance of each channel after a batch; nothing is tracked.

    Shapes: ``[batch, channels, …]``, all other tensors ``[channels]``. Each result is ``(1 -
    momentum) * running + momentum * batch``, with the unbiased variance of the batch, as PyTorch's
    ``batch_norm`` updates them. Raises ``ShapeMismatch`` for a single element of each channel.
    """
    _check_floating(input)
    _check_channels(input)
    shape = input.shape
    _check_shapes(shape[1:2], running_mean=running_mean, running_var=running_var)
    if math.prod(shape) // max(shape[1], 1) < 2:
        raise ShapeMismatch(
            f"{input.handle.spec} has a variance only with several elements of each channel"
        )
    axes = (0, *range(2, len(shape)))
    with no_grad():
        wide = at_least_float32(input)
        batch = (mean(wide, axis=axes), var(wide, axis=axes, correction=1.0))
        after, spread = (
            _mixed(old, new, momentum)
            for old, new in zip((running_mean, running_var), batch, strict=True)
        )
    return after, spread


def _mixed(old: Tensor, new: Tensor, momentum: float) -> Tensor:
    """Return the mean of two tensors, ``new`` with the weight ``momentum``, in the dtype of old."""
    wide = at_least_float32(old)
    new = astype(new, wide.dtype)
    return astype(add(multiply(wide, 1 - momentum), multiply(new, momentum)), old.dtype)


@explained
def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Divide vectors along an axis by their ``p``-norm, or by ``eps`` if that is larger."""
    if not p > 0:
        raise UsageError(f"p must be positive, not {p}")
    wide = at_least_float32(input)
    length = vector_norm(wide, axis=dim, keepdims=True, ord=p)
    return astype(divide(wide, clip(length, min=eps)), input.dtype)


@explained
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angle between vectors along an axis, which the result lacks.

    The shapes broadcast, and the result has the common dtype. Each norm is limited to at least
    ``eps``.
    """
    x1, x2 = broadcast_arrays(*alike(x1, x2))  # before the norms: the axis itself may broadcast
    first, second = at_least_float32(x1), at_least_float32(x2)
    product = sum(multiply(first, second), axis=dim)
    lengths = [clip(vector_norm(x, axis=dim), min=eps) for x in (first, second)]
    return astype(divide(product, multiply(*lengths)), x1.dtype)


def _check_floating(x: Tensor) -> None:
    if not x.dtype.is_floating:
        real = "burn_remote.real(x) has its real parts"
        way = real if x.dtype.is_complex else "x.astype(burn_remote.float32) converts it"
        raise DTypeMismatch(f"input {x.handle.spec} must be floating-point; {way}")


def _check_channels(x: Tensor) -> None:
    if x.ndim < 2:
        raise ShapeMismatch(f"{x.handle.spec} has no channels; at least 2 axes are required")


def _last_axes(x: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    count = len(shape)
    if not count or x.shape[-count:] != tuple(shape):
        raise ShapeMismatch(f"the last axes of {x.handle.spec} do not have shape {list(shape)}")
    return tuple(range(x.ndim - count, x.ndim))


def _check_shapes(expected: tuple[int, ...], **arguments: Tensor | None) -> None:
    for argument, x in arguments.items():
        if x is not None and x.shape != expected:
            raise ShapeMismatch(f"{argument} {x.handle.spec} must have shape {list(expected)}")


def _standardized(x: Tensor, axes: Axes, eps: float) -> Tensor:
    normal, _ = _normal_and_scale(at_least_float32(x), axes=axes, eps=eps)
    return normal


def _standardized_forward(
    x: Tensor, *, axes: Axes, eps: float
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor, tuple[int, ...]]]:
    normal, scale = _standardize(x, axes, eps)
    return (normal, scale), (normal, scale, normal_axes(axes, x.ndim))


def _standardized_backward(
    residuals: tuple[Tensor, Tensor, tuple[int, ...]], grads: tuple[Tensor, Tensor]
) -> Tensor:
    """Project the gradient off the constant vectors and off ``normal`` (Ba et al., 2016)."""
    normal, scale, axes = residuals
    grad, to_scale = grads
    count = math.prod(normal.shape[place] for place in axes)
    along = mean(multiply(grad, normal), axis=axes, keepdims=True)
    # The scale is a result of its own only so that second derivatives pass through it.
    along = add(along, divide(multiply(to_scale, scale), count))
    rest = subtract(subtract(grad, mean(grad, axis=axes, keepdims=True)), multiply(normal, along))
    return multiply(rest, scale)


@custom_vjp(_standardized_forward, _standardized_backward)
def _normal_and_scale(x: Tensor, *, axes: Axes, eps: float) -> tuple[Tensor, Tensor]:
    return _standardize(x, axes, eps)


def _standardize(x: Tensor, axes: Axes, eps: float) -> tuple[Tensor, Tensor]:
    distance = subtract(x, mean(x, axis=axes, keepdims=True))
    variance = mean(square(distance), axis=axes, keepdims=True)
    scale = rsqrt(add(variance, eps))
    return multiply(distance, scale), scale


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: DType) -> Tensor:
    scaled = x if weight is None else multiply(x, at_least_float32(weight))
    moved = scaled if bias is None else add(scaled, at_least_float32(bias))
    return astype(moved, dtype)


def _by_channel(x: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    return None if x is None else reshaped(x, (x.size, *(1,) * (len(shape) - 2)))
