"""How unlikely are targets where a distribution was expected? With PyTorch's names.

``reduction`` is as in ``burn_remote.networks.losses``. Tensors are floating-point and of one dtype.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.arithmetic import add, divide, multiply, subtract
from burn_remote.functions.comparison import less_equal
from burn_remote.functions.elementwise import exp, log, square
from burn_remote.functions.selection import clip, mask_fill
from burn_remote.networks.losses import reduced

if TYPE_CHECKING:
    from burn_remote.tensor import Tensor

__all__ = ["gaussian_nll_loss", "poisson_nll_loss"]


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
