"""Tests of the rules for products, layers, embeddings and attention, and of their costs."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch
from burn_remote_protocol.operations.families import floats, ints, layers
from burn_remote_protocol.operations.row import Call, Row
from burn_remote_protocol.tensors import TensorSpec
from support.specs import f16, f32, flags, i64, made

QUERY, KEY, VALUE = f32(2, 3, 5, 8), f32(2, 3, 7, 8), f32(2, 3, 7, 6)


@pytest.mark.parametrize(
    ("row", "inputs", "expected", "cost"),
    [
        (floats.MATMUL, (f32(2, 3), f32(3, 4)), f32(2, 4), 48),
        (floats.MATMUL, (f32(5, 1, 2, 3), f32(6, 3, 4)), f32(5, 6, 2, 4), 48 * 30),
        (ints.MATMUL, (i64(2, 0), i64(0, 4)), i64(2, 4), 0),
        (layers.LINEAR, (f32(5, 2, 3), f32(3, 4), f32(4)), f32(5, 2, 4), 2 * 5 * 2 * 3 * 4),
        (layers.LINEAR, (f32(3), f32(3, 4), None), f32(4), 24),
        (layers.LINEAR_X_BACKWARD, (f32(3, 4), f32(5, 2, 4)), f32(5, 2, 3), 240),
        (layers.LINEAR_WEIGHT_BACKWARD, (f32(5, 2, 3), f32(5, 2, 4)), f32(3, 4), 240),
        (layers.LINEAR_BIAS_BACKWARD, (f32(5, 2, 4),), f32(4), None),
        (layers.EMBEDDING, (f32(9, 4), i64(2, 3)), f32(2, 3, 4), None),
        (layers.EMBEDDING_BACKWARD, (f32(9, 4), f32(2, 3, 4), i64(2, 3)), f32(9, 4), None),
        (layers.ATTENTION, (QUERY, KEY, VALUE, None, None), f32(2, 3, 5, 6), 2 * 30 * 7 * 14),
        (
            layers.ATTENTION,
            (QUERY, KEY, VALUE, flags(2, 1, 5, 7), f32(1, 1, 1, 7)),
            f32(2, 3, 5, 6),
            2 * 30 * 7 * 14,
        ),
    ],
    ids=str,
)
def test_a_product_has_its_shape_and_costs_its_multiplications(
    row: Row, inputs: Any, expected: TensorSpec, cost: int | None
) -> None:
    assert made(row, *inputs) == (expected,)
    assert row.estimates.cost(Call(inputs, {}, (expected,))) >= (cost or 0)


def test_a_cross_product_broadcasts() -> None:
    assert made(floats.CROSS, f32(1, 3), f32(2, 3), dim=1) == (f32(2, 3),)
    assert made(floats.CROSS, f32(3, 2), f32(3, 1), dim=0) == (f32(3, 2),)


@pytest.mark.parametrize(
    ("row", "inputs", "parameters"),
    [
        (floats.MATMUL, (f32(2, 3), f32(4, 2)), {}),
        (floats.MATMUL, (f32(3), f32(3, 2)), {}),
        (floats.MATMUL, (f32(2, 2, 3), f32(3, 3, 2)), {}),
        (floats.CROSS, (f32(2, 4), f32(2, 4)), {"dim": 1}),
        (floats.CROSS, (f32(1), f32(2, 3)), {"dim": 1}),
        (floats.CROSS, (f32(3), f32(3, 3)), {"dim": 0}),
        (floats.CROSS, (f32(3), f32(3)), {"dim": 1}),
        (layers.LINEAR, (f32(2, 4), f32(3, 4), None), {}),
        (layers.LINEAR, (f32(2, 3), f32(3, 4), f32(3)), {}),
        (layers.LINEAR, (f32(), f32(3, 4), None), {}),
        (layers.LINEAR, (f32(3), f32(3), None), {}),
        (layers.LINEAR_X_BACKWARD, (f32(3, 4), f32(2, 3)), {}),
        (layers.LINEAR_WEIGHT_BACKWARD, (f32(2, 3), f32(3, 4)), {}),
        (layers.LINEAR_X_BACKWARD, (f32(4), f32(2, 4)), {}),
        (layers.EMBEDDING_BACKWARD, (f32(9), f32(2, 4), i64(2)), {}),
        (layers.LAYER_NORM, (f32(2, 3), f32(2), None), {}),
        (layers.LAYER_NORM, (f32(2, 3), f32(3), f32(2)), {}),
        (layers.BATCH_NORM, (f32(2, 3), f32(3), f32(3), f32(2), f32(3)), {}),
        (layers.EMBEDDING, (f32(9), i64(2)), {}),
        (layers.EMBEDDING_BACKWARD, (f32(9, 4), f32(2, 3), i64(2)), {}),
        (layers.ATTENTION, (f32(3, 5, 8), KEY, VALUE, None, None), {}),
        (layers.ATTENTION, (QUERY, f32(2, 3, 7, 9), VALUE, None, None), {}),
        (layers.ATTENTION, (QUERY, KEY, f32(2, 3, 6, 6), None, None), {}),
        (layers.ATTENTION, (QUERY, KEY, VALUE, flags(2, 3, 7, 5), None), {}),
        (layers.ATTENTION, (QUERY, KEY, VALUE, None, f32(9, 2, 3, 5, 7)), {}),
    ],
    ids=str,
)
def test_incompatible_shapes_are_refused(row: Row, inputs: Any, parameters: Any) -> None:
    with pytest.raises(ShapeMismatch):
        made(row, *inputs, **parameters)


@pytest.mark.parametrize(
    ("row", "inputs"),
    [
        (floats.MATMUL, (f32(2, 2), f16(2, 2))),
        (floats.MATMUL, (i64(2, 2), i64(2, 2))),
        (ints.MATMUL, (f32(2, 2), f32(2, 2))),
        (layers.LINEAR, (f32(2, 3), f32(3, 4), f16(4))),
        (layers.LINEAR, (i64(2, 3), i64(3, 4), None)),
        (layers.LINEAR_X_BACKWARD, (f16(3, 4), f32(5, 4))),
        (layers.LINEAR_WEIGHT_BACKWARD, (f16(5, 3), f32(5, 4))),
        (layers.LINEAR_BIAS_BACKWARD, (i64(5, 4),)),
        (layers.EMBEDDING, (i64(9, 4), i64(2))),
        (layers.EMBEDDING_BACKWARD, (f32(9, 4), f16(2, 4), i64(2))),
        (layers.EMBEDDING_BACKWARD, (f32(9, 4), f32(2, 4), f32(2))),
        (layers.LAYER_NORM, (i64(2, 3), i64(3), None)),
        (layers.LAYER_NORM, (f32(2, 3), f16(3), None)),
        (layers.LAYER_NORM, (f32(2, 3), f32(3), f16(3))),
        (layers.BATCH_NORM, (i64(2, 3), *[i64(3)] * 4)),
        (layers.BATCH_NORM, (f32(2, 3), f32(3), f32(3), f32(3), f16(3))),
        (layers.EMBEDDING, (f32(9, 4), f32(2))),
        (layers.ATTENTION, (QUERY, KEY, VALUE, f32(2, 3, 5, 7), None)),
        (layers.ATTENTION, (QUERY, KEY, VALUE, None, f16(2, 3, 5, 7))),
    ],
    ids=str,
)
def test_incompatible_dtypes_are_refused(row: Row, inputs: Any) -> None:
    with pytest.raises(DTypeMismatch):
        made(row, *inputs)


def test_normalized_tensors_have_the_axis_that_is_normalized() -> None:
    with pytest.raises(ShapeMismatch, match="at least one dimension"):
        made(layers.LAYER_NORM, f32(), f32(), None)
    with pytest.raises(ShapeMismatch, match="at least two dimensions"):
        made(layers.BATCH_NORM, f32(3), f32(), f32(), f32(), f32())


def test_normalization_keeps_the_shape() -> None:
    assert made(layers.LAYER_NORM, f32(2, 3), f32(3), f32(3)) == (f32(2, 3),)
    assert made(layers.BATCH_NORM, f32(2, 3, 4), *[f32(3)] * 4) == (f32(2, 3, 4),)


def test_keys_and_values_have_the_four_axes_of_queries() -> None:
    with pytest.raises(ShapeMismatch, match=r"key is .* must have 4 dimensions"):
        made(layers.ATTENTION, QUERY, f32(2, 3, 7), VALUE, None, None)
    with pytest.raises(ShapeMismatch, match=r"value is .* must have 4 dimensions"):
        made(layers.ATTENTION, QUERY, KEY, f32(2, 3, 7), None, None)


def test_a_cross_product_takes_floats_of_one_dtype() -> None:
    with pytest.raises(DTypeMismatch, match="lhs is int64"):
        made(floats.CROSS, i64(3), i64(3), dim=0)
    with pytest.raises(DTypeMismatch, match="rhs is float16"):
        made(floats.CROSS, f32(3), f16(3), dim=0)
