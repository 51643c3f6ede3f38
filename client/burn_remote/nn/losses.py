"""How far are predictions from their targets? Under the names and with the shapes of PyTorch.

``reduction`` says what becomes of the single losses: their ``"mean"``, their ``"sum"``, or
``"none"``: they stay single. Predictions and targets of numbers are floating-point and of one
dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from burn_remote.arguments.numbers import bounds_of
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, reshaped, upload
from burn_remote.functions.activations import log_softmax, softplus
from burn_remote.functions.arithmetic import add, divide, multiply, negative, subtract
from burn_remote.functions.casting import NOT, astype
from burn_remote.functions.elementwise import abs, exp, isinf, log, square
from burn_remote.functions.gathering import gather, take
from burn_remote.functions.logic import equal, less, less_equal
from burn_remote.functions.selection import clip, mask_fill, where
from burn_remote.functions.statistics import mean, sum
from burn_remote.functions.value import is_tensor
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import layers

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "ctc_loss",
    "gaussian_nll_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "poisson_nll_loss",
    "reduced",
    "smooth_l1_loss",
]

CTC_LOSS: Final = Operator(layers.CTC_LOSS)


@explained
def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the squares of the differences."""
    return reduced(square(subtract(input, target)), reduction)


@explained
def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the sizes of the differences."""
    return reduced(abs(subtract(input, target)), reduction)


@explained
def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """Return half the square of small differences, and from ``delta`` on a straight line."""
    distance = abs(subtract(input, target))
    straight = multiply(subtract(distance, delta / 2), delta)
    loss = where(less(distance, delta), multiply(square(distance), 0.5), straight)
    return reduced(loss, reduction)


@explained
def smooth_l1_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """Return ``huber_loss / beta``; the sizes of the differences for ``beta=0``."""
    if beta == 0:
        return l1_loss(input, target, reduction)
    return divide(huber_loss(input, target, reduction, beta), beta)


@explained
def binary_cross_entropy(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the surprise at truths 0 to 1 of someone who expected ``input``.

    Logarithms are bounded by -100, as PyTorch does.
    """
    likely = multiply(target, clip(log(input), min=-100))
    unlikely = multiply(subtract(1, target), clip(log(subtract(1, input)), min=-100))
    return reduced(negative(add(likely, unlikely)), reduction)


@explained
def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, reduction: str = "mean"
) -> Tensor:
    """Return ``binary_cross_entropy(sigmoid(input), target)``, without its overflow."""
    return reduced(subtract(softplus(input), multiply(input, target)), reduction)


