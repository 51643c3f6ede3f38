"""A Burn session encodes a program's calls in Burn's dialect and returns the responses."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from websockets.frames import Opcode

import burn_remote as br
from burn_remote.runner.interface import TensorHandle
from burn_remote.runner.stack import RunnerStack
from burn_remote.sessions.burn.burn_connection import BurnConnection
from burn_remote.sessions.burn.burn_session import BurnSession
from burn_remote.sessions.burn.outgoing_queue import Outgoing
from burn_remote.sessions.burn.server_facts import FRAGMENT_BYTES, MAX_MESSAGE_BYTES
from burn_remote.sessions.lifetime import Flusher
from burn_remote_protocol.dialects.burn_0_21 import Close, decode_tasks
from burn_remote_protocol.dtypes import BOOL, BOOL_U8, F32, DTypeUsage
from burn_remote_protocol.errors import (
    ClosedDevice,
    ConnectionFailed,
    ConnectionLost,
    OperationFailed,
    ProtocolViolation,
    UsageError,
)
from burn_remote_protocol.links.websocket import keepalive
from burn_remote_protocol.links.websocket.blocking_link import BlockingWebSocket
from burn_remote_protocol.messages import Expose, Fetch, Seed, Sync, Upload
from burn_remote_protocol.operations.families import numeric
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorData, TensorSpec, TensorStatus
from support.burn_end import ROUTES, BurnEnd, burn_end
from support.interrupts import InterruptAfterCall, InterruptAt, Walk
from support.link_ends import in_thread
from support.waiting import PATIENCE_SECONDS

SPEC = TensorSpec((2,), F32)
IN = TensorUse(SPEC, TensorStatus.READ_ONLY)
ADD = sign(numeric.ADD, IN, IN, IN._replace(status=TensorStatus.NOT_INIT))
DATA = TensorData(bytes(8), (2,), F32)


def opened(end: BurnEnd, usages: tuple[int, ...] = (3, 3, 0)) -> BurnSession:
    """Open a session as a device does, while the server's end replies to its requests."""
    device = end.admit(lambda: br.RemoteDevice(end.address, dialect="burn-0.21"), usages)
    assert isinstance(device.session, BurnSession)
    return device.session


@pytest.fixture
def end() -> Iterator[BurnEnd]:
    with burn_end() as made:
        yield made


@pytest.fixture
def session(end: BurnEnd) -> Iterator[BurnSession]:
    made = opened(end)
    yield made
    made.close()


@pytest.fixture
def x(session: BurnSession, end: BurnEnd) -> TensorHandle:
    """A tensor that is on the server."""
    handle = RunnerStack(session).register_tensor_data(DATA)
    session.flush()
    (upload,) = end.tasks()
    assert upload == Upload(handle.id, DATA)
    return handle


def add(session: BurnSession, left: TensorHandle, right: TensorHandle) -> TensorHandle:
    (out,) = RunnerStack(session).register_op(ADD, [left, right])
    return out


def test_operations_are_queued_and_sent_in_order(
    session: BurnSession, end: BurnEnd, x: TensorHandle
) -> None:
    handles = [x]
    for _ in range(5):
        handles.append(add(session, handles[-1], x))
    pending = RunnerStack(session).read_tensor_async(handles[-1])
    session.flush()
    for number in range(5):
        (operation,) = end.tasks()
        assert operation.signature.row is numeric.ADD
        assert operation.tensors == (handles[number].id, x.id, handles[number + 1].id)
    (read,) = end.tasks()
    assert (read.tensor, read.spec) == (handles[-1].id, SPEC)
    end.answer(read.request, DATA)
    assert pending.result(PATIENCE_SECONDS) == DATA


def test_queued_tasks_are_sent_without_a_flush(
    session: BurnSession, end: BurnEnd, x: TensorHandle
) -> None:
    out = add(session, x, x)
    (operation,) = end.tasks()
    assert operation.tensors[-1] == out.id


