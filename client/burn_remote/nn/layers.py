"""Which layers of a network have no spatial axes? With the names and shapes of PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from burn_remote.arguments.numbers import real_number, whole_number
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import ONES, ZEROS, Operator, reshaped, with_rank
from burn_remote.functions.arithmetic import divide
from burn_remote.functions.casting import NOT
from burn_remote.functions.gathering import scatter
from burn_remote.functions.logic import less
from burn_remote.functions.manipulation import expand_dims, matrix_transpose, squeeze
from burn_remote.functions.selection import mask_fill
from burn_remote_protocol.dtypes import I64
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import floats, layers
from burn_remote_protocol.operations.values import Scalar
from burn_remote_protocol.tensors import MAX_ELEMENTS, TensorSpec

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["dropout", "embedding", "linear", "one_hot", "scaled_dot_product_attention"]

LINEAR: Final = Operator(layers.LINEAR)
EMBEDDING: Final = Operator(layers.EMBEDDING)
ATTENTION: Final = Operator(layers.ATTENTION)
RANDOM: Final = Operator(floats.RANDOM)


@explained
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``input @ weight.T + bias``.

    Shapes: ``[…, in]``, weight ``[out, in]`` as PyTorch stores it, bias ``[out]`` to
    ``[…, out]``. Tensors are floating-point and of one dtype.
    """
    if weight.ndim != 2:
        raise ShapeMismatch(f"weight {weight.handle.spec} must be a matrix [out, in]")
    return LINEAR.apply((input, matrix_transpose(weight), bias))


@explained
def embedding(input: Tensor, weight: Tensor) -> Tensor:
    """Return the row of ``weight`` that each index names: ``[…]``, ``[rows, n]`` to ``[…, n]``.

    Indices are integers from 0; one that names no row fails the operation, and so the read.
    """
    # Burn's layer takes sequences in a batch.
    pairs = input if input.ndim == 2 else reshaped(input, (1, input.size))
    rows = EMBEDDING.apply((weight, pairs))
    return reshaped(rows, (*input.shape, weight.shape[1]))


@explained
def one_hot(x: Tensor, num_classes: int) -> Tensor:
    """Return, as int64, 1 at the place that each integer names, elsewhere 0: ``[…]`` to ``[…, n]``.

    An integer that names no place fails the operation, and so the read. The number of classes must
    be given: the tensor is not looked at.
    """
    count = whole_number("num_classes", num_classes, 1, MAX_ELEMENTS)
    if not x.dtype.is_integer:
        raise DTypeMismatch(f"x is {x.handle.spec}, but classes are integers")
    client, places = x.handle.client, expand_dims(x, -1)
    nothing = x.__class__(ZEROS.create(client, TensorSpec((*x.shape, count), I64)))
    single = x.__class__(ONES.create(client, TensorSpec(places.shape, I64)))
    # Only a sum may be scattered on every backend of Burn's.
    return scatter(nothing, -1, places, single, update="add")


@explained
def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Return floating-point numbers, each 0 with probability ``p`` and scaled by ``1 / (1 - p)``.

    Without ``training`` the input itself. The random numbers are the device's.
    """
    if not 0 <= real_number("p", p) <= 1:
        raise UsageError(f"a probability is between 0 and 1, not {p}")
    if not training or p == 0:
        return input
    spec = TensorSpec(input.shape, input.dtype)
    draw = RANDOM.create(input.handle.client, spec, (("Uniform", 0.0, 1.0),))
    kept = mask_fill(input, less(input.__class__(draw), p), 0)
    return kept if p == 1 else divide(kept, 1 - p)


@explained
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    softcap: float | None = None,
) -> Tensor:
    """Return ``softmax(query @ key.T * scale + bias) @ value``.

    Shapes: ``[batch, heads, queries, size]``, key ``[batch, heads, keys, size]``, value ``[batch,
    heads, keys, width]`` to ``[batch, heads, queries, width]``; the heads may be missing.
    ``attn_mask`` broadcasts to ``[batch, heads, queries, keys]``: bools say which keys take part,
    floats are added to the scores. ``is_causal`` lets a query see the keys up to its own place.
    ``scale`` is ``1 / sqrt(size)`` by default. ``softcap``, Burn's, bounds the scores by a
    hyperbolic tangent. Raises ``UsageError`` for dropout, which the operation does not have.
    """
    if dropout_p:
        raise UsageError("attention has no dropout here: dropout_p must be 0")
    if query.ndim == 3:
        return _attend_without_heads(
            query, key, value, attn_mask, is_causal=is_causal, scale=scale, softcap=softcap
        )
    if softcap is not None and not softcap > 0:
        raise UsageError(f"softcap={softcap} must be above 0; None leaves the scores alone")
    mask = bias = None
    if attn_mask is not None and attn_mask.dtype.is_bool:
        # Burn's mask says which keys do not take part.
        mask = NOT.unary(with_rank(attn_mask, 4))
    elif attn_mask is not None:
        bias = with_rank(attn_mask, 4)
    options = (_optional(scale), _optional(softcap), is_causal)
    return ATTENTION.apply((query, key, value, mask, bias), (options,))


def _attend_without_heads(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, **options: Any
) -> Tensor:
    if attn_mask is not None and attn_mask.ndim == 3:
        attn_mask = expand_dims(attn_mask, 1)
    one, two, three = (expand_dims(x, 1) for x in (query, key, value))
    attended = scaled_dot_product_attention(one, two, three, attn_mask, **options)
    return squeeze(attended, 1)


def _optional(number: float | None) -> Scalar | None:
    return None if number is None else Scalar.of(float(number))
