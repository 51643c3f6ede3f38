"""Extension rows: searches for elements, with results whose shape may depend on the elements."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.fields import boolean, tensor_in, tensor_out, usize
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.search_rules import (
    nonzero,
    search_sorted,
    unique,
    unique_order,
)
from burn_remote_protocol.operations.vocabularies import EXTENSION

NONZERO: Final = Row(
    "Search",
    "Nonzero",
    (tensor_in("input"), usize("count"), tensor_out("out")),
    nonzero,
    estimates.NONZERO,
    EXTENSION,
)
UNIQUE_ORDER: Final = Row(
    "Search",
    "UniqueOrder",
    (tensor_in("input"), tensor_out("order"), tensor_out("count")),
    unique_order,
    estimates.SORTED,
    EXTENSION,
)
UNIQUE: Final = Row(
    "Search",
    "Unique",
    (
        tensor_in("input"),
        tensor_in("order"),
        usize("count"),
        tensor_out("indices"),
        tensor_out("inverse"),
        tensor_out("counts"),
    ),
    unique,
    estimates.elementwise(20, 24, call_cost=30_000),
    EXTENSION,
)
SEARCH_SORTED: Final = Row(
    "Search",
    "SearchSorted",
    (tensor_in("ordered"), tensor_in("values"), boolean("right"), tensor_out("out")),
    search_sorted,
    estimates.SEARCHED,
    EXTENSION,
)

ROWS: Final = (NONZERO, UNIQUE_ORDER, UNIQUE, SEARCH_SORTED)
