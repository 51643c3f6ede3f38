"""Replies complete the requests that wait for them, and a sync raises the first failure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote.runner.pending import Pending
from burn_remote.sessions.native.native_response_router import UNREPORTED_LENGTH, ResponseRouter
from burn_remote.sessions.source_locations import RING_LENGTH, Locations
from burn_remote_protocol.dialects.native import Batch
from burn_remote_protocol.dtypes import F32, U8, DTypeUsage
from burn_remote_protocol.errors import (
    ClosedDevice,
    ConnectionLost,
    OperationFailed,
    ProtocolViolation,
    SessionLost,
)
from burn_remote_protocol.messages import Acknowledged, Chunk, Closing, Failed, Reply
from burn_remote_protocol.tensors import TensorData, TensorSpec
from support.response_routers import FailureConformance
from support.specs import f32


def failed(tensor: int) -> Failed:
    return Failed((tensor,), OperationFailed(f"failure {tensor}", operation="Add", tensor=tensor))


def chunk_of(request: int, offset: int, data: bytes) -> Chunk:
    return Chunk(request, offset, memoryview(data))


def asked(answers: ResponseRouter, request: int) -> Pending[Any]:
    pending: Pending[Any] = Pending()
    answers.expect(request, pending, None)
    return pending


def test_a_sync_raises_the_first_of_many_failures() -> None:
    answers = ResponseRouter(Locations())
    sync = asked(answers, 1)
    for tensor in range(UNREPORTED_LENGTH + 10):
        answers.take(failed(tensor))
    answers.take(Reply(1, None))
    with pytest.raises(OperationFailed, match=r"failure 0\b"):
        sync.result(0)


def test_a_sync_raises_no_failure_that_a_read_has_raised() -> None:
    answers = ResponseRouter(Locations())
    read, sync = asked(answers, 1), asked(answers, 2)
    for tensor in (5, 6):
        answers.take(failed(tensor))
    answers.take(Reply(1, failed(5).error))
    answers.take(Reply(2, None))
    for pending, tensor in ((read, 5), (sync, 6)):
        with pytest.raises(OperationFailed, match=rf"failure {tensor}\b"):
            pending.result(0)


@pytest.mark.parametrize("value", [None, failed(5).error])
def test_a_reply_is_delivered_although_another_thread_ends_the_session(value: Any) -> None:
    answers = ResponseRouter(Locations())
    pending, other = asked(answers, 1), asked(answers, 2)
    pending.when_done(lambda _: answers.fail(ClosedDevice("closed")))
    answers.take(Reply(1, value))
    for one, error in ((pending, OperationFailed if value else None), (other, ClosedDevice)):
        if error is None:
            one.result(0)
        else:
            with pytest.raises(error):
                one.result(0)


def test_a_failure_names_its_line_however_many_operations_follow() -> None:
    locations = Locations()
    answers = ResponseRouter(locations)
    note(locations, 1)
    answers.take(failed(1))
    for tensor in range(2, RING_LENGTH + 2):
        note(locations, tensor)
    sync = asked(answers, 1)
    answers.take(Reply(1, None))
    with pytest.raises(OperationFailed, match="test_native_response_router"):
        sync.result(0)


# -- replies ----------------------------------------------------------------------------------


def read_of(answers: ResponseRouter, request: int, spec: TensorSpec) -> Pending[Any]:
    pending: Pending[Any] = Pending()
    answers.expect(request, pending, spec)
    return pending


def test_replies_complete_their_requests_in_any_order() -> None:
    answers = ResponseRouter(Locations())
    sync, usage, read = asked(answers, 1), asked(answers, 2), read_of(answers, 3, f32(2))
    answers.take(Reply(3, bytes(8)))
    assert (sync.done(), usage.done()) == (False, False)
    answers.take(Reply(2, 3))
    answers.take(Reply(1, None))
    assert sync.result(0) is None
    assert usage.result(0) == DTypeUsage.STORAGE | DTypeUsage.ARITHMETIC
    assert read.result(0) == TensorData(bytes(8), (2,), F32)


@pytest.mark.parametrize(
    "message",
    [
        Reply(2, None),
        Reply(2, bytes(8)),
        Reply(2, OperationFailed("why", tensor=1)),
        Reply(2, f32(2)),
        chunk_of(2, 0, b"abcd"),
        chunk_of(2, 0, b""),
        Batch(0, ()),
        Acknowledged(1),
    ],
)
def test_a_message_for_no_open_request_is_a_violation(message: object) -> None:
    answers = ResponseRouter(Locations())
    other = asked(answers, 1)
    with pytest.raises(ProtocolViolation):
        answers.take(message)
    assert not other.done()


def test_a_second_reply_is_a_violation() -> None:
    answers = ResponseRouter(Locations())
    for request, reply in ((1, Reply(1, None)), (2, Reply(2, OperationFailed("why", tensor=1)))):
        asked(answers, request)
        answers.take(reply)
        with pytest.raises(ProtocolViolation, match=f"a reply to request {request}"):
            answers.take(reply)


@pytest.mark.parametrize("value", [bytes(7), bytes(9), b"", None, 3, f32(3), f32(2, 1)], ids=repr)
def test_a_read_accepts_only_what_it_asked_for(value: Any) -> None:
    answers = ResponseRouter(Locations())
    read = read_of(answers, 1, f32(2))
    with pytest.raises(ProtocolViolation):
        answers.take(Reply(1, value))
    assert not read.done()


@pytest.mark.parametrize("value", [bytes(8), b"", f32(2)], ids=repr)
def test_a_sync_accepts_no_elements(value: Any) -> None:
    answers = ResponseRouter(Locations())
    sync = asked(answers, 1)
    with pytest.raises(ProtocolViolation):
        answers.take(Reply(1, value))
    assert not sync.done()


def test_a_fence_leaves_failures_to_the_next_sync() -> None:
    answers = ResponseRouter(Locations())
    fenced: Pending[Any] = Pending()
    answers.expect(1, fenced, None, reports_failures=False)
    sync, later = asked(answers, 2), asked(answers, 3)
    answers.take(failed(5))
    for request in (1, 2, 3):
        answers.take(Reply(request, None))
    assert fenced.result(0) is None
    with pytest.raises(OperationFailed, match=r"failure 5\b"):
        sync.result(0)
    assert later.result(0) is None


def test_the_reason_for_closing_is_raised() -> None:
    with pytest.raises(SessionLost, match="lease"):
        ResponseRouter(Locations()).take(Closing(SessionLost("the lease is over")))


def test_all_open_requests_fail_and_later_ones_do_not() -> None:
    answers = ResponseRouter(Locations())
    waiting = [asked(answers, 1), read_of(answers, 2, f32(2))]
    answers.fail(ConnectionLost("gone"))
    for pending in waiting:
        with pytest.raises(ConnectionLost, match="gone"):
            pending.result(0)
    later = asked(answers, 3)
    answers.take(Reply(3, None))
    assert later.result(0) is None


def test_a_callback_may_fail_all_requests_while_its_reply_is_taken() -> None:
    answers = ResponseRouter(Locations())
    first, second = asked(answers, 1), asked(answers, 2)
    first.when_done(lambda _: answers.fail(ConnectionLost("closed by the callback")))
    answers.take(Reply(1, None))
    assert first.result(0) is None
    with pytest.raises(ConnectionLost, match="by the callback"):
        second.result(0)


# -- downloads --------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=30), st.binary(max_size=40))
def test_chunks_make_up_the_tensor_however_it_is_cut_and_interleaved(
    cuts: list[tuple[int, bool]], elements: bytes
) -> None:
    answers = ResponseRouter(Locations())
    spec = TensorSpec((len(elements),), U8)
    reads = {request: read_of(answers, request, spec) for request in (1, 2)}
    sent = dict.fromkeys(reads, 0)
    for request in reads:
        answers.take(Reply(request, spec))
    steps = [(size, is_repeated) for size, is_repeated in cuts] + [(len(elements), False)] * 2
    for number, (size, is_repeated) in enumerate(steps):
        request = 1 + number % 2
        if reads[request].done():
            continue
        start = sent[request]
        chunk = chunk_of(request, start, elements[start : start + size])
        answers.take(chunk)
        if is_repeated:  # an interrupt came
            answers.take(chunk, is_repeated=True)
        sent[request] = start + len(chunk.data)
        assert reads[request].done() == (sent[request] == len(elements))
    for read in reads.values():
        assert bytes(read.result(0).bytes) == elements


@pytest.mark.parametrize(
    "chunk",
    [
        chunk_of(1, 0, b"again"),
        chunk_of(1, 3, b"over"),
        chunk_of(1, 6, b"gap"),
        chunk_of(1, 4, b"too long"),
    ],
    ids=["repeated", "overlapping", "gap", "too long"],
)
def test_a_chunk_out_of_place_is_a_violation(chunk: Chunk) -> None:
    answers = ResponseRouter(Locations())
    read = read_of(answers, 1, f32(2))
    answers.take(Reply(1, f32(2)))
    answers.take(chunk_of(1, 0, b"0123"))
    with pytest.raises(ProtocolViolation, match="unexpected chunk of payload 1"):
        answers.take(chunk)
    assert not read.done()


@pytest.mark.parametrize("data", [b"", b"0123"])
def test_a_chunk_that_was_not_announced_is_a_violation(data: bytes) -> None:
    answers = ResponseRouter(Locations())
    requests = [read_of(answers, 1, f32(2)), asked(answers, 2)]
    for request in (1, 2):
        with pytest.raises(ProtocolViolation, match="unexpected chunk"):
            answers.take(chunk_of(request, 0, data))
    assert not any(pending.done() for pending in requests)


def without_memory(answers: ResponseRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(size: int) -> memoryview:
        raise MemoryError("no room")

    monkeypatch.setattr(answers.memory, "allocate", allocate)


def test_a_read_without_memory_fails_alone_and_its_chunks_are_discarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = ResponseRouter(Locations())
    large, other = read_of(answers, 1, f32(2)), asked(answers, 2)
    without_memory(answers, monkeypatch)
    answers.take(Reply(1, f32(2)))
    for _ in range(2):
        with pytest.raises(MemoryError, match="no memory for the 8 bytes of float32"):
            large.result(0)
    answers.take(chunk_of(1, 0, b"0123"))
    answers.take(Reply(2, None))
    assert other.result(0) is None
    answers.take(chunk_of(1, 4, b"4567"))
    with pytest.raises(ProtocolViolation, match="unexpected chunk"):  # nothing is left of it
        answers.take(chunk_of(1, 8, b""))


@pytest.mark.parametrize(
    "message",
    [Reply(1, f32(2)), chunk_of(1, 1, b"gap"), chunk_of(1, 0, b"too long!")],
    ids=["announced twice", "gap", "too long"],
)
def test_discarded_chunks_are_checked_too(monkeypatch: pytest.MonkeyPatch, message: object) -> None:
    answers = ResponseRouter(Locations())
    read_of(answers, 1, f32(2))
    without_memory(answers, monkeypatch)
    answers.take(Reply(1, f32(2)))
    with pytest.raises(ProtocolViolation):
        answers.take(message)


def test_a_download_that_is_announced_twice_is_a_violation() -> None:
    answers = ResponseRouter(Locations())
    read = read_of(answers, 1, f32(2))
    answers.take(Reply(1, f32(2)))
    answers.take(Reply(1, f32(2)), is_repeated=True)  # after an interrupt
    answers.take(chunk_of(1, 0, b"0123"))
    with pytest.raises(ProtocolViolation):
        answers.take(Reply(1, f32(2)))
    answers.take(chunk_of(1, 4, b"4567"))
    assert bytes(read.result(0).bytes) == b"01234567"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Reply(1, bytes(8)), bytes(8)),
        (Reply(1, OperationFailed("why", tensor=1)), OperationFailed),
        (failed(7), None),
    ],
    ids=["reply", "error", "failure"],
)
def test_a_message_that_is_repeated_after_an_interrupt_counts_once(
    message: Any, expected: Any
) -> None:
    answers = ResponseRouter(Locations())
    read, sync, later = read_of(answers, 1, f32(2)), asked(answers, 2), asked(answers, 3)
    answers.take(message)
    answers.take(message, is_repeated=True)
    if isinstance(expected, bytes):
        assert read.result(0).bytes == expected
    elif expected is not None:
        with pytest.raises(expected):
            read.result(0)
    for request in (2, 3):
        answers.take(Reply(request, None))
    if expected is None:
        with pytest.raises(OperationFailed, match=r"failure 7\b"):
            sync.result(0)
    else:
        assert sync.result(0) is None
    assert later.result(0) is None


def note(locations: Locations, tensor: int) -> None:
    """Record a tensor from the same call depth as a session does."""

    def execute() -> None:
        locations.note(tensor)

    def register_op() -> None:
        execute()

    register_op()


class TestFailure(FailureConformance):
    def requests(self) -> tuple[ResponseRouter, Pending[Any], Pending[Any]]:
        router = ResponseRouter(Locations())
        return router, asked(router, 1), asked(router, 2)