@explained
def kl_div(
    input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """Return ``target * (log(target) - input)``, with the logarithms of a distribution as input.

    ``reduction="batchmean"`` divides the sum by the size of the first axis.
    """
    if log_target:
        loss = multiply(exp(target), subtract(target, input))
    else:
        # Where the target is 0, so is the loss; its logarithm is not.
        surprise = multiply(target, subtract(log(target), input))
        loss = mask_fill(surprise, equal(target, 0), 0)
    if reduction == "batchmean":
        return divide(sum(loss), input.shape[0])
    return reduced(loss, reduction)


@explained
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return minus the log-probability of each target.

    Shapes: ``[batch, classes, …]`` and integers ``[batch, …]``, or ``[classes]`` and one integer;
    ``weight`` ``[classes]`` says how much each class counts. Targets equal to ``ignore_index`` do
    not count (``None``, the default: all do, and nothing is compared). PyTorch's default is -100:
    say ``ignore_index=-100`` for targets that mark places so. A target that is no class fails the
    loss as ``gather`` does: its read raises ``OperationFailed`` with the index.
    """
    _check_labels(input, target)
    if input.ndim == 1:
        wide = reshaped(input, (1, input.size))
        loss = nll_loss(wide, reshaped(target, (1,)), weight, ignore_index, reduction)
        return reshaped(loss, ()) if reduction == "none" else loss
    loss, shares, _ = _picked(input, target, weight, ignore_index)
    return _weighted_mean(loss, shares, reduction)


def _check_labels(input: Tensor, target: Tensor) -> None:
    """Refuse what are no labels of an input's classes, before an operation is sent."""
    shape = (*input.shape[:1], *input.shape[2:]) if input.ndim > 1 else ()
    if not target.dtype.is_integer:
        raise DTypeMismatch(
            f"targets {target.handle.spec} are neither integers, such as "
            f"target.astype(burn_remote.int64), nor probabilities like {input.handle.spec}"
        )
    if target.size != math.prod(shape) or (input.ndim > 1 and target.shape != shape):
        raise ShapeMismatch(f"targets {target.handle.spec} must have shape {list(shape)}")


def _picked(
    input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return minus each target's log-probability times its share, the shares in a mean, if they are
    not all 1, and where targets are ignored."""
    shape = target.shape
    if weight is not None and weight.shape != (input.shape[1],):
        raise ShapeMismatch(f"weight {weight.handle.spec} must have shape [{input.shape[1]}]")
    least, most = bounds_of(target.dtype)
    ignored = None
    if ignore_index is not None and least <= ignore_index <= most:
        ignored = equal(target, ignore_index)
    places = target if ignored is None else mask_fill(target, ignored, 0)
    picked = gather(input, 1, reshaped(places, (shape[0], 1, *shape[1:])))
    loss = negative(reshaped(picked, shape))
    shares = None
    if weight is not None:
        shares = reshaped(take(weight, reshaped(places, (places.size,)), axis=0), shape)
    if ignored is not None:
        loss = mask_fill(loss, ignored, 0)
        shares = astype(NOT.unary(ignored), input.dtype) if shares is None else shares
        shares = mask_fill(shares, ignored, 0)
    return loss if shares is None else multiply(loss, shares), shares, ignored


def _weighted_mean(loss: Tensor, shares: Tensor | None, reduction: str) -> Tensor:
    if reduction == "mean" and shares is not None:
        return divide(sum(loss), sum(shares))
    return reduced(loss, reduction)


@explained
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the surprise at targets of someone who expected ``softmax(input)`` of the classes.

    Shapes: ``[batch, classes, …]`` with integers ``[batch, …]`` (see ``nll_loss``) or with
    probabilities of the shape of ``input``. ``label_smoothing`` mixes integers with an even
    distribution. No target is ignored by default: targets of -100, which PyTorch ignores, need
    ``ignore_index=-100``, or the loss's read fails with that index.
    """
    if not target.dtype.is_floating or target.shape != input.shape:
        _check_labels(input, target)
    expected = log_softmax(input, 0 if input.ndim == 1 else 1)
    if target.dtype.is_floating:
        return _soft_cross_entropy(expected, target, weight, reduction, label_smoothing)
    if not label_smoothing:
        return nll_loss(expected, target, weight, ignore_index, reduction)
    if input.ndim == 1:
        wide, one = reshaped(expected, (1, input.size)), reshaped(target, (1,))
        loss = _smoothed(wide, one, weight, ignore_index, reduction, label_smoothing)
        return reshaped(loss, ()) if reduction == "none" else loss
    return _smoothed(expected, target, weight, ignore_index, reduction, label_smoothing)


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
    """Return minus the log-probability of label sequences, however they are spread over time.

    Shapes: ``[time, batch, classes]``, integers ``[batch, length]`` and twice ``[batch]``. The
    mean is taken of the losses divided by their target lengths. ``zero_infinity`` makes 0 of the
    losses of targets that do not fit.
    """
    lengths = _lengths(log_probs, input_lengths), _lengths(log_probs, target_lengths)
    loss = CTC_LOSS.apply((log_probs, targets, *lengths), (blank,))
    if zero_infinity:
        loss = mask_fill(loss, isinf(loss), 0)
    if reduction == "mean":
        loss = divide(loss, clip(astype(lengths[1], loss.dtype), min=1))
    return reduced(loss, reduction)


def _soft_cross_entropy(
    expected: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float
) -> Tensor:
    axis = 0 if expected.ndim == 1 else 1
    if smoothing:
        even = smoothing / expected.shape[axis]
        target = add(multiply(target, 1 - smoothing), even)
    products = _by_class(multiply(target, expected), weight, axis)
    return reduced(negative(sum(products, axis=axis)), reduction)


def _lengths(x: Tensor, lengths: Tensor | Sequence[int]) -> Tensor:
    return lengths if is_tensor(lengths) else upload(x, np.asarray(lengths, np.int64))


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """Return the mean or the sum of losses, or themselves. Raises ``UsageError``."""
    if reduction == "mean":
        return mean(loss)
    if reduction == "sum":
        return sum(loss)
    if reduction != "none":
        raise UsageError(f"reduction={reduction!r} is none of mean, sum and none")
    return loss


@explained
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """Return minus the log-likelihood of counts of which ``exp(input)`` were expected.

    Without ``log_input``, ``input`` itself. ``full`` adds Stirling's formula for the factorial.
    """
    if log_input:
        loss = subtract(exp(input), multiply(target, input))
    else:
        loss = subtract(input, multiply(target, log(add(input, eps))))
    if full:
        many = clip(target, min=1)
        roots = multiply(log(multiply(many, 2 * math.pi)), 0.5)
        factorial = add(subtract(multiply(many, log(many)), many), roots)
        loss = add(loss, mask_fill(factorial, less_equal(target, 1), 0))
    return reduced(loss, reduction)


@explained
def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Return minus the log-likelihood of numbers where a normal distribution was expected.

    ``var`` is its variance, at least ``eps``; it broadcasts. ``full`` adds the constant part.
    """
    spread = clip(var, min=eps)
    loss = add(log(spread), divide(square(subtract(input, target)), spread))
    loss = multiply(loss, 0.5)
    return reduced(add(loss, math.log(2 * math.pi) / 2) if full else loss, reduction)
