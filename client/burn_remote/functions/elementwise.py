"""Functions of one tensor that apply to each element.

The result has the shape and dtype of the argument unless stated otherwise. Functions of real
numbers raise ``DTypeMismatch`` unless the tensor is floating-point, and return NaN outside their
domain.
"""

from __future__ import annotations

import builtins
import math
from typing import TYPE_CHECKING, Final

from burn_remote.arguments.numbers import whole_number
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import ONES, ZEROS, Operator, constant, unary_function
from burn_remote.dispatch.rows_with_fallbacks import preferring
from burn_remote.functions.arithmetic import add, copysign, divide, multiply, pow, subtract
from burn_remote.functions.casting import (
    as_float,
    astype,
    at_least_float32,
    distinct,
    rounded_once,
)
from burn_remote.functions.closed_form_gradients import gradient_from_argument, gradient_from_result
from burn_remote.functions.complex_numbers import complex, imag, real
from burn_remote.functions.logic import (
    equal,
    greater,
    less,
    logical_and,
    logical_or,
    not_equal,
)
from burn_remote.functions.operands import Pair
from burn_remote.functions.selection import mask_fill, where
from burn_remote_protocol.dtypes import BOOL, F32, F64, FLEX32, Category
from burn_remote_protocol.errors import DTypeMismatch
from burn_remote_protocol.operations.families import (
    complex_rows,
    elementwise_rows,
    floats,
    numeric,
)
from burn_remote_protocol.tensors import TensorSpec

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log1p",
    "log2",
    "log10",
    "norm_of_powers",
    "norm_of_squares",
    "norm_powers",
    "positive",
    "round",
    "rsqrt",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
]

SIGN: Final = Operator(numeric.SIGN)
ABS: Final = Operator(numeric.ABS)
COMPLEX_ABS: Final = Operator(complex_rows.ABS)
EXP: Final = Operator(floats.EXP)
LOG: Final = Operator(floats.LOG)
LOG1P: Final = Operator(floats.LOG1P)
ERF: Final = Operator(floats.ERF)
SQRT: Final = Operator(floats.SQRT)
COS: Final = Operator(floats.COS)
COSH: Final = Operator(floats.COSH)
SIN: Final = Operator(floats.SIN)
SINH: Final = Operator(floats.SINH)
TAN: Final = Operator(floats.TAN)
TANH: Final = Operator(floats.TANH)
ARC_COS: Final = Operator(floats.ARC_COS)
ARC_COSH: Final = Operator(floats.ARC_COSH)
ARC_SIN: Final = Operator(floats.ARC_SIN)
ARC_SINH: Final = Operator(floats.ARC_SINH)
ARC_TAN: Final = Operator(floats.ARC_TAN)
ARC_TANH: Final = Operator(floats.ARC_TANH)
ROUND: Final = Operator(floats.ROUND)
FLOOR: Final = Operator(floats.FLOOR)
CEIL: Final = Operator(floats.CEIL)
TRUNC: Final = Operator(floats.TRUNC)
RECIP: Final = Operator(floats.RECIP)
IS_NAN: Final = Operator(floats.IS_NAN)
IS_INF: Final = Operator(floats.IS_INF)
POWF: Final = Pair(floats.POWF)
EXPM1: Final = Operator(elementwise_rows.EXPM1)
LOG2: Final = Operator(elementwise_rows.LOG2)
LOG10: Final = Operator(elementwise_rows.LOG10)

# The largest power of ten that a dtype can represent.
LARGEST_POWERS: Final = {F32: 38, FLEX32: 38, F64: 308}
# A bound for the argument; no dtype has numbers of so many digits.
MAX_DECIMALS: Final = 10_000


def abs(x: Tensor, /) -> Tensor:
    """Return the absolute value; that of a complex number is real."""
    return (COMPLEX_ABS if _is_complex(x) else ABS).unary(x)


def positive(x: Tensor, /) -> Tensor:
    """Return the elements of ``x`` as another tensor."""
    return distinct(x)


def _is_complex(x: Tensor) -> bool:
    # No error here: for an object that is no tensor, the operator raises one with an explanation.
    return getattr(getattr(x, "dtype", None), "category", None) is Category.COMPLEX


@explained
def sign(x: Tensor, /) -> Tensor:
    """Return -1, 0 or 1 for negative, zero and positive numbers; NaN for NaN.

    The sign of -0 is 0, but -0 on Burn 0.21 servers. That of a complex number is ``x / abs(x)``,
    and 0 for 0. As in NumPy, it is 1, -1, 1j or -1j if one part is infinite, and NaN if both are.
    """
    return _complex_sign(x) if x.dtype.is_complex else _real_sign(x)


