"""Layers and losses of neural networks, and their backward operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import burn_remote as br
import burn_remote.functional as F
from burn_remote.functions.casting import at_least_float32, converted_to
from burn_remote.torch.aten.promotion import cast, filled_like
from burn_remote.torch.aten.table import aten
from burn_remote_protocol.errors import UsageError

__all__: list[str] = []

Tensor = br.Tensor

_CONVOLUTIONS: Final[dict[int, Callable[..., Tensor]]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: Final[dict[int, Callable[..., Tensor]]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


@aten("_softmax")
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    x = converted_to(x, br.float32) if half_to_float else x
    if not x.size:
        return x
    return _of_line(F.softmax, x, dim)


def _of_line(function: Callable[[Tensor, int], Tensor], x: Tensor, dim: int) -> Tensor:
    """Apply a function along an axis; a 0-d tensor is a line of one element."""
    return function(x, dim) if x.ndim else br.reshape(function(br.reshape(x, (1,)), 0), ())


@aten("_safe_softmax")
def safe_softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Return the softmax, and 0 where all elements along the axis are negative infinity."""
    x = cast(x, dtype)
    if not x.size or not x.ndim:
        return softmax(x, dim, False)
    hidden = br.all(br.equal(x, -math.inf), axis=dim, keepdims=True)
    return br.mask_fill(F.softmax(x, dim), br.broadcast_to(hidden, x.shape), 0.0)


@aten("_log_softmax")
def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    x = converted_to(x, br.float32) if half_to_float else x
    if not x.size:
        return x
    return _of_line(F.log_softmax, x, dim)


@aten("_softmax_backward_data")
def softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: Any) -> Tensor:
    if not grad.size:
        return br.zeros_like(grad)
    product = grad * output
    total = br.sum(product, axis=dim, keepdims=True) if grad.ndim else product
    return cast(product - output * total, input_dtype)


@aten("_log_softmax_backward_data")
def log_softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: Any) -> Tensor:
    if not grad.size:
        return br.zeros_like(grad)
    total = br.sum(grad, axis=dim, keepdims=True) if grad.ndim else grad
    return cast(grad - br.exp(output) * total, input_dtype)


def _sizes(sizes: Sequence[int], spatial: int) -> tuple[int, ...]:
    return tuple(sizes) * spatial if len(sizes) == 1 else tuple(sizes)


@aten("convolution")
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    spatial = weight.ndim - 2
    batch = x.ndim == weight.ndim
    x = x if batch else br.expand_dims(x, 0)
    sizes = [_sizes(one, spatial) for one in (stride, padding, dilation, output_padding)]
    if transposed:
        result = _TRANSPOSED[spatial](
            x, weight, bias, sizes[0], sizes[1], sizes[3], groups, sizes[2]
        )
    else:
        result = _CONVOLUTIONS[spatial](x, weight, bias, *sizes[:3], groups)
    return result if batch else br.squeeze(result, 0)


@aten("convolution_backward")
def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    spatial = weight.ndim - 2
    batch = x.ndim == weight.ndim
    if not batch:
        x, grad = br.expand_dims(x, 0), br.expand_dims(grad, 0)
    axes: list[Any] = [_sizes(one, spatial) for one in (stride, padding, dilation)]
    to_x = to_weight = to_bias = None
    if output_mask[0]:
        if transposed:
            to_x = _CONVOLUTIONS[spatial](grad, weight, None, *axes, groups)
            to_x = to_x[tuple(slice(0, size) for size in x.shape)]
        else:
            to_x = br.gradients.conv_x_backward(x, weight, grad, axes[0], axes[1], axes[2], groups)
        to_x = to_x if batch else br.squeeze(to_x, 0)
    if output_mask[1]:
        if transposed:
            extra = _sizes(output_padding, spatial)
            to_weight = br.gradients.conv_transpose_weight_backward(
                x, weight, grad, axes[0], axes[1], extra, axes[2], groups
            )
        else:
            to_weight = br.gradients.conv_weight_backward(
                x, weight, grad, axes[0], axes[1], axes[2], groups
            )
    if output_mask[2]:
        to_bias = br.sum(grad, axis=(0, *range(2, grad.ndim)))
    return to_x, to_weight, to_bias


@aten("native_layer_norm")
def layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    if not x.dtype.is_floating:
        raise UsageError(f"layer_norm takes tensors of floating-point numbers, not of {x.dtype}")
    wide = at_least_float32(x)
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    middle = br.mean(wide, axis=axes, keepdims=True)
    away = wide - middle
    scale = br.rsqrt(br.mean(away * away, axis=axes, keepdims=True) + eps)
    result = away * scale
    if weight is not None:
        result = result * weight
    if bias is not None:
        result = result + bias
    return converted_to(result, x.dtype), middle, scale


