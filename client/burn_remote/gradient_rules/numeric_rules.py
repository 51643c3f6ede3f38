"""Gradients of the rows that floats and integers share; only floats have gradients.

Where several elements are the maximum or minimum, they share the gradient evenly, as in PyTorch's
``amax`` and in JAX. If a row also returns the index, the whole gradient goes to that element. For
cumulative extremes, it goes to the last of equal elements.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from burn_remote.autodiff.rule_table import joint, never, rule, uniform
from burn_remote.dispatch.operators import Operator, counted, reshaped, upload
from burn_remote.functions.arithmetic import negative
from burn_remote.functions.casting import NOT, astype, at_least_float32, rounded_once
from burn_remote.functions.elementwise import sign
from burn_remote.functions.logic import equal, greater_equal, less_equal, logical_or
from burn_remote.functions.manipulation import broadcast_to, concat, flip, part
from burn_remote.functions.selection import mask_fill
from burn_remote.gradient_rules.number_powers import number_power_rule
from burn_remote.gradient_rules.spreading import (
    as_numbers,
    ones,
    scattered,
    spread,
    summed,
    zeros,
)
from burn_remote_protocol.operations.families import base, floats, numeric
from burn_remote_protocol.tensors import TensorSpec

if TYPE_CHECKING:
    from burn_remote.autodiff.rule_table import PastCall
    from burn_remote.functions.tensor import Tensor

ADD: Final = Operator(numeric.ADD)
MUL: Final = Operator(numeric.MUL)
DIV: Final = Operator(numeric.DIV)
MUL_SCALAR: Final = Operator(numeric.MUL_SCALAR)
DIV_SCALAR: Final = Operator(numeric.DIV_SCALAR)
POWI: Final = Operator(numeric.POWI)
POWI_SCALAR: Final = Operator(numeric.POWI_SCALAR)
SUM: Final = Operator(numeric.SUM)
SUM_DIM: Final = Operator(numeric.SUM_DIM)
ARG_TOP_K: Final = Operator(numeric.ARG_TOP_K)
ARG_SORT: Final = Operator(numeric.ARG_SORT)
SELECT: Final = Operator(base.SELECT)
SELECT_ASSIGN: Final = Operator(base.SELECT_ASSIGN)
CUM_SUM: Final = Operator(numeric.CUM_SUM)
CUM_PROD: Final = Operator(numeric.CUM_PROD)
CUM_MAX: Final = Operator(numeric.CUM_MAX)
ROUND: Final = Operator(floats.ROUND)
IS_NAN: Final = Operator(floats.IS_NAN)

# Burn's mode of padding -> NumPy's.
_PAD_MODES: Final[dict[str, Any]] = {"Reflect": "reflect", "Edge": "edge"}

# -- Arithmetic -----------------------------------------------------------------------------------

rule(numeric.ADD, lhs=lambda grad: grad, rhs=lambda grad: grad)
rule(numeric.ADD_SCALAR, lhs=lambda grad: grad)
rule(numeric.SUB, lhs=lambda grad: grad, rhs=lambda grad: negative(grad))
rule(numeric.SUB_SCALAR, lhs=lambda grad: grad)
rule(
    numeric.MUL,
    lhs=lambda grad, rhs: MUL.binary(grad, rhs),
    rhs=lambda grad, lhs: MUL.binary(grad, lhs),
)
rule(numeric.MUL_SCALAR, lhs=lambda grad, rhs: MUL_SCALAR.scalar(grad, rhs))
rule(
    numeric.DIV,
    lhs=lambda grad, rhs: DIV.binary(grad, rhs),
    # With the quotient instead of lhs / rhs², because rhs² may overflow.
    rhs=rounded_once(lambda grad, rhs, out: negative(DIV.binary(MUL.binary(grad, out), rhs))),
)
rule(numeric.DIV_SCALAR, lhs=lambda grad, rhs: DIV_SCALAR.scalar(grad, rhs))
rule(
    numeric.REM,
    lhs=lambda grad: grad,
    # out = lhs - n rhs. Rounding (lhs - out) / rhs gives n, but the floor of lhs / rhs may not: 1.0
    # / 0.1 rounds to 10, and 1.0 % 0.1 is 1.0 - 9 * 0.1.
    rhs=rounded_once(
        lambda grad, lhs, rhs, out: negative(grad * ROUND.unary((lhs - out) / rhs).detach())
    ),
)
rule(numeric.REM_SCALAR, lhs=lambda grad: grad)
rule(numeric.NEG, input=lambda grad: negative(grad))
# Constant almost everywhere.
rule(numeric.SIGN, input=lambda grad, input_spec: zeros(grad, input_spec))
rule(
    numeric.CLAMP_MIN,
    lhs=lambda grad, out, rhs: _where_inside(grad, out.detach(), rhs, math.inf),
)
rule(
    numeric.CLAMP_MAX,
    lhs=lambda grad, out, rhs: _where_inside(grad, out.detach(), -math.inf, rhs),
)
rule(numeric.ABS, input=lambda grad, input: MUL.binary(grad, sign(input.detach())))
rule(
    numeric.CLAMP,
    # Compares the result, not the input, because the next operation often saves the result too.
    tensor=lambda grad, out, min, max: _where_inside(grad, out.detach(), min, max),
)

uniform(
    numeric.ADD,
    lhs=lambda number, grad_spec, lhs_spec: summed(number, grad_spec, lhs_spec),
    rhs=lambda number, grad_spec, rhs_spec: summed(number, grad_spec, rhs_spec),
)
uniform(
    numeric.SUB,
    lhs=lambda number, grad_spec, lhs_spec: summed(number, grad_spec, lhs_spec),
    rhs=lambda number, grad_spec, rhs_spec: summed(-number, grad_spec, rhs_spec),
)
for _shift in (numeric.ADD_SCALAR, numeric.SUB_SCALAR):
    uniform(_shift, lhs=lambda number: number)
uniform(numeric.NEG, input=lambda number: -number)
uniform(numeric.MUL_SCALAR, lhs=lambda number, rhs: number * rhs)
uniform(numeric.DIV_SCALAR, lhs=lambda number, rhs: number / rhs if rhs else None)


def _where_inside(grad: Tensor, x: Tensor, least: float, most: float) -> Tensor:
    """Return the gradient where ``least < x < most``, or ``x`` is NaN, and 0 elsewhere.

    ``x`` may be the result instead of the argument: where the argument is on or beyond a bound, the
    result is on the bound. The gradient is 0 on a bound, as in PyTorch 2.15; so that of ``relu`` is
    0 at 0.
    """
    outside = [less_equal(x, least)] if least != -math.inf else []
    outside += [greater_equal(x, most)] if most != math.inf else []
    if not outside:
        return grad
    return mask_fill(grad, outside[0] if len(outside) == 1 else logical_or(*outside), 0)


# -- Powers ---------------------------------------------------------------------------------------


@rounded_once
def _of_integer_power(grad: Tensor, lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return ``grad * rhs * lhs ** (rhs - 1)``, and 0 where the exponent is 0, also for 0 ** 0."""
    power = POWI.binary(lhs, rhs - 1)
    slope = MUL.binary(power, astype(rhs, lhs.dtype))
    return MUL.binary(grad, mask_fill(slope, equal(rhs, 0), 0))


