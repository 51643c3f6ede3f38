"""Loss functions, with PyTorch's names and shapes.

``reduction`` is ``"mean"``, ``"sum"`` or ``"none"`` (no reduction). Unless stated otherwise, inputs
and targets have the same shape and the same floating-point dtype. If their shapes differ and both
have several elements, binary cross-entropy raises ``ShapeMismatch``; the other losses broadcast and
warn, as in PyTorch: inputs ``[n, 1]`` and targets ``[n]`` give the losses of all ``n * n`` pairs.
All raise ``ShapeMismatch``, ``DTypeMismatch``, and ``UsageError`` for an unknown reduction.

Losses and gradients of float16 and bfloat16 are computed in float32, and rounded once.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from burn_remote.arguments.numbers import bounds_of
from burn_remote.autodiff.custom_vjp import custom_vjp
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, reshaped, upload
from burn_remote.functions.activations import log_softmax, softplus
from burn_remote.functions.arithmetic import add, divide, multiply, negative, subtract
from burn_remote.functions.casting import NOT, astype, rounded_once
from burn_remote.functions.closed_form_gradients import gradient_from_argument
from burn_remote.functions.elementwise import abs, exp, isinf, log, square
from burn_remote.functions.gathering import gather, scatter, take
from burn_remote.functions.logic import equal, less, less_equal
from burn_remote.functions.selection import clip, mask_fill, where
from burn_remote.functions.statistics import max, mean, sum
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.sessions.source_locations import caller_and_depth
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import layers

if TYPE_CHECKING:
    from burn_remote.arguments.numbers import Number
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
    "warn_of_broadcast",
]

# The target that PyTorch ignores by default.
IGNORED: Final = -100

CTC_LOSS: Final = Operator(layers.CTC_LOSS)


def _differ(input: Tensor, target: Tensor) -> bool:
    """Return whether the shapes differ, so that inputs would be paired with other inputs' targets.

    One element, or a Python number, is meant for all inputs or targets.
    """
    if not (is_tensor(input) and is_tensor(target)) or input.shape == target.shape:
        return False
    return input.size != 1 and target.size != 1


def warn_of_broadcast(input: Tensor, target: Tensor) -> None:
    """Warn at the program's line if the target does not have the shape of the input."""
    if _differ(input, target):
        warnings.warn(
            f"the input {input.handle.spec} and the target {target.handle.spec} broadcast, so "
            "inputs are compared with the targets of other inputs; give both the same shape"
            + _advice(input, target),
            stacklevel=caller_and_depth(1)[2],
        )


def _check_shapes(input: Tensor, target: Tensor) -> None:
    if _differ(input, target):
        raise ShapeMismatch(
            f"the target {target.handle.spec} must have the shape {list(input.shape)} of the "
            f"input{_advice(input, target)}"
        )


def _advice(input: Tensor, target: Tensor) -> str:
    return f": target.reshape({input.shape})" if target.size == input.size else ""


@explained
def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the squared error ``(input - target) ** 2``.

    ``reduction``: ``"mean"`` and ``"sum"`` give a tensor ``[]``, ``"none"`` the error of each
    element.
    """
    warn_of_broadcast(input, target)
    return _mse_loss(input, target, reduction)


@rounded_once
def _mse_loss(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    return reduced(square(subtract(input, target)), reduction)


@explained
def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the absolute error ``|input - target|``.

    ``reduction``: ``"mean"`` and ``"sum"`` give a tensor ``[]``, ``"none"`` the error of each
    element.
    """
    warn_of_broadcast(input, target)
    return _l1_loss(input, target, reduction)


@rounded_once
def _l1_loss(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    return reduced(abs(subtract(input, target)), reduction)


@explained
def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """Return the Huber loss (Huber, 1964).

    With ``d = |input - target|``: ``d ** 2 / 2`` if ``d < delta``, otherwise
    ``delta * (d - delta / 2)``. ``reduction``: ``"mean"`` and ``"sum"`` give a tensor ``[]``,
    ``"none"`` the loss of each element.
    """
    warn_of_broadcast(input, target)
    return _huber_loss(input, target, reduction, delta)


@rounded_once
def _huber_loss(input: Tensor, target: Tensor, reduction: str, delta: float) -> Tensor:
    difference = subtract(input, target)
    distance = abs(difference)
    straight = multiply(subtract(distance, delta / 2), delta)
    loss = where(less(distance, delta), multiply(square(difference), 0.5), straight)
    return reduced(loss, reduction)


@explained
def smooth_l1_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """Return ``huber_loss(input, target, delta=beta) / beta``, or ``l1_loss`` for ``beta=0``.

    ``reduction``: ``"mean"`` and ``"sum"`` give a tensor ``[]``, ``"none"`` the loss of each
    element.
    """
    if beta == 0:
        return l1_loss(input, target, reduction)
    warn_of_broadcast(input, target)
    return _smooth_l1_loss(input, target, reduction, beta)


@rounded_once
def _smooth_l1_loss(input: Tensor, target: Tensor, reduction: str, beta: float) -> Tensor:
    return divide(_huber_loss(input, target, reduction, beta), beta)


@explained
def binary_cross_entropy(
    input: Tensor, target: Tensor, reduction: str = "mean", *, weight: Tensor | None = None
) -> Tensor:
    """Return ``-(target * log(input) + (1 - target) * log(1 - input))``.

    Inputs and targets are probabilities. Logarithms are limited to at least -100, as in PyTorch.
    ``weight`` multiplies each loss, and broadcasts to the shape of ``input``. ``reduction``:
    ``"mean"`` and ``"sum"`` give a tensor ``[]``, ``"none"`` the loss of each element.
    """
    _check_shapes(input, target)
    return _binary_cross_entropy(input, target, weight, reduction)


@rounded_once
def _binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: str
) -> Tensor:
    losses = _binary_cross_entropies(input, target)
    return reduced(losses if weight is None else multiply(losses, weight), reduction)


