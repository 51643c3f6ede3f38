"""Sessions run their work in order, report why they end, and free everything at the end."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol import bounded_threads
from burn_remote_protocol.dialects.bounded_unpacking import (
    MAX_UNPACKED_BYTES_PER_BYTE,
    unpacked_bytes,
)
from burn_remote_protocol.dialects.native import Batch, decode_frame, encode_batch, encode_frame
from burn_remote_protocol.dialects.native_tasks import encode_task
from burn_remote_protocol.dtypes import F32, DType
from burn_remote_protocol.errors import (
    OperationLost,
    ProtocolViolation,
    SessionLost,
    TransferFailed,
)
from burn_remote_protocol.messages import (
    MAX_HOPS,
    Cleanup,
    Closing,
    Fetch,
    Hello,
    LoadFile,
    Read,
    Sync,
    Upload,
)
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.access.quota import Pool
from burn_remote_server.backends.array.array_session import ArraySession
from burn_remote_server.backends.interface import Deliver
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations
from burn_remote_server.dialects.native.session_attachments import Attachments
from burn_remote_server.dialects.native.session_handler import serve_session
from burn_remote_server.execution import worker
from burn_remote_server.execution.frame_memory import (
    SMALL_PART_BYTES,
    Part,
)
from burn_remote_server.execution.interpreter_turns import (
    FREE_THREADS,
    TURN_COST,
    InterpreterTurn,
    InterpreterTurns,
)
from burn_remote_server.execution.sessions import (
    DECODED_COST_PER_BYTE,
    FRAME_COST,
)
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings
from support.engines import undecoded
from support.missing_threads import no_thread
from support.native_clients import until
from support.running_sessions import Gate, Running
from support.scripted import ScriptedLink
from support.waiting import PATIENCE_SECONDS

SPEC = TensorSpec((4,), F32)
DATA = TensorData(np.zeros(4, np.float32).tobytes(), SPEC.shape, SPEC.dtype)


class Interrupted(NumpyBackend):
    """A device whose reads raise an exception that ends the calling thread."""

    def open_session(self, custom: CustomOperations = NO_OPERATIONS) -> ArraySession:
        return InterruptedSession(self, self._shared, lambda seed: None, custom)


class InterruptedSession(ArraySession):
    def read(self, array: Any, dtype: DType, later: Callable[[], Deliver]) -> memoryview | None:
        raise KeyboardInterrupt


async def test_an_exception_that_would_end_the_thread_ends_the_session_with_a_reason() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(Settings(inline_cost_limit=0), [Interrupted()], tasks)
        batch = encode_batch(0, [encode_task(task) for task in (Upload(1, DATA), Read(1, 1, SPEC))])
        link = ScriptedLink([encode_frame(Hello((1,))), batch])
        await serve_session(link, host.devices[0], Attachments())
        closing = decode_frame(link.sent[-1])
        assert isinstance(closing, Closing)
        assert "the server failed: KeyboardInterrupt" in str(closing.error)
        assert not host.sessions
        host.draining.set()


# -- the order and the end of a session's work ----------------------------------------------------


async def test_a_batch_costs_what_decoding_the_bytes_of_its_frame_does() -> None:
    running = Running()
    async with asyncio.timeout(PATIENCE_SECONDS):
        gate = Gate(running.session)
        running.submit(Sync(1), size=1000)
        assert running.session.spent == FRAME_COST + 1000 * DECODED_COST_PER_BYTE
        assert running.session.queued_bytes == unpacked_bytes(bytes(1000))
        gate.opened.set()
        await running.idle()
    running.session.end()


async def test_small_work_runs_at_once_on_the_event_loop() -> None:
    running = Running()
    running.submit(Upload(1, DATA), Read(1, 1, SPEC))
    assert running.below.outbox.replies[1].shape == (4,)
    assert running.session.queued == 0
    assert running.notified.is_set()
    assert running.session.spent > 0
    running.session.end()


class Located(NumpyBackend):
    """A device that records which thread reads."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[int] = []

    def to_bytes(self, array: Any, dtype: DType) -> memoryview:
        self.readers.append(threading.get_ident())
        return super().to_bytes(array, dtype)


