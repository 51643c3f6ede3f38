"""Losses of labels, with PyTorch's names and shapes: of classes, and of sequences of classes.

Labels are integers. ``reduction`` is as in ``burn_remote.nn.losses``. All raise ``ShapeMismatch``,
``DTypeMismatch``, and ``UsageError`` for an unknown reduction. Losses and gradients of float16 and
bfloat16 are computed in float32, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from burn_remote.arguments.numbers import bounds_of
from burn_remote.autodiff.custom_vjp import custom_vjp
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, reshaped, upload
from burn_remote.functions.activations import log_softmax
from burn_remote.functions.arithmetic import add, divide, multiply, negative, subtract
from burn_remote.functions.casting import NOT, astype, rounded_once
from burn_remote.functions.elementwise import exp, isinf, log
from burn_remote.functions.gathering import gather, scatter, take
from burn_remote.functions.logic import equal
from burn_remote.functions.selection import clip, mask_fill, where
from burn_remote.functions.statistics import max, mean, sum
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.nn.losses import reduced
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch
from burn_remote_protocol.operations.families import layers

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["cross_entropy", "ctc_loss", "nll_loss"]

# The target that PyTorch ignores by default.
IGNORED: Final = -100

CTC_LOSS: Final = Operator(layers.CTC_LOSS)


@explained
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int | None = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Return the negative log-likelihood of the target classes.

    Shapes: log-probabilities ``[batch, classes, …]`` and integers ``[batch, …]``, or ``[classes]``
    and one integer; ``weight`` ``[classes]`` weights each class. Targets equal to ``ignore_index``
    do not contribute; ``None`` ignores none, which takes fewer operations. Another target out of
    range fails the operation: reading the loss raises ``OperationFailed`` with the index.
    ``reduction``: ``"mean"`` and ``"sum"`` give a tensor ``[]``, ``"none"`` the shape of
    ``target``. ``"mean"`` divides the sum by the total weight of the targets that contribute (1
    each without ``weight``).
    """
    _check_labels(input, target)
    return _nll_loss(input, target, weight, ignore_index, reduction)


@rounded_once
def _nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int | None,
    reduction: str,
) -> Tensor:
    if input.ndim == 1:
        wide = reshaped(input, (1, input.size))
        loss = _nll_loss(wide, reshaped(target, (1,)), weight, ignore_index, reduction)
        return reshaped(loss, ()) if reduction == "none" else loss
    loss, shares, _ = _picked(input, target, weight, ignore_index)
    return _weighted_mean(loss, shares, reduction)


def _check_labels(input: Tensor, target: Tensor) -> None:
    """Raise ``DTypeMismatch`` or ``ShapeMismatch`` for invalid labels, before anything is sent."""
    shape = (*input.shape[:1], *input.shape[2:]) if input.ndim > 1 else ()
    if not target.dtype.is_integer:
        raise DTypeMismatch(
            f"targets {target.handle.spec} must be integers, such as "
            f"target.astype(burn_remote.int64), or probabilities of shape {list(input.shape)}"
        )
    if target.size != math.prod(shape) or (input.ndim > 1 and target.shape != shape):
        raise ShapeMismatch(f"targets {target.handle.spec} must have shape {list(shape)}")