rule(numeric.POWI, lhs=_of_integer_power)
rule(numeric.POWI_SCALAR, lhs=number_power_rule(POWI_SCALAR))

# -- Reductions -----------------------------------------------------------------------------------

rule(numeric.SUM, input=lambda grad, input_spec: spread(grad, input_spec))
rule(numeric.SUM_DIM, input=lambda grad, input_spec: spread(grad, input_spec))
rule(
    numeric.MEAN,
    input=lambda grad, input_spec: spread(DIV_SCALAR.scalar(grad, input_spec.size), input_spec),
)
rule(
    numeric.MEAN_DIM,
    input=lambda grad, axis, input_spec: spread(
        DIV_SCALAR.scalar(grad, input_spec.shape[axis]), input_spec
    ),
)
rule(numeric.SUM_DIMS, input=lambda grad, input_spec: spread(grad, input_spec))
uniform(numeric.SUM, input=lambda number: number)
uniform(numeric.SUM_DIMS, input=lambda number: number)
uniform(numeric.SUM_DIM, input=lambda number: number)
uniform(
    numeric.MEAN,
    input=lambda number, input_spec: number / input_spec.size if input_spec.size else None,
)
uniform(
    numeric.MEAN_DIM,
    input=lambda number, axis, input_spec: (
        number / input_spec.shape[axis] if input_spec.size else None
    ),
)
rule(
    numeric.PROD,
    input=rounded_once(
        lambda grad, input, input_spec: MUL.binary(
            spread(grad, input_spec),
            reshaped(_product_of_others(reshaped(input, (input_spec.size,)), 0), input_spec.shape),
        )
    ),
)
rule(
    numeric.PROD_DIM,
    input=rounded_once(lambda grad, input, axis: MUL.binary(grad, _product_of_others(input, axis))),
)


