"""Operations that PyTorch's modules call on accelerators, made of PyTorch's other operations.

``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` call one operation each where no
gradient is needed; ``torch.amp.GradScaler`` calls two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn import functional

from burn_remote.torch.burn_tensor import alias, geometry_of
from burn_remote.torch.geometry import Geometry, row_major
from burn_remote.torch.value_conversion import Handler

__all__ = ["COMPOSITIONS", "FUNCTIONAL_COMPOSITIONS"]

# Kinds of masks: of attention, [target, source]; of padding, [batch, source]. Other masks have the
# shape of the scores.
_OF_ATTENTION, _OF_PADDING = 0, 1


def _attention(
    x: Any, heads: int, qkv: tuple[Any, Any], out: tuple[Any, Any], mask: Any, kind: int | None
) -> tuple[Any, Any]:
    """Return self-attention ``[batch, length, width]`` and weights of each head."""
    parts = functional.linear(x, *qkv).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    query, key, value = parts.unbind(0)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        # True hides an element; a float mask hides where it is not 0.
        hidden = mask.to(torch.bool)
        if kind == _OF_ATTENTION:
            hidden = hidden.view(1, 1, *hidden.shape[-2:])
        elif kind == _OF_PADDING:
            hidden = hidden.view(hidden.shape[0], 1, 1, hidden.shape[-1])
        scores = scores.masked_fill(hidden, float("-inf"))
    weights = torch.softmax(scores, -1)
    return functional.linear((weights @ value).transpose(1, 2).flatten(2), *out), weights


def _encoder_layer(
    x: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    def first_norm(x: Any) -> Any:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(x: Any) -> Any:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def mixed(x: Any) -> Any:
        qkv, out = (qkv_weight, qkv_bias), (proj_weight, proj_bias)
        return _attention(x, num_heads, qkv, out, mask, mask_type)[0]

    def fed(x: Any) -> Any:
        inner = functional.linear(x, ffn_weight_1, ffn_bias_1)
        inner = functional.gelu(inner) if use_gelu else functional.relu(inner)
        return functional.linear(inner, ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = x + mixed(first_norm(x))
        return x + fed(second_norm(x))
    x = first_norm(x + mixed(x))
    return second_norm(x + fed(x))


def _multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    # nn.MultiheadAttention calls this operation for self-attention only.
    qkv, out = (qkv_weight, qkv_bias), (proj_weight, proj_bias)
    result, weights = _attention(query, num_head, qkv, out, mask, mask_type)
    if not need_weights:
        return result, query.new_empty(0)
    return result, weights.mean(1) if average_attn_weights else weights


def _unscale(tensors: Any, found_inf: Any, inv_scale: Any) -> None:
    """Multiply tensors in place, and set ``found_inf`` to 1 if an element is not finite."""
    for x in tensors:
        lost = (~torch.isfinite(x)).any().to(found_inf.dtype)
        found_inf.copy_(torch.maximum(found_inf, lost))
        x.mul_(inv_scale)


def _update_scale(
    scale: Any, tracker: Any, found_inf: Any, growth: float, backoff: float, interval: int
) -> Any:
    """Lower the scale after an overflow, and raise it after ``interval`` steps without one."""
    lost = found_inf > 0
    raised = tracker + 1 == interval
    larger = scale * growth
    grown = torch.where(raised & torch.isfinite(larger), larger, scale)
    scale.copy_(torch.where(lost, scale * backoff, grown))
    tracker.copy_(torch.where(lost | raised, torch.zeros_like(tracker), tracker + 1))
    return scale


def _functional_rrelu(
    x: Any,
    noise: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> tuple[Any, Any]:
    """Return a leaky ReLU, and the random slopes of its elements.

    Outside of training, the slope is the mean of the bounds, and ``noise`` is returned unchanged.
    """
    if not training:
        return functional.leaky_relu(x, (lower + upper) / 2), noise
    slopes = torch.where(x <= 0, torch.empty_like(x).uniform_(lower, upper), 1.0)
    return x * slopes, slopes


def _rrelu(x: Any, noise: Any, *args: Any, **kwargs: Any) -> Any:
    result, slopes = _functional_rrelu(x, noise, *args, **kwargs)
    if slopes is not noise:
        noise.copy_(slopes)
    return result


def _rrelu_in_place(x: Any, noise: Any, *args: Any, **kwargs: Any) -> Any:
    return x.copy_(_rrelu(x, noise, *args, **kwargs))


def _resize(x: Any, size: Any, *, memory_format: Any = None) -> Any:
    """Give a tensor another size over the same storage; elements beyond its end are 0."""
    size, known = tuple(size), geometry_of(x)
    if memory_format in (None, torch.preserve_format):
        if size == known.size:
            return x
        stride = row_major(size)
    else:
        stride = torch.empty(size, device="meta", memory_format=memory_format).stride()
    shown = Geometry(size, tuple(stride), known.offset)
    x._storage.grow(shown.end)
    x.data = alias(x, shown, None)
    return x


def _resize_as(x: Any, template: Any, *, memory_format: Any = None) -> Any:
    return _resize(x, template.shape, memory_format=memory_format)


def _set(target: Any, source: Any) -> Any:
    """Let a tensor share the elements of another one (``Tensor.set_``)."""
    target.data = source
    return target


def _equal(x: Any, y: Any) -> bool:
    """Return whether shapes and all elements are equal. Waits for the server."""
    return x.shape == y.shape and bool((x == y).all())


def _called(function: Callable[..., Any]) -> Handler:
    return lambda args, kwargs: function(*args, **kwargs)


# Name of an overload without writes -> a function of PyTorch's tensors.
FUNCTIONAL_COMPOSITIONS: Final[dict[str, Callable[..., Any]]] = {
    "_native_multi_head_attention": _multi_head_attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    "rrelu_with_noise_functional": _functional_rrelu,
}

# Name of an overload that writes, or has other results than tensors -> a function of tensors.
_OTHERS: Final[dict[str, Callable[..., Any]]] = {
    "_amp_foreach_non_finite_check_and_unscale_": _unscale,
    "_amp_update_scale_": _update_scale,
    # Burn devices have no nested tensors. After ``False``, encoders hide padding by masks.
    "_nested_tensor_from_mask_left_aligned": lambda x, mask: False,
    "equal": _equal,
    "resize_": _resize,
    "resize_as_": _resize_as,
    "rrelu_with_noise": _rrelu,
    "rrelu_with_noise_": _rrelu_in_place,
    "set_.source_Tensor": _set,
}

# Name of an overload -> its handler.
COMPOSITIONS: Final[dict[str, Handler]] = {
    name: _called(function) for name, function in {**FUNCTIONAL_COMPOSITIONS, **_OTHERS}.items()
}
