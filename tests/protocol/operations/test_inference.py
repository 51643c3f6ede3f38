"""The rules against outputs that Burn's own client declared."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from burn_remote_protocol.dtypes import F16, F32, DType, QuantScheme
from burn_remote_protocol.errors import DTypeMismatch, LimitExceeded, ShapeMismatch
from burn_remote_protocol.frozen_map import FrozenMap
from burn_remote_protocol.operations.encoding import decode_operation, encode_operation
from burn_remote_protocol.operations.estimates import estimated
from burn_remote_protocol.operations.families import base, floats, numeric, session
from burn_remote_protocol.operations.inference import check_declared, infer
from burn_remote_protocol.operations.row import Call, Row, Signature
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus
from support.recorded import recorded_operations, recordings
from support.specs import f32, flags, i32, i64


def read(spec: TensorSpec) -> TensorUse:
    return TensorUse(spec, TensorStatus.READ_ONLY)


def made(spec: TensorSpec) -> TensorUse:
    return TensorUse(spec, TensorStatus.NOT_INIT)


@pytest.mark.parametrize("recording", recordings())
def test_the_rules_agree_with_every_recorded_operation(recording: str) -> None:
    count = 0
    for name, wire in recorded_operations(recording):
        operation = decode_operation(wire)
        try:
            check_declared(operation.signature)
        except (ShapeMismatch, DTypeMismatch) as error:
            pytest.fail(f"{name}: {error}")
        count += 1
    assert count > 0


@pytest.mark.parametrize("recording", ["extra.msgpack.xz", "autodiff.msgpack.xz"])
def test_recorded_operations_are_encoded_to_the_bytes_they_were_decoded_from(
    recording: str,
) -> None:
    for name, wire in recorded_operations(recording):
        packed = msgpack.packb(encode_operation(decode_operation(wire)))
        again = msgpack.unpackb(packed, use_list=False, object_pairs_hook=FrozenMap)
        assert again == wire, name


def test_the_costs_of_recorded_operations_are_counted() -> None:
    costly = 0
    for recording in ("extra.msgpack.xz", "autodiff.msgpack.xz", "tensor.msgpack.xz"):
        for _, wire in recorded_operations(recording):
            signature = decode_operation(wire).signature
            cost, workspace = estimated(signature.row.estimates, signature.call)
            assert cost >= 0, signature
            assert workspace >= 0, signature
            costly += cost > 0
    assert costly > 100


@pytest.mark.parametrize(
    ("row", "inputs", "error", "text"),
    [
        (numeric.ADD, (f32(2), f32(3)), ShapeMismatch, r"Numeric\.Add: shapes \[2\], \[3\] do not"),
        (numeric.ADD, (f32(2), i64(2)), DTypeMismatch, r"Numeric\.Add: rhs is int64\[2\]"),
        (base.RESHAPE, (f32(2),), ShapeMismatch, r"Base\.Reshape: the shape and dtype"),
    ],
)
def test_an_error_of_a_rule_names_the_operation(
    row: Row, inputs: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        infer(row, Call(inputs, {}))


def test_an_output_larger_than_any_tensor_names_the_operation() -> None:
    with pytest.raises(LimitExceeded, match=r"Base\.RepeatDim: elements of a tensor"):
        infer(base.REPEAT_DIM, Call((f32(2),), {"dim": 0, "times": 2**60}))


def test_the_inferred_outputs_may_be_declared() -> None:
    check_declared(sign(numeric.ADD, read(f32(2, 1)), read(f32(1, 3)), made(f32(2, 3))))


def test_a_wrong_shape_is_refused_with_both_shapes() -> None:
    signature = sign(numeric.ADD, read(f32(2)), read(f32(2)), made(f32(3)))

    with pytest.raises(ShapeMismatch) as caught:
        check_declared(signature)

    assert str(caught.value) == (
        "Numeric.Add makes float32[2] of its inputs, but float32[3] was declared"
    )


def test_a_wrong_dtype_is_refused_with_both_dtypes() -> None:
    signature = sign(numeric.ADD, read(f32(2)), read(f32(2)), made(i64(2)))

    with pytest.raises(DTypeMismatch, match=r"makes float32\[2\].*but int64\[2\] was declared"):
        check_declared(signature)


def test_a_missing_output_is_refused() -> None:
    arguments = (read(f32(2, 3)), 1, made(f32(2, 1)), made(i64(2, 1)))
    whole = sign(numeric.MAX_DIM_WITH_INDICES, *arguments)
    check_declared(whole)

    with pytest.raises(ShapeMismatch, match="was declared"):
        check_declared(Signature(whole.kind, whole.row, whole.dtype, (*arguments[:3], None)))


def test_an_operation_kind_for_another_dtype_is_refused() -> None:
    signature = Signature("BaseInt", base.EQUAL, None, (read(f32(2)), read(f32(2)), made(flags(2))))

    with pytest.raises(DTypeMismatch, match=r"on float32\[2\] is BaseFloat, but BaseInt was"):
        check_declared(signature)


def test_a_dtype_in_the_variant_that_differs_from_the_tensors_is_refused() -> None:
    arguments = (read(f32(2)), read(f32(2)), made(f32(2)))

    with pytest.raises(DTypeMismatch, match="but dtype float16 was declared"):
        check_declared(Signature("NumericFloat", numeric.ADD, F16, arguments))


def test_dequantizing_carries_the_dtype_of_the_result() -> None:
    quantized = DType.quantized(QuantScheme("Q8S", "F32", "Native", None, "Symmetric"))
    arguments = (read(TensorSpec((2,), quantized)), made(f32(2)))

    check_declared(Signature("Float", floats.DEQUANTIZE, F32, arguments))


def test_a_custom_operation_may_have_no_tensor() -> None:
    check_declared(Signature("Custom", session.CUSTOM, None, ("name", (), (), ())))


def test_dropping_declares_nothing() -> None:
    check_declared(sign(session.DROP, read(i32(2))))
