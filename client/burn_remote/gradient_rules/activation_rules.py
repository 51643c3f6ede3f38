"""Gradients of activation functions.

Some of these gradients are single rows. The gradients of such rows are compositions of other rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from burn_remote.autodiff.rule_table import rule
from burn_remote.dispatch.operators import Operator
from burn_remote.functions.arithmetic import add, divide, multiply, negative, subtract
from burn_remote.functions.casting import rounded_once
from burn_remote.functions.elementwise import erf, exp
from burn_remote.functions.logic import greater, less, less_equal, logical_and
from burn_remote.functions.selection import mask_fill, where
from burn_remote.functions.statistics import sum
from burn_remote_protocol.operations.families import activations

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

RELU_BACKWARD: Final = Operator(activations.RELU_BACKWARD)
GELU_BACKWARD: Final = Operator(activations.GELU_BACKWARD)
SIGMOID: Final = Operator(activations.SIGMOID)
SIGMOID_BACKWARD: Final = Operator(activations.SIGMOID_BACKWARD)
LOG_SIGMOID_BACKWARD: Final = Operator(activations.LOG_SIGMOID_BACKWARD)

rule(activations.RELU, input=lambda grad, out: RELU_BACKWARD.binary(out.detach(), grad))
# As a function of ``lhs``, the result is constant except for jumps, so ``lhs`` gets no gradient.
rule(activations.RELU_BACKWARD, rhs=lambda grad, lhs: RELU_BACKWARD.binary(lhs.detach(), grad))
rule(
    activations.LEAKY_RELU,
    lhs=lambda grad, lhs, rhs: where(less_equal(lhs.detach(), 0), multiply(grad, rhs), grad),
)
rule(
    activations.P_RELU,
    lhs=lambda grad, lhs, rhs: where(less_equal(lhs.detach(), 0), multiply(grad, rhs), grad),
    rhs=lambda grad, lhs: mask_fill(multiply(grad, lhs), greater(lhs.detach(), 0), 0),
)
rule(activations.GELU, input=lambda grad, input: GELU_BACKWARD.binary(input, grad))
rule(
    activations.GELU_BACKWARD,
    # The second derivative is (2 - x²) φ(x).
    lhs=lambda grad, lhs, rhs: multiply(
        multiply(grad, rhs), multiply(subtract(2, multiply(lhs, lhs)), _density(lhs))
    ),
    rhs=lambda grad, lhs: multiply(
        grad, add(_normal_distribution(lhs), multiply(lhs, _density(lhs)))
    ),
)
rule(activations.SIGMOID, input=lambda grad, out: SIGMOID_BACKWARD.binary(out, grad))
rule(
    activations.SIGMOID_BACKWARD,
    lhs=lambda grad, lhs, rhs: multiply(multiply(grad, rhs), subtract(1, multiply(lhs, 2))),
    rhs=lambda grad, lhs: multiply(grad, subtract(lhs, multiply(lhs, lhs))),
)
rule(
    activations.HARD_SIGMOID,
    tensor=lambda grad, out, alpha: mask_fill(multiply(grad, alpha), _on_a_bound(out.detach()), 0),
)
rule(
    activations.LOG_SIGMOID,
    input=lambda grad, input: LOG_SIGMOID_BACKWARD.binary(input, grad),
)
rule(
    activations.LOG_SIGMOID_BACKWARD,
    lhs=lambda grad, lhs, rhs: negative(multiply(multiply(grad, rhs), _sigmoid_slope(lhs))),
    rhs=lambda grad, lhs: multiply(grad, SIGMOID.unary(negative(lhs))),
)
rule(activations.SOFTMAX, input=lambda grad, out, axis: _of_softmax(grad, out, axis))
rule(activations.SOFTMIN, input=lambda grad, out, axis: negative(_of_softmax(grad, out, axis)))
rule(
    activations.LOG_SOFTMAX,
    input=rounded_once(
        lambda grad, out, axis: subtract(
            grad, multiply(exp(out), sum(grad, axis=axis, keepdims=True))
        )
    ),
)


@rounded_once
def _of_softmax(grad: Tensor, out: Tensor, axis: int) -> Tensor:
    weighted = multiply(grad, out)
    return subtract(weighted, multiply(out, sum(weighted, axis=axis, keepdims=True)))


def _on_a_bound(y: Tensor) -> Tensor:
    # NaN is not on a bound.
    return ~logical_and(greater(y, 0), less(y, 1)) & (y == y)


def _sigmoid_slope(x: Tensor) -> Tensor:
    y = SIGMOID.unary(x)
    return subtract(y, multiply(y, y))


def _normal_distribution(x: Tensor) -> Tensor:
    return divide(add(erf(divide(x, math.sqrt(2))), 1), 2)


def _density(x: Tensor) -> Tensor:
    return multiply(exp(multiply(multiply(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
