"""Extension rows: elementwise functions that Burn's IR lacks."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.releases import EXTENSION
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.rules.checks import FLOATS
from burn_remote_protocol.operations.rules.elementwise_rules import broadcast
from burn_remote_protocol.operations.shared_fields import BINARY

HYPOT: Final = Row(
    "Elementwise", "Hypot", BINARY, broadcast(FLOATS), estimates.elementwise(10), EXTENSION
)

ROWS: Final = (HYPOT,)
