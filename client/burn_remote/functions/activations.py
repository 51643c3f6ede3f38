"""Activation functions, named as in ``torch.nn.functional``, with ``axis`` for ``dim``.

Sessions that have an operation of Burn 0.22 for a function use it. In other sessions, the function
is composed of several operations, as in Burn 0.21 or in a numerically more stable way. Compositions
compute float16 and bfloat16 in float32, and round the result and its gradient once. All take
floating-point tensors and return tensors of the same shape and dtype unless stated otherwise. They
raise ``ShapeMismatch`` for an invalid axis and ``DTypeMismatch``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from burn_remote.arguments.axes import normal_axis
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, with_rank
from burn_remote.dispatch.rows_with_fallbacks import preferring
from burn_remote.functions.arithmetic import add, divide, multiply, negative, subtract
from burn_remote.functions.casting import rounded_once
from burn_remote.functions.closed_form_gradients import gradient_from_argument, gradient_from_result
from burn_remote.functions.elementwise import abs, erf, exp, expm1, log, log1p, tanh
from burn_remote.functions.logic import greater, less, less_equal
from burn_remote.functions.selection import clip, mask_fill, where
from burn_remote.functions.statistics import max, sum
from burn_remote_protocol.dtypes import F64
from burn_remote_protocol.errors import ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import activations

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "celu",
    "elu",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "log_softmax",
    "logsigmoid",
    "mish",
    "prelu",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanhshrink",
    "threshold",
]

RELU: Final = Operator(activations.RELU)
LEAKY_RELU: Final = Operator(activations.LEAKY_RELU)
P_RELU: Final = Operator(activations.P_RELU)
GELU: Final = Operator(activations.GELU)
SIGMOID: Final = Operator(activations.SIGMOID)
HARD_SIGMOID: Final = Operator(activations.HARD_SIGMOID)
LOG_SIGMOID: Final = Operator(activations.LOG_SIGMOID)
SOFTMAX: Final = Operator(activations.SOFTMAX)
LOG_SOFTMAX: Final = Operator(activations.LOG_SOFTMAX)
SOFTMIN: Final = Operator(activations.SOFTMIN)

# Klambauer et al. (2017), "Self-Normalizing Neural Networks": for these values, mean 0 and variance
# 1 are a fixed point.
SELU_ALPHA: Final = 1.6732632423543772
SELU_SCALE: Final = 1.0507009873554805

GELU_SLOPE: Final = math.sqrt(2 / math.pi)

# Above this limit, log(1 + exp(x)) rounds to x. SOFTPLUS_LIMITS has the dtypes with another limit.
SOFTPLUS_LIMIT: Final = 20.0
SOFTPLUS_LIMITS: Final = {F64: 40.0}


# The gradient is computed from the result, which the next layer keeps anyway.
@explained
@preferring(activations.RELU, lambda x, /: RELU.unary(x))
@gradient_from_result(lambda y, grad: mask_fill(grad, less_equal(y.detach(), 0), 0))
def relu(x: Tensor, /) -> Tensor:
    """Return ``max(x, 0)``; NaN stays NaN. The gradient is 0 at 0."""
    return clip(x, min=0)


@explained
def relu6(x: Tensor, /) -> Tensor:
    """Limit ``x`` to the range from 0 to 6."""
    return clip(x, 0, 6)


@explained
def threshold(x: Tensor, /, threshold: float, value: float) -> Tensor:
    """Return ``x`` where it is greater than ``threshold``, otherwise ``value``."""
    return mask_fill(x, less_equal(x, threshold), value)


@explained
def hardtanh(x: Tensor, /, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Limit ``x`` to the range from ``min_val`` to ``max_val``."""
    return clip(x, min_val, max_val)


@explained
def leaky_relu(x: Tensor, /, negative_slope: float = 0.01) -> Tensor:
    """Return ``x`` where it is positive, otherwise ``negative_slope * x``."""
    return _leaky_relu(x, negative_slope)


@preferring(activations.LEAKY_RELU, lambda x, slope: LEAKY_RELU.scalar(x, slope))
def _leaky_relu(x: Tensor, slope: float) -> Tensor:
    return where(less_equal(x, 0), multiply(x, slope), x)


@explained
def prelu(x: Tensor, /, weight: Tensor) -> Tensor:
    """Return ``x`` where it is positive, otherwise ``weight * x``.

    ``weight`` has one element, or one per channel of ``x`` ``[batch, channels, …]``.
    """
    channels = x.shape[1] if x.ndim > 1 else 1
    if weight.size not in (1, channels):
        raise ShapeMismatch(f"weight {weight.handle.spec} must have 1 or {channels} elements")
    if weight.size > 1:
        weight = weight.reshape((weight.size, *(1,) * (x.ndim - 2)))
    return _prelu(x, weight)


