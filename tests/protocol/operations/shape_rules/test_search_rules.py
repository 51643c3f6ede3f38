"""Tests of the rules for searches."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch
from burn_remote_protocol.operations.families import search_rows
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.tensors import TensorSpec
from support.specs import c64, f16, f32, flags, i64, made

NONZERO, ORDER = search_rows.NONZERO, search_rows.UNIQUE_ORDER
UNIQUE, SEARCH = search_rows.UNIQUE, search_rows.SEARCH_SORTED


@pytest.mark.parametrize(
    ("row", "inputs", "parameters", "expected"),
    [
        (NONZERO, (f32(2, 3),), {"count": 6}, (i64(2, 6),)),
        (NONZERO, (flags(4),), {"count": 0}, (i64(1, 0),)),
        (ORDER, (f32(5),), {}, (i64(5), i64(1))),
        (UNIQUE, (f32(5), i64(5)), {"count": 5}, (i64(5), i64(5), i64(5))),
        (SEARCH, (f32(5), f32(2, 3)), {}, (i64(2, 3),)),
    ],
    ids=str,
)
def test_a_search_returns_indices(
    row: Row, inputs: Any, parameters: Any, expected: tuple[TensorSpec, ...]
) -> None:
    assert made(row, *inputs, **parameters) == expected


@pytest.mark.parametrize(
    ("row", "inputs", "parameters", "reason"),
    [
        (NONZERO, (f32(),), {"count": 0}, "input is float32.* at least 1 dimension"),
        (NONZERO, (f32(2, 3),), {"count": 7}, "fewer elements than count=7"),
        (ORDER, (f32(2, 3),), {}, "input is .* must have 1 dim"),
        (UNIQUE, (f32(2, 3), i64(2, 3)), {"count": 1}, "input is .* must have 1 dim"),
        (UNIQUE, (f32(5), i64(4)), {"count": 1}, "order is"),
        (UNIQUE, (f32(5), i64(5)), {"count": 6}, "fewer elements than count=6"),
        (SEARCH, (f32(2, 5), f32(3)), {}, "ordered is"),
    ],
    ids=str,
)
def test_shapes_that_cannot_be_searched_are_refused(
    row: Row, inputs: Any, parameters: Any, reason: str
) -> None:
    with pytest.raises(ShapeMismatch, match=reason):
        made(row, *inputs, **parameters)


@pytest.mark.parametrize(
    ("row", "inputs", "parameters", "reason"),
    [
        (NONZERO, (c64(2),), {"count": 1}, "input is complex64"),
        (ORDER, (c64(2),), {}, "input is complex64"),
        (UNIQUE, (c64(2), i64(2)), {"count": 1}, "input is complex64"),
        (UNIQUE, (f32(2), f32(2)), {"count": 1}, "order is float32"),
        (SEARCH, (c64(2), c64(3)), {}, "ordered is complex64"),
        (SEARCH, (f32(2), f16(3)), {}, "values is float16"),
    ],
    ids=str,
)
def test_dtypes_that_have_no_order_or_differ_are_refused(
    row: Row, inputs: Any, parameters: Any, reason: str
) -> None:
    with pytest.raises(DTypeMismatch, match=reason):
        made(row, *inputs, **parameters)