def _complex_sign(x: Tensor) -> Tensor:
    first, second = [_signs_of_infinities(part(x.detach())) for part in (real, imag)]
    # The absolute value of a finite number may overflow; that of its quarter does not.
    x = where(isinf(COMPLEX_ABS.unary(x)), multiply(x, 0.25), x)
    size = mask_fill(COMPLEX_ABS.unary(x), equal(x, 0), 1)
    quotient = mask_fill(divide(x, astype(size, x.dtype)), equal(x, 0), 0)  # not -0
    infinities = [not_equal(sign, 0) for sign in (first, second)]
    direction = mask_fill(complex(first, second), logical_and(*infinities), math.nan)
    return where(logical_or(*infinities), direction, quotient)


def _signs_of_infinities(x: Tensor) -> Tensor:
    """Return 1 and -1 for infinities, and 0 for other numbers."""
    return subtract(astype(equal(x, math.inf), x.dtype), astype(equal(x, -math.inf), x.dtype))


@preferring(numeric.SIGN, lambda x, /: SIGN.unary(x))
@gradient_from_argument(
    lambda x, grad: x.__class__(ZEROS.create(grad.handle.client, grad.handle.spec))
)
def _real_sign(x: Tensor, /) -> Tensor:
    above = mask_fill(x, greater(x, 0), 1)
    if x.dtype.category is Category.UINT:
        return above
    return mask_fill(above, less(x, 0), -1)


def _sign_by_copying(x: Tensor, /) -> Tensor:
    return less(copysign(1.0, x) if x.dtype.is_floating else x, 0)


@preferring(elementwise_rows.COPYSIGN, _sign_by_copying)
def signbit(x: Tensor, /) -> Tensor:
    """Return, as bools, whether the sign bit is set: for negative numbers and ``-0.0``.

    On Burn's own servers, NaN gives false.
    """
    return logical_or(less(x, 0), less(RECIP.unary(x), 0))


@gradient_from_argument(lambda x, grad: multiply(grad, multiply(x, 2)))
def square(x: Tensor, /) -> Tensor:
    """Return ``x * x``."""
    return multiply(x, x)


@unary_function(SQRT)
def sqrt(x: Tensor, /) -> Tensor:
    """Return the square root."""
    return SQRT.unary(x)


@rounded_once
def rsqrt(x: Tensor, /) -> Tensor:
    """Return the reciprocal of the square root."""
    return RECIP.unary(SQRT.unary(x))


@unary_function(EXP)
def exp(x: Tensor, /) -> Tensor:
    """Return ``e ** x``."""
    return EXP.unary(x)


# Division by infinity in place of 0 gives a gradient of 0, and a second derivative of 0.
@gradient_from_result(
    lambda root, grad: divide(grad, multiply(mask_fill(root, equal(root, 0), math.inf), 2))
)
def norm_of_squares(squares: Tensor, /) -> Tensor:
    """Return the square root of sums of squares; the gradient is 0 where a sum is 0.

    A norm has no derivative at 0, and 0 is the least of its subgradients. The derivative of the
    square root would be infinite, and its product with the derivative of the squares NaN.
    """
    return SQRT.unary(squares)


@gradient_from_argument(
    lambda sizes, grad, p: multiply(grad, multiply(_power_except_of_zero(sizes, p - 1), p))
)
def norm_powers(sizes: Tensor, /, *, p: float) -> Tensor:
    """Return the powers ``sizes ** p`` of a ``p``-norm; all their gradients are 0 at a size of 0.

    Below 2, the first or second derivative is infinite at 0, and its product with 0 NaN.
    """
    return pow(sizes, p)


@gradient_from_result(
    lambda root, grad, p: multiply(grad, multiply(_power_except_of_zero(root, 1 - p), 1 / p))
)
def norm_of_powers(powers: Tensor, /, *, p: float) -> Tensor:
    """Return ``powers ** (1 / p)``, a ``p``-norm; all its gradients are 0 where the norm is 0."""
    return pow(powers, 1 / p)


def _power_except_of_zero(x: Tensor, exponent: float) -> Tensor:
    """Return ``x ** exponent``, but 0 where ``x`` is 0; the gradients there are 0, too."""
    is_zero = equal(x, 0)
    return mask_fill(pow(mask_fill(x, is_zero, 1.0), exponent), is_zero, 0.0)


@explained
def exp2(x: Tensor, /) -> Tensor:
    """Return ``2 ** x``."""
    if x.dtype.is_complex:
        return _complex_exp2(x)
    return POWF.apply(constant(x, 2.0), x)


