"""The regularized incomplete gamma functions, in float64.

Small shapes ``a`` have a series for small ``x``, and Gauss and Laguerre's quadrature for larger.
For large ``a``, the integrand is a narrow bell, which Gauss and Legendre's quadrature integrates
from ``x`` to a point where it has vanished (Numerical Recipes, 3rd edition, section 6.2.1).
"""

from __future__ import annotations

import math

import numpy as np

import burn_remote as br
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.promotion import as_floats
from burn_remote.torch.aten.special_functions import lgamma
from burn_remote.torch.aten.table import aten

__all__: list[str] = []

Tensor = br.Tensor

# From this shape on, the integrand is so narrow and smooth that a quadrature is exact to 1e-13.
_LARGE = 30.0
# Terms of the series. For x < a + 1 and a < _LARGE, the next one is below 1e-16.
_TERMS = 100
_LAGUERRE = 48
_LEGENDRE = 40


def _logarithm_of_weight(a: Tensor, x: Tensor) -> Tensor:
    """Return the logarithm of ``x^a exp(-x) / Gamma(a)``."""
    return a * br.log(x) - x - lgamma(a)


def _series(a: Tensor, x: Tensor) -> Tensor:
    """Return the lower function for ``x < a + 1``."""
    term = 1 / a
    total = term
    for step in range(1, _TERMS):
        term = term * x / (a + step)
        total = total + term
    return total * br.exp(_logarithm_of_weight(a, x))


def _tail(a: Tensor, x: Tensor) -> Tensor:
    """Return the upper function for ``x >= a + 1``."""
    total = br.zeros_like(x)
    nodes, weights = np.polynomial.laguerre.laggauss(_LAGUERRE)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        total = total + br.exp((a - 1) * br.log1p(node / x)) * weight
    return total * br.exp(_logarithm_of_weight(a, x)) / x


def _bell(a: Tensor, x: Tensor) -> Tensor:
    """Return the upper function for large shapes."""
    peak = a - 1
    width = br.sqrt(peak)
    above = br.maximum(peak + width * 11.5, x + width * 6)
    below = br.maximum(br.minimum(peak - width * 7.5, x - width * 5), 0.0)
    is_above = x > peak
    end = br.where(is_above, above, below)
    # The largest value of the integrand is that at the peak.
    scale = peak * (br.log(peak) - 1) - lgamma(a)
    total = br.zeros_like(x)
    nodes, weights = np.polynomial.legendre.leggauss(_LEGENDRE)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        at = x + (end - x) * ((node + 1) / 2)
        away = br.maximum(at, 1e-300) / peak
        total = total + br.exp((br.log(away) - away + 1) * peak) * weight
    part = br.exp(scale) * total * (end - x) / 2
    return br.where(is_above, part, 1 + part)


def _lower_and_upper(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lower and the upper function for positive finite arguments."""
    is_large = a >= _LARGE
    is_lower = x < a + 1
    small = br.where(is_large, 1.0, a)
    lower = _series(small, br.where(br.logical_and(is_lower, ~is_large), x, 0.5))
    tail = _tail(small, br.where(br.logical_or(is_lower, is_large), _LARGE, x))
    bell = br.clip(_bell(br.where(is_large, a, _LARGE), x), 0.0, 1.0)
    below = br.where(is_large, 1 - bell, br.where(is_lower, lower, 1 - tail))
    above = br.where(is_large, bell, br.where(is_lower, 1 - lower, tail))
    return below, above


def _function(a: Tensor, x: Tensor, *, is_upper: bool) -> Tensor:
    a, x = as_floats(a, x)
    dtype = a.dtype
    a, x = br.broadcast_arrays(converted_to(a, br.float64), converted_to(x, br.float64))
    ordinary = br.logical_and(
        br.logical_and(a > 0, x > 0), ~br.logical_or(br.isinf(a), br.isinf(x))
    )
    result = _lower_and_upper(br.where(ordinary, a, 1.0), br.where(ordinary, x, 1.0))[is_upper]
    low, high = (1.0, 0.0) if is_upper else (0.0, 1.0)
    result = br.mask_fill(result, br.logical_or(br.equal(a, 0.0), br.isinf(x)), high)
    result = br.mask_fill(
        result, br.logical_or(br.isinf(a), br.logical_and(br.equal(x, 0.0), a > 0)), low
    )
    undefined = br.logical_or(br.logical_or(a < 0, x < 0), br.logical_or(br.isnan(a), br.isnan(x)))
    both = br.logical_or(
        br.logical_and(br.equal(a, 0.0), br.equal(x, 0.0)), br.logical_and(br.isinf(a), br.isinf(x))
    )
    return converted_to(br.mask_fill(result, br.logical_or(undefined, both), math.nan), dtype)


@aten("igamma", "special_gammainc")
def igamma(a: Tensor, x: Tensor) -> Tensor:
    return _function(a, x, is_upper=False)


@aten("igammac", "special_gammaincc")
def igammac(a: Tensor, x: Tensor) -> Tensor:
    return _function(a, x, is_upper=True)
