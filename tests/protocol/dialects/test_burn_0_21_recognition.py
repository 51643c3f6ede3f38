"""Operations recognized by their bytes equal those that full decoding gives."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.dialects.burn_0_21 import encode_identity, request_id
from burn_remote_protocol.dialects.burn_0_21_recognition import (
    OperationTemplate,
    recognize_operation,
)
from burn_remote_protocol.dtypes import F64
from burn_remote_protocol.frozen_map import FrozenMap
from burn_remote_protocol.operations.encoding import decode_operation, encode_operation
from burn_remote_protocol.operations.families import numeric
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import Scalar, TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus
from support.recorded import Golden, golden, recordings, sessions

OPERATIONS = [one for one in golden("Task") if b"RegisterOperation" in one.payload[:30]]
IDS = st.integers(0, 2**64 - 1)


def decoded(frame: bytes) -> Operation:
    """Decode a frame in full."""
    wire = msgpack.unpackb(frame, use_list=False, object_pairs_hook=FrozenMap)
    return decode_operation(wire[0][1][0][0][1])


@pytest.mark.parametrize("one", OPERATIONS, ids=lambda one: one.name)
def test_an_operation_is_recognized(one: Golden) -> None:
    for _ in range(2):
        assert recognize_operation(one.payload) == decoded(one.payload)


@pytest.mark.parametrize("recording", recordings())
def test_recorded_operations_are_recognized(recording: str) -> None:
    for session in sessions(recording):
        for frame in session["frames"]:
            payload = frame["payload"]
            if b"RegisterOperation" in payload[:40]:
                assert recognize_operation(payload) == decoded(payload)


@pytest.mark.parametrize("one", OPERATIONS[::29], ids=lambda one: one.name)
@given(data=st.data(), position=IDS, stream=IDS)
def test_a_template_encodes_the_operations_that_it_recognizes(
    one: Golden, data: st.DataObject, position: int, stream: int
) -> None:
    signature, tensors = decoded(one.payload)
    ids = data.draw(st.lists(IDS, min_size=len(tensors), max_size=len(tensors)))
    tail = encode_identity(request_id(position, stream))
    frame = OperationTemplate(signature).write(ids, (), tail, msgpack.packb)
    assert recognize_operation(frame) == (signature, tuple(ids))
    assert decoded(frame) == (signature, tuple(ids))


@pytest.mark.parametrize("one", OPERATIONS, ids=lambda one: one.name)
def test_a_template_marks_last_uses_as_the_real_client_does(one: Golden) -> None:
    signature, tensors = decoded(one.payload)
    position, (stream,) = one.lists["Compute"][1]
    last = [
        index
        for index, use in enumerate(signature.input_uses)
        if use.status is TensorStatus.READ_WRITE
    ]
    tail = encode_identity(request_id(position, stream))
    frame = OperationTemplate(signature).write(tensors, last, tail, msgpack.packb)
    assert frame == one.payload


def scalar_frame(bits: bytes, tensor: int) -> bytes:
    """Return an addition of the number that has these bits."""
    (number,) = msgpack.unpackb(b"\x91\xcb" + bits)
    use = TensorUse(TensorSpec((1,), F64), TensorStatus.READ_ONLY)
    out = use._replace(status=TensorStatus.NOT_INIT)
    signature = sign(numeric.ADD_SCALAR, use, Scalar("Float", number), out)
    operation = encode_operation(Operation(signature, (tensor, tensor + 1)))
    return bytes(msgpack.packb({"Compute": [{"RegisterOperation": operation}, [5, [0]]]}))


def test_a_number_that_looks_like_a_tensor_stays_a_number() -> None:
    looks_like = b"\x40\x94\x91\x07\x91\x00\x00\x00"
    other = b"\x40\x94\x91\x08\x91\x00\x00\x00"
    for bits in (looks_like, other, looks_like):
        frame = scalar_frame(bits, 3)
        found = recognize_operation(frame)
        assert found is None or found == decoded(frame)
        assert decoded(frame).tensors == (3, 4)


@given(frame=st.binary(max_size=60), cut=st.integers(0, 100))
def test_malformed_frames_are_not_recognized(frame: bytes, cut: int) -> None:
    assert recognize_operation(frame) is None
    changed = OPERATIONS[0].payload[:cut] + frame
    found = recognize_operation(changed)
    # Some changes give another well-formed frame, for example another stream in the last byte.
    assert found is None or found == decoded(changed)
