"""Responses to clients and tensors for other servers have the bytes of the real crates."""

from __future__ import annotations

import mmap

import pytest

from burn_remote_protocol.dialects.burn_0_21_responses import (
    BurnReply,
    decode_data,
    decode_data_request,
    decode_reply,
    encode_data,
    encode_data_request,
    encode_reply,
)
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import (
    LimitExceeded,
    OperationFailed,
    OutOfMemory,
    ProtocolViolation,
)
from burn_remote_protocol.tensors import TensorData
from support.recorded import Golden, golden

# The backtrace that this variant could hold never crosses the wire: both read the same.
ANSWERS = [one for one in golden("TaskResponse") if "WithContext" not in one.name]
TENSORS = [one for one in golden("DataServiceMessage") if "Request" not in one.name]
REQUESTS = [one for one in golden("DataServiceMessage") if "Request" in one.name]


@pytest.mark.parametrize("one", ANSWERS, ids=lambda one: one.name)
def test_a_response_is_encoded_to_the_bytes_it_was_decoded_from(one: Golden) -> None:
    answer = decode_reply(one.payload)
    assert b"".join(encode_reply(answer, is_sync="Sync" in one.name)) == one.payload


def test_an_error_of_either_kind_has_its_reason() -> None:
    for one in golden("TaskResponse"):
        if "Err" in one.name:
            error = decode_reply(one.payload).value
            assert isinstance(error, OperationFailed)
            assert error.reason == "boom"


def test_an_error_is_encoded_with_all_its_fields() -> None:
    error = OutOfMemory("no room", operation="Numeric.Add", shapes="float32[2]")
    answer = decode_reply(b"".join(encode_reply(BurnReply(5, error))))
    assert str(answer.value) == str(error)


@pytest.mark.parametrize("one", TENSORS, ids=lambda one: one.name)
def test_a_tensor_for_a_peer_is_encoded_to_the_bytes_it_was_decoded_from(one: Golden) -> None:
    assert b"".join(encode_data(decode_data(one.payload))) == one.payload


@pytest.mark.parametrize("one", REQUESTS, ids=lambda one: one.name)
def test_a_peers_request_is_encoded_to_the_bytes_it_was_decoded_from(one: Golden) -> None:
    assert encode_data_request(decode_data_request(one.payload)) == one.payload


def test_elements_are_not_copied() -> None:
    elements = bytearray(24)
    pieces = encode_data(TensorData(elements, (2, 3), F32))
    elements[0] = 7
    assert decode_data(b"".join(pieces)).bytes[0] == 7


def test_more_bytes_than_messagepack_can_represent_are_refused() -> None:
    # Memory pages that are never touched are not allocated.
    with mmap.mmap(-1, 2**32) as huge, pytest.raises(LimitExceeded):
        encode_data(TensorData(memoryview(huge), (2**30,), F32))


@pytest.mark.parametrize("one", [*ANSWERS[::5], *TENSORS[::5]], ids=lambda one: one.name)
def test_truncated_messages_are_refused(one: Golden) -> None:
    decode = decode_data if one in TENSORS else decode_reply
    for length in range(min(len(one.payload), 200)):
        with pytest.raises(ProtocolViolation):
            decode(one.payload[:length])


def test_a_large_tensor_of_a_peer_is_read_without_a_copy_of_its_elements() -> None:
    data = TensorData(bytes(2**20), (2**18,), F32)
    frame = b"".join(encode_data(data))
    read = decode_data(frame)
    assert read.bytes == data.bytes
    assert isinstance(read.bytes, memoryview)
    assert read.bytes.obj is frame
    assert (read.shape, read.dtype) == ((2**18,), F32)
