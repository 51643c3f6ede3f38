"""Arithmetic on two tensors, or on a tensor and a number.

Shapes broadcast as in NumPy. Operands of different dtypes are converted to their common dtype, and
a number to the tensor's dtype (``arguments/promotion.py`` has the rules). The result has the
broadcast shape and the common dtype unless stated otherwise. All raise ``ShapeMismatch``,
``DTypeMismatch`` or ``DeviceMismatch``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, cast

from burn_remote.arguments.numbers import Number, Operand, is_imaginary, number_for, plain_number
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, constant, unary_function
from burn_remote.dispatch.rows_with_fallbacks import preferring
from burn_remote.functions.casting import LOW_PRECISION, astype, converted_to, rounded_once
from burn_remote.functions.logic import equal, greater, less, logical_or, not_equal
from burn_remote.functions.operands import Pair, alike, operands, refuse_numbers
from burn_remote.functions.selection import where
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.dtypes import F32, Category
from burn_remote_protocol.errors import DTypeMismatch, UsageError
from burn_remote_protocol.operations.families import (
    complex_rows,
    elementwise_rows,
    floats,
    numeric,
)

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "add",
    "atan2",
    "copysign",
    "divide",
    "divide_with_remainder",
    "floor_divide",
    "hypot",
    "logaddexp",
    "multiply",
    "negative",
    "nextafter",
    "pow",
    "reciprocal",
    "reflected_divide",
    "reflected_floor_divide",
    "reflected_pow",
    "reflected_remainder",
    "reflected_subtract",
    "remainder",
    "subtract",
    "trunc_divide",
]

ABS: Final = Operator(numeric.ABS)
ADD: Final = Pair(numeric.ADD, numeric.ADD_SCALAR, reflected=numeric.ADD_SCALAR)
SUB: Final = Pair(numeric.SUB, numeric.SUB_SCALAR)
MUL: Final = Pair(numeric.MUL, numeric.MUL_SCALAR, reflected=numeric.MUL_SCALAR)
DIV: Final = Pair(numeric.DIV, numeric.DIV_SCALAR)
# The same rows, used for floats only: ``/`` then finds their signatures without examining dtypes.
FLOAT_DIV: Final = Pair(numeric.DIV, numeric.DIV_SCALAR)
REM: Final = Pair(numeric.REM, numeric.REM_SCALAR)
POWI: Final = Pair(numeric.POWI, promotes=False)
POWI_SCALAR: Final = Operator(numeric.POWI_SCALAR)
POWF: Final = Pair(floats.POWF, floats.POWF_SCALAR)
NEG: Final = Operator(numeric.NEG)
RECIP: Final = Operator(floats.RECIP)
_EXACT: Final = frozenset({Category.INT, Category.UINT, Category.BOOL})
ARC_TAN2: Final = Pair(floats.ARC_TAN2)
HYPOT: Final = Pair(floats.HYPOT)
COMPLEX_NEGATIVE: Final = Operator(complex_rows.NEGATIVE)
FLOOR_DIVIDE: Final = Pair(elementwise_rows.FLOOR_DIVIDE, elementwise_rows.FLOOR_DIVIDE_SCALAR)
COPYSIGN: Final = Pair(elementwise_rows.COPYSIGN)
LOG_ADD_EXP: Final = Pair(elementwise_rows.LOG_ADD_EXP)
NEXT_AFTER: Final = Pair(elementwise_rows.NEXT_AFTER)
FLOOR: Final = Operator(floats.FLOOR)
TRUNC: Final = Operator(floats.TRUNC)


def add(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return ``x1 + x2``."""
    return ADD.apply(x1, x2)