def _picked(
    input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the weighted negative log-likelihoods, the weights, and the mask of ignored targets.

    The weights are ``None`` if all are 1, and the mask is ``None`` if no target is ignored.
    """
    shape = target.shape
    if weight is not None and weight.shape != (input.shape[1],):
        raise ShapeMismatch(f"weight {weight.handle.spec} must have shape [{input.shape[1]}]")
    ignored = _ignored(target, ignore_index)
    places = target if ignored is None else mask_fill(target, ignored, 0)
    shares = None
    if weight is not None:
        shares = reshaped(take(weight, reshaped(places, (places.size,)), axis=0), shape)
        # This makes ``places`` depend on ``shares`` without changing it. So a label that is out of
        # range fails only one operation; the ones after it report the same failure.
        places = where(equal(shares, shares), places, places)
    picked = gather(input, 1, reshaped(places, (shape[0], 1, *shape[1:])))
    loss = negative(reshaped(picked, shape))
    if ignored is not None:
        loss = mask_fill(loss, ignored, 0)
        if shares is None:
            return loss, astype(NOT.unary(ignored), input.dtype), ignored
        shares = mask_fill(shares, ignored, 0)
    return loss if shares is None else multiply(loss, shares), shares, ignored


def _ignored(target: Tensor, ignore_index: int | None) -> Tensor | None:
    """Return the mask of ignored targets; ``None`` if the dtype of targets lacks the index."""
    least, most = bounds_of(target.dtype)
    if ignore_index is None or not least <= ignore_index <= most:
        return None
    return equal(target, ignore_index)


def _weighted_mean(loss: Tensor, shares: Tensor | None, reduction: str) -> Tensor:
    if reduction == "mean" and shares is not None:
        return divide(sum(loss), sum(shares))
    return reduced(loss, reduction)


@explained
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int | None = IGNORED,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the cross-entropy between ``softmax(input)`` and the targets.

    Shapes: logits ``[batch, classes, …]`` with integer targets ``[batch, …]`` (see ``nll_loss``),
    or with probabilities of the same shape as ``input``. ``label_smoothing`` mixes the targets with
    the uniform distribution. Integer targets equal to ``ignore_index`` do not contribute, as in
    ``nll_loss``. ``reduction``: ``"mean"`` and ``"sum"`` give a tensor ``[]``, ``"none"`` gives
    ``[batch, …]``. Means of losses with integer targets are those of ``nll_loss``.
    """
    if not target.dtype.is_floating or target.shape != input.shape:
        _check_labels(input, target)
    return _cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


@rounded_once
def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int | None,
    reduction: str,
    label_smoothing: float,
) -> Tensor:
    is_plain = weight is None and not label_smoothing
    if is_plain and target.dtype.is_integer and input.ndim > 1:
        return _plain_cross_entropy(input, target, ignore_index, reduction)
    expected = log_softmax(input, 0 if input.ndim == 1 else 1)
    if target.dtype.is_floating:
        return _soft_cross_entropy(expected, target, weight, reduction, label_smoothing)
    if not label_smoothing:
        return _nll_loss(expected, target, weight, ignore_index, reduction)
    if input.ndim == 1:
        wide, one = reshaped(expected, (1, input.size)), reshaped(target, (1,))
        loss = _smoothed(wide, one, weight, ignore_index, reduction, label_smoothing)
        return reshaped(loss, ()) if reduction == "none" else loss
    return _smoothed(expected, target, weight, ignore_index, reduction, label_smoothing)


def _plain_cross_entropy(
    input: Tensor, target: Tensor, ignore_index: int | None, reduction: str
) -> Tensor:
    places = reshaped(target, (target.shape[0], 1, *target.shape[1:]))
    ignored = _ignored(places, ignore_index)
    if ignored is not None:
        places = mask_fill(places, ignored, 0)
        if reduction == "mean":
            return _mean_cross_entropy(input, places, ignored)
    losses = _cross_entropies(input, places)
    if ignored is not None:
        losses = mask_fill(losses, ignored, 0)
    return reshaped(losses, target.shape) if reduction == "none" else reduced(losses, reduction)


