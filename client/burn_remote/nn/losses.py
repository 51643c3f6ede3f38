"""Losses of numbers and probabilities, with PyTorch's names and shapes.

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
from typing import TYPE_CHECKING

from burn_remote.autodiff.custom_vjp import custom_vjp
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.activations import softplus
from burn_remote.functions.arithmetic import add, divide, multiply, negative, subtract
from burn_remote.functions.casting import rounded_once
from burn_remote.functions.closed_form_gradients import gradient_from_argument
from burn_remote.functions.elementwise import abs, exp, log, square
from burn_remote.functions.logic import equal, less, less_equal
from burn_remote.functions.selection import clip, mask_fill, where
from burn_remote.functions.statistics import mean, sum
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.sessions.source_locations import caller_and_depth
from burn_remote_protocol.errors import ShapeMismatch, UsageError

if TYPE_CHECKING:
    from burn_remote.arguments.numbers import Number
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "gaussian_nll_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "poisson_nll_loss",
    "reduced",
    "smooth_l1_loss",
    "warn_of_broadcast",
]


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


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """Apply a reduction to losses. Raises ``UsageError`` for an unknown one."""
    if reduction == "mean":
        return mean(loss)
    if reduction == "sum":
        return sum(loss)
    if reduction != "none":
        raise UsageError(f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
    return loss