@preferring(activations.P_RELU, lambda x, weight: P_RELU.binary(x, with_rank(weight, x.ndim)))
def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    return where(less_equal(x, 0), multiply(x, weight), x)


@explained
@rounded_once
def elu(x: Tensor, /, alpha: float = 1.0) -> Tensor:
    """Return ``x`` where it is positive, otherwise ``alpha * (exp(x) - 1)``."""
    # 0 avoids overflow of exp where its result is not used.
    bounded = mask_fill(x, greater(x, 0), 0)
    return where(less_equal(x, 0), multiply(expm1(bounded), alpha), x)


@explained
@rounded_once
def selu(x: Tensor, /) -> Tensor:
    """Return ``elu`` scaled to keep mean 0 and variance 1 (Klambauer et al., 2017)."""
    return multiply(elu(x, SELU_ALPHA), SELU_SCALE)


@explained
@rounded_once
def celu(x: Tensor, /, alpha: float = 1.0) -> Tensor:
    """Return ``x`` where it is positive, otherwise ``alpha * (exp(x / alpha) - 1)``."""
    bounded = mask_fill(x, greater(x, 0), 0)
    return where(less_equal(x, 0), multiply(expm1(divide(bounded, alpha)), alpha), x)


@explained
@preferring(activations.SIGMOID, lambda x, /: SIGMOID.unary(x))
@rounded_once
@gradient_from_result(lambda y, grad: multiply(grad, subtract(y, multiply(y, y))))
def sigmoid(x: Tensor, /) -> Tensor:
    """Return ``1 / (1 + exp(-x))``."""
    # exp of nonpositive numbers cannot overflow, and this form keeps full precision for negative x.
    is_below = less(x, 0)
    power = exp(where(is_below, x, negative(x)))
    return divide(where(is_below, power, 1), add(power, 1))


@explained
@preferring(activations.LOG_SIGMOID, lambda x, /: LOG_SIGMOID.unary(x))
@rounded_once
def logsigmoid(x: Tensor, /) -> Tensor:
    """Return ``log(sigmoid(x))`` without overflow."""
    return negative(softplus(negative(x)))


@explained
@rounded_once
def softplus(x: Tensor, /, beta: float = 1.0) -> Tensor:
    """Return ``log(1 + exp(beta * x)) / beta`` without overflow."""
    if beta == 1:
        return _softplus(x)
    return divide(_softplus(multiply(x, beta)), beta)


@gradient_from_argument(lambda x, grad: multiply(grad, sigmoid(x)))
def _softplus(x: Tensor) -> Tensor:
    limit = SOFTPLUS_LIMITS.get(x.dtype, SOFTPLUS_LIMIT)
    return where(greater(x, limit), x, log1p(exp(clip(x, max=limit))))


@explained
@rounded_once
def silu(x: Tensor, /) -> Tensor:
    """Return ``x * sigmoid(x)`` (also called swish)."""
    return multiply(x, sigmoid(x))


@explained
@rounded_once
def mish(x: Tensor, /) -> Tensor:
    """Return ``x * tanh(softplus(x))``."""
    return multiply(x, tanh(softplus(x)))


@explained
def gelu(x: Tensor, /, approximate: str = "none") -> Tensor:
    """Return ``x`` times the cumulative distribution function of the normal distribution at ``x``.

    ``approximate="tanh"`` uses the approximation of Hendrycks and Gimpel (2016).
    """
    if approximate == "tanh":
        return _gelu_of_tanh(x)
    if approximate != "none":
        raise UsageError(f"approximate must be 'none' or 'tanh', not {approximate!r}")
    return _gelu(x)


@rounded_once
def _gelu_of_tanh(x: Tensor) -> Tensor:
    # x (c + 0.044715 c x²) takes one operation fewer than c (x + 0.044715 x³).
    slope = add(multiply(multiply(x, x), 0.044715 * GELU_SLOPE), GELU_SLOPE)
    share = add(tanh(multiply(slope, x)), 1)
    # Halve the share rather than the product: x * share may overflow.
    return multiply(x, divide(share, 2))