@pytest.mark.parametrize("is_too_costly", [False, True])
async def test_only_a_batch_within_the_cost_limit_runs_on_the_event_loop(
    is_too_costly: bool,
) -> None:
    batch = Batch(0, (undecoded(Upload(1, DATA)), undecoded(Read(1, 1, SPEC))))
    cost = Running().below.engine.estimate(batch, 100)
    assert cost is not None
    backend = Located()
    running = Running(inline_cost=cost - is_too_costly, backend=backend)
    async with asyncio.timeout(PATIENCE_SECONDS):
        running.session.submit_batch(batch, bytes(100))
        await running.idle()
    assert running.below.outbox.replies[1].shape == (4,)
    assert [one != threading.get_ident() for one in backend.readers] == [is_too_costly]
    running.session.end()


async def test_a_batch_of_unknown_cost_never_runs_on_the_event_loop() -> None:
    backend = Located()
    running = Running(inline_cost=2**62, backend=backend)
    running.submit(Upload(1, DATA))
    batch = Batch(0, (undecoded(Cleanup()), undecoded(Read(1, 1, SPEC))))
    assert running.below.engine.estimate(batch, 100) is None
    async with asyncio.timeout(PATIENCE_SECONDS):
        running.session.submit_batch(batch, bytes(100))
        await running.idle()
    assert [one != threading.get_ident() for one in backend.readers] == [True]
    running.session.end()


async def test_small_work_behind_queued_work_waits_for_its_turn() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        running = Running()
        gate = Gate(running.session)
        running.submit(Upload(1, DATA))
        running.submit(Read(1, 1, SPEC), size=10)
        assert running.below.outbox.replies == {}
        assert running.session.queued == 3
        assert running.session.queued_bytes > 0
        gate.opened.set()
        await running.idle()
        assert running.below.outbox.replies[1].shape == (4,)
        running.session.end()


async def test_a_session_describes_its_work() -> None:
    running = Running()
    expected = "its session has executed all tasks that its client sent"
    assert running.session.describe_work() == expected
    async with asyncio.timeout(PATIENCE_SECONDS):
        gate = Gate(running.session)
        running.submit(Upload(1, DATA))
        assert re.fullmatch(
            r"its session has been busy for \d\.\d seconds, has 2 unfinished batches, and is at "
            r"task 0 of a batch",
            running.session.describe_work(),
        )
        gate.opened.set()
        await running.idle()
    running.session.end()


async def test_one_session_in_a_long_call_does_not_delay_another() -> None:
    slow, other = Running(), Running()
    gate = Gate(slow.session)
    assert gate.entered.wait(PATIENCE_SECONDS)
    other.submit(Upload(1, DATA), Read(1, 1, SPEC))
    assert 1 in other.below.outbox.replies
    assert slow.session.queued == 1
    gate.opened.set()
    slow.session.end()
    other.session.end()


async def test_the_end_skips_queued_work_and_frees_everything() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        running = Running()
        running.submit(Upload(1, DATA))
        gate = Gate(running.session)
        running.submit(Upload(2, DATA), Read(1, 1, SPEC))
        running.session.end()
        gate.opened.set()
        await running.idle()
        assert running.below.outbox.replies == {}
        assert len(running.below.tensors) == 0
        assert (running.below.quota.bytes, running.below.quota.tensors) == (0, 0)


async def test_the_end_releases_work_that_waits_for_a_fetch() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        running = Running()
        running.submit(Fetch(bytes(32), "burn://peer", 1, SPEC))
        running.submit(Sync(1))  # waits on the worker for the fetch
        running.session.end()
        await running.idle()
        assert running.stopped_fetching == 1
        assert running.below.quota.bytes == 0


