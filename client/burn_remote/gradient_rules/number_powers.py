"""The gradient of powers with one number as the exponent, which two rows compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from burn_remote.dispatch.operators import Operator
from burn_remote.functions.casting import rounded_once
from burn_remote.gradient_rules.spreading import zeros
from burn_remote_protocol.operations.families import numeric

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["number_power_rule"]

MUL: Final = Operator(numeric.MUL)
MUL_SCALAR: Final = Operator(numeric.MUL_SCALAR)


def number_power_rule(power: Operator) -> Callable[[Tensor, Tensor, float], Tensor]:
    """Return the formula ``grad * rhs * lhs ** (rhs - 1)``; ``power`` computes the power."""

    def of_number_power(grad: Tensor, lhs: Tensor, rhs: float) -> Tensor:
        if rhs == 0:
            return zeros(grad, grad.handle.spec)
        if rhs == 1:
            return grad
        if rhs == 2:
            return MUL.binary(grad, MUL_SCALAR.scalar(lhs, 2))
        return of_other_power(grad, lhs, rhs)

    @rounded_once
    def of_other_power(grad: Tensor, lhs: Tensor, rhs: float) -> Tensor:
        return MUL.binary(grad, MUL_SCALAR.scalar(power.exact_scalar(lhs, rhs - 1), rhs))

    return of_number_power
