"""Comparisons of tensors up to a tolerance, and of whole tensors, under NumPy's names.

``isclose`` and ``allclose`` raise ``ShapeMismatch`` for shapes that do not broadcast. Those that
wait also raise ``OperationFailed`` and ``ConnectionLost``.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

import numpy as np

from burn_remote.arguments.numbers import Number, check_number, real_number
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.arithmetic import add, multiply, subtract
from burn_remote.functions.casting import as_float, at_least_float32
from burn_remote.functions.elementwise import abs, isfinite, isnan
from burn_remote.functions.logic import equal, less_equal, logical_and, logical_or
from burn_remote.functions.operands import alike, operands, refuse_numbers
from burn_remote.functions.statistics import all
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.dtypes import F64

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from burn_remote.arguments.arrays import Array
    from burn_remote.functions.tensor import Tensor

__all__ = ["allclose", "array_equal", "isclose"]


@explained
def isclose(
    x1: Tensor | Array | Number,
    x2: Tensor | Array | Number,
    /,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Tensor:
    """Return, as bools, whether ``abs(x1 - x2) <= atol + rtol * abs(x2)``; shapes broadcast.

    Equal infinite elements are close. NaN is close to nothing, or to NaN if ``equal_nan`` is true.
    Integers and bools are compared in float64, float16 and bfloat16 in float32.
    """
    relative, absolute = real_number("rtol", rtol), real_number("atol", atol)
    x1, x2 = operands(x1, x2)
    for x in (x1, x2):
        if not is_tensor(x):
            check_number(x)
    first, second = alike(*[_as_number(x) for x in (x1, x2)])
    if not (is_tensor(first) or is_tensor(second)):
        refuse_numbers(x1, x2)
    bound: Any = builtins.abs(second) * relative + absolute
    if is_tensor(second):
        bound = add(multiply(abs(second), relative), absolute)
    found = equal(first, second)
    if is_tensor(second) or np.isfinite(second):
        near = less_equal(abs(subtract(first, second)), bound)
        # A bound of infinity would admit every number.
        near = logical_and(near, isfinite(second)) if is_tensor(second) else near
        found = logical_or(near, found)
    if not equal_nan:
        return found
    return logical_or(found, logical_and(_is_nan(first), _is_nan(second)))


def _as_number(x: Any) -> Any:
    return at_least_float32(as_float(x, F64)) if is_tensor(x) else x


def _is_nan(x: Any) -> Any:
    return isnan(x) if is_tensor(x) else x != x


@explained
def allclose(
    x1: Tensor | Array | Number,
    x2: Tensor | Array | Number,
    /,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> bool:
    """Return whether all elements are close, as ``isclose`` says. Waits for one round trip."""
    return bool(all(isclose(x1, x2, rtol, atol, equal_nan)).item())


@explained
def array_equal(x1: Tensor | ArrayLike, x2: Tensor | ArrayLike, /, equal_nan: bool = False) -> bool:
    """Return whether two tensors have the same shape and equal elements.

    Waits for one round trip, unless the shapes differ. ``equal_nan`` counts NaN as equal to NaN.
    """
    first, second = operands(*[x if is_tensor(x) else np.asarray(x) for x in (x1, x2)])
    if first.shape != second.shape:
        return False
    found = equal(first, second)
    if equal_nan:
        found = logical_or(found, logical_and(_missing(first), _missing(second)))
    return bool(all(found).item())


def _missing(x: Tensor) -> Tensor:
    return isnan(x)