def _logarithm(x: Tensor) -> Tensor:
    return clip(log(x), min=-100)


def _binary_forward(input: Tensor, target: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    likely = multiply(target, _logarithm(input))
    unlikely = multiply(subtract(1, target), _logarithm(subtract(1, input)))
    return negative(add(likely, unlikely)), (input, target)


def _binary_backward(residuals: tuple[Tensor, Tensor], grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return finite gradients also for probabilities of 0 and 1, as PyTorch does."""
    input, target = residuals
    variance = clip(subtract(input, multiply(input, input)), min=1e-12)
    to_input = multiply(grad, divide(subtract(input, target), variance))
    odds = subtract(_logarithm(subtract(1, input)), _logarithm(input))
    return to_input, multiply(grad, odds)


@custom_vjp(_binary_forward, _binary_backward)
def _binary_cross_entropies(input: Tensor, target: Tensor) -> Tensor:
    losses, _ = _binary_forward(input, target)
    return losses


@explained
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    pos_weight: Tensor | Number | None = None,
) -> Tensor:
    """Return ``binary_cross_entropy(sigmoid(input), target)`` without overflow.

    ``weight`` multiplies each loss, and ``pos_weight`` multiplies the term ``target *
    log(sigmoid(input))``; both broadcast to the shape of ``input``. ``reduction``: ``"mean"`` and
    ``"sum"`` give a tensor ``[]``, ``"none"`` the loss of each element.
    """
    _check_shapes(input, target)
    return _binary_cross_entropy_with_logits(input, target, weight, pos_weight, reduction)


@rounded_once
def _binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    pos_weight: Tensor | Number | None,
    reduction: str,
) -> Tensor:
    if pos_weight is None:
        losses = subtract(softplus(input), multiply(input, target))
    else:
        likely = multiply(softplus(negative(input)), add(multiply(target, pos_weight - 1), 1))
        losses = add(subtract(input, multiply(input, target)), likely)
    return reduced(losses if weight is None else multiply(losses, weight), reduction)


@explained
def kl_div(
    input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """Return the Kullback-Leibler divergence ``target * (log(target) - input)``.

    ``input`` holds log-probabilities, and so does ``target`` if ``log_target`` is true.
    ``reduction``: ``"mean"``, ``"sum"`` and ``"batchmean"`` give a tensor ``[]``, ``"none"`` the
    divergence of each element. ``"batchmean"`` divides the sum by the size of the first axis.
    """
    warn_of_broadcast(input, target)
    return _kl_div(input, target, reduction, log_target)


@rounded_once
def _kl_div(input: Tensor, target: Tensor, reduction: str, log_target: bool) -> Tensor:
    if log_target:
        loss = multiply(exp(target), subtract(target, input))
    else:
        # 0 * log(0) is NaN, but its limit is 0.
        surprise = multiply(target, subtract(log(target), input))
        loss = mask_fill(surprise, equal(target, 0), 0)
    if reduction == "batchmean":
        return divide(sum(loss), input.shape[0] if input.ndim else 1)
    return reduced(loss, reduction)


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


def _soft_cross_entropy(
    expected: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float
) -> Tensor:
    axis = 0 if expected.ndim == 1 else 1
    if smoothing:
        even = smoothing / expected.shape[axis]
        target = add(multiply(target, 1 - smoothing), even)
    products = _by_class(multiply(target, expected), weight, axis)
    return reduced(negative(sum(products, axis=axis)), reduction)


@explained
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """Return the negative log-likelihood of counts with a Poisson distribution.

    The expected count is ``exp(input)``, or ``input`` if ``log_input`` is false. ``full`` adds
    Stirling's approximation of ``log(target!)``. ``reduction``: ``"mean"`` and ``"sum"`` give a
    tensor ``[]``, ``"none"`` the loss of each element.
    """
    warn_of_broadcast(input, target)
    return _poisson_nll_loss(input, target, log_input, full, eps, reduction)


@rounded_once
def _poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool, full: bool, eps: float, reduction: str
) -> Tensor:
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
    """Return the negative log-likelihood of targets with a normal distribution.

    ``input`` is the mean and ``var`` the variance, which broadcasts and is limited to at least
    ``eps``; its gradient is that of the limited variance, so that training can increase it.
    ``full`` adds the constant ``log(2 * pi) / 2``. ``reduction``: ``"mean"`` and ``"sum"`` give a
    tensor ``[]``, ``"none"`` the loss of each element.
    """
    warn_of_broadcast(input, target)
    return _gaussian_nll_loss(input, target, var, full, eps, reduction)


@rounded_once
def _gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor, full: bool, eps: float, reduction: str
) -> Tensor:
    spread = _limited(var, least=eps)
    loss = add(log(spread), divide(square(subtract(input, target)), spread))
    loss = multiply(loss, 0.5)
    return reduced(add(loss, math.log(2 * math.pi) / 2) if full else loss, reduction)


@gradient_from_argument(lambda x, grad, *, least: grad)
def _limited(x: Tensor, *, least: float) -> Tensor:
    return clip(x, min=least)


def _lengths(x: Tensor, lengths: Tensor | Sequence[int]) -> Tensor:
    return lengths if is_tensor(lengths) else upload(x, np.asarray(lengths, np.int64))


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """Apply a reduction to losses. Raises ``UsageError`` for an unknown one."""
    if reduction == "mean":
        return mean(loss)
    if reduction == "sum":
        return sum(loss)
    if reduction != "none":
        raise UsageError(f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
    return loss
