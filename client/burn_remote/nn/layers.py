"""Linear layers, embeddings, dropout and attention, with PyTorch's names and shapes."""

from __future__ import annotations

from typing import Any, Final

from burn_remote.arguments.numbers import real_number, whole_number
from burn_remote.autodiff.grad_mode import check_random_numbers
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import ONES, ZEROS, Operator, counted, reshaped, with_rank
from burn_remote.functions.arithmetic import divide
from burn_remote.functions.casting import NOT, distinct
from burn_remote.functions.gathering import scatter
from burn_remote.functions.logic import less, logical_or
from burn_remote.functions.manipulation import expand_dims, matrix_transpose, squeeze
from burn_remote.functions.repetition import repeat
from burn_remote.functions.selection import mask_fill
from burn_remote.functions.tensor import Tensor
from burn_remote_protocol.dtypes import I64
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import floats, layers
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.tensors import MAX_ELEMENTS, TensorSpec

__all__ = ["dropout", "embedding", "linear", "one_hot", "scaled_dot_product_attention"]

LINEAR: Final = Operator(layers.LINEAR)
EMBEDDING: Final = Operator(layers.EMBEDDING)
ATTENTION: Final = Operator(layers.ATTENTION)
RANDOM: Final = Operator(floats.RANDOM)


@explained
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``input @ weight.T + bias``.

    Shapes: ``[…, in]``, weight ``[out, in]`` as in PyTorch, bias ``[out]`` to ``[…, out]``. All
    tensors have the same floating-point dtype.
    """
    if weight.ndim != 2:
        raise ShapeMismatch(f"weight {weight.handle.spec} must be a matrix [out, in]")
    if input.ndim and input.shape[-1] != weight.shape[1]:
        raise ShapeMismatch(
            f"the last axis of input {input.handle.spec} must have size {weight.shape[1]}, because "
            f"weight is {weight.handle.spec}, [out, in]"
        )
    return LINEAR.apply((input, matrix_transpose(weight), bias))


@explained
def embedding(input: Tensor, weight: Tensor) -> Tensor:
    """Look up rows of ``weight``: indices ``[…]``, weight ``[rows, n]`` to ``[…, n]``.

    An index out of range fails the operation: reading the result raises ``OperationFailed``.
    """
    # Burn's operation takes indices of shape [batch, length].
    pairs = input if input.ndim == 2 else reshaped(input, (1, input.size))
    rows = EMBEDDING.apply((weight, pairs))
    return reshaped(rows, (*input.shape, weight.shape[1]))


@explained
def one_hot(x: Tensor, num_classes: int) -> Tensor:
    """Return one-hot vectors as int64: classes ``[…]`` to ``[…, num_classes]``.

    ``num_classes`` is required, because the elements are not read. A class out of range fails the
    operation: reading the result raises ``OperationFailed``.
    """
    count = whole_number("num_classes", num_classes, 1, MAX_ELEMENTS)
    if not x.dtype.is_integer:
        raise DTypeMismatch(f"x must have an integer dtype, not {x.handle.spec}")
    client, places = x.handle.client, expand_dims(x, -1)
    nothing = x.__class__(ZEROS.create(client, TensorSpec((*x.shape, count), I64)))
    single = x.__class__(ONES.create(client, TensorSpec(places.shape, I64)))
    # Not all of Burn's backends support updates other than "add".
    return scatter(nothing, -1, places, single, update="add")


@explained
def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Set elements to 0 with probability ``p`` and scale the others by ``1 / (1 - p)``.

    Without ``training``, no element changes. The device's random generator draws the elements.
    """
    if not 0 <= real_number("p", p) <= 1:
        raise UsageError(f"p must be from 0 to 1, not {p}")
    if not training or p == 0:
        return distinct(input)
    spec = TensorSpec(input.shape, input.dtype)
    check_random_numbers()
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
    enable_gqa: bool = False,
    *,
    softcap: float | None = None,
) -> Tensor:
    """Return ``softmax(query @ key.T * scale + bias) @ value``.

    Shapes: query ``[batch, heads, queries, size]``, key ``[batch, heads, keys, size]``, value
    ``[batch, heads, keys, width]`` to ``[batch, heads, queries, width]``; the heads axis is
    optional. ``attn_mask`` broadcasts to ``[batch, heads, queries, keys]``: a bool mask is true for
    keys to attend to, and a float mask is added to the scores. ``is_causal`` restricts each query
    to keys at its own and earlier positions. ``scale`` defaults to ``1 / sqrt(size)``. With
    ``enable_gqa``, keys and values may have fewer heads, each of which serves equally many heads of
    the query in a row (grouped-query attention). ``softcap`` (from Burn) limits the scores:
    ``softcap * tanh(scores / softcap)``. Raises ``UsageError`` for ``dropout_p > 0``, which the
    operation does not support.
    """
    if dropout_p:
        raise UsageError("dropout in attention is not supported: dropout_p must be 0")
    if enable_gqa:
        key, value = (_for_heads(query, x) for x in (key, value))
    if query.ndim == 3:
        return _attend_without_heads(
            query, key, value, attn_mask, is_causal=is_causal, scale=scale, softcap=softcap
        )
    if softcap is not None and not softcap > 0:
        raise UsageError(f"softcap must be positive or None, not {softcap}")
    mask = bias = None
    if attn_mask is not None and attn_mask.dtype.is_bool:
        # Burn's mask is true for keys to ignore.
        mask = NOT.unary(with_rank(attn_mask, 4))
    elif attn_mask is not None:
        bias = with_rank(attn_mask, 4)
    if is_causal and query.shape[2:3] != key.shape[2:3]:
        # Burn aligns the last query with the last key, PyTorch the first query with the first key.
        hidden = _later_keys(query, key)
        mask = hidden if mask is None else logical_or(mask, hidden)
        is_causal = False
    options = (_optional(scale), _optional(softcap), is_causal)
    return ATTENTION.apply((query, key, value, mask, bias), (options,))


def _for_heads(query: Tensor, x: Tensor) -> Tensor:
    """Repeat each head of keys or values for the heads of the query that it serves."""
    if query.ndim != 4 or x.ndim != 4:
        raise ShapeMismatch(
            "enable_gqa needs query, key and value [batch, heads, length, size], not "
            f"{query.handle.spec} and {x.handle.spec}"
        )
    heads, given = query.shape[1], x.shape[1]
    if not given or heads % given:
        raise ShapeMismatch(
            f"the {given} heads of {x.handle.spec} cannot serve equally many of the {heads} heads "
            f"of the query {query.handle.spec}"
        )
    return x if given == heads else repeat(x, heads // given, axis=1)


def _later_keys(query: Tensor, key: Tensor) -> Tensor:
    """Return a mask ``[1, 1, queries, keys]`` that is true for keys after a query's position."""
    queries, keys = (
        counted(x.__class__, x.handle.client, size)
        for x, size in ((query, query.shape[2]), (key, key.shape[2]))
    )
    positions = reshaped(queries, (1, 1, queries.size, 1))
    return less(positions, reshaped(keys, (1, 1, 1, keys.size)))


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
