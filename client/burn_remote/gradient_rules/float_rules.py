"""Gradients of the rows for floating-point tensors only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from burn_remote.autodiff.rule_table import never, rule
from burn_remote.dispatch.operators import Operator, reshaped
from burn_remote.functions.arithmetic import divide, multiply, negative
from burn_remote.functions.casting import rounded_once
from burn_remote.functions.elementwise import cos, cosh, exp, log, sin, sinh, sqrt
from burn_remote.functions.linear_algebra import cross
from burn_remote.functions.logic import equal, greater_equal, logical_and
from burn_remote.functions.manipulation import matrix_transpose
from burn_remote.functions.selection import mask_fill
from burn_remote.gradient_rules.number_powers import number_power_rule
from burn_remote.gradient_rules.spreading import zeros
from burn_remote_protocol.operations.families import floats, numeric

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

ADD_SCALAR: Final = Operator(numeric.ADD_SCALAR)
SUB_SCALAR: Final = Operator(numeric.SUB_SCALAR)
MUL: Final = Operator(numeric.MUL)
DIV: Final = Operator(numeric.DIV)
MUL_SCALAR: Final = Operator(numeric.MUL_SCALAR)
POWF: Final = Operator(floats.POWF)
POWF_SCALAR: Final = Operator(floats.POWF_SCALAR)
MATMUL: Final = Operator(floats.MATMUL)

# -- Functions of one element ---------------------------------------------------------------------

rule(floats.EXP, input=lambda grad, out: MUL.binary(grad, out))
rule(floats.LOG, input=lambda grad, input: DIV.binary(grad, input))
rule(
    floats.LOG1P,
    input=rounded_once(lambda grad, input: DIV.binary(grad, ADD_SCALAR.scalar(input, 1))),
)
rule(
    floats.ERF,
    input=rounded_once(
        lambda grad, input: MUL.binary(
            grad, MUL_SCALAR.scalar(exp(negative(MUL.binary(input, input))), 2 / math.sqrt(math.pi))
        )
    ),
)
rule(floats.SQRT, input=lambda grad, out: DIV.binary(grad, MUL_SCALAR.scalar(out, 2)))
rule(floats.SIN, input=rounded_once(lambda grad, input: MUL.binary(grad, cos(input))))
rule(floats.COS, input=rounded_once(lambda grad, input: negative(MUL.binary(grad, sin(input)))))
rule(floats.SINH, input=rounded_once(lambda grad, input: MUL.binary(grad, cosh(input))))
rule(floats.COSH, input=rounded_once(lambda grad, input: MUL.binary(grad, sinh(input))))
rule(
    floats.TAN,
    input=rounded_once(
        lambda grad, out: MUL.binary(grad, ADD_SCALAR.scalar(MUL.binary(out, out), 1))
    ),
)
rule(
    floats.TANH,
    input=rounded_once(lambda grad, out: grad - MUL.binary(grad, MUL.binary(out, out))),
)
rule(
    floats.ARC_SIN,
    input=rounded_once(lambda grad, input: DIV.binary(grad, sqrt(_one_minus_square(input)))),
)
rule(
    floats.ARC_COS,
    input=rounded_once(
        lambda grad, input: negative(DIV.binary(grad, sqrt(_one_minus_square(input))))
    ),
)
rule(
    floats.ARC_TANH,
    input=rounded_once(lambda grad, input: DIV.binary(grad, _one_minus_square(input))),
)
rule(
    floats.ARC_TAN,
    input=rounded_once(
        lambda grad, input: DIV.binary(grad, ADD_SCALAR.scalar(MUL.binary(input, input), 1))
    ),
)
rule(
    floats.ARC_SINH,
    input=rounded_once(
        lambda grad, input: DIV.binary(grad, sqrt(ADD_SCALAR.scalar(MUL.binary(input, input), 1)))
    ),
)
rule(
    floats.ARC_COSH,
    input=rounded_once(lambda grad, input: DIV.binary(grad, _root_of_square_minus_one(input))),
)
rule(
    floats.RECIP,
    input=rounded_once(lambda grad, out: negative(MUL.binary(grad, MUL.binary(out, out)))),
)


def _one_minus_square(x: Tensor) -> Tensor:
    # As a product, because 1 - x² loses digits near 1.
    return MUL.binary(ADD_SCALAR.scalar(x, 1), ADD_SCALAR.scalar(negative(x), 1))


def _root_of_square_minus_one(x: Tensor) -> Tensor:
    """Return ``sqrt(x - 1) * sqrt(x + 1)``.

    The root of the product has the other sign for complex ``x`` with a negative real part. For real
    ``x``, it is the same, and takes one operation less.
    """
    less, more = SUB_SCALAR.scalar(x, 1), ADD_SCALAR.scalar(x, 1)
    if x.dtype.is_complex:
        return MUL.binary(sqrt(less), sqrt(more))
    return sqrt(MUL.binary(less, more))


# These functions are constant between their jumps.
for _step in (floats.ROUND, floats.FLOOR, floats.CEIL, floats.TRUNC):
    rule(_step, input=lambda grad, input_spec: zeros(grad, input_spec))

# -- Functions of two tensors ---------------------------------------------------------------------

rule(
    floats.ARC_TAN2,
    lhs=rounded_once(lambda grad, lhs, rhs: MUL.binary(grad, _by_squares(rhs, lhs, rhs))),
    rhs=rounded_once(lambda grad, lhs, rhs: negative(MUL.binary(grad, _by_squares(lhs, lhs, rhs)))),
)
rule(
    floats.CROSS,
    lhs=lambda grad, rhs, dim: cross(rhs, grad, dim),
    rhs=lambda grad, lhs, dim: cross(grad, lhs, dim),
)


def _by_squares(x: Tensor, lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return ``x / (lhs * lhs + rhs * rhs)``, and 0 where both are 0: there is no derivative."""
    is_both_zero = logical_and(equal(lhs, 0), equal(rhs, 0))
    squares = mask_fill(lhs * lhs + rhs * rhs, is_both_zero, math.inf)
    return DIV.binary(x, squares)


