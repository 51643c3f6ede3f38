"""The extension rows for searches have no gradients."""

from __future__ import annotations

from burn_remote.autodiff.rule_table import never
from burn_remote_protocol.operations.families import search_rows

never(
    "its result is an integer",
    search_rows.NONZERO,
    search_rows.UNIQUE_ORDER,
    search_rows.UNIQUE,
    search_rows.SEARCH_SORTED,
)
