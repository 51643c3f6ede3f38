"""Tests of the rules for operations that select or update elements by index."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch
from burn_remote_protocol.operations.families import base
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.tensors import TensorSpec
from support.specs import c64, f16, f32, i32, i64, made


@pytest.mark.parametrize(
    ("row", "inputs", "parameters", "expected"),
    [
        (base.SELECT, (f32(2, 3), i64(5)), {"dim": 1}, f32(2, 5)),
        (base.SELECT_ASSIGN, (f32(2, 3), i32(5), f32(2, 5)), {"dim": 1}, f32(2, 3)),
        (base.GATHER, (f32(2, 3), i64(2, 7)), {"dim": 1}, f32(2, 7)),
        (base.GATHER, (f32(2, 3), i64(1, 7)), {"dim": 1}, f32(1, 7)),
        (base.SCATTER, (f32(2, 3), i64(2, 7), f32(2, 7)), {"dim": 1}, f32(2, 3)),
        (base.GATHER_ND, (f32(2, 3, 4), i64(5, 2)), {}, f32(5, 4)),
        (base.GATHER_ND, (f32(2, 3), i64(2)), {}, f32()),
        (base.GATHER_ND, (f32(2, 3), i64(6, 5, 1)), {}, f32(6, 5, 3)),
        (base.GATHER_ND, (f32(2, 3), i64(4, 0)), {}, f32(4, 2, 3)),
        (base.SCATTER_ND, (f32(2, 3), i64(5, 1), f32(5, 3)), {}, f32(2, 3)),
    ],
    ids=str,
)
def test_indices_determine_the_shape_of_the_result(
    row: Row, inputs: Any, parameters: Any, expected: TensorSpec
) -> None:
    assert made(row, *inputs, **parameters) == (expected,)


@pytest.mark.parametrize(
    ("row", "inputs", "parameters"),
    [
        (base.SELECT, (f32(2, 3), i64(5)), {"dim": 2}),
        (base.SELECT, (f32(2, 3), i64(5, 1)), {"dim": 1}),
        (base.SELECT_ASSIGN, (f32(2, 3), i64(5), f32(2, 3)), {"dim": 1}),
        (base.GATHER, (f32(2, 3), i64(3, 7)), {"dim": 1}),
        (base.GATHER, (f32(2, 3), i64(2)), {"dim": 1}),
        (base.SCATTER, (f32(2, 3), i64(2, 7), f32(2, 3)), {"dim": 1}),
        (base.GATHER_ND, (f32(2, 3), i64(5, 3)), {}),
        (base.GATHER_ND, (f32(2, 3), i64()), {}),
        (base.SCATTER_ND, (f32(2, 3), i64(5, 1), f32(5)), {}),
    ],
    ids=str,
)
def test_shapes_that_do_not_suit_the_indices_are_refused(
    row: Row, inputs: Any, parameters: Any
) -> None:
    with pytest.raises(ShapeMismatch):
        made(row, *inputs, **parameters)


@pytest.mark.parametrize(
    ("row", "inputs"),
    [
        (base.SELECT, (f32(2), f32(2))),
        (base.GATHER, (f32(2), f32(2))),
        (base.SCATTER, (f32(2), i64(2), f16(2))),
        (base.SELECT_ASSIGN, (f32(2), i64(2), f16(2))),
        (base.GATHER_ND, (f32(2), f32(3, 1))),
        (base.SCATTER_ND, (f32(2), i64(3, 1), f16(3))),
    ],
    ids=str,
)
def test_indices_are_integers_and_values_are_like_the_tensor(row: Row, inputs: Any) -> None:
    with pytest.raises(DTypeMismatch):
        made(row, *inputs, dim=0)


@pytest.mark.parametrize("row", [base.GATHER, base.SCATTER])
def test_indices_along_an_axis_that_does_not_exist_are_refused(row: Row) -> None:
    values = () if row is base.GATHER else (f32(2, 3),)
    with pytest.raises(ShapeMismatch, match="dim"):
        made(row, f32(2, 3), i64(2, 3), *values, dim=2)


@pytest.mark.parametrize(
    ("row", "indices", "name", "parameters"),
    [
        (base.SELECT_ASSIGN, i64(2), "update", {"dim": 0}),
        (base.SCATTER, i64(2), "update", {"dim": 0}),
        (base.SCATTER_ND, i64(2, 1), "reduction", {}),
    ],
    ids=str,
)
def test_only_tensors_with_an_order_are_updated_by_minima(
    row: Row, indices: TensorSpec, name: str, parameters: Any
) -> None:
    for update in ("Min", "Max"):
        chosen: dict[str, Any] = {name: update}
        assert made(row, f32(2), indices, f32(2), **parameters, **chosen) == (f32(2),)
        with pytest.raises(DTypeMismatch, match=f"the update {update} is not defined"):
            made(row, c64(2), indices, c64(2), **parameters, **chosen)
    chosen = {name: "Add"}
    assert made(row, c64(2), indices, c64(2), **parameters, **chosen) == (c64(2),)