def test_a_tensor_dropped_while_its_use_is_queued_is_sent_with_its_last_use_marked(
    session: BurnSession, end: BurnEnd, x: TensorHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is sent in between, as in a fast program.
    monkeypatch.setattr(Flusher, "schedule", lambda flusher, session: None)
    first = add(session, x, x)
    last = add(session, first, x)
    del first
    session.flush()
    statuses = [
        [use.status.value for use in task.signature.input_uses]
        for _ in range(2)
        for task in end.tasks()
    ]
    assert statuses == [["ReadOnly"] * 2, ["ReadWrite", "ReadOnly"]]
    del last


def test_all_threads_of_a_program_use_one_stream(
    session: BurnSession, end: BurnEnd, x: TensorHandle
) -> None:
    def work() -> None:
        for _ in range(20):
            add(session, x, x)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.close()
    identities = [
        message["Compute"][1]
        for message in map(msgpack.unpackb, end.requests.rest())
        if "Compute" in message
    ]
    positions = [position for position, _ in identities]
    assert len(positions) >= 160
    assert positions == sorted(set(positions))
    assert {tuple(stream) for _, stream in identities} == {(0,)}


def test_tensor_ids_of_two_programs_are_far_apart(end: BurnEnd) -> None:
    ids = []
    for _ in range(2):
        with burn_end() as another:
            session = opened(another)
            ids.append(RunnerStack(session).create_empty_handles([SPEC])[0].id)
            session.close()
    assert abs(ids[0] - ids[1]) > 2**32


def test_the_largest_upload_is_sent_in_fragments_of_a_mebibyte(
    session: BurnSession, end: BurnEnd
) -> None:
    size = MAX_MESSAGE_BYTES - 400
    before = len(end.requests.frames)
    handle = RunnerStack(session).register_tensor_data(TensorData(bytes(size), (size // 4,), F32))
    (upload,) = end.tasks()
    assert (upload.tensor, len(upload.data.bytes)) == (handle.id, size)
    frames = end.requests.frames[before:]
    assert {len(frame.data) for frame in frames[:-1]} == {FRAGMENT_BYTES}
    assert [frame.opcode for frame in frames] == [Opcode.BINARY] + [Opcode.CONT] * 63
    assert [frame.fin for frame in frames] == [False] * 63 + [True]


def test_a_larger_upload_is_refused_with_the_reason_and_nothing_is_sent(
    session: BurnSession, end: BurnEnd, x: TensorHandle
) -> None:
    size = MAX_MESSAGE_BYTES
    with pytest.raises(UsageError, match=r"67,108,864 bytes.*ends the session.*concatenate"):
        RunnerStack(session).register_tensor_data(TensorData(bytes(size), (size // 4,), F32))
    session.seed(3)
    session.flush()
    assert end.tasks() == (Seed(3),)


def test_the_server_is_never_pinged(
    session: BurnSession, end: BurnEnd, x: TensorHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each reading of the clock is an hour later.
    hours = itertools.count(time.monotonic(), 3600)
    clock = SimpleNamespace(monotonic=lambda: next(hours))
    monkeypatch.setattr(keepalive, "time", clock)
    for _ in range(3):
        pending = session.sync()
        session.flush()
        (sync,) = end.tasks()
        end.answer(sync.request, None)
        pending.result()
    seen = {frame.opcode for route in ROUTES for frame in end.socket_at(route).frames}
    assert seen == {Opcode.BINARY}


def test_a_failure_names_the_line_that_issued_the_operation(
    session: BurnSession, end: BurnEnd, x: TensorHandle
) -> None:
    out = add(session, x, x)
    pending = RunnerStack(session).read_tensor_async(out)
    session.flush()
    end.tasks()
    (read,) = end.tasks()
    end.answer(read.request, OperationFailed("no such thing"))
    with pytest.raises(OperationFailed, match="no such thing") as caught:
        pending.result(PATIENCE_SECONDS)
    assert "test_burn_session.py" in caught.value.location


def test_a_sync_raises_a_failure_that_the_server_reports(
    session: BurnSession, end: BurnEnd
) -> None:
    pending = session.sync()
    session.flush()
    (sync,) = end.tasks()
    assert type(sync) is Sync
    end.answer(sync.request, OperationFailed("earlier"), is_sync=True)
    with pytest.raises(OperationFailed, match="earlier"):
        pending.result(PATIENCE_SECONDS)


def test_a_closed_socket_fails_pending_requests_and_names_the_last_operation(
    session: BurnSession, end: BurnEnd, x: TensorHandle
) -> None:
    out = add(session, x, x)
    pending = RunnerStack(session).read_tensor_async(out)
    session.flush()
    end.tasks()
    end.tasks()
    end.requests.hang_up()
    lost = r"hung up.*Numeric\.Add\(.*test_burn_session\.py"
    with pytest.raises(ConnectionLost, match=lost):
        pending.result(PATIENCE_SECONDS)
    with pytest.raises(ConnectionLost, match=lost):
        add(session, x, x)
    assert session.closed


def test_an_interrupt_before_a_read_is_registered_sends_no_read(
    session: BurnSession, end: BurnEnd, x: TensorHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(session._replies, "expect", interrupted)
        with pytest.raises(KeyboardInterrupt):
            RunnerStack(session).read_tensor_async(x)
    pending = session.sync()
    session.flush()
    (sync,) = end.tasks()
    assert type(sync) is Sync
    end.answer(sync.request, None, is_sync=True)
    pending.result(PATIENCE_SECONDS)


def test_a_response_to_an_unknown_request_ends_the_session(
    session: BurnSession, end: BurnEnd
) -> None:
    pending = session.sync()
    session.flush()
    end.tasks()
    end.answer(12345, None)
    with pytest.raises(ProtocolViolation, match=r"a reply to request .*, which is not open"):
        pending.result(PATIENCE_SECONDS)


def test_a_moved_tensor_is_exposed_before_it_is_fetched_by_address(
    session: BurnSession, end: BurnEnd, x: TensorHandle
) -> None:
    # Burn's server loses a fetch that arrives while the tensor is being exposed.
    exposing = in_thread(session.expose, x.id, x.spec, 2**63 + 1, 5.0)
    (expose,) = end.tasks()
    (question,) = end.tasks()
    assert not exposing.done()
    end.answer(question.request, 3)
    exposing.result(PATIENCE_SECONDS)
    assert isinstance(expose, Expose)
    assert (expose.tensor, expose.spec, expose.count, expose.transfer) == (x.id, SPEC, 1, 2**63 + 1)
    made = RunnerStack(session).fetch(7, "ws://elsewhere:3000", SPEC)
    session.flush()
    assert end.tasks() == (Fetch(7, "ws://elsewhere:3000", made.id, None),)


def test_a_dtype_query_returns_the_usage(session: BurnSession, end: BurnEnd) -> None:
    pending = session.dtype_usage(F32)
    session.flush()
    (question,) = end.tasks()
    assert question.dtype is F32
    end.answer(question.request, 1)
    assert pending.result(PATIENCE_SECONDS) == DTypeUsage(1)


def test_bools_are_sent_in_the_dtype_that_the_server_stores(end: BurnEnd) -> None:
    session = opened(end, usages=(0, 3, 0))
    truth = RunnerStack(session).register_tensor_data(TensorData(b"\1\0", (2,), BOOL))
    session.flush()
    (upload,) = end.tasks()
    assert upload == Upload(truth.id, TensorData(b"\1\0", (2,), BOOL_U8))
    pending = RunnerStack(session).read_tensor_async(truth)
    session.flush()
    (read,) = end.tasks()
    assert read.spec == TensorSpec((2,), BOOL_U8)
    end.answer(read.request, TensorData(b"\1\0", (2,), BOOL_U8))
    answered = pending.result(PATIENCE_SECONDS)
    assert (bytes(answered.bytes), answered.dtype) == (b"\1\0", BOOL)
    session.close()


CLOSING: Any = (
    BurnSession.close,
    BurnConnection.close,
    BurnConnection.end,
    Outgoing.drops,
    BlockingWebSocket.send_together,
)


@pytest.mark.parametrize("kind", [InterruptAfterCall, InterruptAt])
def test_ctrl_c_while_a_session_is_closed_frees_every_tensor(kind: type[InterruptAt]) -> None:
    codes = frozenset(function.__code__ for function in CLOSING)
    walk = Walk()
    for place in walk:
        with burn_end() as end:
            session = opened(end)
            tensor = session.reserve()
            session.upload(tensor, DATA)
            session.flush()
            end.tasks()
            thread = session._flusher._thread
            interrupt = kind(place, codes)
            with interrupt.watching():
                session.close()
            del session  # after Ctrl-C before its first line, the finalizer closes it
            gc.collect()
            thread.join(PATIENCE_SECONDS)
            tasks: list[Any] = [
                task for frame in end.requests.rest() for task in decode_tasks(frame)
            ]
            drop, close = tasks
            assert drop.tensors == (tensor,), interrupt.place
            assert isinstance(close, Close), interrupt.place
    walk.check(*CLOSING)


def test_closing_a_session_frees_every_tensor_and_sends_close(
    session: BurnSession, end: BurnEnd, x: TensorHandle
) -> None:
    out = add(session, x, x)
    session.close()
    session.close()
    tasks: list[Any] = [task for frame in end.requests.rest() for task in decode_tasks(frame)]
    close = tasks.pop()
    assert isinstance(close, Close)
    freed = [task.tensors for task in tasks if task.signature.row.name == "Drop"]
    assert sorted(freed) == [(x.id,), (out.id,)]
    with pytest.raises(ClosedDevice):
        session.seed(1)


async def test_in_a_forked_child_every_use_raises_an_error(
    session: BurnSession, x: TensorHandle
) -> None:
    waiting, awaited = session.sync(), session.sync()
    session.abandon_after_fork()
    with pytest.raises(ClosedDevice, match="fork"):
        waiting.result(PATIENCE_SECONDS)
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(ClosedDevice, match="fork"):
            await awaited
    with pytest.raises(ClosedDevice, match="fork"):
        RunnerStack(session).read_tensor_async(x)


def test_a_server_that_does_not_respond_is_reported_with_what_to_do(end: BurnEnd) -> None:
    with pytest.raises(ConnectionFailed, match="restart it"):
        BurnSession(end.dial, address=end.address, timeout_seconds=0.05)
    end.responses.rest()  # the client has hung up
