"""Burn's frames are read and written byte for byte as the real crates do."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from burn_remote_protocol.dialects.bounded_unpacking import MAX_VALUE_BYTES
from burn_remote_protocol.dialects.burn_0_21 import (
    Close,
    decode_init,
    decode_tasks,
    drop_frame,
    encode_close,
    encode_identity,
    encode_init,
    encode_tasks,
    request_id,
    task_bytes,
)
from burn_remote_protocol.dtypes import F32, U8
from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.messages import Drop, Execute, Expose, Fetch, Read, Sync, Task, Upload
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.tensors import TensorData, TensorSpec
from support.recorded import Golden, golden

TASKS = [one for one in golden("Task") if b"Compute" in one.payload[:10]]
SPEC = TensorSpec((2, 3), F32)


def written(tasks: tuple[Any, ...], identity: Any) -> bytes:
    """Encode decoded tasks."""
    position, (stream,) = identity
    full: list[Task] = [Execute(one) if isinstance(one, Operation) else one for one in tasks]
    return encode_tasks(full, request_id(position, stream))


@pytest.mark.parametrize("one", TASKS, ids=lambda one: one.name)
def test_a_task_is_encoded_to_the_bytes_it_was_decoded_from(one: Golden) -> None:
    assert written(decode_tasks(one.payload), one.lists["Compute"][1]) == one.payload


@pytest.mark.parametrize("one", golden("SessionId"), ids=lambda one: one.name)
def test_sockets_open_and_close_with_the_session(one: Golden) -> None:
    (session,) = one.lists
    assert encode_init(session) == b"\x81\xa4Init" + one.payload
    assert decode_init(encode_init(session)) == session
    assert encode_close(session) == b"\x81\xa5Close" + one.payload
    assert decode_tasks(encode_close(session)) == (Close(session),)


@pytest.mark.parametrize("one", golden("ConnectionId"), ids=lambda one: one.name)
def test_position_and_stream_are_packed_into_one_integer(one: Golden) -> None:
    position, (stream,) = one.lists
    assert encode_identity(request_id(position, stream)) == one.payload
    assert decode_tasks(encode_tasks([Sync(0)], request_id(position, stream))) == (
        Sync(request_id(position, stream)),
    )


def test_a_last_read_frees_its_tensor() -> None:
    request = request_id(7, 1)
    once, last = (Read(request, 3, SPEC),), (Read(request, 3, SPEC), Drop((3,)))
    assert decode_tasks(encode_tasks(once, request)) == once
    assert decode_tasks(encode_tasks(last, request)) == last


def test_a_last_expose_frees_its_tensor() -> None:
    frame = encode_tasks([Expose(3, SPEC, 1, 0, 1.0), Drop((3,))], 0)
    expose, drop = decode_tasks(frame)
    assert isinstance(expose, Expose) and expose.transfer == 0
    assert drop == Drop((3,))


def test_a_drop_is_written_without_shape_and_dtype() -> None:
    (operation,) = decode_tasks(drop_frame(2**40, encode_identity(request_id(1, 2))))
    assert isinstance(operation, Operation)
    assert operation.signature.row.name == "Drop"
    assert operation.tensors == (2**40,)


def test_a_fetch_has_no_shape_and_dtype() -> None:
    (fetch,) = decode_tasks(encode_tasks([Fetch(1, "ws://a:1", 5, None)], 0))
    assert fetch == Fetch(1, "ws://a:1", 5, None)


@pytest.mark.parametrize(
    "wire",
    [
        None,
        [],
        {"Compute": []},
        {"Compute": ["SyncBackend"]},
        {"Compute": ["SyncBackend", [0, 0]]},
        {"Compute": ["SyncBackend", [-1, [0]]]},
        {"Compute": ["Sync", [0, [0]]]},
        {"Compute": [{"Seed": -1}, [0, [0]]]},
        {"Compute": [{"Seed": 2**63, "More": 1}, [0, [0]]]},
        {"Compute": [{"RegisterOperation": {"Drop": [[1], [[]], "ReadWrite"]}}, [0, [0]]]},
        {"Compute": [{"RegisterTensor": [[1], [b"123", [1], "F32"]]}, [0, [0]]]},
        {"Compute": [{"ReadTensor": [[1], [[-2]], "ReadOnly", "F32"]}, [0, [0]]]},
        {"Compute": [{"ReadTensor": 5}, [0, [0]]]},
        {
            "Compute": [
                {"ExposeTensorRemote": [[[1], [[2]], "ReadOnly", "F32"], 2**32, 0]},
                [0, [0]],
            ]
        },
        {"Compute": [{"RegisterTensorRemote": [[0, ["x" * 2000]], [1]]}, [0, [0]]]},
        {"Compute": [{"DTypeUsage": "F31"}, [0, [0]]]},
        {"Close": []},
        {"Init": [1]},
    ],
    ids=str,
)
def test_invalid_tasks_are_refused(wire: Any) -> None:
    with pytest.raises(ProtocolViolation):
        decode_tasks(msgpack.packb(wire))


@pytest.mark.parametrize("one", TASKS[::23], ids=lambda one: one.name)
def test_a_truncated_frame_is_refused(one: Golden) -> None:
    for length in range(len(one.payload)):
        with pytest.raises(ProtocolViolation):
            decode_tasks(one.payload[:length])


def test_a_large_upload_is_read_without_a_copy_of_its_elements() -> None:
    size = 2 * MAX_VALUE_BYTES
    data = TensorData(bytes(range(256)) * (size // 256), (size,), U8)
    frame = encode_tasks([Upload(2**63, data)], 5)
    (upload,) = decode_tasks(frame)
    assert isinstance(upload, Upload)
    assert (upload.tensor, upload.data.shape, upload.data.dtype) == (2**63, (size,), U8)
    assert isinstance(upload.data.bytes, memoryview)
    assert upload.data.bytes == data.bytes
    assert upload.data.bytes.obj is frame


@pytest.mark.parametrize("size", [100, 3000, 2**20])
def test_elements_count_once_in_the_memory_of_a_task(size: int) -> None:
    data = TensorData(b"\x91" * size, (size,), U8)
    frame = encode_tasks([Upload(7, data)], 1)
    assert size < task_bytes(frame) < size + 8000


def test_a_large_frame_that_is_not_an_upload_is_refused() -> None:
    lists = b"\xdd" + (4096).to_bytes(4, "big") + b"\x91\xc0" * 4096
    frame = b"\x81\xa7Compute\xdc" + (100).to_bytes(2, "big") + lists * 100
    with pytest.raises(LimitExceeded, match="819,"):
        decode_tasks(frame)
