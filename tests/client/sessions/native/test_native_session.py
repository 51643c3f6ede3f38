"""A native session sends each task once and in order, even after Ctrl-C at any line."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from types import CodeType
from typing import Any

import pytest

from burn_remote.runner.interface import OwningHandle, TensorHandle
from burn_remote.runner.stack import RunnerStack
from burn_remote.sessions import lifetime
from burn_remote.sessions.ending import Ending
from burn_remote.sessions.lifetime import BATCH_TASKS, DROP_BYTES, FLUSH_SECONDS
from burn_remote.sessions.native import (
    link_opening,
    native_connection,
    native_response_router,
    native_session,
    signature_table,
    task_queue,
)
from burn_remote.sessions.native.collective_requests import (
    PROMPT_COLLECTIVES,
    PROMPT_SECONDS,
    PROMPT_TASKS,
)
from burn_remote.sessions.native.native_session import (
    FAST_BYTES_PER_SECOND,
    PROVEN_BYTES,
    NativeSession,
)
from burn_remote.sessions.native.task_queue import KEPT_DROPS
from burn_remote_protocol import session_states
from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, GroupSpec
from burn_remote_protocol.dialects.native import (
    CHUNK_BYTES,
    LARGE_CHUNK_BYTES,
    UPLOAD_CHUNK_BYTES,
)
from burn_remote_protocol.dtypes import C64, F32, U8, DTypeUsage
from burn_remote_protocol.errors import (
    ClosedDevice,
    ConnectionLost,
    OperationFailed,
    SessionLost,
    Unsupported,
    UsageError,
)
from burn_remote_protocol.links import checksummed_links
from burn_remote_protocol.messages import (
    BeginUpload,
    Cleanup,
    Collective,
    Drop,
    Execute,
    Failed,
    Fetch,
    Read,
    Seed,
    Sync,
    Upload,
)
from burn_remote_protocol.operations.families import base
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorData, TensorSpec, TensorStatus
from support.interrupts import InterruptAfterCall, InterruptAt, Walk
from support.kernels import signature
from support.link_ends import in_thread
from support.native_end import NativeEnd
from support.specs import f32
from support.waiting import PATIENCE_SECONDS, wait_until

LARGE = TensorSpec((3 * 128 * 1024,), F32)  # three chunks


def zeros(size: int) -> Signature:
    return sign(base.ZEROS, TensorUse(f32(size), TensorStatus.NOT_INIT))


def opened(end: NativeEnd) -> NativeSession:
    return NativeSession(end.dial, token=None, timeout_seconds=PATIENCE_SECONDS)


def handles(specs: Sequence[TensorSpec]) -> list[TensorHandle]:
    """Return handles without finalizers."""
    nobody: Any = None
    return [TensorHandle(nobody, 0, spec) for spec in specs]


def issued(session: NativeSession, signed: Signature, inputs: list[int]) -> int:
    outputs = handles(signed.outputs)
    session.execute(signed, inputs, outputs)
    assert [one.id for one in outputs] == [*range(outputs[0].id, outputs[0].id + len(outputs))]
    return outputs[0].id


def collected(session: NativeSession, group: int, call: CollectiveCall, inputs: list[int]) -> int:
    outputs = handles(call.output_specs(*session.group_size(group)))
    session.collective(group, call, inputs, outputs)
    return outputs[0].id


@pytest.fixture
def end() -> NativeEnd:
    return NativeEnd()


@pytest.fixture
def session(end: NativeEnd) -> Iterator[NativeSession]:
    session = opened(end)
    yield session
    session.close()
    assert not end.errors


def synced(session: NativeSession) -> None:
    session.sync().result(PATIENCE_SECONDS)


def test_operations_are_sent_in_order_with_ids_that_are_never_reused(
    session: NativeSession, end: NativeEnd
) -> None:
    first, second = zeros(1), zeros(2)
    ids = [issued(session, each, []) for each in (first, second, first)]
    assert len(set(ids)) == 3
    synced(session)
    assert end.tasks[:3] == [(first, (ids[0],)), (second, (ids[1],)), (first, (ids[2],))]
    assert isinstance(end.tasks[3], Sync)


def test_an_extension_row_that_the_server_does_not_announce_is_refused_and_not_sent(
    session: NativeSession, end: NativeEnd
) -> None:
    x = session.reserve()
    with pytest.raises(Unsupported, match=r"has no Float\.Hypot.*update the server"):
        issued(session, signature("Float.Hypot", f32(2), f32(2)), [x, x])
    z = TensorSpec((2,), C64)
    with pytest.raises(Unsupported, match=r"has no Numeric\.Add.*update the server"):
        issued(session, signature("Numeric.Add", z, z), [x, x])
    with pytest.raises(Unsupported, match=r"has no complex64.*update the server"):
        session.upload(x, TensorData(bytes(16), (2,), C64))
    with pytest.raises(Unsupported, match=r"has no complex64.*update the server"):
        session.fetch(x, bytes(32), "ws://other", z)
    synced(session)
    assert [type(task) for task in end.tasks] == [Sync]


def test_several_outputs_have_consecutive_ids(session: NativeSession, end: NativeEnd) -> None:
    signed = signature("Numeric.MaxDimWithIndices", f32(2, 3), dim=0)
    x = session.reserve()
    first = issued(session, signed, [x])
    after = session.reserve()
    assert after == first + 2
    synced(session)
    assert end.tasks[0] == (signed, (x, first, first + 1))


def test_a_signature_too_long_for_a_number_is_sent_in_full(
    session: NativeSession, end: NativeEnd
) -> None:
    joined = signature("Base.Cat", tuple(f32(1) for _ in range(500)), dim=0)
    inputs = [session.reserve() for _ in range(500)]
    output = issued(session, joined, inputs)
    synced(session)
    sent = end.tasks[0]
    assert isinstance(sent, Execute)
    assert sent.operation == (joined, (*inputs, output))


def test_a_full_batch_is_sent_without_a_flush(
    session: NativeSession, end: NativeEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_flush_soon", lambda: None)
    before = session.traffic.frames_sent
    signed = zeros(1)
    for _ in range(BATCH_TASKS):
        issued(session, signed, [])
    assert session.traffic.frames_sent > before


def test_a_dropped_tensor_is_freed_before_a_sync_returns(
    session: NativeSession, end: NativeEnd
) -> None:
    x = issued(session, zeros(1), [])
    session.drop(x)
    synced(session)
    tasks = [task for task in end.tasks if isinstance(task, Drop | Sync)]
    assert [type(task) for task in tasks] == [Drop, Sync]
    assert end.dropped == {x}


def read_once(session: NativeSession) -> None:
    """Make a tensor, read it and drop it."""
    x = issued(session, zeros(2), [])
    session.read(x, f32(2)).result(PATIENCE_SECONDS)
    session.drop(x)


def test_a_program_that_reads_each_result_sends_its_drops_together(
    session: NativeSession, end: NativeEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session._flusher, "schedule", lambda session: None)  # it would send earlier
    for _ in range(KEPT_DROPS + 2):
        read_once(session)
    (drop,) = [task for task in end.tasks if isinstance(task, Drop)]
    assert len(drop.tensors) == KEPT_DROPS + 1


def test_a_program_that_is_close_to_its_quota_leaves_no_drops_behind(
    end: NativeEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    end.limits["tensors"] = KEPT_DROPS + BATCH_TASKS + 3
    session = opened(end)
    try:
        monkeypatch.setattr(session._flusher, "schedule", lambda session: None)
        for _ in range(4):  # the third one might not have room otherwise
            read_once(session)
        drops = [len(task.tensors) for task in end.tasks if isinstance(task, Drop)]
        assert drops == [2]
    finally:
        session.close()


def test_drops_that_a_wait_left_behind_are_sent_although_the_program_does_nothing_more(
    session: NativeSession, end: NativeEnd
) -> None:
    read_once(session)
    x = issued(session, zeros(2), [])
    session.read(x, f32(2)).result(PATIENCE_SECONDS)  # leaves the drop behind
    wait_until(lambda: bool(end.dropped))


def test_large_tensors_are_freed_before_further_operations(
    session: NativeSession, end: NativeEnd
) -> None:
    signed = zeros(DROP_BYTES)
    x = issued(session, signed, [])
    session.drop(x)
    y = issued(session, signed, [])
    synced(session)
    kinds = [task for task in end.tasks if not isinstance(task, Sync)]
    assert [kinds[0], kinds[-1]] == [(signed, (x,)), (signed, (y,))]
    assert end.dropped == {x}


GROUP = GroupSpec(bytes(32), 0, ("ws://a:1", "ws://b:1"), 5.0)


def grouped(session: NativeSession) -> int:
    session.welcome.limits["groups"] = 2  # type: ignore[index]
    return session.join_group(GROUP)


def test_large_outputs_of_collectives_are_freed_before_further_collectives(
    session: NativeSession, end: NativeEnd
) -> None:
    group = grouped(session)
    call = CollectiveCall(CollectiveKind.ALL_REDUCE, (TensorSpec((DROP_BYTES,), F32),))
    x = collected(session, group, call, [1])
    session.drop(x)
    y = collected(session, group, call, [1])
    synced(session)
    assert end.dropped == {x}
    assert [task for task in end.tasks if isinstance(task, Collective | Drop)] == [
        Collective(group, 0, call, (1,), (x,)),
        Drop((x,)),
        Collective(group, 1, call, (1,), (y,)),
    ]


def test_collectives_are_sent_at_once_after_a_wait_and_later_ones_together(
    session: NativeSession, end: NativeEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a program that does not release the interpreter lock.
    monkeypatch.setattr(session, "flush_waiting", lambda: None)
    now = 0.0
    monkeypatch.setattr(session, "_clock", lambda: now)
    group = grouped(session)
    synced(session)

    def is_sent_after(seconds: float) -> bool:
        nonlocal now
        now += seconds
        before = session._traffic.frames_sent
        collected(session, group, CollectiveCall(CollectiveKind.BARRIER), [])
        return session._traffic.frames_sent > before

    assert not is_sent_after(PROMPT_SECONDS / 2)
    assert all(is_sent_after(PROMPT_SECONDS) for _ in range(PROMPT_COLLECTIVES))
    assert not any(is_sent_after(FLUSH_SECONDS) for _ in range(PROMPT_TASKS - 1))
    assert is_sent_after(FLUSH_SECONDS)
    assert not any(is_sent_after(0.0) for _ in range(2 * PROMPT_TASKS))
    synced(session)
    assert is_sent_after(PROMPT_SECONDS)


def test_a_session_is_a_member_of_a_bounded_number_of_groups(session: NativeSession) -> None:
    first, second = grouped(session), grouped(session)
    assert (first, second) == (0, 1)
    with pytest.raises(UsageError, match="a member of 2 groups"):
        session.join_group(GROUP)
    session.leave_group(first)
    assert session.join_group(GROUP) == first
    with pytest.raises(UsageError, match="not a member of group 5"):
        session.leave_group(5)


def test_the_sequence_of_a_group_that_was_joined_again_begins_at_0(
    session: NativeSession, end: NativeEnd
) -> None:
    barrier = CollectiveCall(CollectiveKind.BARRIER)
    for _ in range(2):
        group = grouped(session)
        collected(session, group, barrier, [])
        collected(session, group, barrier, [])
        session.leave_group(group)
    synced(session)
    issued = [task.sequence for task in end.tasks if isinstance(task, Collective)]
    assert issued == [0, 1, 0, 1]


def test_a_server_without_groups_is_asked_for_none(session: NativeSession) -> None:
    with pytest.raises(Unsupported, match="carries out no collectives"):
        session.join_group(GROUP)


def test_a_small_upload_is_one_task_and_a_large_one_is_chunks(
    session: NativeSession, end: NativeEnd
) -> None:
    small, large = session.reserve(), session.reserve()
    data = TensorData(bytes(8), (2,), F32)
    session.upload(small, data)
    session.upload(large, TensorData(bytes(LARGE.nbytes), LARGE.shape, F32))
    synced(session)
    size = CHUNK_BYTES
    chunks = [(large, offset, size) for offset in range(0, LARGE.nbytes, size)]
    assert end.tasks[:2] == [Upload(small, data), BeginUpload(large, LARGE, LARGE.nbytes)]
    assert end.tasks[2 : 2 + len(chunks)] == chunks


@pytest.mark.parametrize(
    ("speed", "larger"), [(FAST_BYTES_PER_SECOND, True), (FAST_BYTES_PER_SECOND / 2, False)]
)
def test_an_upload_continues_in_large_chunks_if_the_connection_is_fast(
    end: NativeEnd, monkeypatch: pytest.MonkeyPatch, speed: float, larger: bool
) -> None:
    end.limits = {"chunk_bytes": LARGE_CHUNK_BYTES}
    session = opened(end)
    connection = session._connection
    now = 0.0
    monkeypatch.setattr(session, "_clock", lambda: now)
    send = connection.send

    def timed(frame: bytes, payload: Any = None, **options: Any) -> None:
        nonlocal now
        now += 0.0 if payload is None else len(payload) / speed
        send(frame, payload, **options)

    monkeypatch.setattr(connection, "send", timed)
    rest = LARGE_CHUNK_BYTES + 1000
    spec = TensorSpec((PROVEN_BYTES + rest,), U8)
    tensor = session.reserve()
    session.upload(tensor, TensorData(bytes(spec.nbytes), spec.shape, U8))
    synced(session)
    size = UPLOAD_CHUNK_BYTES
    chunks = [(tensor, offset, size) for offset in range(0, PROVEN_BYTES, size)]
    if larger:
        chunks.append((tensor, PROVEN_BYTES, LARGE_CHUNK_BYTES))
    else:
        chunks += [(tensor, PROVEN_BYTES + offset, size) for offset in range(0, rest - 1000, size)]
    chunks.append((tensor, PROVEN_BYTES + LARGE_CHUNK_BYTES, 1000))
    assert end.tasks[1 : 1 + len(chunks)] == chunks
    session.close()


def test_a_call_inside_of_a_chunk_is_refused_while_another_thread_waits_to_send(
    session: NativeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = session._connection._link
    send_parts = link.send_parts
    flushing: list[Future[None]] = []

    def send_and_be_interrupted(head: bytes, payload: memoryview, **options: bool) -> None:
        if not flushing:  # as if a finalizer ran now
            flushing.append(in_thread(issue_and_flush))
            with pytest.raises(UsageError, match="finalizer"):
                while True:  # until the other thread has the session's lock
                    issued(session, zeros(2), [])
        send_parts(head, payload, **options)

    def issue_and_flush() -> None:
        for _ in range(BATCH_TASKS):
            issued(session, zeros(1), [])
        session.flush()  # holds the session's lock while it waits for the upload's chunk

    monkeypatch.setattr(link, "send_parts", send_and_be_interrupted)
    session.upload(session.reserve(), TensorData(bytes(LARGE.nbytes), LARGE.shape, LARGE.dtype))
    flushing[0].result(PATIENCE_SECONDS)
    synced(session)


def test_each_request_gets_its_own_reply(session: NativeSession, end: NativeEnd) -> None:
    x = issued(session, zeros(2), [])
    read = session.read(x, f32(2))
    usage = session.dtype_usage(F32)
    assert read.result(PATIENCE_SECONDS) == TensorData(bytes(8), (2,), F32)
    assert usage.result(PATIENCE_SECONDS) == DTypeUsage(3)
    assert any(isinstance(task, Read) and task.tensor == x for task in end.tasks)


def test_tasks_without_a_reply_are_sent_with_their_arguments(
    session: NativeSession, end: NativeEnd
) -> None:
    x, y = session.reserve(), session.reserve()
    transfer = b"t" * 32
    session.seed(5)
    session.memory_cleanup()
    session.expose(x, f32(2), transfer, 30.0)
    session.fetch(y, transfer, "ws://a:1", f32(2))
    synced(session)
    seed, cleanup, expose, fetch = end.tasks[:4]
    assert (seed, cleanup) == (Seed(5), Cleanup())
    assert (expose.tensor, expose.count, expose.transfer) == (x, 1, transfer)
    assert fetch == Fetch(transfer, "ws://a:1", y, f32(2))


def test_an_unread_failure_is_raised_by_sync_and_not_by_a_fence(
    session: NativeSession, end: NativeEnd
) -> None:
    end.send(Failed((7,), OperationFailed("why", tensor=7)))
    session.fence().result(PATIENCE_SECONDS)
    with pytest.raises(OperationFailed, match="why"):
        synced(session)
    synced(session)


def test_tasks_lost_by_a_broken_link_are_sent_again_and_executed_once(
    session: NativeSession, end: NativeEnd
) -> None:
    signed = zeros(1)
    ids = []
    for _ in range(5):
        ids.append(issued(session, signed, []))
        session.flush()
        end.hang_up()
        ids.append(issued(session, signed, []))
    synced(session)
    assert end.resumes >= 1
    assert [task[1][0] for task in end.tasks if isinstance(task, tuple)] == ids


def test_without_a_lease_a_broken_link_ends_the_session() -> None:
    end = NativeEnd(lease_seconds=0.0)
    session = opened(end)
    reading = session.read(session.reserve(), f32(2))
    end.hang_up()
    with pytest.raises(ConnectionLost):
        reading.result(PATIENCE_SECONDS)
        synced(session)
    assert session.closed
    session.close()


def test_work_is_discarded_over_a_new_link_whose_first_frame_is_closing(
    session: NativeSession, end: NativeEnd
) -> None:
    issued(session, zeros(1), [])
    session.close(discards=True)
    assert end.was_discarded.wait(PATIENCE_SECONDS)
    assert session.closed


def test_a_closed_session_refuses_every_use(session: NativeSession) -> None:
    x = session.reserve()
    session.close()
    assert session.closed
    for use in (
        lambda: issued(session, zeros(1), []),
        session.reserve,
        session.sync,
        lambda: session.read(x, f32(1)),
        lambda: session.seed(1),
        lambda: session.upload(x, TensorData(bytes(4), (1,), F32)),
    ):
        with pytest.raises(ClosedDevice):
            use()
    session.drop(x)
    session.flush()
    session.close()


@pytest.mark.parametrize("is_awaited", [False, True])
async def test_in_a_forked_child_every_use_raises_and_the_parent_gets_its_replies(
    end: NativeEnd, is_awaited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(end)
    x = issued(session, zeros(2), [])
    pending = session.read(x, f32(2))
    session._connection.receiver.close()  # a fork copies no thread
    session.flush()
    link = session._connection._link
    assert link.wait_readable(PATIENCE_SECONDS)
    with monkeypatch.context() as patch:
        patch.setattr(link, "receive", None)
        session.abandon_after_fork()
        with pytest.raises(ClosedDevice, match="belongs to the parent process"):
            if is_awaited:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await pending
            else:
                pending.result(PATIENCE_SECONDS)
        for use in (
            lambda: issued(session, zeros(1), []),
            session.reserve,
            session.sync,
            lambda: session.expose(x, f32(2), b"t" * 32, 30.0),
            lambda: session.fetch(x, b"t" * 32, "ws://a:1", f32(2)),
        ):
            with pytest.raises(ClosedDevice, match="belongs to the parent process"):
                use()
        session.drop(x)
        session.flush()
        session.close()
    assert not link.closed
    assert link.receive(PATIENCE_SECONDS) is not None
    link.close()


# -- Ctrl-C at each line ----------------------------------------------------------------------


def codes_of(*owners: Any) -> frozenset[CodeType]:
    """Return the code of all functions of classes."""
    functions = [
        function
        for owner in owners
        for _, function in inspect.getmembers(owner, inspect.isfunction)
    ]
    return frozenset(function.__code__ for function in functions)


SENDING = codes_of(
    NativeSession,
    native_connection.Connection,
    signature_table.SignatureTable,
    session_states.ReplayWindow,
    session_states.SessionEnd,
    lifetime.Flusher,
    checksummed_links.CheckedLink,
    checksummed_links.Checks,
    native_response_router.ResponseRouter,
)

FINALIZING = frozenset(
    function.__code__
    for function in (OwningHandle.__del__, NativeSession.drop, NativeSession._flush_soon)
)


class Program:
    """A user's calls of a session, and the tensors and requests that it knows of."""

    def __init__(self, session: NativeSession) -> None:
        self.session = session
        self.stack = RunnerStack(session)
        self.handles: list[TensorHandle] = []
        self.signatures = [zeros(size) for size in (1, 2, 3)]
        self.held: dict[int, Signature] = {}
        self.freed: set[int] = set()
        self.maybe_freed: set[int] = set()

    def execute(self) -> None:
        for signed in self.signatures:
            (handle,) = self.stack.register_op(signed, [])
            self.handles.append(handle)
            self.held[handle.id] = signed

    def drop(self) -> None:
        for tensor in [*self.held][:2]:
            self.maybe_freed.add(tensor)  # Ctrl-C may come before the first line of ``drop``
            self.session.drop(tensor)
            self.freed.add(tensor)
        self.session.flush()

    def upload(self) -> None:
        # As in the innermost runner, the program has the handle before the elements are sent.
        tensor = self.session.reserve()
        self.session.upload(tensor, TensorData(bytes(LARGE.nbytes), LARGE.shape, F32))

    def ask(self) -> None:
        self.session.sync().result(PATIENCE_SECONDS)