def _of_gelu(x: Tensor, grad: Tensor) -> Tensor:
    """Return ``grad * (Φ(x) + x φ(x))``: Φ is the normal distribution function, φ its density."""
    density = multiply(exp(multiply(multiply(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return multiply(grad, add(_normal_distribution(x), multiply(x, density)))


@preferring(activations.GELU, lambda x: GELU.unary(x))
@rounded_once
@gradient_from_argument(_of_gelu)
def _gelu(x: Tensor) -> Tensor:
    return multiply(x, _normal_distribution(x))


def _normal_distribution(x: Tensor) -> Tensor:
    # Halve the sum rather than a product with it, which may overflow.
    return divide(add(erf(divide(x, math.sqrt(2))), 1), 2)


@explained
@rounded_once
def glu(x: Tensor, /, axis: int = -1) -> Tensor:
    """Split an axis into halves a and b and return ``a * sigmoid(b)``.

    Shapes: ``[…, n, …]`` to ``[…, n / 2, …]``. Raises ``ShapeMismatch`` for an odd ``n``.
    """
    size = x.shape[normal_axis(axis, x.ndim)]
    if size % 2:
        raise ShapeMismatch(f"axis {axis} of {x.handle.spec} has no halves: its size {size} is odd")
    first, second = x.split(2, axis=axis)
    return multiply(first, sigmoid(second))


@explained
@rounded_once
def hardsigmoid(x: Tensor, /) -> Tensor:
    """Return ``x / 6 + 1 / 2`` limited to the range from 0 to 1."""
    return divide(clip(add(x, 3), 0, 6), 6)


@explained
def hard_sigmoid(x: Tensor, /, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """Return ``alpha * x + beta`` limited to the range from 0 to 1 (Burn's ``hard_sigmoid``).

    ``hardsigmoid`` is PyTorch's, with a slope of 1/6.
    """
    return _hard_sigmoid(x, alpha, beta)


@preferring(
    activations.HARD_SIGMOID, lambda x, alpha, beta: HARD_SIGMOID.numbers((x,), (alpha, beta))
)
@rounded_once
def _hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    return clip(add(multiply(x, alpha), beta), 0, 1)


@explained
@rounded_once
def hardswish(x: Tensor, /) -> Tensor:
    """Return ``x * hardsigmoid(x)``."""
    return multiply(x, hardsigmoid(x))


@explained
def hardshrink(x: Tensor, /, lambd: float = 0.5) -> Tensor:
    """Return ``x`` where ``|x| > lambd``, otherwise 0."""
    return mask_fill(x, less_equal(abs(x), lambd), 0)


@explained
def softshrink(x: Tensor, /, lambd: float = 0.5) -> Tensor:
    """Return ``sign(x) * max(|x| - lambd, 0)``."""
    return _softshrink(x, lambd=lambd)


@gradient_from_argument(
    lambda x, grad, lambd: mask_fill(grad, less_equal(abs(x.detach()), lambd), 0)
)
def _softshrink(x: Tensor, *, lambd: float) -> Tensor:
    return subtract(x, clip(x, -lambd, lambd))


@explained
@rounded_once
def softsign(x: Tensor, /) -> Tensor:
    """Return ``x / (1 + |x|)``."""
    return divide(x, add(abs(x), 1))


@explained
@rounded_once
def tanhshrink(x: Tensor, /) -> Tensor:
    """Return ``x - tanh(x)``."""
    return subtract(x, tanh(x))


@explained
def softmax(x: Tensor, /, axis: int = -1) -> Tensor:
    """Return ``exp(x) / sum(exp(x))`` along an axis, without overflow."""
    return _softmax(x, place=normal_axis(axis, x.ndim))


def _of_softmax(y: Tensor, grad: Tensor, *, place: int) -> Tensor:
    weighted = multiply(grad, y)
    return subtract(weighted, multiply(y, sum(weighted, axis=place, keepdims=True)))


@preferring(activations.SOFTMAX, lambda x, *, place: SOFTMAX.apply((x,), (place,)))
@rounded_once
@gradient_from_result(_of_softmax)
def _softmax(x: Tensor, *, place: int) -> Tensor:
    # Subtracting the maximum bounds the exponentials by 1.
    exponentials = exp(subtract(x, max(x, axis=place, keepdims=True)))
    return divide(exponentials, sum(exponentials, axis=place, keepdims=True))


@explained
def softmin(x: Tensor, /, axis: int = -1) -> Tensor:
    """Return ``softmax(-x)``."""
    return _softmin(x, place=normal_axis(axis, x.ndim))


@preferring(activations.SOFTMIN, lambda x, *, place: SOFTMIN.apply((x,), (place,)))
@rounded_once
def _softmin(x: Tensor, *, place: int) -> Tensor:
    return _softmax(negative(x), place=place)


@explained
def log_softmax(x: Tensor, /, axis: int = -1) -> Tensor:
    """Return ``log(softmax(x))`` without underflow."""
    return _log_softmax(x, place=normal_axis(axis, x.ndim))


def _of_log_softmax(y: Tensor, grad: Tensor, *, place: int) -> Tensor:
    return subtract(grad, multiply(exp(y), sum(grad, axis=place, keepdims=True)))


@preferring(activations.LOG_SOFTMAX, lambda x, *, place: LOG_SOFTMAX.apply((x,), (place,)))
@rounded_once
@gradient_from_result(_of_log_softmax)
def _log_softmax(x: Tensor, *, place: int) -> Tensor:
    shifted = subtract(x, max(x, axis=place, keepdims=True))
    return subtract(shifted, log(sum(exp(shifted), axis=place, keepdims=True)))
