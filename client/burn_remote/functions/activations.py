"""Which functions shape the activations of a network?

They are composed of operations of the IR as Burn 0.21 composes them, or more stably, and take
floating-point tensors. Each returns a tensor of the same shape and dtype; names and arguments are
those of ``torch.nn.functional``, with ``axis`` for ``dim``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from burn_remote.arguments.axes import normal_axis
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.arithmetic import add, divide, multiply, negative, subtract
from burn_remote.functions.elementwise import abs, erf, exp, expm1, log, log1p, tanh
from burn_remote.functions.logic import greater, less, less_equal
from burn_remote.functions.selection import clip, mask_fill, where
from burn_remote.functions.statistics import max, sum
from burn_remote_protocol.dtypes import F16, F64
from burn_remote_protocol.errors import ShapeMismatch, UsageError

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "celu",
    "elu",
    "gelu",
    "glu",
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

# Klambauer et al. (2017), the fixed point of the mean and variance of activations.
SELU_ALPHA: Final = 1.6732632423543772
SELU_SCALE: Final = 1.0507009873554805

GELU_SLOPE: Final = math.sqrt(2 / math.pi)

# Above this, log(1 + exp(x)) is x to the last digit: of most dtypes, and of others.
SOFTPLUS_LIMIT: Final = 20.0
SOFTPLUS_LIMITS: Final = {F64: 40.0, F16: 10.0}


@explained
def relu(x: Tensor, /) -> Tensor:
    """Return ``x`` where it is above zero, elsewhere 0; NaN stays."""
    return clip(x, min=0)


@explained
def relu6(x: Tensor, /) -> Tensor:
    """Return ``x`` kept between 0 and 6."""
    return clip(x, 0, 6)


@explained
def threshold(x: Tensor, /, threshold: float, value: float) -> Tensor:
    """Return ``x`` where it is above a threshold, elsewhere ``value``."""
    return mask_fill(x, less_equal(x, threshold), value)


@explained
def hardtanh(x: Tensor, /, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Return ``x`` kept between two bounds."""
    return clip(x, min_val, max_val)


@explained
def leaky_relu(x: Tensor, /, negative_slope: float = 0.01) -> Tensor:
    """Return ``x`` where it is not below zero, elsewhere ``negative_slope * x``."""
    return where(less(x, 0), multiply(x, negative_slope), x)


@explained
def prelu(x: Tensor, /, weight: Tensor) -> Tensor:
    """Return ``x`` where it is not below zero, elsewhere ``weight * x``.

    ``weight`` has one element, or one for each channel of ``[batch, channels, …]``.
    """
    channels = x.shape[1] if x.ndim > 1 else 1
    if weight.size not in (1, channels):
        raise ShapeMismatch(f"weight {weight.handle.spec} must have 1 or {channels} elements")
    if weight.size > 1:
        weight = weight.reshape((weight.size, *(1,) * (x.ndim - 2)))
    return where(less(x, 0), multiply(x, weight), x)


@explained
def elu(x: Tensor, /, alpha: float = 1.0) -> Tensor:
    """Return ``x`` where it is above zero, elsewhere ``alpha * (exp(x) - 1)``."""
    # Without the bound, exp overflows where its result is not even used.
    return where(less_equal(x, 0), multiply(expm1(clip(x, max=0)), alpha), x)


@explained
def selu(x: Tensor, /) -> Tensor:
    """Return ``elu`` scaled so that activations keep mean 0 and variance 1."""
    return multiply(elu(x, SELU_ALPHA), SELU_SCALE)


@explained
def celu(x: Tensor, /, alpha: float = 1.0) -> Tensor:
    """Return ``x`` where it is above zero, elsewhere ``alpha * (exp(x / alpha) - 1)``."""
    return where(less_equal(x, 0), multiply(expm1(divide(clip(x, max=0), alpha)), alpha), x)


@explained
def sigmoid(x: Tensor, /) -> Tensor:
    """Return ``1 / (1 + exp(-x))``."""
    # Only of numbers that are not above zero, exp cannot overflow, and the result keeps all its
    # digits below zero too.
    is_below = less(x, 0)
    power = exp(where(is_below, x, negative(x)))
    return divide(where(is_below, power, 1), add(power, 1))