@aten("native_layer_norm_backward")
def layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Any,
    bias: Any,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    count = len(normalized_shape)
    inner = tuple(range(x.ndim - count, x.ndim))
    outer = tuple(range(x.ndim - count))
    wide = at_least_float32(grad)
    normal = (at_least_float32(x) - mean) * rstd
    to_x = to_weight = to_bias = None
    if output_mask[0]:
        scaled = wide if weight is None else wide * weight
        first = br.mean(scaled, axis=inner, keepdims=True)
        second = br.mean(scaled * normal, axis=inner, keepdims=True)
        to_x = converted_to((scaled - first - normal * second) * rstd, x.dtype)
    if output_mask[1] and weight is not None:
        product = wide * normal
        to_weight = converted_to(br.sum(product, axis=outer) if outer else product, weight.dtype)
    if output_mask[2] and bias is not None:
        to_bias = converted_to(br.sum(wide, axis=outer) if outer else wide, bias.dtype)
    return to_x, to_weight, to_bias


def _along_channels(x: Any, rank: int) -> Any:
    return None if x is None else br.reshape(x, (-1, *[1] * (rank - 2)))


def _normalized(x: Tensor, middle: Tensor, scale: Tensor, weight: Any, bias: Any) -> Tensor:
    rank = x.ndim
    result = (x - _along_channels(middle, rank)) * _along_channels(scale, rank)
    if weight is not None:
        result = result * _along_channels(weight, rank)
    return result if bias is None else result + _along_channels(bias, rank)


