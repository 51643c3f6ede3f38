"""Distances and loss functions with a margin, with PyTorch's names and shapes.

``reduction`` is as in ``burn_remote.nn.losses``. Targets are 1 or -1. All tensors have the same
floating-point dtype. Results and gradients of float16 and bfloat16 are computed in float32, and
rounded once. All raise ``ShapeMismatch`` and ``DTypeMismatch``, and losses ``UsageError`` for an
unknown reduction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.activations import softplus
from burn_remote.functions.arithmetic import add, divide, multiply, negative, subtract
from burn_remote.functions.casting import rounded_once
from burn_remote.functions.elementwise import sqrt, square
from burn_remote.functions.linear_algebra import vector_norm
from burn_remote.functions.logic import greater
from burn_remote.functions.manipulation import broadcast_arrays
from burn_remote.functions.operands import alike
from burn_remote.functions.selection import clip, minimum, where
from burn_remote.functions.statistics import sum
from burn_remote.nn.losses import reduced, warn_of_broadcast

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "cosine_embedding_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "pairwise_distance",
    "soft_margin_loss",
    "triplet_margin_loss",
]


# PyTorch adds this to the squared lengths of vectors, which may be zero.
ADDED_TO_SQUARES: Final = 1e-12


@explained
@rounded_once
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """Return the ``p``-norm of ``x1 - x2 + eps`` along the last axis: ``[…, n]`` to ``[…]``.

    For ``p=0``, this is the number of elements that are not 0.
    """
    distance = add(subtract(x1, x2), eps)
    return vector_norm(distance, axis=-1, keepdims=keepdim, ord=p)


@explained
@rounded_once
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return ``1 - cos`` where the target is 1, otherwise ``max(cos - margin, 0)``.

    ``cos`` is the cosine of the angle between the inputs, whose squared lengths are increased by
    1e-12. Shapes: inputs ``[batch, n]`` and target ``[batch]``, or inputs ``[n]`` and a 0-d target.
    ``reduction``: ``"mean"`` and ``"sum"`` give a tensor ``[]``, ``"none"`` one loss for each
    target.
    """
    input1, input2 = broadcast_arrays(*alike(input1, input2))
    squares = [add(sum(square(x), axis=-1), ADDED_TO_SQUARES) for x in (input1, input2)]
    cosine = divide(sum(multiply(input1, input2), axis=-1), sqrt(multiply(*squares)))
    loss = where(greater(target, 0), subtract(1, cosine), clip(subtract(cosine, margin), min=0))
    return reduced(loss, reduction)


@explained
@rounded_once
def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Return ``input`` where the target is 1, otherwise ``max(margin - input, 0)``.

    ``reduction``: ``"mean"`` and ``"sum"`` give a tensor ``[]``, ``"none"`` the loss of each
    element.
    """
    loss = where(greater(target, 0), input, clip(subtract(margin, input), min=0))
    return reduced(loss, reduction)


@explained
@rounded_once
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return ``max(margin - target * (input1 - input2), 0)``.

    ``reduction``: ``"mean"`` and ``"sum"`` give a tensor ``[]``, ``"none"`` the loss of each
    element.
    """
    lead = multiply(target, subtract(input1, input2))
    return reduced(clip(subtract(margin, lead), min=0), reduction)


@explained
@rounded_once
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Return ``max(d(anchor, positive) - d(anchor, negative) + margin, 0)``.

    ``d`` is ``pairwise_distance``. Shapes: all ``[batch, n]``. With ``swap``, the second distance
    is the smaller of ``d(anchor, negative)`` and ``d(positive, negative)`` (Balntas et al., 2016).
    ``reduction``: ``"mean"`` and ``"sum"`` give a tensor ``[]``, ``"none"`` gives ``[batch]``.
    """
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = minimum(far, pairwise_distance(positive, negative, p, eps))
    return reduced(clip(add(subtract(near, far), margin), min=0), reduction)


@explained
def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return ``log(1 + exp(-target * input))`` without overflow.

    ``reduction``: ``"mean"`` and ``"sum"`` give a tensor ``[]``, ``"none"`` the loss of each
    element.
    """
    warn_of_broadcast(input, target)
    return _soft_margin_loss(input, target, reduction)


@rounded_once
def _soft_margin_loss(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    return reduced(softplus(negative(multiply(target, input))), reduction)