async def test_a_violation_ends_the_session_and_skips_what_follows() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        running = Running()
        running.submit(Upload(1, DATA), (99,))
        running.submit(Read(1, 1, SPEC))
        await running.idle()
        error = running.session.error
        assert isinstance(error, ProtocolViolation)
        assert running.below.outbox.replies == {}
        running.session.end()
        await running.idle()
        assert running.session.error is error
        assert len(running.below.tensors) == 0


async def test_queued_frames_bytes_and_a_full_pool_stop_the_reading() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        pool = Pool(100)
        running = Running(memory=pool)
        gate = Gate(running.session)
        assert not running.session.is_behind(2, 10**6)
        assert running.session.is_behind(1, 10**6)
        running.submit(Upload(1, DATA), size=20)
        assert running.session.is_behind(100, 100)
        assert running.session.is_behind(100, 10**6) == pool.is_full
        assert pool.is_full
        gate.opened.set()
        await running.idle()
        assert not running.session.is_behind(1, 1)
        assert pool.taken == 0
        running.session.end()


async def test_a_queued_batch_counts_what_its_nested_lists_take() -> None:
    nested = b"\x92\x20" + b"\x91" * 1000 + b"\xc0"
    frame = encode_batch(0, [nested] * 59)
    decode_frame(frame)  # what is allocated once only
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        batch = decode_frame(frame)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    pool = Pool(2**30)
    running = Running(memory=pool)
    async with asyncio.timeout(PATIENCE_SECONDS):
        gate = Gate(running.session)
        running.session.submit_batch(batch, frame)
        assert after - before <= running.session.queued_bytes == pool.taken
        gate.opened.set()
        await running.idle()
    running.session.end()


async def test_elements_of_a_queued_batch_count_once() -> None:
    elements = b"\x91" * 16_000
    upload = Upload(1, TensorData(elements, (4000,), F32))
    frame = encode_batch(0, [encode_task(upload)])
    running = Running()
    async with asyncio.timeout(PATIENCE_SECONDS):
        gate = Gate(running.session)
        running.session.submit_batch(decode_frame(frame), frame)
        assert len(elements) <= running.session.queued_bytes < len(elements) + 4096
        gate.opened.set()
        await running.idle()
    running.session.end()


