"""The fields of operations: decoding, encoding and refusals."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from burn_remote_protocol.dtypes import F32, QuantScheme
from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.frozen_map import FrozenMap
from burn_remote_protocol.operations.fields import (
    Field,
    Role,
    boolean,
    devices,
    distribution,
    name_of,
    optional_scalar,
    optional_tensor_in,
    optional_tensor_out,
    optional_usize,
    options,
    paddings,
    quantization_parameters,
    quantization_scheme,
    scalar,
    scalars,
    slices,
    string,
    tensor_in,
    tensor_out,
    tensors_in,
    tensors_out,
    usize,
    usize_array,
    usize_list,
)
from burn_remote_protocol.operations.wire_values import Scalar, TensorUse
from burn_remote_protocol.tensors import Slice, TensorSpec, TensorStatus
from support.recorded import golden

SPEC = TensorSpec((2,), F32)
READ = TensorUse(SPEC, TensorStatus.READ_ONLY)
MADE = TensorUse(SPEC, TensorStatus.NOT_INIT)
SCHEME = QuantScheme("Q8S", "F32", "Native", (16,), "Symmetric")


def tensor(identifier: int, status: str = "ReadOnly") -> list[Any]:
    return [[identifier], [[2]], status, "F32"]


@pytest.mark.parametrize(
    ("field", "wire", "argument", "ids"),
    [
        (tensor_in("x"), tensor(7), READ, [7]),
        (optional_tensor_in("x"), tensor(7), READ, [7]),
        (optional_tensor_in("x"), None, None, []),
        (tensors_in("x"), [tensor(7), tensor(8)], (READ, READ), [7, 8]),
        (tensors_in("x"), [], (), []),
        (quantization_parameters("x"), [tensor(7)], READ, [7]),
        (tensor_out("x"), tensor(7, "NotInit"), MADE, [7]),
        (optional_tensor_out("x"), None, None, []),
        (tensors_out("x"), [tensor(7, "NotInit")], (MADE,), [7]),
        (usize("x"), 2**64 - 1, 2**64 - 1, []),
        (optional_usize("x"), None, None, []),
        (optional_usize("x"), 0, 0, []),
        (boolean("x"), True, True, []),
        (scalar("x"), {"Int": -1}, Scalar("Int", -1), []),
        (optional_scalar("x"), None, None, []),
        (optional_scalar("x"), {"Float": 0.5}, Scalar("Float", 0.5), []),
        (usize_list("x"), [1, 0], (1, 0), []),
        (usize_array("x", 1), [3], (3,), []),
        (usize_array("x", 2), [3, 4], (3, 4), []),
        (slices("x"), [[0, None, -1]], (Slice(0, None, -1),), []),
        (name_of("x", "Add", "Mul"), "Mul", "Mul", []),
        (paddings("x", 2), [3, [1, 2]], (3, (1, 2)), []),
        (scalars("x"), [{"Float": 0.5}], (Scalar("Float", 0.5),), []),
        (devices("x"), [[0, 1], [0, 2]], ((0, 1), (0, 2)), []),
        (string("x"), "é", "é", []),
        (distribution("x"), "Default", ("Default",), []),
        (distribution("x"), {"Bernoulli": 0.5}, ("Bernoulli", 0.5), []),
        (distribution("x"), {"Normal": [0.0, -1.0]}, ("Normal", 0.0, -1.0), []),
        (quantization_scheme("x"), SCHEME.to_wire(), SCHEME, []),
        (options("x", usize("a"), boolean("b")), [5, False], (5, False), []),
    ],
)
def test_a_field_encodes_what_it_decodes(field: Field, wire: Any, argument: Any, ids: Any) -> None:
    packed = msgpack.packb(wire)
    for form in (wire, msgpack.unpackb(packed, use_list=False, object_pairs_hook=FrozenMap)):
        tensors: list[int] = []
        assert field.codec.decode(form, tensors) == argument
        assert tensors == ids

    taken = iter(ids)
    assert msgpack.packb(field.codec.encode(argument, taken)) == packed
    assert list(taken) == []


@pytest.mark.parametrize(
    ("field", "wires"),
    [
        (tensor_in("x"), [None, [], tensor(7, "NotInit"), [tensor(7)]]),
        (tensor_out("x"), [tensor(7), tensor(7, "ReadWrite"), None]),
        (optional_tensor_in("x"), [[], False]),
        (tensors_in("x"), [None, tensor(7), [None], {}]),
        (quantization_parameters("x"), [tensor(7), [], [None], [tensor(7)] * 3]),
        (usize("x"), [-1, 2**64, 1.0, True, None, "1"]),
        (optional_usize("x"), [-1, False]),
        (boolean("x"), [0, 1, None, "true"]),
        (scalar("x"), [1, None, {"Int": 0.5}]),
        (usize_list("x"), [1, None, [-1], [None], {1: 1}, b"\x01", "1"]),
        (usize_array("x", 2), [[1], [1, None], 1]),
        (slices("x"), [[[0, 1]], [0, 1, 1], None]),
        (name_of("x", "Add", "Mul"), ["add", "", None, ["Add"], {"Add": None}]),
        (paddings("x", 1), [[-1], [[1]], [[1, -1]], [[1, 2, 3]], 1, [None], [1, 1]]),
        (scalars("x"), [None, [0.5], {"Float": 0.5}]),
        (devices("x"), [None, [1], [[1]], [[1, -1]]]),
        (string("x"), [None, b"x", 5]),
        (distribution("x"), ["Uniform", None, {"Default": None}, {"Bernoulli": [0.5]}]),
        (distribution("x"), [{"Uniform": 0.5}, {"Uniform": [0.5]}, {"Normal": [0, 1]}]),
        (quantization_scheme("x"), [None, [], "Q8S"]),
        (options("x", usize("a"), boolean("b")), [[5], [5, 5], [5, True, 1], None, {}]),
    ],
)
def test_a_field_refuses_invalid_values(field: Field, wires: list[Any]) -> None:
    for wire in wires:
        with pytest.raises(ProtocolViolation):
            field.codec.decode(wire, [])


@pytest.mark.parametrize(
    ("field", "wire"),
    [
        (tensors_in("x"), [tensor(7)] * 65_537),
        (usize_list("x"), [0] * 33),
        (usize_array("x", 2), [0] * 3),
        (slices("x"), [[0, None, 1]] * 33),
        (string("x"), "x" * 257),
    ],
)
def test_values_over_a_limit_raise_limit_exceeded(field: Field, wire: Any) -> None:
    with pytest.raises(LimitExceeded):
        field.codec.decode(wire, [])


def test_golden_distributions_are_encoded_to_the_bytes_they_were_decoded_from() -> None:
    kind = distribution("x").codec
    for line in golden("Distribution"):
        for wire in (line.tuples, line.lists):
            encoded = kind.encode(kind.decode(wire, []), iter(()))
            assert msgpack.packb(encoded) == line.payload, line.name


@pytest.mark.parametrize(
    ("field", "argument", "specs"),
    [
        (tensor_in("x"), READ, SPEC),
        (optional_tensor_in("x"), None, None),
        (optional_tensor_in("x"), READ, SPEC),
        (tensors_in("x"), (READ, READ), (SPEC, SPEC)),
        (quantization_parameters("x"), READ, SPEC),
    ],
)
def test_rules_see_the_specs_of_tensors(field: Field, argument: Any, specs: Any) -> None:
    assert field.role is Role.INPUT
    assert field.codec.specs(argument) == specs


@pytest.mark.parametrize(
    ("field", "argument", "parameters"),
    [
        (usize("x"), 5, {"x": 5}),
        (scalar("x"), Scalar("UInt", 5), {"x": 5}),
        (optional_scalar("x"), None, {"x": None}),
        (optional_scalar("x"), Scalar("Float", 0.5), {"x": 0.5}),
        (options("x", usize("a"), optional_scalar("b")), (5, None), {"a": 5, "b": None}),
    ],
)
def test_rules_and_kernels_see_plain_values(field: Field, argument: Any, parameters: Any) -> None:
    collected: dict[str, Any] = {}

    field.codec.collect(field.name, argument, collected)

    assert field.role is Role.PARAMETER
    assert collected == parameters


def test_a_parameter_holds_no_tensor() -> None:
    with pytest.raises(TypeError, match="UnsignedCodec holds no tensor"):
        usize("x").codec.specs(5)
