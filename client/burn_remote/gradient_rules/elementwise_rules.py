"""Gradients of the extension rows for elementwise functions."""

from __future__ import annotations

import math
from typing import Final

from burn_remote.autodiff.rule_table import never, rule
from burn_remote.dispatch.operators import Operator
from burn_remote.functions.arithmetic import subtract
from burn_remote.functions.casting import rounded_once
from burn_remote.functions.elementwise import exp, sign
from burn_remote.gradient_rules.spreading import zeros
from burn_remote_protocol.operations.families import elementwise_rows, numeric

MUL: Final = Operator(numeric.MUL)
DIV: Final = Operator(numeric.DIV)
ADD_SCALAR: Final = Operator(numeric.ADD_SCALAR)
MUL_SCALAR: Final = Operator(numeric.MUL_SCALAR)

rule(
    elementwise_rows.EXPM1,
    input=rounded_once(lambda grad, out: MUL.binary(grad, ADD_SCALAR.scalar(out, 1))),
)
rule(
    elementwise_rows.LOG2,
    input=rounded_once(lambda grad, input: DIV.binary(grad, MUL_SCALAR.scalar(input, math.log(2)))),
)
rule(
    elementwise_rows.LOG10,
    input=rounded_once(
        lambda grad, input: DIV.binary(grad, MUL_SCALAR.scalar(input, math.log(10)))
    ),
)
rule(
    elementwise_rows.COPYSIGN,
    # -1 where the sign changed, and 0 at 0, as in PyTorch. The sign that is copied is constant
    # almost everywhere.
    lhs=lambda grad, lhs, out: MUL.binary(grad, MUL.binary(sign(lhs.detach()), sign(out.detach()))),
)
rule(
    elementwise_rows.LOG_ADD_EXP,
    lhs=rounded_once(lambda grad, lhs, out: MUL.binary(grad, exp(subtract(lhs, out)))),
    rhs=rounded_once(lambda grad, rhs, out: MUL.binary(grad, exp(subtract(rhs, out)))),
)
# The result is constant between its jumps.
rule(
    elementwise_rows.FLOOR_DIVIDE,
    lhs=lambda grad, lhs_spec: zeros(grad, lhs_spec),
    rhs=lambda grad, rhs_spec: zeros(grad, rhs_spec),
)
rule(elementwise_rows.FLOOR_DIVIDE_SCALAR, lhs=lambda grad, lhs_spec: zeros(grad, lhs_spec))
never("it moves a number by its smallest step", elementwise_rows.NEXT_AFTER)