@pytest.mark.parametrize("how", ["refused", "dies"])
async def test_a_session_whose_thread_cannot_start_ends_with_the_reason(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        """End before the thread has said that it runs, as without memory."""

    if how == "refused":
        monkeypatch.setattr(worker._WorkerThread, "start", no_thread)
    else:
        monkeypatch.setattr(worker._WorkerThread, "_bootstrap", die)
        monkeypatch.setattr(bounded_threads, "START_SECONDS", 0.01)
    running = Running()
    async with asyncio.timeout(PATIENCE_SECONDS):
        running.submit(Fetch(bytes(32), "burn://peer", 1, SPEC))
        running.submit(Sync(1))  # would wait in the thread
        await running.notified.wait()
    assert isinstance(running.session.error, SessionLost)
    assert "no thread" in str(running.session.error)
    assert not running.session.queued
    running.session.end()


# -- frames for which memory has no room ---------------------------------------------------------

LARGE = SMALL_PART_BYTES + 1


def part(held_bytes: int, run: Callable[[], object]) -> Part:
    """Return a part whose execution calls ``run``."""

    def execute(_: None) -> None:
        run()

    return Part(held_bytes, lambda: None, execute)


async def test_small_parts_run_in_order_although_the_pool_is_full() -> None:
    pool = Pool(100)
    pool.add(1000)
    running = Running(memory=pool)
    seen: list[tuple[int, int]] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        running.session.submit_parts(
            iter(
                [part(10 * n, partial(lambda n: seen.append((n, pool.taken)), n)) for n in (1, 2)]
            ),
            7,
        )
        await running.idle()
    assert seen == [(1, 1017), (2, 1027)]
    assert pool.taken == 1000
    running.session.end()


async def test_large_parts_of_sessions_exceed_a_full_pool_one_at_a_time_in_their_order() -> None:
    pool = Pool(100)
    pool.add(1000)
    sessions = [Running(memory=pool) for _ in range(4)]
    order: list[int] = []
    go_on = threading.Event()
    entered = threading.Event()

    def run(number: int) -> None:
        order.append(number)
        # Besides this part, at most the frames of the four sessions, of one byte each.
        assert pool.taken - 1000 - LARGE <= 4
        entered.set()
        assert go_on.wait(PATIENCE_SECONDS)

    async with asyncio.timeout(PATIENCE_SECONDS):
        for number, each in enumerate(sessions):
            each.session.submit_parts(iter([part(LARGE, partial(run, number))]), 1)
            await until(entered.is_set)  # the first one has the turn
            await until(partial(is_length, pool, number))
        assert order == [0]
        go_on.set()
        for each in sessions:
            await each.idle()
    assert order == [0, 1, 2, 3]
    assert pool.taken == 1000
    for each in sessions:
        each.session.end()


@contextlib.asynccontextmanager
async def full_pool() -> AsyncIterator[tuple[Pool, Running, threading.Event]]:
    """Yield a full pool, the session whose large part exceeds it, and what lets this part end."""
    pool = Pool(100)
    pool.add(1000)
    first = Running(memory=pool)
    inside, leave = threading.Event(), threading.Event()
    first.session.submit_parts(iter([part(LARGE, partial(stay, inside, leave))]), 1)
    await until(inside.is_set)
    try:
        yield pool, first, leave
    finally:
        leave.set()
        first.session.end()


async def test_a_session_that_ends_while_it_waits_for_memory_lets_others_pass() -> None:
    ran: list[str] = []
    async with asyncio.timeout(PATIENCE_SECONDS), full_pool() as (pool, _, leave):
        second, third = (Running(memory=pool) for _ in range(2))
        second.session.submit_parts(iter([part(LARGE, lambda: ran.append("second"))]), 1)
        await until(lambda: pool.overdrafts.waiting == 1)
        third.session.submit_parts(iter([part(LARGE, lambda: ran.append("third"))]), 1)
        await until(lambda: pool.overdrafts.waiting == 2)
        second.session.end()
        await until(lambda: pool.overdrafts.waiting == 1)
        leave.set()
        await third.idle()
    assert ran == ["third"]
    third.session.end()


async def test_what_a_part_contained_is_freed_before_the_next_one_waits_for_memory() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), full_pool() as (pool, _, leave):
        second = Running(memory=pool)
        batch = Batch(0, (undecoded(Upload(1, DATA)),))
        small = Part(1, lambda: batch, second.below.engine.run)
        second.session.submit_parts(iter([small, part(LARGE, lambda: None)]), 1)
        await until(lambda: pool.overdrafts.waiting == 1)
        assert second.below.interpreter.quota.tensors == 1
        assert second.session.engine.tasks == ()
        leave.set()
        await second.idle()
    second.session.end()


async def test_the_threads_of_sessions_with_one_lock_decode_one_at_a_time() -> None:
    lock = threading.Lock()
    sessions = [Running(decoding_lock=lock) for _ in range(3)]
    decoded: list[bool] = []

    def decode() -> None:
        decoded.append(lock.locked())

    async with asyncio.timeout(PATIENCE_SECONDS):
        for each in sessions:
            each.session.submit_parts(iter([Part(0, decode, lambda _: None)]), 1)
        for each in sessions:
            await each.idle()
    assert decoded == [True] * 3
    for each in sessions:
        each.session.end()


async def test_the_memory_of_a_session_counts_until_its_thread_has_ended_its_work() -> None:
    pool = Pool(10**6)
    running = Running(memory=pool, own_bytes=1000)
    assert pool.taken == 1000
    async with asyncio.timeout(PATIENCE_SECONDS):
        gate = Gate(running.session)
        running.session.end()
        assert pool.taken == 1000
        gate.opened.set()
        await until(lambda: pool.taken == 0)