def subtract(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return ``x1 - x2``."""
    return SUB.apply(x1, x2)


def multiply(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return ``x1 * x2``."""
    return MUL.apply(x1, x2)


def divide(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return the floating-point quotient ``x1 / x2``.

    Integers and bools are converted to the dtype of a floating-point operand, else to float32; use
    ``floor_divide`` or ``trunc_divide`` for integer division.
    """
    x1, x2 = operands(x1, x2)
    return FLOAT_DIV.apply(_as_float(x1, x2), _as_float(x2, x1))


@rounded_once
def trunc_divide(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return ``x1 / x2`` rounded towards zero, as Rust and C divide integers."""
    x1, x2 = alike(x1, x2)
    quotient = DIV.apply(x1, x2)
    return quotient if quotient.dtype.is_integer else TRUNC.unary(quotient)


def floor_divide(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return ``x1 / x2`` rounded down, as NumPy and Python do: ``1.0 // 0.1`` is 9.

    ``x1 == x2 * (x1 // x2) + x1 % x2`` up to floating-point rounding. A floating-point number
    divided by 0 is infinite or NaN; an integer divided by 0 fails the operation.
    """
    return _floor_divide(*alike(x1, x2))


def _floor_divide(x1: Tensor | Number, x2: Tensor | Number) -> Tensor:
    tensor = x1 if is_tensor(x1) else x2
    if is_tensor(tensor) and tensor.dtype.is_floating:
        return _floor_divide_floats(x1, x2)
    quotient = DIV.apply(x1, x2)
    if quotient.dtype.category is Category.UINT:
        return quotient
    # Burn rounds integer quotients towards zero, but its remainders have the divisor's sign. Where
    # quotient, divisor and remainder do not add up to x1, the quotient is one too large.
    # The remainder is computed from the quotient, so that a division by zero is one failure.
    truncated_remainder = subtract(x1, multiply(quotient, x2))
    too_large = not_equal(truncated_remainder, remainder(truncated_remainder, x2))
    return SUB.apply(quotient, astype(too_large, quotient.dtype))


@preferring(elementwise_rows.FLOOR_DIVIDE, lambda x1, x2: FLOOR_DIVIDE.apply(x1, x2))
def _floor_divide_floats(x1: Tensor | Number, x2: Tensor | Number) -> Tensor:
    dtype = (x1 if is_tensor(x1) else cast("Tensor", x2)).dtype
    if dtype in LOW_PRECISION:
        x1, x2 = [astype(x, F32) if is_tensor(x) else x for x in (x1, x2)]
        return astype(_composed_floor_divide(x1, x2), dtype)
    return _composed_floor_divide(x1, x2)


def _composed_floor_divide(x1: Tensor | Number, x2: Tensor | Number) -> Tensor:
    plain = DIV.apply(x1, x2)
    # The algorithm of NumPy's npy_divmod: subtract the remainder before the division, because the
    # plain quotient may be rounded up to an integer. For signed zeros and division by zero, use the
    # plain quotient.
    if not is_tensor(x1):
        x1 = constant(cast("Tensor", x2), x1)
    size1 = ABS.unary(x1)
    size2 = ABS.unary(x2) if is_tensor(x2) else math.fabs(cast("float", x2))
    rest = REM.apply(size1, size2)
    size = DIV.apply(SUB.apply(size1, rest), size2)
    below = negative(ADD.apply(size, astype(not_equal(rest, 0), rest.dtype)))
    if is_tensor(x2):
        quotient = _nearest(where(not_equal(less(x1, 0), less(x2, 0)), below, size))
        return where(logical_or(equal(x1, 0), equal(x2, 0)), plain, quotient)
    if x2 == 0:
        return plain
    quotient = _nearest(
        where(less(x1, 0) if cast("float", x2) > 0 else greater(x1, 0), below, size)
    )
    return where(equal(x1, 0), plain, quotient)


def _nearest(x: Tensor) -> Tensor:
    """Round to the nearest integer, ties downwards, as ``npy_divmod`` does."""
    lower = FLOOR.unary(x)
    return where(greater(SUB.apply(x, lower), 0.5), ADD.apply(lower, 1), lower)


def divide_with_remainder(x1: Tensor | Operand, x2: Tensor | Operand, /) -> tuple[Tensor, Tensor]:
    """Return ``x1 // x2`` and ``x1 % x2``, as Python's ``divmod`` does."""
    x1, x2 = operands(x1, x2)
    return floor_divide(x1, x2), remainder(x1, x2)


def remainder(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return ``x1 % x2``, with the sign of ``x2`` as in Python."""
    return REM.apply(x1, x2)


def pow(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return ``x1 ** x2`` in the common dtype.

    Floats to the power of an integer tensor keep their dtype. The exponent 0.5 may be computed as a
    square root, as in NumPy's ``**``: ``-inf`` then gives NaN instead of infinity. Raises
    ``UsageError`` for an integer tensor and a negative number, because the result would not be an
    integer.
    """
    return _power(*operands(x1, x2))


def _power(x1: Tensor | Number, x2: Tensor | Number) -> Tensor:
    if not is_tensor(x1):
        if not is_tensor(x2):
            refuse_numbers(x1, x2)
        _, base = alike(x1, x2)
        return pow(constant(base, x1), base)
    if is_tensor(x2):
        if x1.dtype.is_floating and x2.dtype.is_integer:
            return POWI.apply(x1, x2)
        base, power = alike(x1, x2)
        return (POWI if power.dtype.is_integer else POWF).apply(base, power)
    if is_imaginary(x2):
        return POWF.apply(x1, x2)
    base, _ = alike(x1, x2)
    return _to_number(base, plain_number(x2))


def _to_number(x1: Tensor, x2: Any) -> Tensor:
    if x2.__class__ is not int:  # a traced number has the class of its value
        return POWF.apply(x1, number_for(x1.dtype, x2))
    if x2 < 0 and x1.dtype.is_integer:
        raise UsageError(
            f"integers to the power of {x2} are not integers; convert the tensor first "
            "with x.astype(burn_remote.float32)"
        )
    return POWI_SCALAR.exact_scalar(x1, x2)


@unary_function(RECIP)
def reciprocal(x: Tensor, /) -> Tensor:
    """Return ``1 / x``. Raises ``DTypeMismatch`` unless ``x`` is floating-point."""
    return RECIP.unary(x)


@explained
def negative(x: Tensor, /) -> Tensor:
    """Return ``-x``; unsigned integers wrap, as in NumPy. Raises ``DTypeMismatch`` for bools."""
    dtype = x.dtype
    if dtype.is_complex:
        return COMPLEX_NEGATIVE.unary(x)
    if dtype.is_bool:
        raise DTypeMismatch(f"{x.handle.spec} cannot be negated; write ~x")
    if dtype.category is Category.UINT:
        return MUL.apply(x, 2 ** (8 * dtype.itemsize) - 1)
    return _negative(x)


@preferring(numeric.NEG, NEG.unary)
def _negative(x: Tensor) -> Tensor:
    return MUL.apply(x, -1.0 if x.dtype.is_floating else -1)


def atan2(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return the angle of the point (x=``x2``, y=``x1``) in radians, from -π to π."""
    return ARC_TAN2.apply(x1, x2)


def hypot(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return ``sqrt(x1 ** 2 + x2 ** 2)``, without overflow of the squares.

    Raises ``DTypeMismatch`` unless the tensors are floating-point, ``Unsupported`` on Burn's own
    servers.
    """
    return HYPOT.apply(x1, x2)


def copysign(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return the magnitude of ``x1`` with the sign of ``x2``, also that of -0.0 and NaN.

    Raises ``DTypeMismatch`` unless the tensors are floating-point, ``Unsupported`` on Burn's own
    servers.
    """
    return COPYSIGN.apply(x1, x2)


def logaddexp(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return ``log(exp(x1) + exp(x2))``, without overflow of the powers.

    Raises ``DTypeMismatch`` unless the tensors are floating-point, ``Unsupported`` on Burn's own
    servers.
    """
    return LOG_ADD_EXP.apply(x1, x2)


def nextafter(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return the next number of the dtype after ``x1`` in the direction of ``x2``.

    Raises ``DTypeMismatch`` unless the tensors are floating-point, ``Unsupported`` on Burn's own
    servers. It has no gradient.
    """
    return NEXT_AFTER.apply(x1, x2)


def reflected_subtract(x2: Tensor, x1: Operand, /) -> Tensor:
    """Return ``x1 - x2``."""
    return SUB.apply(x1, x2)


def reflected_divide(x2: Tensor, x1: Operand, /) -> Tensor:
    """Return ``x1 / x2``; see ``divide``."""
    x2 = _as_float(x2, x1)
    return RECIP.unary(x2) if x1 == 1 else DIV.apply(x1, x2)


def reflected_floor_divide(x2: Tensor, x1: Operand, /) -> Tensor:
    """Return ``x1 // x2``; see ``floor_divide``."""
    return floor_divide(x1, x2)


def reflected_remainder(x2: Tensor, x1: Operand, /) -> Tensor:
    """Return ``x1 % x2``; see ``remainder``."""
    return REM.apply(x1, x2)


def reflected_pow(x2: Tensor, x1: Operand, /) -> Tensor:
    """Return ``x1 ** x2``; see ``pow``."""
    return pow(x1, x2)


def _as_float(x: Any, other: Tensor | Operand) -> Any:
    """Convert integers and bools to the dtype of the other operand, or to float32."""
    if not is_tensor(x) or x.handle.spec.dtype.category not in _EXACT:
        return x
    dtype = other.handle.spec.dtype if is_tensor(other) else F32
    return converted_to(x, F32 if dtype.category in _EXACT else dtype)
