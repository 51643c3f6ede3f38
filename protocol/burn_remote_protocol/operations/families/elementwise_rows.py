"""Extension rows: elementwise functions that Burn's IR lacks."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations.row import Row

ROWS: Final[tuple[Row, ...]] = ()