@gradient_from_result(lambda result, grad: multiply(grad, multiply(result, math.log(2))))
def _complex_exp2(z: Tensor) -> Tensor:
    """Return ``2 ** z``, for infinite and NaN real parts as ``exp(log(2) z)``, as in NumPy.

    A power of complex numbers multiplies the infinite real part with 0, which makes NaN of the
    imaginary part.
    """
    powers = POWF.apply(constant(z, 2.0), z)
    x, y = real(z), imag(z)
    limits = EXP.unary(complex(multiply(x, math.log(2)), multiply(y, math.log(2))))
    return where(isfinite(x), powers, limits)


@gradient_from_result(lambda result, grad: multiply(grad, add(result, 1)))
def _expm1(x: Tensor) -> Tensor:
    return multiply(TANH.unary(divide(x, 2)), add(EXP.unary(x), 1))


@gradient_from_result(lambda result, grad: multiply(grad, add(result, 1)))
def _complex_expm1(z: Tensor) -> Tensor:
    """Return ``expm1(x) cos(y) - 2 sin(y / 2) ** 2 + i exp(x) sin(y)`` of ``z = x + i y``.

    Where nothing cancels, and for infinity and NaN, the real part is that of ``exp(z) - 1``.
    """
    powers, x, y = EXP.unary(z), real(z), imag(z)
    half = SIN.unary(multiply(y, 0.5))
    near = subtract(multiply(expm1(x), COS.unary(y)), multiply(multiply(half, half), 2))
    cancels = logical_and(less(ABS.unary(x), 1), isfinite(y))
    return complex(where(cancels, near, subtract(real(powers), 1)), imag(powers))


@preferring(
    elementwise_rows.EXPM1,
    lambda x, /: _complex_expm1(x) if x.dtype.is_complex else EXPM1.unary(x),
)
@rounded_once
def expm1(x: Tensor, /) -> Tensor:
    """Return ``exp(x) - 1`` without cancellation near zero.

    Burn's own servers compute ``tanh(x / 2) * (exp(x) + 1)``, which is mathematically equal.
    """
    return _expm1(x)


@unary_function(LOG)
def log(x: Tensor, /) -> Tensor:
    """Return the natural logarithm."""
    return LOG.unary(x)


@unary_function(LOG1P)
def log1p(x: Tensor, /) -> Tensor:
    """Return ``log(1 + x)`` without loss of precision near zero."""
    return LOG1P.unary(x)


@preferring(
    elementwise_rows.LOG2, lambda x, /: _logarithm(x, 2) if x.dtype.is_complex else LOG2.unary(x)
)
@rounded_once
def log2(x: Tensor, /) -> Tensor:
    """Return the logarithm to base 2.

    Burn's own servers divide natural logarithms, so the result for a power of 2 may not be an
    integer.
    """
    return _logarithm(x, 2)


@preferring(
    elementwise_rows.LOG10, lambda x, /: _logarithm(x, 10) if x.dtype.is_complex else LOG10.unary(x)
)
@rounded_once
def log10(x: Tensor, /) -> Tensor:
    """Return the logarithm to base 10.

    Burn's own servers divide natural logarithms, so the result for a power of 10 may not be an
    integer.
    """
    return _logarithm(x, 10)


def _logarithm(x: Tensor, base: int) -> Tensor:
    found, scale = LOG.unary(x), math.log(base)
    if x.dtype.is_complex:
        # A quotient of complex numbers makes NaN of the infinite logarithm of 0.
        return complex(divide(real(found), scale), divide(imag(found), scale))
    return divide(found, scale)


@unary_function(ERF)
def erf(x: Tensor, /) -> Tensor:
    """Return the error function."""
    return ERF.unary(x)


@unary_function(SIN)
def sin(x: Tensor, /) -> Tensor:
    """Return the sine of an angle in radians."""
    return SIN.unary(x)


@unary_function(COS)
def cos(x: Tensor, /) -> Tensor:
    """Return the cosine of an angle in radians."""
    return COS.unary(x)


@unary_function(TAN)
def tan(x: Tensor, /) -> Tensor:
    """Return the tangent of an angle in radians."""
    return TAN.unary(x)


@unary_function(SINH)
def sinh(x: Tensor, /) -> Tensor:
    """Return the hyperbolic sine."""
    return SINH.unary(x)


@unary_function(COSH)
def cosh(x: Tensor, /) -> Tensor:
    """Return the hyperbolic cosine."""
    return COSH.unary(x)


@unary_function(TANH)
def tanh(x: Tensor, /) -> Tensor:
    """Return the hyperbolic tangent."""
    return TANH.unary(x)


@unary_function(ARC_SIN)
def asin(x: Tensor, /) -> Tensor:
    """Return the inverse sine in radians, from -π/2 to π/2."""
    return ARC_SIN.unary(x)