def _product_of_others(x: Tensor, axis: int) -> Tensor:
    """Return, for each element, the product of the others along an axis.

    It is not a quotient, so elements may be zero.
    """
    after = flip(_product_before(flip(x, axis), axis), axis)
    return MUL.binary(_product_before(x, axis), after)


def _product_before(x: Tensor, axis: int) -> Tensor:
    """Return, for each element, the product of those before it along an axis."""
    return CUM_PROD.apply((_shifted(x, axis, 1, 1.0),), (axis,))


def _shifted(x: Tensor, axis: int, by: int, fill: float) -> Tensor:
    """Move elements towards the end of an axis; ``fill`` takes the first ``by`` places."""
    size = x.shape[axis]
    if by >= size:
        by = size
    spec = TensorSpec((*x.shape[:axis], by, *x.shape[axis + 1 :]), x.dtype)
    first = ones(x, spec) if fill else zeros(x, spec)
    return concat([first, part(x, axis, 0, size - by)], axis) if by < size else first


rule(numeric.MAX, input=lambda grad, input, out: _shared(grad, input, out))
rule(numeric.MIN, input=lambda grad, input, out: _shared(grad, input, out))
rule(numeric.MAX_DIM, input=lambda grad, input, out, axis: _shared(grad, input, out, axis))
rule(numeric.MIN_DIM, input=lambda grad, input, out, axis: _shared(grad, input, out, axis))
rule(
    numeric.MAX_ABS,
    input=lambda grad, input, out: MUL.binary(
        _shared(grad, input.abs(), out), sign(input.detach())
    ),
)
rule(
    numeric.MAX_ABS_DIM,
    input=lambda grad, input, out, axis: MUL.binary(
        _shared(grad, input.abs(), out, axis), sign(input.detach())
    ),
)


def _shared(grad: Tensor, x: Tensor, out: Tensor, axis: int | None = None) -> Tensor:
    """Divide the gradient evenly among the elements that equal the extreme; NaN equals NaN."""
    x, out = x.detach(), spread(out.detach(), x.handle.spec)
    is_extreme = logical_or(equal(x, out), IS_NAN.unary(x))
    # In float32, because float16 cannot count more than 65,504 elements.
    wide = at_least_float32(grad)
    shares = as_numbers(is_extreme, wide)
    count = SUM.unary(shares) if axis is None else SUM_DIM.apply((shares,), (axis, 1))
    share = spread(DIV.binary(wide, count), x.handle.spec)
    return astype(MUL.binary(share, shares), grad.dtype)


rule(
    numeric.MAX_DIM_WITH_INDICES,
    tensor=lambda grad, dim, out_indices, tensor_spec: scattered(
        grad, dim, out_indices, tensor_spec
    ),
)
rule(
    numeric.MIN_DIM_WITH_INDICES,
    tensor=lambda grad, dim, out_indices, tensor_spec: scattered(
        grad, dim, out_indices, tensor_spec
    ),
)
rule(
    numeric.TOP_K,
    input=lambda grad, input, axis, accumulator_len, input_spec: scattered(
        grad, axis, ARG_TOP_K.apply((input,), (axis, accumulator_len)), input_spec
    ),
)

