"""Tables of embeddings and bags of them: lookups and their gradients."""

from __future__ import annotations

import burn_remote as br
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.table import aten

__all__: list[str] = []

Tensor = br.Tensor


@aten("embedding")
def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    return br.take(weight, indices, axis=0)


@aten("embedding_dense_backward")
def embedding_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    positions = br.flatten(converted_to(indices, br.int64))
    rows = br.reshape(grad, (positions.size, grad.shape[-1]))
    if scale_grad_by_freq:
        counts = br.zeros((num_weights,), dtype=grad.dtype, device=grad.device)
        one = br.ones((positions.size,), dtype=grad.dtype, device=grad.device)
        counts = br.update_along(counts, 0, positions, one, update="add")
        rows = rows / br.reshape(br.take(counts, positions, axis=0), (-1, 1))
    if padding_idx >= 0:
        rows = br.mask_fill(rows, br.reshape(positions == padding_idx, (-1, 1)), 0)
    zeros = br.zeros((num_weights, grad.shape[-1]), dtype=grad.dtype, device=grad.device)
    return br.update_along(zeros, 0, positions, rows, update="add") if positions.size else zeros


# PyTorch's numbers of the modes of ``EmbeddingBag``; 0 is the sum.
_MEAN, _MAX = 1, 2


@aten("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return bags ``[bags, width]``, each index's bag, the bags' sizes, and rows of the maxima."""
    indices, offsets = converted_to(indices, br.int64), converted_to(offsets, br.int64)
    bags = offsets.shape[0] - include_last_offset
    width = weight.shape[1]
    places = br.arange(indices.size, dtype=br.int64, device=weight.device)
    bag_of = br.searchsorted(offsets[:bags], places, side="right") - 1
    bag_of = converted_to(bag_of, br.int64)
    counted = converted_to(indices != padding_idx, br.int64)
    sizes = br.zeros((bags,), dtype=br.int64, device=weight.device)
    rows = br.take(weight, indices, axis=0)
    if indices.size:
        sizes = br.update_along(sizes, 0, bag_of, counted, update="add")
    if mode == _MAX:
        return _largest_of_bags(rows, indices, bag_of, sizes, counted)
    if per_sample_weights is not None:
        rows = rows * br.expand_dims(per_sample_weights, 1)
    rows = rows * converted_to(br.expand_dims(counted, 1), rows.dtype)
    result = br.zeros((bags, width), dtype=weight.dtype, device=weight.device)
    if indices.size:
        result = br.update_along(result, 0, bag_of, rows, update="add")
    if mode == _MEAN:
        result = result / converted_to(br.expand_dims(br.maximum(sizes, 1), 1), rows.dtype)
    none = br.zeros((bags if mode == _MEAN else 0,), dtype=br.int64, device=weight.device)
    return result, bag_of, sizes, none


def _largest_of_bags(
    rows: Tensor, indices: Tensor, bag_of: Tensor, sizes: Tensor, counted: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    bags, count = sizes.shape[0], rows.shape[0]
    lowest = float("-inf")
    is_in = br.expand_dims(bag_of, 0) == br.reshape(
        br.arange(bags, dtype=br.int64, device=rows.device), (bags, 1)
    )
    is_in = br.logical_and(is_in, converted_to(br.expand_dims(counted, 0), br.bool))
    shape = (bags, count, rows.shape[1])
    spread = br.broadcast_to(br.expand_dims(rows, 0), shape)
    outside = br.broadcast_to(br.expand_dims(~is_in, 2), shape)
    values, at = br.max_with_indices(br.mask_fill(spread, outside, lowest), 1)
    is_empty = br.broadcast_to(br.expand_dims(sizes == 0, 1), values.shape)
    chosen = br.reshape(br.take(indices, br.flatten(at), axis=0), at.shape)
    chosen = br.mask_fill(chosen, is_empty, -1)
    return br.mask_fill(values, is_empty, 0), bag_of, sizes, chosen


@aten("_embedding_bag_backward")
def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    return embedding_bag_dense_backward(
        grad,
        indices,
        offset2bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@aten("_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    zeros = br.zeros((num_weights, grad.shape[1]), dtype=grad.dtype, device=grad.device)
    if mode == _MAX:
        is_empty = maximum_indices < 0
        rows = br.mask_fill(maximum_indices, is_empty, 0)
        return br.scatter(zeros, 0, rows, br.mask_fill(grad, is_empty, 0), update="add")
    if not indices.size:
        return zeros
    if mode == _MEAN:
        grad = grad / converted_to(br.expand_dims(br.maximum(bag_size, 1), 1), grad.dtype)
    rows = br.take(grad, offset2bag, axis=0)
    if per_sample_weights is not None:
        rows = rows * br.expand_dims(per_sample_weights, 1)
    return embedding_backward(rows, indices, num_weights, padding_idx, scale_grad_by_freq)


@aten("_embedding_bag_per_sample_weights_backward")
def embedding_bag_per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    places = converted_to(indices, br.int64)
    rows = br.take(grad, offset2bag, axis=0) * br.take(weight, places, axis=0)
    return br.mask_fill(br.sum(rows, axis=1), places == padding_idx, 0)