DISCARDING: Any = (
    NativeSession.close,
    native_connection.Connection.discard,
    native_connection.Connection.end,
    native_connection.Connection._complete_end,
    native_connection.Connection._say_farewell,
    link_opening.open_link,
    link_opening.send_closing,
    Ending.complete,
    lifetime.Flusher.stop,
)


@pytest.mark.parametrize("kind", [InterruptAfterCall, InterruptAt])
def test_ctrl_c_while_work_is_discarded_leaves_no_session_on_the_server(
    kind: type[InterruptAt],
) -> None:
    codes = frozenset(function.__code__ for function in DISCARDING)
    walk = Walk()
    for place in walk:
        end = NativeEnd()
        session = opened(end)
        issued(session, zeros(1), [])
        thread = session._flusher._thread
        interrupt = kind(place, codes)
        with interrupt.watching():
            session.close(discards=True)
        del session  # after Ctrl-C before its first line, the finalizer closes it
        gc.collect()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), interrupt.place
        assert end.was_closed.wait(PATIENCE_SECONDS), interrupt.place
        assert not end.errors
    walk.check(*DISCARDING)


@pytest.mark.parametrize("step", ["execute", "drop", "upload", "ask"])
@pytest.mark.parametrize("is_checked", [False, True], ids=["plain", "checked"])
def test_ctrl_c_at_any_line_neither_loses_nor_repeats_nor_leaks_tasks(
    step: str, is_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small limits, so that batches are sent and signature numbers reused within a step.
    monkeypatch.setattr(native_session, "BATCH_TASKS", 3)
    monkeypatch.setattr(task_queue, "BATCH_TASKS", 3)
    monkeypatch.setattr(signature_table, "MAX_SIGNATURES", 2)
    end = NativeEnd(is_checked=is_checked)
    session = opened(end)
    program = Program(session)
    walk = Walk()
    for place in walk:
        program.execute()
        interrupt = InterruptAt(place, SENDING)
        with interrupt.watching():
            getattr(program, step)()
        try:
            synced(session)
        except BaseException as error:
            raise AssertionError(f"the session does not go on after {interrupt.place}") from error
        check(program, end, interrupt.place)
    walk.check(NativeSession._flush, NativeSession._forget_sent, native_connection.Connection.send)
    session.close()
    assert not end.errors


def test_ctrl_c_at_any_line_of_a_finalizer_drops_the_tensor_and_reaches_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: ignored.append(error.exc_type))
    end = NativeEnd()
    session = opened(end)
    stack = RunnerStack(session)
    dropped = set()
    seen = 0
    walk = Walk()
    for place in walk:
        made = [*stack.register_op(zeros(1), [])]
        dropped.add(made[0].id)
        interrupt = InterruptAt(place, FINALIZING)
        with interrupt.watching():
            try:
                made.clear()
            except KeyboardInterrupt:
                seen += 1
        synced(session)
        assert end.dropped == dropped, interrupt.place
    walk.check(OwningHandle.__del__, NativeSession.drop)
    assert seen == walk.count
    assert not ignored
    session.close()


