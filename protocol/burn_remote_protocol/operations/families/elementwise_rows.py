"""Extension rows: elementwise functions that Burn's IR lacks."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.checks import FLOATS
from burn_remote_protocol.operations.shape_rules.elementwise_rules import broadcast, same
from burn_remote_protocol.operations.shared_fields import BINARY, SCALAR, UNARY
from burn_remote_protocol.operations.vocabularies import EXTENSION

_FAMILY: Final = "Elementwise"

COPYSIGN: Final = Row(
    _FAMILY, "CopySign", BINARY, broadcast(FLOATS), estimates.elementwise(4), EXTENSION
)
EXPM1: Final = Row(_FAMILY, "Expm1", UNARY, same(FLOATS), estimates.elementwise(15), EXTENSION)
FLOOR_DIVIDE: Final = Row(
    _FAMILY, "FloorDivide", BINARY, broadcast(FLOATS), estimates.elementwise(40), EXTENSION
)
FLOOR_DIVIDE_SCALAR: Final = Row(
    _FAMILY,
    "FloorDivideScalar",
    SCALAR,
    same(FLOATS),
    estimates.elementwise(40, converts=True),
    EXTENSION,
)
LOG10: Final = Row(_FAMILY, "Log10", UNARY, same(FLOATS), estimates.elementwise(15), EXTENSION)
LOG2: Final = Row(_FAMILY, "Log2", UNARY, same(FLOATS), estimates.elementwise(15), EXTENSION)
LOG_ADD_EXP: Final = Row(
    _FAMILY, "LogAddExp", BINARY, broadcast(FLOATS), estimates.elementwise(40), EXTENSION
)
NEXT_AFTER: Final = Row(
    _FAMILY, "NextAfter", BINARY, broadcast(FLOATS), estimates.elementwise(8), EXTENSION
)

ROWS: Final = (
    COPYSIGN, EXPM1, FLOOR_DIVIDE, FLOOR_DIVIDE_SCALAR, LOG10, LOG2, LOG_ADD_EXP, NEXT_AFTER,
)  # fmt: skip
