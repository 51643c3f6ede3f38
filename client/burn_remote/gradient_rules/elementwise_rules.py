"""Gradients of the extension rows for elementwise functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from burn_remote.autodiff.rules import rule
from burn_remote.dispatch.operators import Operator
from burn_remote.functions.logic import equal
from burn_remote.functions.selection import mask_fill
from burn_remote_protocol.operations.families import elementwise_rows, numeric

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

MUL: Final = Operator(numeric.MUL)
DIV: Final = Operator(numeric.DIV)


def _of_leg(grad: Tensor, leg: Tensor, out: Tensor) -> Tensor:
    # The length has no derivative at the origin; 0 is the least of its subgradients.
    return MUL.binary(grad, DIV.binary(leg, mask_fill(out, equal(out, 0), math.inf)))


rule(
    elementwise_rows.HYPOT,
    lhs=lambda grad, lhs, out: _of_leg(grad, lhs, out),
    rhs=lambda grad, rhs, out: _of_leg(grad, rhs, out),
)