@explained
def logsigmoid(x: Tensor, /) -> Tensor:
    """Return the logarithm of ``sigmoid(x)``, without overflow."""
    return negative(softplus(negative(x)))


@explained
def softplus(x: Tensor, /, beta: float = 1.0) -> Tensor:
    """Return ``log(1 + exp(beta * x)) / beta``, without overflow."""
    scaled = x if beta == 1 else multiply(x, beta)
    limit = SOFTPLUS_LIMITS.get(x.dtype, SOFTPLUS_LIMIT)
    curve = where(greater(scaled, limit), scaled, log1p(exp(clip(scaled, max=limit))))
    return curve if beta == 1 else divide(curve, beta)


@explained
def silu(x: Tensor, /) -> Tensor:
    """Return ``x * sigmoid(x)``, also called swish."""
    return multiply(x, sigmoid(x))


@explained
def mish(x: Tensor, /) -> Tensor:
    """Return ``x * tanh(softplus(x))``."""
    return multiply(x, tanh(softplus(x)))


@explained
def gelu(x: Tensor, /, approximate: str = "none") -> Tensor:
    """Return ``x`` times the normal distribution up to ``x``.

    ``approximate="tanh"`` takes the formula of Hendrycks and Gimpel (2016) instead.
    """
    if approximate == "tanh":
        # x (c + 0.044715 c x²): two operations fewer than the sum of x and its cube.
        slope = add(multiply(multiply(x, x), 0.044715 * GELU_SLOPE), GELU_SLOPE)
        share = add(tanh(multiply(slope, x)), 1)
    elif approximate == "none":
        share = add(erf(divide(x, math.sqrt(2))), 1)
    else:
        raise UsageError(f"approximate={approximate!r} is neither 'none' nor 'tanh'")
    # Half of the share: twice x may overflow.
    return multiply(x, divide(share, 2))


@explained
def glu(x: Tensor, /, axis: int = -1) -> Tensor:
    """Return the first half of an axis times the sigmoid of the second: ``[…, n, …]`` to n/2."""
    first, second = x.split(2, axis=axis)
    return multiply(first, sigmoid(second))


@explained
def hardsigmoid(x: Tensor, /) -> Tensor:
    """Return ``x / 6 + 1 / 2`` kept between 0 and 1."""
    return divide(clip(add(x, 3), 0, 6), 6)


@explained
def hardswish(x: Tensor, /) -> Tensor:
    """Return ``x * hardsigmoid(x)``."""
    return multiply(x, hardsigmoid(x))


@explained
def hardshrink(x: Tensor, /, lambd: float = 0.5) -> Tensor:
    """Return ``x`` where it is farther than ``lambd`` from zero, elsewhere 0."""
    return mask_fill(x, less_equal(abs(x), lambd), 0)


@explained
def softshrink(x: Tensor, /, lambd: float = 0.5) -> Tensor:
    """Return ``x`` moved by ``lambd`` towards zero, and not beyond it."""
    return subtract(x, clip(x, -lambd, lambd))


@explained
def softsign(x: Tensor, /) -> Tensor:
    """Return ``x / (1 + |x|)``."""
    return divide(x, add(abs(x), 1))


@explained
def tanhshrink(x: Tensor, /) -> Tensor:
    """Return ``x - tanh(x)``."""
    return subtract(x, tanh(x))


@explained
def softmax(x: Tensor, /, axis: int = -1) -> Tensor:
    """Return positive numbers that add up to 1 along an axis, in the ratios of ``exp(x)``."""
    place = normal_axis(axis, x.ndim)
    # The largest exponential is then exp(0) = 1.
    exponentials = exp(subtract(x, max(x, axis=place, keepdims=True)))
    return divide(exponentials, sum(exponentials, axis=place, keepdims=True))


@explained
def softmin(x: Tensor, /, axis: int = -1) -> Tensor:
    """Return ``softmax(-x)``."""
    return softmax(negative(x), axis)


@explained
def log_softmax(x: Tensor, /, axis: int = -1) -> Tensor:
    """Return the logarithm of ``softmax(x)``, without its underflow."""
    place = normal_axis(axis, x.ndim)
    shifted = subtract(x, max(x, axis=place, keepdims=True))
    return subtract(shifted, log(sum(exp(shifted), axis=place, keepdims=True)))
