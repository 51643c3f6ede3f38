"""Tests of the values in operations: tensors, their data, scalars and slices."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.operations.wire_values import (
    Scalar,
    TensorUse,
    decode_scalar,
    decode_slice,
    decode_tensor,
    decode_tensor_data,
    encode_scalar,
    encode_slice,
    encode_tensor,
    encode_tensor_data,
)
from burn_remote_protocol.tensors import Slice, TensorSpec, TensorStatus
from support.recorded import golden


def test_golden_tensors_are_encoded_to_the_bytes_they_were_decoded_from() -> None:
    for line in golden("TensorIr"):
        for wire in (line.tuples, line.lists):
            assert msgpack.packb(encode_tensor(*decode_tensor(wire))) == line.payload, line.name


def test_golden_data_is_encoded_to_the_bytes_it_was_decoded_from() -> None:
    for line in golden("TensorData"):
        for wire in (line.tuples, line.lists):
            encoded = encode_tensor_data(decode_tensor_data(wire))
            assert msgpack.packb(encoded) == line.payload, line.name


def test_golden_scalars_are_encoded_to_the_bytes_they_were_decoded_from() -> None:
    for line in golden("ScalarIr"):
        for wire in (line.tuples, line.lists):
            assert msgpack.packb(encode_scalar(decode_scalar(wire))) == line.payload, line.name


def test_golden_slices_are_encoded_to_the_bytes_they_were_decoded_from() -> None:
    for line in golden("Slice"):
        for wire in (line.tuples, line.lists):
            assert msgpack.packb(encode_slice(decode_slice(wire))) == line.payload, line.name


def test_a_tensor_is_its_id_and_its_use() -> None:
    use = TensorUse(TensorSpec((2, 3), F32), TensorStatus.READ_ONLY)

    assert decode_tensor([[7], [[2, 3]], "ReadOnly", "F32"]) == (7, use)


@pytest.mark.parametrize(
    ("position", "value", "text"),
    [
        (0, 1, "expected the id of a tensor, an array of 1, saw 1"),
        (0, [2**64], "expected the id of a tensor, an unsigned 64-bit integer"),
        (1, [2, 3], "expected a shape, an array of 1, saw [2, 3]"),
        (1, [[-2]], "a dimension is a non-negative integer, not -2"),
        (2, "Gone", "expected a tensor status (ReadOnly, ReadWrite, NotInit), saw 'Gone'"),
        (3, "F33", "unknown dtype 'F33'"),
    ],
)
def test_an_invalid_part_of_a_tensor_is_named(position: int, value: Any, text: str) -> None:
    wire: list[Any] = [[7], [[2, 3]], "ReadOnly", "F32"]
    wire[position] = value

    with pytest.raises(ProtocolViolation) as caught:
        decode_tensor(wire)

    assert text in str(caught.value)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_data_may_be_any_buffer(kind: Any) -> None:
    assert decode_tensor_data([kind(bytes(8)), [2], "F32"]).spec == TensorSpec((2,), F32)


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        ([bytes(7), [2], "F32"], "expected 8 bytes for float32[2], saw 7"),
        ([bytes(9), [2], "F32"], "expected 8 bytes for float32[2], saw 9"),
        ([bytes(4), [0], "F32"], "expected 0 bytes for float32[0], saw 4"),
        ([[0, 0], [2], "U8"], "expected the elements of a tensor, a byte buffer"),
        (["ab", [2], "U8"], "expected the elements of a tensor, a byte buffer"),
        ([bytes(2), [[2]], "U8"], "a dimension is a non-negative integer"),
        ([bytes(2), [2]], "expected the data of a tensor, an array of 3"),
    ],
)
def test_data_that_does_not_match_its_spec_is_refused(wire: Any, text: str) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        decode_tensor_data(wire)

    assert text in str(caught.value)


def test_quantized_data_may_have_either_of_its_lengths() -> None:
    dtype = {"QFloat": ["Q4S", "F32", {"PackedU32": 0}, "Tensor", "Symmetric"]}

    for length in (36, 20):
        assert len(decode_tensor_data([bytes(length), [2, 16], dtype]).bytes) == length
    with pytest.raises(ProtocolViolation, match="expected 36 or 20 bytes"):
        decode_tensor_data([bytes(32), [2, 16], dtype])


def test_data_may_not_claim_more_elements_than_any_tensor_has() -> None:
    with pytest.raises(LimitExceeded):
        decode_tensor_data([b"", [2**40, 2**40], "F32"])


@pytest.mark.parametrize(
    ("value", "variant"),
    [(1.5, "Float"), (True, "Bool"), (-1, "Int"), (2**63 - 1, "Int"), (2**63, "UInt")],
)
def test_a_python_number_has_the_variant_that_fits(value: Any, variant: str) -> None:
    assert Scalar.of(value) == Scalar(variant, value)


def test_scalars_are_equal_when_their_bytes_are() -> None:
    nan = float("nan")

    assert Scalar.of(nan) == Scalar.of(nan)
    assert hash(Scalar.of(nan)) == hash(Scalar.of(nan))
    assert Scalar.of(0.0) != Scalar.of(-0.0)
    assert len({Scalar.of(1), Scalar.of(1.0), Scalar.of(True), Scalar("UInt", 1)}) == 4
    assert Scalar.of(1) != 1


@pytest.mark.parametrize(
    "wire",
    [
        None, 1.0, {}, {"Float": 1}, {"Float": True}, {"Float": None}, {"Int": 2**63},
        {"Int": -(2**63) - 1}, {"Int": 1.0}, {"Int": True}, {"UInt": -1}, {"UInt": 2**64},
        {"Bool": 1}, {"Complex": 1.0}, {"Int": 1, "Float": 1.0}, [["Int", 1]], ("Int", 1),
    ],
)  # fmt: skip
def test_invalid_scalars_are_refused(wire: Any) -> None:
    with pytest.raises(ProtocolViolation, match="a scalar"):
        decode_scalar(wire)


@pytest.mark.parametrize(
    "wire",
    [
        None, [], [0, 1], [0, 1, 1, 1], [None, 1, 1], [0, None, None], [0, 1, 0], [2**63, 1, 1],
        [0, -(2**63) - 1, 1], [0, 1.0, 1], [False, 1, 1], {0: 0, 1: 0, 2: 0}, b"\x00\x01\x01",
    ],
)  # fmt: skip
def test_invalid_slices_are_refused(wire: Any) -> None:
    with pytest.raises(ProtocolViolation, match="a slice"):
        decode_slice(wire)


def test_a_slice_may_be_open() -> None:
    assert decode_slice((-3, None, -1)) == Slice(-3, None, -1)
