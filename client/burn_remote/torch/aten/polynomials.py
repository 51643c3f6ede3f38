"""Orthogonal polynomials of ``torch.special``.

Those of Chebyshev have closed forms, so their degrees may be tensors. The others are computed by
their recurrences, so their degrees must be numbers; overloads with tensors are not in the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import burn_remote as br
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.promotion import as_floats
from burn_remote.torch.aten.table import aten
from burn_remote.torch.errors import UnsupportedOperation

__all__: list[str] = []

Tensor = br.Tensor

# The highest degree of a recurrence, whose length is that of the recorded operations.
_HIGHEST: Final = 256


def _ratio(above: Tensor, below: Tensor, limit: Any) -> Tensor:
    """Return a quotient, ``limit`` where the divisor is 0."""
    is_zero = br.equal(below, 0.0)
    return br.where(is_zero, limit, above / br.where(is_zero, 1.0, below))


def _first(size: Tensor, n: Tensor) -> Tensor:
    outside = br.cosh(n * br.acosh(br.maximum(size, 1.0)))
    return br.where(size <= 1, br.cos(n * br.acos(br.minimum(size, 1.0))), outside)


def _second(size: Tensor, n: Tensor) -> Tensor:
    inner, outer = br.acos(br.minimum(size, 1.0)), br.acosh(br.maximum(size, 1.0))
    inside = _ratio(br.sin((n + 1) * inner), br.sin(inner), n + 1)
    return br.where(size <= 1, inside, _ratio(br.sinh((n + 1) * outer), br.sinh(outer), n + 1))


def _third(size: Tensor, n: Tensor) -> Tensor:
    inner, outer = br.acos(br.minimum(size, 1.0)) / 2, br.acosh(br.maximum(size, 1.0)) / 2
    inside = br.cos((2 * n + 1) * inner) / br.cos(inner)
    return br.where(size <= 1, inside, br.cosh((2 * n + 1) * outer) / br.cosh(outer))


def _fourth(size: Tensor, n: Tensor) -> Tensor:
    inner, outer = br.acos(br.minimum(size, 1.0)) / 2, br.acosh(br.maximum(size, 1.0)) / 2
    inside = _ratio(br.sin((2 * n + 1) * inner), br.sin(inner), 2 * n + 1)
    outside = _ratio(br.sinh((2 * n + 1) * outer), br.sinh(outer), 2 * n + 1)
    return br.where(size <= 1, inside, outside)


# Name -> the polynomial of |x|, and the one whose sign (-1)^n gives that of -|x|.
_CHEBYSHEV: Final[dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]]] = {
    "t": (_first, _first),
    "u": (_second, _second),
    "v": (_third, _fourth),
    "w": (_fourth, _third),
}


def _chebyshev(kind: str, *, is_shifted: bool) -> Callable[[Any, Any], Tensor]:
    right, left = _CHEBYSHEV[kind]

    def polynomial(x: Any, n: Any) -> Tensor:
        example = x if isinstance(x, Tensor) else n
        given = [one for one in (x, n) if isinstance(one, Tensor)]
        dtype = as_floats(*given)[0].dtype
        x, n = (
            converted_to(one, br.float64)
            if isinstance(one, Tensor)
            else br.full((), float(one), dtype=br.float64, device=example.device)
            for one in (x, n)
        )
        x, n = br.broadcast_arrays(x * 2 - 1 if is_shifted else x, br.trunc(n))
        size, degree = br.abs(x), br.maximum(n, 0.0)
        found = right(size, degree)
        sign = 1 - 2 * br.remainder(degree, 2.0)
        found = br.where(x < 0, left(size, degree) * sign, found)
        found = br.where(br.equal(n, 0.0), 1.0, found)
        return converted_to(br.where(n < 0, 0.0, found), dtype)

    return polynomial


for _kind in _CHEBYSHEV:
    for _suffix in ("", ".n_scalar", ".x_scalar"):
        aten(f"special_chebyshev_polynomial_{_kind}{_suffix}")(_chebyshev(_kind, is_shifted=False))
        aten(f"special_shifted_chebyshev_polynomial_{_kind}{_suffix}")(
            _chebyshev(_kind, is_shifted=True)
        )


# Name -> the polynomial of degree 1, and a function for the next polynomial: it takes x, the last
# polynomial, the one before that, and the degree of the last one.
_RECURRENCES: Final[dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]]] = {
    "hermite_polynomial_h": (lambda x: x * 2, lambda x, p, q, k: x * p * 2 - q * (2 * k)),
    "hermite_polynomial_he": (lambda x: x, lambda x, p, q, k: x * p - q * k),
    "laguerre_polynomial_l": (
        lambda x: 1 - x,
        lambda x, p, q, k: ((2 * k + 1 - x) * p - q * k) / (k + 1),
    ),
    "legendre_polynomial_p": (
        lambda x: x,
        lambda x, p, q, k: (x * p * (2 * k + 1) - q * k) / (k + 1),
    ),
}


def _recurrence(name: str) -> Callable[[Tensor, Any], Tensor]:
    first, following = _RECURRENCES[name]

    def polynomial(x: Tensor, n: Any) -> Tensor:
        degree = int(n)
        if degree > _HIGHEST:
            raise UnsupportedOperation(
                f"special.{name} has degrees up to {_HIGHEST} on burn devices, not {degree}; "
                "compute it on x.cpu()"
            )
        (x,) = as_floats(x)
        dtype, x = x.dtype, converted_to(x, br.float64)
        before, last = br.zeros_like(x), br.full_like(x, 1.0 if degree >= 0 else 0.0)
        for k in range(degree):
            before, last = last, first(x) if k == 0 else following(x, last, before, k)
        return converted_to(last, dtype)

    return polynomial


for _name in _RECURRENCES:
    aten(f"special_{_name}.n_scalar")(_recurrence(_name))
