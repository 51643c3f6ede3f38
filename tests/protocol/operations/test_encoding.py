"""The bytes of operations, and exact matches in the cache of signatures."""

from __future__ import annotations

import math
import struct
from typing import Any

import msgpack
import pytest

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation, Unsupported
from burn_remote_protocol.frozen_map import FrozenMap
from burn_remote_protocol.operations import encoding
from burn_remote_protocol.operations.encoding import decode_operation, encode_operation
from burn_remote_protocol.operations.table import KINDS, TABLE
from burn_remote_protocol.operations.vocabularies import Vocabulary
from support.recorded import Golden, golden

OPERATIONS = golden("OperationIr")


def named(name: str) -> Golden:
    return next(line for line in OPERATIONS if line.name == f"OperationIr/{name}")


def add(first: Any = 1, *, dims: Any = (2, 3), status: Any = "ReadOnly", dtype: Any = "F32") -> Any:
    """Return an addition as MessagePack unpacks it, with one part changed."""
    lhs = ((first,), (dims,), status, dtype)
    rhs, out = (((2,), ((2, 3),), "ReadOnly", "F32"), ((3,), ((2, 3),), "NotInit", "F32"))
    return FrozenMap([("NumericFloat", ("F32", FrozenMap([("Add", (lhs, rhs, out))])))])


def add_scalar(scalar: Any) -> Any:
    lhs, out = (((1,), ((2,),), "ReadOnly", "F32"), ((2,), ((2,),), "NotInit", "F32"))
    return FrozenMap([("NumericFloat", ("F32", FrozenMap([("AddScalar", (lhs, scalar, out))])))])


def rhs_of(wire: Any) -> Any:
    return decode_operation(wire).signature.call.parameters["rhs"]


def test_burn_reads_back_every_golden_operation() -> None:
    assert len(OPERATIONS) == 1122
    assert all(line.roundtrip for line in OPERATIONS)


def test_every_golden_operation_is_encoded_to_the_bytes_it_was_decoded_from() -> None:
    for line in OPERATIONS:
        for wire in (line.tuples, line.lists, line.tuples):
            operation = decode_operation(wire)
            assert msgpack.packb(encode_operation(operation)) == line.payload, line.name


def test_golden_operations_of_burn_0_22_are_encoded_to_the_same_bytes() -> None:
    assert len(golden("OperationIr", "0.22")) == 653
    for line in golden("OperationIr", "0.22"):
        if is_missing(line.lists):
            continue
        for wire in (line.tuples, line.lists, line.tuples):
            operation = decode_operation(wire, Vocabulary.BURN_0_22)
            encoded = encode_operation(operation, Vocabulary.BURN_0_22)
            assert msgpack.packb(encoded) == line.payload, line.name


def test_golden_operations_of_burn_0_22_survive_the_native_dialect() -> None:
    for line in golden("OperationIr", "0.22"):
        if not is_missing(line.lists):
            operation = decode_operation(line.tuples, Vocabulary.BURN_0_22)
            assert decode_operation(encode_operation(operation)) == operation, line.name


def is_missing(wire: Any) -> bool:
    """Whether the row of an operation of Burn 0.22, or a name in it, is not in the table yet."""
    ((kind, body),) = wire.items()
    if "NearestExact" in str(body):
        return True
    if kind not in KINDS:
        return True
    about = KINDS[kind]
    body = body[1] if about.carries_dtype else body
    name = body if type(body) is str else next(iter(body)) if type(body) is dict else kind
    return (about.family, name) not in TABLE


def test_a_padding_that_differs_at_both_ends_cannot_be_expressed_in_burn_0_21() -> None:
    (line,) = [one for one in golden("OperationIr", "0.22") if one.name.endswith("Conv1d/0")]
    wire = line.lists
    wire["Module"]["Conv1d"][3][1] = [[3, 5]]
    operation = decode_operation(wire, Vocabulary.BURN_0_22)

    assert operation.signature.call.parameters["padding"] == ((3, 5),)
    assert decode_operation(encode_operation(operation)) == operation
    with pytest.raises(Unsupported, match="pads both ends of an axis alike, not with 3 and 5"):
        encode_operation(operation, Vocabulary.BURN_0_21)