@unary_function(ARC_COS)
def acos(x: Tensor, /) -> Tensor:
    """Return the inverse cosine in radians, from 0 to π."""
    return ARC_COS.unary(x)


@unary_function(ARC_TAN)
def atan(x: Tensor, /) -> Tensor:
    """Return the inverse tangent in radians, from -π/2 to π/2."""
    return ARC_TAN.unary(x)


@unary_function(ARC_SINH)
def asinh(x: Tensor, /) -> Tensor:
    """Return the inverse hyperbolic sine."""
    return ARC_SINH.unary(x)


@unary_function(ARC_COSH)
def acosh(x: Tensor, /) -> Tensor:
    """Return the nonnegative inverse hyperbolic cosine."""
    return ARC_COSH.unary(x)


@unary_function(ARC_TANH)
def atanh(x: Tensor, /) -> Tensor:
    """Return the inverse hyperbolic tangent."""
    return ARC_TANH.unary(x)


@explained
def round(x: Tensor, /, decimals: int = 0) -> Tensor:
    """Round to ``decimals`` places, ties to even; return integer tensors unchanged.

    Both parts of complex numbers are rounded. As in NumPy, ``x * 10 ** decimals`` is rounded and
    then divided. Where this product overflows, ``x`` has no digits beyond those places and is
    returned unchanged. Negative ``decimals`` round to tens, hundreds and so on. float16 and
    bfloat16 are rounded in float32. Raises ``DTypeMismatch`` for integer tensors with negative
    ``decimals``, and ``ArgumentMismatch`` unless ``decimals`` is an integer.
    """
    places = whole_number("decimals", decimals, -MAX_DECIMALS, MAX_DECIMALS)
    if x.dtype.is_complex:
        return complex(round(real(x), places), round(imag(x), places))
    if x.dtype.is_integer:
        if places < 0:
            raise DTypeMismatch(
                f"{x.handle.spec} cannot be rounded to tens; round x.astype('float64') instead"
            )
        return x
    if not places:
        return ROUND.unary(x)
    x = as_float(x, F32)
    return astype(_rounded(at_least_float32(x), places), x.dtype)


def _rounded(x: Tensor, places: int) -> Tensor:
    largest = LARGEST_POWERS[x.dtype]
    if places > largest:
        return distinct(x)
    if places < -largest:
        return where(isfinite(x), multiply(x, 0), x.detach())
    power = 10.0 ** builtins.abs(places)
    if places < 0:
        return multiply(ROUND.unary(divide(x, power)), power)
    scaled = multiply(x, power)
    return where(isfinite(scaled), divide(ROUND.unary(scaled), power), x.detach())


@explained
def floor(x: Tensor, /) -> Tensor:
    """Round down; return integer tensors unchanged."""
    return x if x.dtype.is_integer else FLOOR.unary(x)


@explained
def ceil(x: Tensor, /) -> Tensor:
    """Round up; return integer tensors unchanged."""
    return x if x.dtype.is_integer else CEIL.unary(x)


@explained
def trunc(x: Tensor, /) -> Tensor:
    """Round towards zero; return integer tensors unchanged."""
    return x if x.dtype.is_integer else TRUNC.unary(x)


@explained
def isnan(x: Tensor, /) -> Tensor:
    """Return, as bools, whether elements are NaN; integers never are.

    A complex number is NaN if one of its parts is.
    """
    if not (x.dtype.is_floating or x.dtype.is_complex):
        return _same_bool(x, ZEROS)
    return IS_NAN.unary(x)


@explained
def isinf(x: Tensor, /) -> Tensor:
    """Return, as bools, whether elements are infinite; integers never are.

    A complex number is infinite if one of its parts is.
    """
    if not (x.dtype.is_floating or x.dtype.is_complex):
        return _same_bool(x, ZEROS)
    return IS_INF.unary(x)


@explained
def isfinite(x: Tensor, /) -> Tensor:
    """Return, as bools, whether elements are finite; integers and bools always are."""
    if x.dtype.is_complex:
        return logical_and(isfinite(real(x)), isfinite(imag(x)))
    if not x.dtype.is_floating:
        return _same_bool(x, ONES)
    return less(ABS.unary(x), math.inf)


def _same_bool(x: Tensor, fill: Operator) -> Tensor:
    """Return the same boolean for every element of an integer or bool tensor."""
    if x.dtype.category is Category.QUANTIZED:
        raise DTypeMismatch(
            f"{x.handle.spec} is quantized; dequantize it first with x.dequantize()"
        )
    return x.__class__(fill.create(x.handle.client, TensorSpec(x.shape, BOOL)))