async def test_an_ended_session_keeps_nothing_of_its_malformed_message() -> None:
    def decode() -> None:
        decoded = bytes(1000)
        raise ProtocolViolation(f"malformed: {decoded[:1]!r}")

    running = Running()
    async with asyncio.timeout(PATIENCE_SECONDS):
        running.session.submit_parts(iter([Part(0, decode, lambda _: None)]), 1)
        await running.idle()
    assert isinstance(running.session.error, ProtocolViolation)
    assert running.session.error.__traceback__ is None
    running.session.end()


async def test_a_session_that_waits_for_memory_does_not_report_progress() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), full_pool() as (pool, first, leave):
        second = Running(memory=pool)
        assert first.session.hops_since(math.inf, 0, 1) == 0
        second.session.submit_parts(iter([part(LARGE, lambda: None)]), 1)
        await until(lambda: pool.overdrafts.waiting == 1)
        assert second.session.hops_since(math.inf, 0, 1) is None
        leave.set()
        await second.idle()
    second.session.end()


async def test_a_part_that_takes_more_than_the_pool_allows_ends_its_session() -> None:
    pool = Pool(100)
    pool.add(1000)
    running = Running(memory=pool)
    async with asyncio.timeout(PATIENCE_SECONDS):
        running.session.submit_parts(iter([part(2**24 + 1, lambda: None)]), 1)
        await running.idle()
    assert isinstance(running.session.error, SessionLost)
    assert "max_total_bytes" in str(running.session.error)
    assert pool.taken == 1000
    running.session.end()


def is_length(pool: Pool, waiting: int) -> bool:
    return pool.overdrafts.waiting == waiting


def stay(inside: threading.Event, leave: threading.Event) -> None:
    inside.set()
    assert leave.wait(PATIENCE_SECONDS)


# -- operations that do not return ------------------------------------------------------------


