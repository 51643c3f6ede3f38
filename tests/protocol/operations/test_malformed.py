"""Tests of hostile input: decoding raises nothing but ``ProtocolViolation``."""

from __future__ import annotations

import copy
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation, UsageError
from burn_remote_protocol.frozen_map import FrozenMap
from burn_remote_protocol.operations.encoding import decode_operation, encode_operation
from burn_remote_protocol.operations.inference import check_declared
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.operations.wire_values import (
    decode_scalar,
    decode_slice,
    decode_tensor,
    decode_tensor_data,
)
from support.recorded import golden

WORDS = ("NumericFloat", "Add", "Custom", "Drop", "Init", "F32", "Bool", "Float", "ReadOnly", "é")

atoms = (
    st.none()
    | st.booleans()
    | st.sampled_from([-1, 0, 1, 2**31, 2**63, 2**64 - 1, 2**64, 2**70, -(2**63) - 1])
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(max_size=4)
    | st.binary(max_size=4)
    | st.just(msgpack.ExtType(5, b"x"))
)

junk = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.sampled_from(WORDS) | st.integers(), inner, max_size=2)
        | st.tuples(st.tuples(st.sampled_from(WORDS), inner))
    ),
    max_leaves=12,
)

# One operation of each kind and struct; all 1,122 would make the random search less dense.
STARTS = tuple(line for line in golden("OperationIr") if line.name.endswith("/0"))


def places(wire: Any) -> list[tuple[Any, Any]]:
    """Return each container in a value with each key or index in it."""
    keys = list(wire) if isinstance(wire, dict) else range(len(wire))
    found: list[tuple[Any, Any]] = []
    for key in keys:
        found.append((wire, key))
        if isinstance(wire[key], dict | list):
            found += places(wire[key])
    return found


def tuples(wire: Any) -> Any:
    """Return a value with tuples for lists, as the fast unpacking gives it."""
    if isinstance(wire, dict):
        return FrozenMap([(name, tuples(body)) for name, body in wire.items()])
    return tuple([tuples(item) for item in wire]) if isinstance(wire, list) else wire


@given(junk)
@example([["Drop", [[1], [[1]], "ReadOnly", "F32"]]])
@example(bytearray(4))
@settings(max_examples=400)
def test_junk_is_refused_as_a_protocol_violation(wire: Any) -> None:
    for decode in (
        decode_operation, decode_tensor, decode_tensor_data, decode_scalar, decode_slice,
    ):  # fmt: skip
        try:
            decode(wire)
        except ProtocolViolation as error:
            assert len(str(error)) < 2000


@given(st.data())
@settings(max_examples=1500, suppress_health_check=[HealthCheck.too_slow])
def test_an_operation_with_one_part_replaced_is_refused_or_read_exactly(
    data: st.DataObject,
) -> None:
    wire = copy.deepcopy(data.draw(st.sampled_from(STARTS)).lists)
    container, key = data.draw(st.sampled_from(places(wire)))
    container[key] = data.draw(junk)

    read = [decoded(form) for form in (wire, tuples(wire), tuples(wire))]

    assert read[0] is None or msgpack.packb(encode_operation(read[0])) == msgpack.packb(wire)
    assert read[1] == read[2]


@given(st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_an_operation_with_a_part_missing_is_refused_or_read_exactly(data: st.DataObject) -> None:
    wire = copy.deepcopy(data.draw(st.sampled_from(STARTS)).lists)
    container, key = data.draw(st.sampled_from(places(wire)))
    del container[key]

    read = decoded(wire)

    # Axes, slices, dims and lists of tensors may be shorter.
    assert read is None or msgpack.packb(encode_operation(read)) == msgpack.packb(wire)


def decoded(wire: Any) -> Operation | None:
    """Decode and check an operation; return ``None`` if it is refused with an allowed error."""
    try:
        operation = decode_operation(wire)
    except ProtocolViolation as error:
        assert len(str(error)) < 2000
        return None
    try:
        check_declared(operation.signature)
    except (UsageError, LimitExceeded) as error:
        assert len(str(error)) < 5000
    return operation


@pytest.mark.parametrize("line", golden("OperationIr"), ids=lambda line: line.name)
def test_rules_refuse_or_accept_golden_operations_without_other_errors(line: Any) -> None:
    assert decoded(line.tuples) is not None