@rounded_once
def _of_base(grad: Tensor, lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return ``grad * rhs * lhs ** (rhs - 1)``, and 0 for 0 ** 0."""
    less = SUB_SCALAR.scalar(rhs, 1)
    is_both_zero = logical_and(equal(lhs, 0), equal(rhs, 0))
    slope = MUL.binary(rhs, POWF.binary(lhs, mask_fill(less, is_both_zero, 0)))
    return MUL.binary(grad, slope)


@rounded_once
def _of_exponent(grad: Tensor, lhs: Tensor, rhs: Tensor, out: Tensor) -> Tensor:
    """Return ``grad * out * log(lhs)``, and 0 where 0 has an exponent of 0 or more."""
    is_zero = equal(lhs, 0)
    if not rhs.dtype.is_complex:
        is_zero = logical_and(is_zero, greater_equal(rhs, 0))
    return MUL.binary(grad, MUL.binary(out, log(mask_fill(lhs, is_zero, 1))))


rule(floats.POWF, lhs=_of_base, rhs=_of_exponent)
rule(floats.POWF_SCALAR, lhs=number_power_rule(POWF_SCALAR))


def _of_left_matrix(grad: Tensor, rhs: Tensor, lhs_spec: Any) -> Tensor:
    return MATMUL.binary(grad, matrix_transpose(rhs))


def _of_right_matrix(grad: Tensor, lhs: Tensor, rhs_spec: Any) -> Tensor:
    if math.prod(rhs_spec.shape[:-2]) == 1 and len(lhs.shape) > 2:
        # All matrices of the batch have the same right factor: one product of all their rows,
        # instead of a gradient for each of them and a sum.
        lhs = reshaped(lhs, (math.prod(lhs.shape[:-1]), lhs.shape[-1]))
        grad = reshaped(grad, (math.prod(grad.shape[:-1]), grad.shape[-1]))
        return reshaped(MATMUL.binary(matrix_transpose(lhs), grad), rhs_spec.shape)
    return MATMUL.binary(matrix_transpose(lhs), grad)


rule(floats.MATMUL, lhs=_of_left_matrix, rhs=_of_right_matrix)

rule(
    floats.HYPOT,
    lhs=rounded_once(lambda grad, lhs, out: multiply(grad, _share_of_length(lhs, out))),
    rhs=rounded_once(lambda grad, rhs, out: multiply(grad, _share_of_length(rhs, out))),
)


def _share_of_length(x: Tensor, length: Tensor) -> Tensor:
    """Return the cosine ``x / length``; 0 for the length 0, where there is no derivative."""
    return divide(x, mask_fill(length, equal(length, 0), math.inf))


# -- Without gradients ----------------------------------------------------------------------------

never("its result is a bool", floats.IS_NAN, floats.IS_INF)
never("its result is an integer", floats.INTO_INT)
never("it depends on no tensor", floats.RANDOM)
never(
    "rounding to a few numbers is constant almost everywhere; for a straight-through gradient, "
    "write burn_remote.fake_quantize(x, scheme)",
    floats.QUANTIZE,
    floats.DEQUANTIZE,
)