def _cross_entropies_forward(
    input: Tensor, places: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    # The loss does not depend on what is subtracted, so no gradient needs to pass through it.
    shifted = subtract(input, max(input.detach(), axis=1, keepdims=True))
    powers = exp(shifted)
    total = sum(powers, axis=1, keepdims=True)
    return subtract(log(total), gather(shifted, 1, places)), (powers, total, places)


def _cross_entropies_backward(
    residuals: tuple[Tensor, Tensor, Tensor], grad: Tensor
) -> tuple[Tensor, None]:
    """Return the softmax, less 1 at the target, times the gradient of the loss."""
    powers, total, places = residuals
    softmax = multiply(powers, divide(grad, total))
    return scatter(softmax, 1, places, negative(grad), update="add"), None


@custom_vjp(_cross_entropies_forward, _cross_entropies_backward)
def _cross_entropies(input: Tensor, places: Tensor) -> Tensor:
    """Return the loss at the class of each place, both ``[batch, 1, …]``."""
    losses, _ = _cross_entropies_forward(input, places)
    return losses


def _mean_cross_entropy_forward(
    input: Tensor, places: Tensor, ignored: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    losses, (powers, total, places) = _cross_entropies_forward(input, places)
    kept = astype(NOT.unary(ignored), losses.dtype)
    count = sum(kept)
    loss = divide(sum(mask_fill(losses, ignored, 0)), count)
    return loss, (powers, total, places, kept, count)


def _mean_cross_entropy_backward(
    residuals: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], grad: Tensor
) -> tuple[Tensor, None, None]:
    powers, total, places, kept, count = residuals
    share = multiply(kept, divide(grad, count))
    gradient, _ = _cross_entropies_backward((powers, total, places), share)
    return gradient, None, None


# The mean as one function takes fewer operations in its gradient than as a composition.
@custom_vjp(_mean_cross_entropy_forward, _mean_cross_entropy_backward)
def _mean_cross_entropy(input: Tensor, places: Tensor, ignored: Tensor) -> Tensor:
    """Return the mean of the losses of targets that are not ignored, both ``[batch, 1, …]``."""
    loss, _ = _mean_cross_entropy_forward(input, places, ignored)
    return loss


def _smoothed(
    expected: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int | None,
    reduction: str,
    smoothing: float,
) -> Tensor:
    hard, shares, ignored = _picked(expected, target, weight, ignore_index)
    even = negative(mean(_by_class(expected, weight, 1), axis=1))
    if ignored is not None:
        even = mask_fill(even, ignored, 0)
    loss = add(multiply(hard, 1 - smoothing), multiply(even, smoothing))
    return _weighted_mean(loss, shares, reduction)


def _soft_cross_entropy(
    expected: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float
) -> Tensor:
    axis = 0 if expected.ndim == 1 else 1
    if smoothing:
        even = smoothing / expected.shape[axis]
        target = add(multiply(target, 1 - smoothing), even)
    products = _by_class(multiply(target, expected), weight, axis)
    return reduced(negative(sum(products, axis=axis)), reduction)


def _by_class(x: Tensor, weight: Tensor | None, axis: int) -> Tensor:
    if weight is None:
        return x
    return multiply(x, reshaped(weight, (weight.size, *(1,) * (x.ndim - axis - 1))))


@explained
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Return the connectionist temporal classification loss (Graves et al., 2006).

    Shapes: log-probabilities ``[time, batch, classes]``, integer targets ``[batch, length]``,
    ``input_lengths`` and ``target_lengths`` ``[batch]``. ``reduction``: ``"mean"`` and ``"sum"``
    give a tensor ``[]``, ``"none"`` gives ``[batch]``; ``"mean"`` divides each loss by its target
    length first. ``zero_infinity`` replaces the infinite loss of a target that is too long for its
    input by 0.
    """
    lengths = _lengths(log_probs, input_lengths), _lengths(log_probs, target_lengths)
    return _ctc_loss(log_probs, targets, *lengths, blank, reduction, zero_infinity)


@rounded_once
def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    reduction: str,
    zero_infinity: bool,
) -> Tensor:
    loss = CTC_LOSS.apply((log_probs, targets, input_lengths, target_lengths), (blank,))
    if zero_infinity:
        loss = mask_fill(loss, isinf(loss), 0)
    if reduction == "mean":
        loss = divide(loss, clip(astype(target_lengths, loss.dtype), min=1))
    return reduced(loss, reduction)


def _lengths(x: Tensor, lengths: Tensor | Sequence[int]) -> Tensor:
    return lengths if is_tensor(lengths) else upload(x, np.asarray(lengths, np.int64))