@aten("_native_batch_norm_legit_functional")
def batch_norm(
    x: Tensor,
    weight: Any,
    bias: Any,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    wide = at_least_float32(x)
    if not training:
        scale = br.rsqrt(running_var + eps)
        none = br.zeros((0,), dtype=wide.dtype, device=x.device)
        result = converted_to(_normalized(wide, running_mean, scale, weight, bias), x.dtype)
        return result, none, none, running_mean, running_var
    result, middle, scale, spread = _batch_statistics(wide, weight, bias, eps)
    count = x.size // max(x.shape[1], 1)
    unbiased = spread * (count / max(count - 1, 1))
    new_mean = running_mean * (1 - momentum) + middle * momentum
    new_var = running_var * (1 - momentum) + unbiased * momentum
    return converted_to(result, x.dtype), middle, scale, new_mean, new_var


def _batch_statistics(
    x: Tensor, weight: Any, bias: Any, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    axes = (0, *range(2, x.ndim))
    middle = br.mean(x, axis=axes)
    away = x - _along_channels(middle, x.ndim)
    spread = br.mean(away * away, axis=axes)
    scale = br.rsqrt(spread + eps)
    return _normalized(x, middle, scale, weight, bias), middle, scale, spread


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_without_stats(
    x: Tensor, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    result, middle, scale, _ = _batch_statistics(at_least_float32(x), weight, bias, eps)
    return converted_to(result, x.dtype), middle, scale


@aten("native_batch_norm_backward")
def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_invstd: Any,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    axes = (0, *range(2, x.ndim))
    rank = x.ndim
    wide, values = at_least_float32(grad), at_least_float32(x)
    middle = save_mean if train else running_mean
    scale = save_invstd if train else br.rsqrt(running_var + eps)
    scales = _along_channels(scale, rank)
    normal = (values - _along_channels(middle, rank)) * scales
    total = br.sum(wide, axis=axes)
    product = br.sum(wide * normal, axis=axes)
    to_x = None
    if output_mask[0]:
        inner = wide
        if train:
            count = x.size // max(x.shape[1], 1)
            shared = _along_channels(total / count, rank)
            inner = wide - shared - normal * _along_channels(product / count, rank)
        to_x = inner * scales
        to_x = to_x if weight is None else to_x * _along_channels(weight, rank)
        to_x = converted_to(to_x, x.dtype)
    kept = weight.dtype if weight is not None else x.dtype
    to_weight = converted_to(product, kept) if output_mask[1] else None
    return to_x, to_weight, converted_to(total, kept) if output_mask[2] else None


def _weights_of(target: Tensor, weight: Any, like: Tensor, ignore_index: int) -> Tensor:
    """Return the weight of each target, 0 where it is ignored."""
    if weight is None:
        kept = converted_to(target != ignore_index, like.dtype)
    else:
        valid = br.mask_fill(target, target == ignore_index, 0)
        picked = br.reshape(br.take(weight, br.flatten(valid), axis=0), target.shape)
        kept = br.mask_fill(picked, target == ignore_index, 0)
    return kept


@aten("nll_loss_forward", "nll_loss2d_forward")
def nll_loss(
    x: Tensor, target: Tensor, weight: Any, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    axis = 1 if x.ndim > 1 else 0
    valid = br.mask_fill(target, target == ignore_index, 0)
    places = br.expand_dims(converted_to(valid, br.int64), axis)
    picked = br.squeeze(br.gather(x, axis, places), axis)
    weights = _weights_of(target, weight, x, ignore_index)
    losses = -picked * weights
    total = br.sum(weights)
    if reduction == 0 and x.ndim > 1:
        return losses, filled_like(x, 0.0)
    if reduction == 1:
        return br.sum(losses) / total, total
    return br.sum(losses), total


@aten("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Any,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    axis = 1 if x.ndim > 1 else 0
    valid = br.mask_fill(target, target == ignore_index, 0)
    places = br.expand_dims(converted_to(valid, br.int64), axis)
    weights = _weights_of(target, weight, x, ignore_index)
    if reduction == 1:
        grad = grad / total_weight
    values = br.expand_dims(br.broadcast_to(-grad * weights, target.shape), axis)
    return br.scatter(br.zeros_like(x), axis, places, values)


@aten("max_pool2d_with_indices")
def max_pool2d(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    batch = x.ndim == 4
    x = x if batch else br.expand_dims(x, 0)
    kernel = _sizes(kernel_size, 2)
    values, indices = F.max_pool2d_with_indices(
        x,
        kernel,
        _sizes(stride, 2) if stride else kernel,
        _sizes(padding, 2),
        _sizes(dilation, 2),
        ceil_mode,
    )
    return (values, indices) if batch else (br.squeeze(values, 0), br.squeeze(indices, 0))


@aten("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def max_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    spatial = len(kernel_size) if len(kernel_size) > 1 else x.ndim - 2
    return _unpooled(grad, x, indices, spatial)


def _unpooled(grad: Tensor, x: Tensor, indices: Tensor, spatial: int) -> Tensor:
    """Add the gradient of each window to the element of ``x`` that the window chose."""
    outer = x.ndim - spatial
    planes = (*x.shape[:outer], math.prod(x.shape[outer:]))
    windows = (*grad.shape[:outer], math.prod(grad.shape[outer:]))
    zeros = br.zeros(planes, dtype=grad.dtype, device=grad.device)
    at, values = br.reshape(indices, windows), br.reshape(grad, windows)
    return br.reshape(br.scatter(zeros, outer, at, values, update="add"), x.shape)


@aten("adaptive_max_pool2d_backward")
def adaptive_max_pool2d_backward(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    return _unpooled(grad, x, indices, 2)


@aten("adaptive_max_pool3d_backward")
def adaptive_max_pool3d_backward(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    return _unpooled(grad, x, indices, 3)


@aten("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(x: Tensor, output_size: Sequence[int]) -> Tensor:
    spatial = len(output_size)
    pool = F.adaptive_avg_pool2d if spatial == 2 else F.adaptive_avg_pool3d
    if x.ndim == spatial + 2:
        return pool(x, tuple(output_size))
    return br.squeeze(pool(br.expand_dims(x, 0), tuple(output_size)), 0)


@aten("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Tensor:
    return _adaptive_backward(grad, x, 2)


@aten("_adaptive_avg_pool3d_backward")
def adaptive_avg_pool3d_backward(grad: Tensor, x: Tensor) -> Tensor:
    return _adaptive_backward(grad, x, 3)


def _adaptive_backward(grad: Tensor, x: Tensor, spatial: int) -> Tensor:
    if x.ndim == spatial + 2:
        return br.gradients.adaptive_avg_pool_backward(x, grad)
    x, grad = br.expand_dims(x, 0), br.expand_dims(grad, 0)
    return br.squeeze(br.gradients.adaptive_avg_pool_backward(x, grad), 0)


@aten("embedding_renorm")
def embedding_renorm(x: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    size = br.abs(x)
    norms = br.pow(br.sum(br.pow(size, float(norm_type)), axis=1), 1 / norm_type)
    used = br.zeros_like(norms)
    places = br.flatten(converted_to(indices, br.int64))
    used = br.update_along(used, 0, places, filled_like(used, 1.0, places.shape))
    shrunk = br.logical_and(norms > max_norm, used)
    scale = br.where(shrunk, max_norm / (norms + 1e-7), filled_like(norms, 1.0))
    return x * br.reshape(scale, (-1, 1))


@aten("_weight_norm_interface")
def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Return ``v`` scaled to the norms ``g`` along an axis, and the norms of ``v`` before that."""
    norms = br.sqrt(_summed_over_others(at_least_float32(v) * v, dim))
    return converted_to(v * (g / norms), v.dtype), norms


def _summed_over_others(x: Tensor, dim: int) -> Tensor:
    """Sum over all axes but one."""
    axes = tuple(at for at in range(x.ndim) if at != dim % x.ndim)
    return br.sum(x, axis=axes, keepdims=True)


@aten("_weight_norm_interface_backward")
def weight_norm_backward(
    grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    to_g = _summed_over_others(grad * v, dim) / norms
    to_v = (grad - v * (to_g / norms)) * (g / norms)
    return converted_to(to_v, v.dtype), converted_to(to_g, g.dtype)