def test_numbers_of_a_custom_operation_cannot_be_expressed_in_burn_0_21() -> None:
    wire = {"Custom": ["swish", [], [], [{"Float": 0.5}]]}
    operation = decode_operation(wire, Vocabulary.BURN_0_22)

    assert operation.signature.call.parameters["scalars"] == (0.5,)
    assert encode_operation(operation) == wire
    with pytest.raises(Unsupported, match=r"Custom of Burn 0\.21 has no scalars"):
        encode_operation(operation, Vocabulary.BURN_0_21)


def test_a_native_message_leaves_out_fields_that_older_versions_do_not_know() -> None:
    old = {"Custom": ["swish", [], []]}

    assert encode_operation(decode_operation(old)) == old
    assert encode_operation(decode_operation(old), Vocabulary.BURN_0_22) == {
        "Custom": ["swish", [], [], []]
    }


def test_both_forms_of_a_message_give_the_same_operation() -> None:
    for line in OPERATIONS:
        assert decode_operation(line.tuples) == decode_operation(line.lists), line.name


def test_ids_come_in_wire_order() -> None:
    assert decode_operation(named("NumericFloat/MaxDimWithIndices/0").tuples).tensors == (1, 3, 4)
    assert decode_operation(named("Custom/0").tuples).tensors == (1, 2, 3, 4)
    assert decode_operation(named("Drop/0").tuples).tensors == (1,)


def test_options_are_parameters_under_their_own_names() -> None:
    parameters = decode_operation(named("Module/Conv2d/0").tuples).signature.call.parameters

    assert list(parameters) == ["stride", "padding", "dilation", "groups"]
    assert all(type(value) is tuple for value in list(parameters.values())[:3])


def test_the_scales_of_a_quantized_tensor_are_an_input() -> None:
    call = decode_operation(named("Float/Quantize/0").tuples).signature.call

    assert len(call.inputs) == 2
    assert list(call.parameters) == ["scheme"]


def test_operations_that_differ_only_in_ids_share_a_signature() -> None:
    first, second = decode_operation(add(1)), decode_operation(add(2**64 - 1))

    assert first.signature is second.signature
    assert second.tensors == (2**64 - 1, 2, 3)


def test_golden_operations_that_come_again_share_a_signature() -> None:
    """Also those with maps: scalars, and the dtypes of bools and of quantized tensors."""
    for version, vocabulary in (("0.21", Vocabulary.NATIVE), ("0.22", Vocabulary.BURN_0_22)):
        for line in golden("OperationIr", version):
            if version == "0.22" and is_missing(line.lists):
                continue
            first, second = (decode_operation(line.tuples, vocabulary) for _ in range(2))
            assert first.signature is second.signature, line.name


@pytest.mark.parametrize("identifier", [-1, 2**64, 2**70, True, 1.0, "1", None, (1,)])
def test_an_id_outside_of_u64_is_refused_even_for_a_known_signature(identifier: Any) -> None:
    decode_operation(add(1))

    with pytest.raises(ProtocolViolation, match=r"Numeric\.Add, field lhs: expected the id"):
        decode_operation(add(identifier))


@pytest.mark.parametrize("name", [{1: None}, b"\x01", "1", (1, 2), None])
def test_an_id_in_something_other_than_an_array_is_refused_even_for_a_known_signature(
    name: Any,
) -> None:
    (tensor,) = add(1)[0][1][1][0][1][:1]
    decode_operation({"Drop": list(tensor)})

    with pytest.raises(ProtocolViolation, match="Drop, field tensor: expected the id of a tensor"):
        decode_operation({"Drop": [name, *tensor[1:]]})


@pytest.mark.parametrize("dims", [(2, True), (2, 3.0), (2, -1), (2, None), "23", ((2, 3),), None])
def test_dims_that_only_compare_equal_to_known_ones_are_refused(dims: Any) -> None:
    decode_operation(add(dims=(2, 1)))
    decode_operation(add(dims=(2, 3)))

    with pytest.raises(ProtocolViolation, match=r"Numeric\.Add, field lhs: "):
        decode_operation(add(dims=dims))


def test_zero_and_negative_zero_are_different_scalars() -> None:
    signs = [
        math.copysign(1, rhs_of(add_scalar(FrozenMap([("Float", zero)]))))
        for zero in (0.0, -0.0, 0.0, -0.0)
    ]

    assert signs == [1, -1, 1, -1]


