"""Bessel functions of the orders 0 and 1: J, Y, I and K.

They are compositions in float64 of Chebyshev series, whose coefficients PyTorch's own functions on
the CPU give. Near 0, logarithms and poles are split off. Far from it, the series are of the inverse
of the argument: of the function itself, or of both factors of an oscillation (Hankel's expansion).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import burn_remote as br
from burn_remote.torch.aten.special_functions import chebyshev_series, in_float64
from burn_remote.torch.aten.table import aten

__all__: list[str] = []

Tensor = br.Tensor
special = torch.special

# Below this argument, the series of I, J and Y have powers of the argument; from it on, of its
# inverse. The logarithm in K allows only small arguments.
_BORDER = 8.0
_BORDER_OF_K = 2.0

_I_SCALED = (special.i0e, special.i1e)
_I = (special.modified_bessel_i0, special.modified_bessel_i1)
_J = (special.bessel_j0, special.bessel_j1)
_Y = (special.bessel_y0, special.bessel_y1)
_K = (special.modified_bessel_k0, special.modified_bessel_k1)
_K_SCALED = (special.scaled_modified_bessel_k0, special.scaled_modified_bessel_k1)

# Series by order. A function of [0, 1] is the argument of ``chebyshev_series``, which keeps the
# coefficients of each function.
Series = dict[int, Callable[[Any], Any]]


def _near(function: Callable[[int, Any], Any], border: float = _BORDER) -> Series:
    """Return the series of a function for arguments from 0 to the border, by order."""
    return {order: lambda t, order=order: function(order, t * border) for order in (0, 1)}  # type: ignore[misc]


def _far(function: Callable[[int, Any], Any], border: float = _BORDER) -> Series:
    """Return the series of ``function * sqrt(x)`` for arguments from the border on, by order."""

    def scaled(order: int, t: Any) -> Any:
        x = border / t
        return function(order, x) * x.sqrt()

    return {order: lambda t, order=order: scaled(order, t) for order in (0, 1)}  # type: ignore[misc]


def _phase(order: int, x: Any) -> Any:
    return x - (2 * order + 1) * math.pi / 4


def _cosine_factor(order: int, x: Any) -> Any:
    return _J[order](x) * _phase(order, x).cos() + _Y[order](x) * _phase(order, x).sin()


def _sine_factor(order: int, x: Any) -> Any:
    return _Y[order](x) * _phase(order, x).cos() - _J[order](x) * _phase(order, x).sin()


def _rest_of_y(order: int, x: Any) -> Any:
    pole = 2 / math.pi / x if order else 0
    return _Y[order](x) - 2 / math.pi * x.log() * _J[order](x) + pole


def _rest_of_k(order: int, x: Any) -> Any:
    return _K[order](x) - (-1) ** (order + 1) * x.log() * _I[order](x) - (1 / x if order else 0)


_NEAR_I = _near(lambda order, x: _I_SCALED[order](x))
_FAR_I = _far(lambda order, x: _I_SCALED[order](x))
_NEAR_J = _near(lambda order, x: _J[order](x))
_NEAR_Y = _near(_rest_of_y)
_COSINE = _far(_cosine_factor)
_SINE = _far(_sine_factor)
_NEAR_K = _near(_rest_of_k, _BORDER_OF_K)
_FAR_K = _far(lambda order, x: _K_SCALED[order](x), _BORDER_OF_K)


def _small(x: Tensor, border: float) -> Tensor:
    """Return ``x / border``, at most 1: the argument of the series near 0."""
    return br.minimum(x, border) / border


def _bessel_i(x: Tensor, order: int) -> Tensor:
    """Return ``exp(-|x|) I(x)``."""
    size = br.abs(x)
    near = chebyshev_series(_small(size, _BORDER), _NEAR_I[order], 30)
    large = br.maximum(size, _BORDER)
    far = chebyshev_series(_BORDER / large, _FAR_I[order], 25) / br.sqrt(large)
    result = br.where(size < _BORDER, near, far)
    return br.where(x < 0, br.negative(result), result) if order else result


def _oscillation(size: Tensor, order: int, turned: bool) -> Tensor:
    """Return J, or Y where ``turned``, from the border on."""
    large = br.maximum(size, _BORDER)
    cosine = chebyshev_series(_BORDER / large, _COSINE[order], 25)
    sine = chebyshev_series(_BORDER / large, _SINE[order], 25)
    angle = large - (2 * order + 1) * math.pi / 4
    one, other = br.cos(angle), br.sin(angle)
    found = cosine * other + sine * one if turned else cosine * one - sine * other
    return found / br.sqrt(large)


def _bessel_j(x: Tensor, order: int) -> Tensor:
    size = br.abs(x)
    near = chebyshev_series(_small(size, _BORDER), _NEAR_J[order], 40)
    result = br.where(size < _BORDER, near, _oscillation(size, order, turned=False))
    return br.where(x < 0, br.negative(result), result) if order else result


def _bessel_y(x: Tensor, order: int) -> Tensor:
    bounded = br.where(x > 0, x, 1.0)
    near = chebyshev_series(_small(bounded, _BORDER), _NEAR_Y[order], 40)
    near = near + 2 / math.pi * br.log(bounded) * _bessel_j(bounded, order)
    near = near - 2 / math.pi / bounded if order else near
    result = br.where(bounded < _BORDER, near, _oscillation(bounded, order, turned=True))
    result = br.mask_fill(result, br.equal(x, 0.0), -math.inf)
    return br.mask_fill(result, br.logical_or(x < 0, br.isnan(x)), math.nan)


def _bessel_k(x: Tensor, order: int, *, is_scaled: bool) -> Tensor:
    bounded = br.where(x > 0, x, 1.0)
    small = br.minimum(bounded, _BORDER_OF_K)
    near = chebyshev_series(small / _BORDER_OF_K, _NEAR_K[order], 25)
    first_kind = _bessel_i(small, order) * br.exp(small)
    near = near + (-1) ** (order + 1) * br.log(small) * first_kind
    near = near + 1 / small if order else near
    large = br.maximum(bounded, _BORDER_OF_K)
    far = chebyshev_series(_BORDER_OF_K / large, _FAR_K[order], 40) / br.sqrt(large)
    near = near * br.exp(small) if is_scaled else near
    far = far if is_scaled else far * br.exp(br.negative(large))
    result = br.where(bounded < _BORDER_OF_K, near, far)
    result = br.mask_fill(result, br.equal(x, 0.0), math.inf)
    return br.mask_fill(result, br.logical_or(x < 0, br.isnan(x)), math.nan)


def _unscaled(x: Tensor, order: int) -> Tensor:
    return _bessel_i(x, order) * br.exp(br.abs(x))


# Name of an operation of PyTorch -> its function of values and of an order.
_FUNCTIONS: tuple[tuple[str, Callable[[Tensor, int], Tensor]], ...] = (
    ("special_i{}", _unscaled),
    ("special_i{}e", _bessel_i),
    ("special_modified_bessel_i{}", _unscaled),
    ("special_bessel_j{}", _bessel_j),
    ("special_bessel_y{}", _bessel_y),
    ("special_modified_bessel_k{}", lambda x, order: _bessel_k(x, order, is_scaled=False)),
    ("special_scaled_modified_bessel_k{}", lambda x, order: _bessel_k(x, order, is_scaled=True)),
)

for _order in (0, 1):
    for _name, _function in _FUNCTIONS:
        aten(_name.format(_order))(
            in_float64(lambda x, order=_order, function=_function: function(x, order))
        )

aten("i0")(in_float64(lambda x: _unscaled(x, 0)))


@aten("special_spherical_bessel_j0")
@in_float64
def spherical_bessel_j0(x: Tensor) -> Tensor:
    one = br.where(br.equal(x, 0.0), 1.0, x)
    result = br.mask_fill(br.sin(one) / one, br.equal(x, 0.0), 1.0)
    return br.mask_fill(result, br.isinf(x), 0.0)
