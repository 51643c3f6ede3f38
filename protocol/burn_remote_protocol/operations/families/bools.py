"""Rows of operations on bool tensors only."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.checks import BOOLS
from burn_remote_protocol.operations.shape_rules.elementwise_rules import (
    broadcast,
    into_float,
    into_int,
    same,
)
from burn_remote_protocol.operations.shared_fields import BINARY, UNARY
from burn_remote_protocol.operations.vocabularies import SINCE_BURN_0_22

INTO_FLOAT: Final = Row("Bool", "IntoFloat", UNARY, into_float(BOOLS), estimates.elementwise(2))
INTO_INT: Final = Row("Bool", "IntoInt", UNARY, into_int(BOOLS), estimates.elementwise(2))
NOT: Final = Row("Bool", "Not", UNARY, same(BOOLS), estimates.elementwise(1))
AND: Final = Row("Bool", "And", BINARY, broadcast(BOOLS), estimates.elementwise(1))
OR: Final = Row("Bool", "Or", BINARY, broadcast(BOOLS), estimates.elementwise(1))

XOR: Final = Row("Bool", "Xor", BINARY, broadcast(BOOLS), estimates.elementwise(1), SINCE_BURN_0_22)

ROWS: Final = (INTO_FLOAT, INTO_INT, NOT, AND, OR, XOR)