def test_the_bits_of_a_nan_are_kept() -> None:
    for bits in (0x7FF8000000000001, 0xFFF8000000000000, 0x7FF8000000000001):
        (nan,) = struct.unpack("<d", struct.pack("<Q", bits))
        operation = decode_operation(add_scalar(FrozenMap([("Float", nan)])))
        encoded: Any = encode_operation(operation)
        kept = encoded["NumericFloat"][1]["AddScalar"][1]["Float"]
        assert struct.unpack("<Q", struct.pack("<d", kept)) == (bits,)


def test_scalars_of_equal_value_keep_their_variant() -> None:
    for variant, value in (("Float", 1.0), ("Int", 1), ("UInt", 1), ("Bool", True)):
        assert encode_operation(decode_operation(add_scalar(FrozenMap([(variant, value)])))) == {
            "NumericFloat": [
                "F32",
                {
                    "AddScalar": [
                        [[1], [[2]], "ReadOnly", "F32"],
                        {variant: value},
                        [[2], [[2]], "NotInit", "F32"],
                    ]
                },
            ]
        }
        assert type(rhs_of(add_scalar(FrozenMap([(variant, value)])))) is type(value)


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        (None, "expected an operation, a map of one name"),
        ({}, "expected an operation, a map of one name"),
        ({1: []}, "expected an operation, a map of one name"),
        ({"Quantum": []}, "expected a kind of operation"),
        ({"NumericFloat": {"Add": []}}, "expected the dtype and variant of NumericFloat"),
        ({"NumericFloat": ["F32", {"Addd": []}]}, "NumericFloat that Burn 0.21 has, saw 'Addd'"),
        ({"NumericFloat": ["F32", {"Cast": []}]}, "NumericFloat that Burn 0.21 has, saw 'Cast'"),
        ({"NumericFloat": ["F33", {"Add": []}]}, "the fields of NumericFloat.Add, an array of 3"),
        ({"Bool": "Not"}, "expected an operation of Bool, a map of one name"),
        ({"Init": []}, "expected the fields of Init, an array of 1, saw"),
        ({"Drop": []}, "Drop, field tensor: expected a tensor, an array of 4"),
        ({"Custom": [5, [], []]}, "Custom, field id: expected text, saw 5"),
    ],
)
def test_invalid_operations_are_refused_with_what_was_expected(wire: Any, text: str) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        decode_operation(wire, Vocabulary.BURN_0_21)

    assert text in str(caught.value)


def test_an_unknown_dtype_beside_the_variant_is_refused() -> None:
    (kind, (_, body)) = add()[0]

    with pytest.raises(ProtocolViolation, match="unknown dtype 'F33'"):
        decode_operation(FrozenMap([(kind, ("F33", body))]))


@pytest.mark.parametrize("status", ["NotInit", "Lost", None, 1, ()])
def test_an_uninitialized_input_is_refused(status: Any) -> None:
    with pytest.raises(ProtocolViolation, match="field lhs: expected a tensor"):
        decode_operation(add(status=status))


def test_an_initialized_output_is_refused() -> None:
    wire = named("Init/0").lists
    wire["Init"][0][2] = "ReadOnly"

    with pytest.raises(ProtocolViolation, match="Init, field out: expected a tensor in status Not"):
        decode_operation(wire)


def test_a_tensor_of_too_many_elements_is_refused_naming_the_field() -> None:
    with pytest.raises(LimitExceeded, match=r"Numeric\.Add, field lhs: elements of a tensor"):
        decode_operation(add(dims=(2**60,)))


def test_a_long_list_of_tensors_is_refused_by_its_length() -> None:
    wire = named("BaseFloat/Cat/0").lists
    values = wire["BaseFloat"]["Cat"]
    values[0] = values[0][:1] * 65_537

    with pytest.raises(LimitExceeded, match=r"Base\.Cat, field tensors: length of tensors"):
        decode_operation(wire)


def test_the_known_signatures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "SIGNATURES_KEPT", 8)

    for size in range(50):
        decode_operation(add(dims=(size, 3)))

    assert len(encoding._SIGNATURES) <= 8


def test_a_large_signature_is_not_cached() -> None:
    wire = named("BaseFloat/Cat/0").lists
    values = wire["BaseFloat"]["Cat"]
    values[0] = values[0][:1] * 1000

    assert decode_operation(wire).signature is not decode_operation(wire).signature
