"""Burn's dialect reads and writes the bytes that the real thing writes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.dialects import burn_0_21 as burn
from burn_remote_protocol.errors import OperationFailed, ProtocolViolation
from burn_remote_protocol.messages import Drop, Expose, Read
from support.recorded import Golden, golden

TASKS = golden("Task")
ANSWERS = golden("TaskResponse")
DATA = golden("DataServiceMessage")


def connection(task: Golden) -> tuple[int, int]:
    _, (position, (stream,)) = task.lists["Compute"]
    return position, stream


def named(value: Golden) -> str:
    return value.name


@pytest.mark.parametrize("task", [t for t in TASKS if "Compute" in t.lists], ids=named)
def test_a_task_is_read_and_written_again_byte_for_byte(task: Golden) -> None:
    decoded = burn.decode_frame(task.payload)
    assert isinstance(decoded, tuple)
    written = burn.encode_task(decoded[0], *connection(task))
    # Our side always reads; that a tensor is used for the last time becomes a drop.
    is_last = isinstance(decoded[0], Read | Expose) and isinstance(decoded[-1], Drop)
    expected = task.payload.replace(b"\xa9ReadWrite", b"\xa8ReadOnly") if is_last else task.payload
    assert written == expected


@pytest.mark.parametrize("frame", [t for t in TASKS if "Compute" not in t.lists], ids=named)
def test_a_session_opens_and_closes_with_its_id(frame: Golden) -> None:
    decoded = burn.decode_frame(frame.payload)
    write = burn.encode_init if isinstance(decoded, burn.Opened) else burn.encode_close
    assert write(decoded.session) == frame.payload  # type: ignore[union-attr]


@pytest.mark.parametrize("answer", ANSWERS, ids=named)
def test_an_answer_is_read_and_written_again_byte_for_byte(answer: Golden) -> None:
    decoded = burn.decode_answer(answer.payload)
    content, _ = answer.lists
    if isinstance(decoded.value, OperationFailed):
        assert decoded.value.reason in str(content)
        return
    request = decoded.stream << 64 | decoded.position
    assert burn.encode_answer(request, decoded.value) == answer.payload


@pytest.mark.parametrize("message", DATA, ids=named)
def test_a_message_between_servers_is_read_and_written_again(message: Golden) -> None:
    if "TensorRequest" in message.lists:
        transfer = burn.decode_transfer_request(message.payload)
        assert burn.encode_transfer_request(transfer) == message.payload
    else:
        data = burn.decode_fetched(message.payload)
        assert burn.encode_fetched(data) == message.payload


@given(st.binary(max_size=100))
def test_random_bytes_never_raise_anything_but_a_violation(frame: bytes) -> None:
    for decode in (burn.decode_frame, burn.decode_answer, burn.decode_fetched):
        with pytest.raises(ProtocolViolation):
            decode(frame)


JUNK: Any = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(sorted(burn._DECODE_TASK)), JUNK)
def test_tasks_of_nonsense_never_raise_anything_but_a_violation(kind: str, body: Any) -> None:
    import msgpack

    frame = msgpack.packb({"Compute": [{kind: body}, [1, [2]]]})
    try:
        burn.decode_frame(frame)
    except ProtocolViolation:
        return
    assert kind in ("Seed", "DTypeUsage")
