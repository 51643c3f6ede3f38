"""Special functions: gamma functions, error functions and their inverses.

They are compositions in float64, so results in float32 are exact to the last digit or two. Smooth
parts are Chebyshev series, whose coefficients PyTorch's own functions on the CPU give.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from numpy.polynomial import Polynomial, chebyshev

import burn_remote as br
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.promotion import as_floats
from burn_remote.torch.aten.table import aten

__all__ = ["chebyshev_series", "in_float64", "lgamma", "polynomial"]

Tensor = br.Tensor

# Smaller arguments are increased by this number before an asymptotic series is used: with the
# Bernoulli numbers below, its terms then fall to 1e-17.
_SHIFT = 10
# Bernoulli numbers B2, B4 …
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


def in_float64(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function of floats or integers that computes in float64."""

    @functools.wraps(function)
    def apply(x: Tensor, *options: Any) -> Tensor:
        (x,) = as_floats(x)
        return converted_to(function(converted_to(x, br.float64), *options), x.dtype)

    return apply


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Return a polynomial; the coefficient of the highest power is the first."""
    result = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        result = result * x + coefficient
    return result


@functools.cache
def _coefficients(function: Callable[[Any], Any], degree: int) -> tuple[float, ...]:
    """Return the Chebyshev coefficients of a function of ``[0, 1]``."""

    def sampled(at: Any) -> Any:
        return function(torch.from_numpy((at + 1) / 2)).numpy()

    return tuple(chebyshev.chebinterpolate(sampled, degree).tolist())


def chebyshev_series(t: Tensor, function: Callable[[Any], Any], degree: int) -> Tensor:
    """Return a function of ``[0, 1]`` by its Chebyshev series (Clenshaw's algorithm)."""
    first, *others, before, last = _coefficients(function, degree)
    x = t * 2 - 1
    twice = x * 2
    older: Any = last
    newer = twice * last + before
    for coefficient in reversed(others):
        older, newer = newer, twice * newer + coefficient - older
    return x * newer + first - older


# --- the gamma function -------------------------------------------------------------------------


def _reflected(x: Tensor) -> tuple[Tensor, Tensor]:
    """Reflect arguments below 0.5 to ``1 - x``; return a mask of these, and the arguments."""
    negative = x < 0.5
    return negative, br.where(negative, 1 - x, x)


def _shifted(x: Tensor) -> tuple[Tensor, Tensor]:
    """Add ``_SHIFT`` to smaller arguments; return a mask of these, and the arguments."""
    small = x < _SHIFT
    return small, br.where(small, x + _SHIFT, x)


@aten("lgamma")
@in_float64
def lgamma(x: Tensor) -> Tensor:
    negative, positive = _reflected(x)
    small, z = _shifted(positive)
    inverse = 1 / z
    terms = [number / (2 * k * (2 * k - 1)) for k, number in enumerate(_BERNOULLI, start=1)]
    series = polynomial(inverse * inverse, terms[::-1]) * inverse
    result = z * (br.log(z) - 1) - 0.5 * br.log(z) + 0.5 * math.log(2 * math.pi) + series
    result = br.mask_fill(result, br.isinf(z), math.inf)
    bounded = br.minimum(positive, float(_SHIFT))
    product = bounded
    for step in range(1, _SHIFT):
        product = product * (bounded + step)
    result = br.where(small, result - br.log(product), result)
    # At integers, where the sine is 0, the result is infinite.
    sine = br.abs(br.sin((x - br.round(x)) * math.pi))
    reflected = br.mask_fill(math.log(math.pi) - br.log(sine) - result, br.isinf(x), math.inf)
    return br.where(negative, reflected, result)


@aten("digamma", "special_digamma")
@in_float64
def digamma(x: Tensor) -> Tensor:
    negative, positive = _reflected(x)
    small, z = _shifted(positive)
    square = 1 / (z * z)
    terms = [-number / (2 * k) for k, number in enumerate(_BERNOULLI, start=1)]
    result = br.log(z) - 0.5 / z + polynomial(square, terms[::-1]) * square
    bounded = br.minimum(positive, float(_SHIFT))
    total = 1 / bounded
    for step in range(1, _SHIFT):
        total = total + 1 / (bounded + step)
    result = br.where(small, result - total, result)
    reflected = result - math.pi / br.tan((x - br.round(x)) * math.pi)
    reflected = br.mask_fill(reflected, br.equal(x, br.round(x)), math.nan)
    result = br.where(negative, reflected, result)
    at_zero = br.copysign(br.full_like(x, math.inf), br.negative(x))
    return br.where(br.equal(x, 0.0), at_zero, result)


@aten("polygamma")
def polygamma(n: int, x: Tensor) -> Tensor:
    if n < 0:
        raise ValueError(f"polygamma(n, x) does not support negative n; n is {n}")
    return digamma(x) if n == 0 else _derivative(x, n)


@in_float64
def _derivative(x: Tensor, n: int) -> Tensor:
    """Return the ``n``-th derivative of the digamma function, for ``n`` of at least 1."""
    negative, positive = _reflected(x)
    small, z = _shifted(positive)
    # (-1)^(n + 1) times the derivative of the asymptotic series, and of the shifted terms.
    total = math.factorial(n - 1) / br.pow(z, float(n))
    total = total + math.factorial(n) / 2 / br.pow(z, float(n + 1))
    for k, number in enumerate(_BERNOULLI, start=1):
        weight = number * math.factorial(2 * k + n - 1) / math.factorial(2 * k)
        total = total + weight / br.pow(z, float(2 * k + n))
    bounded = br.minimum(positive, float(_SHIFT))
    sums = br.pow(bounded, float(-n - 1))
    for step in range(1, _SHIFT):
        sums = sums + br.pow(bounded + step, float(-n - 1))
    total = br.where(small, total + math.factorial(n) * sums, total)
    result = total * (-1.0) ** (n + 1)
    # psi_n(x) = (-1)^n psi_n(1 - x) - pi d^n/dx^n cot(pi x)
    cotangent = 1 / br.tan((x - br.round(x)) * math.pi)
    slope = Polynomial([0, 1])
    for _ in range(n):
        slope = -math.pi * slope.deriv() * Polynomial([1, 0, 1])
    slopes = polynomial(cotangent, [float(one) for one in slope.coef[::-1]])
    reflected = result * (-1.0) ** n - math.pi * slopes
    at_poles = math.inf if n % 2 else -math.inf
    reflected = br.mask_fill(reflected, br.equal(x, br.round(x)), at_poles)
    reflected = br.mask_fill(reflected, br.isinf(x), math.nan)
    return br.where(negative, reflected, result)


# --- error functions ----------------------------------------------------------------------------


def _log_of_scaled(t: Any) -> Any:
    """Return ``log(erfcx(x) / t)`` for ``t = 4 / (x + 4)``, which is smooth on [0, 1]."""
    x = 4 / t.clamp_min(1e-300) - 4
    # At t = 0 its limit is that of 1 / (sqrt(pi) x t).
    limit = torch.tensor(1 / (4 * math.sqrt(math.pi)), dtype=t.dtype)
    return torch.where(t < 1e-9, limit, torch.special.erfcx(x) / t).log()


def _scaled(x: Tensor) -> Tensor:
    """Return ``exp(x²) erfc(x)`` for ``x >= 0``."""
    t = 4 / (x + 4)
    return t * br.exp(chebyshev_series(t, _log_of_scaled, 30))


def _complement(x: Tensor) -> Tensor:
    size = br.abs(x)
    result = _scaled(size) * br.exp(br.negative(size * size))
    return br.where(x < 0, 2 - result, result)


@aten("erfc", "special_erfc")
@in_float64
def erfc(x: Tensor) -> Tensor:
    return _complement(x)


@aten("special_erfcx")
@in_float64
def erfcx(x: Tensor) -> Tensor:
    result = _scaled(br.abs(x))
    return br.where(x < 0, 2 * br.exp(x * x) - result, result)


# Starting values of the inverse: M. Giles, "Approximating the erfinv function" (2010), single
# precision.
_CENTRAL = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
            -0.00125372503, -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
         -0.0076224613, 0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


def _approximate_inverse(w: Tensor) -> Tensor:
    """Return an approximation of ``erfinv(x) / x``, for ``w = -log(1 - x²)``."""
    near = polynomial(w - 2.5, _CENTRAL)
    return br.where(w < 5, near, polynomial(br.sqrt(w) - 3, _TAIL))


def _inverse_of_complement(q: Tensor) -> Tensor:
    """Return the ``y >= 0`` with ``erfc(y) = q``, for ``0 < q <= 1``."""
    w = br.negative(br.log(q * (2 - q)))
    # The approximation has the precision of float32, in which 1 - x is at least 6e-8.
    y = br.where(w < 15, _approximate_inverse(w) * (1 - q), br.sqrt(w))
    target = br.log(q)
    for _ in range(5):  # Newton's method for the logarithm, which is almost a parabola
        scaled = _scaled(y)
        y = y + (br.log(scaled) - y * y - target) * scaled * (math.sqrt(math.pi) / 2)
        y = br.maximum(y, 0.0)
    return y


@aten("erfinv", "special_erfinv")
@in_float64
def erfinv(x: Tensor) -> Tensor:
    size = br.abs(x)
    bounded = br.minimum(size, 0.5)
    y = _approximate_inverse(br.negative(br.log1p(br.negative(bounded * bounded)))) * bounded
    for _ in range(2):  # Halley's method
        away = (br.erf(y) - bounded) * br.exp(y * y) * (math.sqrt(math.pi) / 2)
        y = y - away / (1 + y * away)
    y = br.where(size <= 0.5, y, _inverse_of_complement(1 - br.maximum(size, 0.5)))
    y = br.copysign(br.mask_fill(y, br.equal(size, 1.0), math.inf), x)
    return br.mask_fill(y, br.logical_or(size > 1, br.isnan(x)), math.nan)


@aten("special_ndtri")
@in_float64
def ndtri(x: Tensor) -> Tensor:
    """Return the quantile of the normal distribution."""
    lower = x < 0.5
    y = _inverse_of_complement(br.where(lower, x, 1 - x) * 2) * math.sqrt(2)
    y = br.where(lower, br.negative(y), y)
    y = br.mask_fill(y, br.equal(x, 0.0), -math.inf)
    y = br.mask_fill(y, br.equal(x, 1.0), math.inf)
    return br.mask_fill(y, br.logical_or(x < 0, x > 1), math.nan)


@aten("special_log_ndtr")
@in_float64
def log_ndtr(x: Tensor) -> Tensor:
    t = x * math.sqrt(0.5)
    tail = br.log(_scaled(br.abs(t)) / 2) - t * t
    return br.where(x < -1, tail, br.log1p(_complement(t) * -0.5))