class Blocking(NumpyBackend):
    """A device whose reads block until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def open_session(self, custom: CustomOperations = NO_OPERATIONS) -> ArraySession:
        return BlockingSession(self, self._shared, lambda seed: None, custom)


class BlockingSession(ArraySession):
    def read(self, array: Any, dtype: DType, later: Callable[[], Deliver]) -> memoryview | None:
        assert isinstance(self._backend, Blocking)
        assert self._backend.released.wait(PATIENCE_SECONDS)
        return super().read(array, dtype, later)


async def test_a_task_that_does_not_return_is_given_up_after_the_seconds_that_were_seen() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        backend = Blocking()
        running = Running(inline_cost=0, backend=backend, operation_lost_seconds=10.0)
        session = running.session
        assert not session.give_up_if_stuck(100)  # idle
        running.submit(Upload(1, DATA), Read(1, 1, SPEC))
        await until(lambda: session.engine.place == 1)
        assert [session.give_up_if_stuck(4) for _ in range(5)] == [False] * 3 + [True, False]
        assert isinstance(session.error, OperationLost)
        assert session.error.operation == "Read"
        assert "has not returned for 12 seconds" in str(session.error)
        backend.released.set()
        await running.idle()
        assert isinstance(session.error, OperationLost)
    session.end()


async def test_progress_starts_the_seconds_again() -> None:
    running = Running(operation_lost_seconds=10.0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        gate = Gate(running.session)
        running.below.engine.tasks = (Sync(1),)
        for place in range(8):
            running.below.engine.place = place % 2
            assert not running.session.give_up_if_stuck(9)
            running.below.interpreter.checks += place % 3  # within a graph
        gate.opened.set()
        await running.idle()
    running.session.end()


async def test_waiting_for_a_tensor_of_another_server_is_not_given_up() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        running = Running(operation_lost_seconds=10.0)
        running.submit(Fetch(b"t" * 32, "ws://a:1", 1, SPEC), Read(1, 1, SPEC))
        await until(lambda: running.below.interpreter.tensors.waits_for is not None)
        assert not any(running.session.give_up_if_stuck(9) for _ in range(5))
        running.below.outbox.fetches[0][1].fail(TransferFailed("over"))
        await running.idle()
    running.session.end()


async def test_reading_a_file_is_not_given_up() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        running = Running(operation_lost_seconds=10.0)
        gate = Gate(running.session)
        running.below.engine.tasks = (undecoded(LoadFile(1, SPEC, "weights", 1, 0)),)
        assert not any(running.session.give_up_if_stuck(9) for _ in range(5))
        gate.opened.set()
        await running.idle()
    running.session.end()


# -- reports to the servers that wait for its tensors ---------------------------------------------


async def test_a_session_that_works_sends_a_report_without_hops() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        running = Running()
        before = time.monotonic()
        assert running.session.hops_since(before, before, 1.0) is None  # idle
        gate = Gate(running.session)
        after = time.monotonic()
        assert running.session.hops_since(after, after, 1.0) == 0
        assert running.session.hops_since(before - 1, after, 1.0) is None  # idle at that time
        gate.opened.set()
        await running.idle()
    running.session.end()


@pytest.mark.parametrize("is_remote", [True, False])
async def test_a_session_that_waits_passes_on_only_the_reports_of_other_servers(
    is_remote: bool,
) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        running = Running()
        running.submit(Fetch(b"t" * 32, "ws://a:1", 1, SPEC))
        await until(lambda: bool(running.below.outbox.fetches))
        ((_, slot),) = running.below.outbox.fetches
        if is_remote:
            slot.note_progress(MAX_HOPS)
        running.submit(Read(1, 1, SPEC))
        await until(lambda: running.below.interpreter.tensors.waits_for is slot)
        moment = time.monotonic()
        # It has worked itself until it began to wait.
        assert running.session.hops_since(moment, moment, 5.0) == (1 if is_remote else None)
        if is_remote:
            slot.note_progress(3)
            assert slot.last_report is not None
            later = slot.last_report.moment + 6.0
            assert running.session.hops_since(moment, slot.last_report.moment, 5.0) == 4
            assert running.session.hops_since(moment, later, 5.0) == 5
        slot.fail(TransferFailed("over"))
        await running.idle()
        assert running.below.interpreter.tensors.waits_for is None
    running.session.end()


async def test_the_threads_of_many_sessions_take_turns_for_parts_after_the_first_work() -> None:
    turns = InterpreterTurns()
    working = [InterpreterTurn(turns) for _ in range(FREE_THREADS)]
    for each in working:
        each.begin()
    running = Running(turns=turns)
    turn = running.session.turn
    seen: list[bool] = []

    def decode() -> None:
        seen.append(turn.has_turn)

    async with asyncio.timeout(PATIENCE_SECONDS):
        part = Part(TURN_COST * MAX_UNPACKED_BYTES_PER_BYTE, decode, lambda _: None)
        running.session.submit_parts(iter([part] * 3), 1)
        running.session.submit(decode)
        await running.idle()
    assert seen == [False, True, True, False]
    await until(lambda: running.session.turn not in turns.working)
    assert not turns.queue
    running.session.end()


async def test_a_call_that_always_runs_also_runs_if_the_session_has_failed() -> None:
    running = Running()
    calls: list[str] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        gate = Gate(running.session)
        running.session.submit(lambda: calls.append("skipped"))
        assert running.session.submit_always(lambda: calls.append("always"))
        running.session.error = ProtocolViolation("a test")
        gate.opened.set()
        await running.idle()
    assert calls == ["always"]
    running.session.end()


async def test_a_call_that_always_runs_is_refused_if_there_is_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Running()
    monkeypatch.setattr(worker._WorkerThread, "start", no_thread)
    assert not running.session.submit_always(lambda: None)
    assert isinstance(running.session.error, SessionLost)
    running.session.end()