def check(program: Program, end: NativeEnd, place: str) -> None:
    """Check that the server executed each known call once and holds no other tensors."""
    operations = [task for task in end.tasks if type(task) is tuple and len(task) == 2]
    executed = {ids[0]: signed for signed, ids in operations}
    assert len(executed) == len(operations), f"an operation was sent twice: {place}"
    for tensor, signed in program.held.items():
        assert executed.get(tensor) == signed, f"an operation was lost or changed: {place}"
    leaked = executed.keys() - program.held.keys() - end.dropped
    assert not leaked, f"a tensor that nobody holds was not dropped: {place}"
    assert program.freed <= end.dropped, f"a drop was lost: {place}"
    # Drops of ids that no operation created are allowed and have no effect.
    in_use = (program.held.keys() & executed.keys()) - program.maybe_freed
    assert not end.dropped & in_use, f"a tensor in use was dropped: {place}"


def test_a_bug_in_the_flush_thread_ends_the_session_instead_of_keeping_its_tasks(
    end: NativeEnd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = opened(end)

    def send(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(session._connection, "send", send)
    issued(session, zeros(1), [])
    session.flush_waiting()

    with pytest.raises(SessionLost, match="failed with RuntimeError: can't start new thread"):
        issued(session, zeros(1), [])
    assert "sending queued tasks failed unexpectedly" in caplog.text
    session.close()
