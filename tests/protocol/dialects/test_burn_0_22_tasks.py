"""Messages for servers of Burn 0.22 survive decoding, and have the bytes of Burn's client."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import numpy as np
import pytest

from burn_remote_protocol.dialects.burn_0_21_recognition import OperationTemplate
from burn_remote_protocol.dialects.burn_0_22 import Close, decode_messages
from burn_remote_protocol.dialects.burn_0_22_tasks import (
    MAX_JOINED_BYTES,
    MAX_JOINED_MESSAGES,
    OPERATION_HEAD,
    encode_close,
    encode_drop,
    encode_task,
    joined,
)
from burn_remote_protocol.dtypes import C64, F32, I64
from burn_remote_protocol.errors import BurnRemoteError, Unsupported
from burn_remote_protocol.messages import (
    Drop,
    Expose,
    Fetch,
    QueryDType,
    Read,
    Seed,
    Sync,
    Task,
    Upload,
)
from burn_remote_protocol.operations.families import numeric
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.vocabularies import Vocabulary
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorData, TensorSpec, TensorStatus
from support.recorded import DATA
from support.specs import f32

SERVER = "ws://node-a:3000"
ELEMENTS = TensorData(np.arange(2, dtype=np.float32).tobytes(), (2,), F32)
TASKS: list[tuple[Task, ...]] = [
    (Upload(2**40, ELEMENTS),),
    (Fetch(2**63, "ws://node-b:3001", 7, None),),
    (Expose(7, f32(2), 3, 2**64 - 1, 86_400.0),),
    (Expose(7, f32(2), 3, 5, 86_400.0), Drop((7,))),
    (Read(5, 7, f32(2)),),
    (Read(5, 7, f32(2)), Drop((7,))),
    (Seed(9),),
    (QueryDType(4, I64),),
    (Sync(6),),
]


def framed(*messages: bytes) -> list[bytes]:
    return [*joined(messages)]


@pytest.mark.parametrize(
    "tasks", TASKS, ids=lambda tasks: "+".join(type(t).__name__ for t in tasks)
)
def test_a_task_is_read_as_it_was_written(tasks: tuple[Task, ...]) -> None:
    (frame,) = framed(encode_task(tasks, SERVER))

    assert decode_messages(frame) == [*tasks]


@pytest.mark.parametrize("kind", ["ReadTensor", "SyncBackend", "DTypeUsage", "Seed"])
def test_a_message_of_burns_client_is_written_byte_for_byte(kind: str) -> None:
    lines = (DATA / "messages-0.22.jsonl").read_text("utf-8").splitlines()
    recorded = [
        bytes.fromhex(one["hex"])
        for one in map(json.loads, lines)
        if f"/{kind}/" in one["name"] and "Task/" in one["name"]
    ]
    assert recorded
    for message in recorded:
        tasks: Any = decode_messages(b"\x91" + message)
        ours, theirs = msgpack.unpackb(encode_task(tasks, SERVER)), msgpack.unpackb(message)
        body, expected = ours["Task"][kind], theirs["Task"][kind]
        if isinstance(body, list) and kind != "DTypeUsage":
            body[1] = expected[1]  # the stream, of which our client has one
        assert msgpack.packb(ours) == message


def test_a_drop_names_its_tensor_alone() -> None:
    (frame,) = framed(encode_drop(2**40))

    (found,) = decode_messages(frame)

    assert isinstance(found, Operation)
    assert (found.signature.kind, found.tensors) == ("Drop", (2**40,))


def test_a_close_names_its_session() -> None:
    (frame,) = framed(encode_close(2**64 - 1))

    assert decode_messages(frame) == [Close(2**64 - 1)]


def test_an_operation_is_written_after_its_head() -> None:
    use = TensorUse(f32(2), TensorStatus.READ_ONLY)
    signature = sign(numeric.ADD, use, use, use._replace(status=TensorStatus.NOT_INIT))
    template = OperationTemplate(signature, Vocabulary.BURN_0_22, OPERATION_HEAD)

    (frame,) = framed(template.write([1, 2**33, 3], (), b"", msgpack.packb))

    assert decode_messages(frame) == [Operation(signature, (1, 2**33, 3))]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 5000])
def test_joined_messages_are_all_in_frames_in_order(count: int) -> None:
    frames = framed(*(encode_close(number) for number in range(count)))

    found = [message for frame in frames for message in decode_messages(frame)]

    assert found == [Close(number) for number in range(count)]
    assert len(frames) == -(-count // MAX_JOINED_MESSAGES)


def test_long_messages_get_frames_of_their_own() -> None:
    elements = TensorData(bytes(MAX_JOINED_BYTES), (MAX_JOINED_BYTES // 4,), F32)
    upload = encode_task((Upload(1, elements),), SERVER)

    frames = framed(encode_close(1), upload, encode_close(2), encode_close(3))

    assert [len(decode_messages(frame)) for frame in frames] == [1, 1, 2]


@pytest.mark.parametrize(
    "task",
    [
        Fetch(1, "ws://node-b:3000/1", 7, None),
        Expose(7, f32(2), 1, 1, 86_400.0),
    ],
    ids=["a fetch from it", "an expose by it"],
)
def test_an_address_with_a_path_is_refused(task: Task) -> None:
    with pytest.raises(Unsupported, match="have no path"):
        encode_task((task,), "ws://node-a:3000/token/secret")


def test_a_refused_address_does_not_show_its_token() -> None:
    with pytest.raises(Unsupported) as raised:
        encode_task((Fetch(1, "ws://node-b:3000/token/secret", 7, None),), SERVER)

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "task",
    [
        Upload(1, TensorData(bytes(16), (2,), C64)),
        Read(1, 2, TensorSpec((2,), C64)),
        QueryDType(1, C64),
    ],
    ids=lambda task: type(task).__name__,
)
def test_a_dtype_that_burn_lacks_is_refused(task: Task) -> None:
    with pytest.raises(BurnRemoteError):
        encode_task((task,), SERVER)
