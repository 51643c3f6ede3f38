"""Which operations have tensors of truth values only?"""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.rules.checks import BOOLS
from burn_remote_protocol.operations.rules.elementwise import broadcast, into_float, into_int, same
from burn_remote_protocol.operations.structs import BINARY, UNARY

INTO_FLOAT: Final = Row("Bool", "IntoFloat", UNARY, into_float(BOOLS))
INTO_INT: Final = Row("Bool", "IntoInt", UNARY, into_int(BOOLS))
NOT: Final = Row("Bool", "Not", UNARY, same(BOOLS))
AND: Final = Row("Bool", "And", BINARY, broadcast(BOOLS))
OR: Final = Row("Bool", "Or", BINARY, broadcast(BOOLS))

ROWS: Final = (INTO_FLOAT, INTO_INT, NOT, AND, OR)