rule(
    numeric.TOP_K_WITH_INDICES,
    tensor=lambda grad, dim, out_indices, tensor_spec: scattered(
        grad, dim, out_indices, tensor_spec
    ),
)
rule(
    numeric.SORT,
    input=lambda grad, input, dim, descending, input_spec: scattered(
        grad, dim, ARG_SORT.apply((input,), (dim, descending)), input_spec
    ),
)
rule(
    numeric.SORT_WITH_INDICES,
    input=lambda grad, dim, out_indices, input_spec: scattered(grad, dim, out_indices, input_spec),
)


@joint(numeric.PAD)
def _of_pad(call: PastCall) -> dict[str, Tensor]:
    (grad,), spec = call.grads, call.spec("input")
    padding, (mode, *_) = call.parameters["padding"], call.parameters["mode"]
    for axis, (size, pair) in enumerate(zip(spec.shape, padding, strict=True)):
        if not any(pair):
            continue
        inside = part(grad, axis, pair[0], pair[0] + size)
        if mode != "Constant":
            places = np.pad(np.arange(size), pair, mode=_PAD_MODES[mode])
            kept = np.r_[0 : pair[0], pair[0] + size : places.size]
            outside = SELECT.apply((grad, upload(grad, kept)), (axis,))
            inside = SELECT_ASSIGN.apply(
                (inside, upload(grad, places[kept]), outside), (axis, "Add")
            )
        grad = inside
    return {"input": grad}


# -- Cumulative operations ------------------------------------------------------------------------

rule(
    numeric.CUM_SUM,
    input=lambda grad, axis: flip(CUM_SUM.apply((flip(grad, axis),), (axis,)), axis),
)
rule(
    numeric.CUM_PROD,
    input=rounded_once(
        lambda grad, input, axis: MUL.binary(
            _product_before(input, axis), _weighted_rest(grad, input, axis)
        )
    ),
)


def _weighted_rest(grad: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return ``s[k] = grad[k] + x[k + 1] * s[k + 1]`` along an axis.

    Each step is the function ``s -> b + a s`` of the next element. Functions that cover 1, 2, 4 …
    steps are composed (Hillis and Steele, 1986), which takes ``log2(n)`` rounds and no division, so
    that all orders of derivatives are exact for zeros.
    """
    size = x.shape[axis]
    sums = flip(grad, axis)
    factors = _shifted(flip(x, axis), axis, 1, 0.0)
    reach = 1
    while reach < size:
        sums = ADD.binary(sums, MUL.binary(factors, _shifted(sums, axis, reach, 0.0)))
        if 2 * reach < size:
            factors = MUL.binary(factors, _shifted(factors, axis, reach, 0.0))
        reach *= 2
    return flip(sums, axis)


rule(
    numeric.CUM_MAX,
    input=lambda grad, input, out, axis: _to_last_extreme(grad, input, out, axis),
)
rule(
    numeric.CUM_MIN,
    input=lambda grad, input, out, axis: _to_last_extreme(grad, input, out, axis),
)


def _to_last_extreme(grad: Tensor, x: Tensor, out: Tensor, axis: int) -> Tensor:
    """Add each gradient to the last element, up to its own place, that equals the extreme there."""
    spec = x.handle.spec
    places = counted(x.__class__, x.handle.client, spec.shape[axis])
    along = (1,) * axis + (spec.shape[axis],) + (1,) * (len(spec.shape) - axis - 1)
    places = broadcast_to(reshaped(places, along), spec.shape)
    is_met = logical_or(equal(x, out), IS_NAN.unary(x))
    met = mask_fill(places, NOT.unary(is_met), 0)
    return scattered(grad, axis, CUM_MAX.apply((met,), (axis,)), spec)


# -- Without gradients ----------------------------------------------------------------------------

never(
    "a comparison is constant almost everywhere, and its result is a bool",
    *(numeric.GREATER, numeric.GREATER_ELEM, numeric.GREATER_EQUAL, numeric.GREATER_EQUAL_ELEM),
    *(numeric.LOWER, numeric.LOWER_ELEM, numeric.LOWER_EQUAL, numeric.LOWER_EQUAL_ELEM),
)
never(
    "an index is an integer",
    *(numeric.ARG_MAX, numeric.ARG_MIN, numeric.ARG_TOP_K, numeric.ARG_SORT),
)
never("it depends on no tensor", numeric.FULL, numeric.INT_RANDOM)
