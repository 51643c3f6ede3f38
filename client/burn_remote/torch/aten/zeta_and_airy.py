"""The Hurwitz zeta function and the Airy function of the first kind, in float64."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import torch

import burn_remote as br
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.promotion import as_floats
from burn_remote.torch.aten.special_functions import chebyshev_series, in_float64, polynomial
from burn_remote.torch.aten.table import aten

__all__: list[str] = []

Tensor = br.Tensor

# Terms of the sum before the formula of Euler and Maclaurin, whose terms then fall below 1e-17.
_SUMMED = 10
# Bernoulli numbers B2, B4 …
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


def _sum(x: Tensor, q: Tensor) -> Tensor:
    """Return the sum of ``(q + k)^-x`` over all ``k >= 0``, for ``x > 1`` and ``q > 0``."""
    exponent = br.negative(x)
    total = br.pow(q, exponent)
    for step in range(1, _SUMMED):
        total = total + br.pow(q + step, exponent)
    last = q + _SUMMED
    power = br.pow(last, exponent)
    total = total + power * (last / (x - 1) + 0.5)
    # Each term has the factor x (x + 1) … (x + 2k - 2) / last^(2k - 1).
    inverse = 1 / last
    bounded = br.minimum(x, 400.0)  # from there on, the power is 0
    factor = bounded * inverse * power
    for k, number in enumerate(_BERNOULLI, start=1):
        total = total + factor * (number / math.factorial(2 * k))
        factor = factor * ((bounded + (2 * k - 1)) * inverse) * ((bounded + 2 * k) * inverse)
    return total


@aten("special_zeta", "special_zeta.other_scalar", "special_zeta.self_scalar")
def zeta(x: Any, q: Any) -> Tensor:
    x, q = as_floats(x, q)
    dtype = (x if isinstance(x, Tensor) else q).dtype
    x = x if isinstance(x, Tensor) else br.full_like(q, x)
    q = q if isinstance(q, Tensor) else br.full_like(x, q)
    x, q = br.broadcast_arrays(converted_to(x, br.float64), converted_to(q, br.float64))
    order = br.where(x > 1, x, 2.0)
    is_positive = q > 0
    result = _sum(order, br.where(is_positive, q, 1.0))
    # Where q is negative, an even or odd power has terms of both signs: those of 1 - f, 2 - f …,
    # and of f, 1 + f … to -q, where f is the fraction of -q.
    size = br.where(is_positive, 0.5, br.negative(q))
    fraction = size - br.floor(size)
    inside = br.where(br.equal(fraction, 0.0), 0.5, fraction)
    sign = br.where(br.equal(br.remainder(order, 2.0), 0.0), 1.0, -1.0)
    reflected = _sum(order, 1 - inside) + sign * (_sum(order, inside) - _sum(order, size + 1))
    result = br.where(is_positive, result, reflected)
    is_pole = br.logical_and(~is_positive, br.equal(q, br.floor(q)))
    is_undefined = br.logical_and(~is_positive, ~br.equal(x, br.floor(x)))
    result = br.mask_fill(result, is_undefined, math.nan)
    result = br.mask_fill(result, is_pole, math.inf)
    is_unknown = br.logical_or(br.isnan(x), br.isnan(q))
    result = br.mask_fill(result, br.logical_or(x < 1, is_unknown), math.nan)
    result = br.mask_fill(result, br.equal(x, 1.0), math.inf)
    return converted_to(result, dtype)


# --- the Airy function ---------------------------------------------------------------------------

# The function has a series of powers between these arguments, and asymptotic ones beyond.
_LEFT, _RIGHT = -8.0, 2.0
# From here on, PyTorch's function on the CPU is replaced by its asymptotic series.
_FAR = 20.0


def _asymptotic(count: int) -> list[float]:
    """Return the coefficients u of the asymptotic series (DLMF 9.7.2)."""
    found = [1.0]
    for k in range(1, count):
        found.append(found[-1] * (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1)))
    return found


# Ai(0) and Ai'(0), which are 3^(-2/3) / Gamma(2/3) and -3^(-1/3) / Gamma(1/3).
_AT_ZERO = Decimal("0.355028053887817239260063186004183176397979174199178")
_SLOPE_AT_ZERO = Decimal("-0.258819403792806798405183560189203963479091138354934")


def _near(t: Any) -> Any:
    """Return the function by its series of powers, with 50 digits because its terms cancel.

    PyTorch's function on the CPU has errors of 3e-6 near -2.
    """
    places = (t * (_RIGHT - _LEFT) + _LEFT).tolist()
    with localcontext(prec=50):
        return torch.tensor([float(_series(Decimal(x))) for x in places], dtype=t.dtype)


def _series(x: Decimal) -> Decimal:
    even, odd = _AT_ZERO, _SLOPE_AT_ZERO * x
    total = even + odd
    # A solution of y'' = x y: each coefficient follows from the one three places before.
    for k in range(3, 240, 3):
        even *= x**3 / (k * (k - 1))
        odd *= x**3 / (k * (k + 1))
        total += even + odd
    return total


def _right(t: Any) -> Any:
    """Return the function times ``x^(1/4) exp(2/3 x^(3/2))`` for ``t = (2 / x)^(3/2)``."""
    x = _RIGHT / t.clamp_min(1e-300) ** (2 / 3)
    size = 2 / 3 * x**1.5
    scaled = torch.special.airy_ai(x) * x**0.25 * size.exp()
    series = sum(u * (-1 / size) ** k for k, u in enumerate(_asymptotic(12)))
    return torch.where(x < _FAR, scaled, series / (2 * math.sqrt(math.pi)))


@aten("special_airy_ai")
@in_float64
def airy_ai(x: Tensor) -> Tensor:
    bounded = br.clip(x, _LEFT, _RIGHT)
    near = chebyshev_series((bounded - _LEFT) / (_RIGHT - _LEFT), _near, 45)
    large = br.maximum(x, _RIGHT)
    decay = br.exp(br.pow(large, 1.5) * (-2 / 3)) / br.pow(large, 0.25)
    right = chebyshev_series(br.pow(_RIGHT / large, 1.5), _right, 40) * decay
    # PyTorch's function on the CPU is 0 from here on.
    right = br.mask_fill(right, x > 103.892, 0.0)
    far = br.maximum(br.negative(x), -_LEFT)
    size = br.pow(far, 1.5) * (2 / 3)
    square = br.negative(1 / (size * size))
    u = _asymptotic(20)
    even, odd = polynomial(square, u[::2][::-1]), polynomial(square, u[1::2][::-1]) / size
    angle = size + math.pi / 4
    left = (br.sin(angle) * even - br.cos(angle) * odd) / (br.pow(far, 0.25) * math.sqrt(math.pi))
    result = br.where(x < _LEFT, left, br.where(x > _RIGHT, right, near))
    return br.mask_fill(result, br.logical_or(br.isnan(x), br.isinf(x)), math.nan)
