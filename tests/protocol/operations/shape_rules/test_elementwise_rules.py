"""Tests of the rules for elementwise operations and for operations without inputs."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote_protocol.dtypes import BF16, BOOL_U8, F16, U8, DType, QuantScheme
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch
from burn_remote_protocol.operations.families import (
    activations,
    base,
    bools,
    floats,
    ints,
    numeric,
    session,
)
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.tensors import TensorSpec
from support.specs import f16, f32, flags, i32, i64, made

QUANTIZED = TensorSpec(
    (2,), DType.quantized(QuantScheme("Q8S", "F32", "Native", None, "Symmetric"))
)


@pytest.mark.parametrize(
    ("row", "inputs", "expected"),
    [
        (numeric.ADD, (f32(2, 1), f32(3)), f32(2, 3)),
        (numeric.ADD_SCALAR, (i64(2),), i64(2)),
        (numeric.POWI, (f32(2, 1), i32(3)), f32(2, 3)),
        (numeric.GREATER, (i64(2, 1), i64(1, 3)), flags(2, 3)),
        (numeric.LOWER_ELEM, (f32(4),), flags(4)),
        (base.EQUAL, (flags(2), flags(2)), flags(2)),
        (base.MASK_WHERE, (f32(1, 3), flags(2, 3), f32(2, 1)), f32(2, 3)),
        (base.MASK_FILL, (i64(1, 3), flags(2, 1)), i64(2, 3)),
        (floats.EXP, (f16(2),), f16(2)),
        (floats.IS_NAN, (f32(2),), flags(2)),
        (floats.INTO_INT, (f32(2),), i64(2)),
        (ints.INTO_FLOAT, (i64(2),), f32(2)),
        (ints.BITWISE_NOT, (i32(2),), i32(2)),
        (bools.INTO_INT, (flags(2),), i64(2)),
        (bools.AND, (flags(2, 1), flags(1, 2)), flags(2, 2)),
        (session.ALL_REDUCE, (f32(2),), f32(2)),
    ],
    ids=str,
)
def test_an_output_follows_from_the_inputs(row: Row, inputs: Any, expected: TensorSpec) -> None:
    assert made(row, *inputs) == (expected,)


@pytest.mark.parametrize(
    ("row", "inputs", "requested"),
    [
        (numeric.GREATER, (f32(2), f32(2)), flags(2, dtype=BOOL_U8)),
        (floats.INTO_INT, (f32(2),), i32(2)),
        (ints.INTO_FLOAT, (i64(2),), f16(2)),
        (base.CAST, (f32(2),), f16(2)),
        (base.CAST, (i64(2),), TensorSpec((2,), U8)),
        (base.CAST, (flags(2),), flags(2, dtype=BOOL_U8)),
        (base.ZEROS, (), i64(2, 3)),
        (numeric.FULL, (), TensorSpec((), BF16)),
        (floats.RANDOM, (), TensorSpec((0, 2), F16)),
        (session.INIT, (), QUANTIZED),
    ],
    ids=str,
)
def test_the_caller_chooses_output_specs_that_the_inputs_do_not_determine(
    row: Row, inputs: Any, requested: TensorSpec
) -> None:
    assert made(row, *inputs, requested=(requested,)) == (requested,)


@pytest.mark.parametrize(
    ("row", "inputs", "requested"),
    [
        (numeric.ADD, (flags(2), flags(2)), ()),
        (numeric.ADD, (f32(2), f16(2)), ()),
        (numeric.POWI, (f32(2), f32(2)), ()),
        (floats.EXP, (i64(2),), ()),
        (ints.BITWISE_AND, (f32(2), f32(2)), ()),
        (bools.NOT, (i64(2),), ()),
        (numeric.GREATER, (f32(2), f16(2)), ()),
        (numeric.GREATER, (flags(2), flags(2)), ()),
        (numeric.LOWER_ELEM, (flags(2),), ()),
        (numeric.POWI, (flags(2), i32(2)), ()),
        (base.MASK_WHERE, (f32(2), i64(2), f32(2)), ()),
        (activations.P_RELU, (i64(2), i64(2)), ()),
        (activations.P_RELU, (f32(2), f16(2)), ()),
        (activations.RELU_BACKWARD, (i64(2), i64(2)), ()),
        (activations.RELU_BACKWARD, (f32(2), f16(2)), ()),
        (base.MASK_FILL, (f32(2), i64(2)), ()),
        (base.MASK_WHERE, (f32(2), flags(2), f16(2)), ()),
        (base.CAST, (f32(2),), (i64(2),)),
        (base.CAST, (QUANTIZED,), (QUANTIZED,)),
        (floats.RANDOM, (), (i64(2),)),
        (numeric.INT_RANDOM, (), (f32(2),)),
        (floats.INTO_INT, (f32(2),), (f32(2),)),
        (floats.INTO_INT, (i64(2),), ()),
        (ints.INTO_FLOAT, (f32(2),), ()),
    ],
    ids=str,
)
def test_a_dtype_that_the_operation_does_not_support_is_refused(
    row: Row, inputs: Any, requested: Any
) -> None:
    with pytest.raises(DTypeMismatch):
        made(row, *inputs, requested=requested)


@pytest.mark.parametrize("row", [base.CAST, base.EXPAND, base.RESHAPE], ids=str)
def test_output_specs_that_only_the_caller_knows_must_be_declared(row: Row) -> None:
    with pytest.raises(ShapeMismatch, match="must be given"):
        made(row, f32(2))


def test_a_drop_has_no_outputs() -> None:
    assert made(session.DROP, f32(2)) == ()


def test_the_declared_outputs_of_a_custom_operation_are_accepted() -> None:
    requested = (f32(2), i64(3))

    assert made(session.CUSTOM, (), requested=requested, id="x") == requested


def test_a_second_tensor_has_or_gets_the_shape_of_the_first() -> None:
    assert made(activations.P_RELU, f32(2, 3), f32(3)) == (f32(2, 3),)
    assert made(activations.RELU_BACKWARD, f32(2), f32(2)) == (f32(2),)
    with pytest.raises(ShapeMismatch, match=r"rhs is .* must broadcast to the shape of lhs"):
        made(activations.P_RELU, f32(1, 3), f32(2, 3))
    with pytest.raises(ShapeMismatch, match="rhs is"):
        made(activations.RELU_BACKWARD, f32(2, 3), f32(3))
