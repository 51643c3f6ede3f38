"""Signatures: the inputs that a rule receives, and the numbers of inputs and outputs."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from burn_remote_protocol.dtypes import F32, I64
from burn_remote_protocol.operations.families import base, numeric, pooling_rows, session
from burn_remote_protocol.operations.fields import (
    optional_tensor_in,
    options,
    scalar,
    tensor_in,
    tensor_out,
    tensors_in,
    tensors_out,
    usize,
)
from burn_remote_protocol.operations.row import Call, Estimates, Operation, Row, Signature
from burn_remote_protocol.operations.wire_values import Scalar, TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus
from support.specs import f32, i64


def use(spec: TensorSpec) -> TensorUse:
    return TensorUse(spec, TensorStatus.READ_ONLY)


def made(spec: TensorSpec) -> TensorUse:
    return TensorUse(spec, TensorStatus.NOT_INIT)


def nothing(call: Call) -> int:
    return 0


ROW = Row(
    "Test",
    "Everything",
    (
        tensor_in("x"),
        optional_tensor_in("bias"),
        tensors_in("others"),
        scalar("alpha"),
        options("options", usize("axis"), usize("count")),
        tensor_out("out"),
        tensors_out("more"),
    ),
    lambda call: call.requested,
    Estimates(nothing, nothing),
)


def signature(bias: TensorUse | None) -> Signature:
    others = (use(f32(3)), use(i64(4)))
    more = (made(f32(5)),)
    arguments: tuple[Any, ...] = (
        use(f32(2)), bias, others, Scalar("Float", 1.5), (1, 2), made(i64(2)), more,
    )  # fmt: skip
    return Signature("Test", ROW, None, arguments)


def test_a_rule_sees_one_entry_per_input_and_parameters_by_name() -> None:
    call = signature(None).call
    assert call.inputs == (f32(2), None, (f32(3), i64(4)))
    assert call.parameters == {"alpha": 1.5, "axis": 1, "count": 2}
    assert call.requested == (i64(2), f32(5))


def test_tensors_that_are_there_are_counted_one_by_one() -> None:
    without, with_bias = signature(None), signature(use(f32(7)))
    assert [each.spec for each in without.input_uses] == [f32(2), f32(3), i64(4)]
    assert [each.spec for each in with_bias.input_uses] == [f32(2), f32(7), f32(3), i64(4)]
    assert without.outputs == (i64(2), f32(5))
    assert without.output_count == 2


def test_a_signature_is_described_by_its_inputs_and_outputs() -> None:
    assert signature(None).describe() == (
        "float32[2], float32[3], int64[4] -> int64[2], float32[5]"
    )


def test_signatures_of_equal_arguments_are_equal_and_have_one_hash() -> None:
    assert signature(None) == signature(None)
    assert hash(signature(None)) == hash(signature(None))
    assert signature(None) != signature(use(f32(7)))


def test_zero_and_negative_zero_make_different_signatures() -> None:
    row = numeric.ADD_SCALAR
    plus, minus = (
        Signature("NumericFloat", row, F32, (use(f32(2)), Scalar("Float", zero), made(f32(2))))
        for zero in (0.0, -0.0)
    )
    assert plus != minus


def test_a_signature_with_another_number_of_arguments_than_fields_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        Signature("NumericFloat", numeric.ADD, F32, (use(f32(2)),))


def test_a_signature_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        signature(None).kind = "Other"  # type: ignore[misc]


def test_a_row_is_named_by_family_and_variant() -> None:
    assert str(numeric.ADD) == "Numeric.Add"
    assert str(session.DROP) == "Drop"
    assert str(pooling_rows.ROWS[0]).startswith("Module.")


def test_an_operation_is_a_signature_and_ids() -> None:
    signed = Signature("BaseInt", base.ZEROS, None, (made(i64(2)),))
    operation = Operation(signed, (4,))
    assert operation == (signed, (4,))
    assert signed.call.requested == (TensorSpec((2,), I64),)
