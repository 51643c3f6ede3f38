"""Each session is flushed in time by its own thread, and ends when it is garbage-collected."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

import burn_remote as br
from burn_remote.sessions.lifetime import FLUSH_SECONDS, Flusher
from support.waiting import PATIENCE_SECONDS


class FakeSession:
    """Blocks in each flush until the test releases it."""

    def __init__(self) -> None:
        self.is_flushing = threading.Event()
        self.may_go_on = threading.Event()

    def flush_waiting(self) -> None:
        self.is_flushing.set()
        assert self.may_go_on.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        """Do nothing."""

    def abandon_after_fork(self) -> None:
        """Do nothing."""


class CountingSession:
    """Counts its flushes, and calls ``meanwhile`` in each."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.flushes = 0
        self._meanwhile = meanwhile

    def flush_waiting(self) -> None:
        self.flushes += 1
        self._meanwhile()


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class Alarm:
    """A flusher whose thread does not run: the test makes its calls, at times of its choice."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.flusher = Flusher(lambda: None, self.clock)
        self.session = CountingSession()

    def schedule(self, later: float = 0.0) -> None:
        """A task is queued."""
        self.clock.seconds += later
        self.flusher.schedule(self.session)

    def advance(self, later: float = 0.0) -> float | None:
        """The thread wakes up."""
        self.clock.seconds += later
        return self.flusher.advance()

    def is_woken(self) -> bool:
        """Whether the thread would wake up from a wait without a timeout."""
        return not self.flusher._asked.empty()


@pytest.fixture
def alarm() -> Alarm:
    return Alarm()


def test_a_task_is_sent_a_millisecond_after_it_was_queued_and_not_before(alarm: Alarm) -> None:
    assert alarm.advance() is None
    alarm.schedule()
    assert alarm.is_woken()
    remaining = alarm.advance(FLUSH_SECONDS / 4)
    assert remaining == pytest.approx(FLUSH_SECONDS * 3 / 4)
    assert alarm.session.flushes == 0
    alarm.advance(FLUSH_SECONDS)
    assert (alarm.session.flushes, alarm.flusher.armed) == (1, None)


def test_a_batch_that_was_sent_meanwhile_is_not_flushed_again(alarm: Alarm) -> None:
    alarm.advance()
    alarm.schedule()
    alarm.flusher.disarm()
    alarm.advance(2 * FLUSH_SECONDS)
    assert alarm.session.flushes == 0


def test_a_batch_that_is_younger_than_a_millisecond_is_left_alone(alarm: Alarm) -> None:
    alarm.advance()
    for _ in range(10):
        alarm.schedule(later=FLUSH_SECONDS / 2)
        remaining = alarm.advance(later=FLUSH_SECONDS / 4)
        assert remaining == pytest.approx(FLUSH_SECONDS * 3 / 4)
        alarm.flusher.disarm()  # full, or the program waited
    assert alarm.session.flushes == 0


def test_a_program_that_goes_on_does_not_wake_the_thread(alarm: Alarm) -> None:
    alarm.advance()
    alarm.schedule()
    alarm.flusher._asked.get_nowait()
    for _ in range(10):
        seconds = alarm.advance(later=FLUSH_SECONDS)
        assert seconds is not None and 0 < seconds <= FLUSH_SECONDS
        alarm.schedule()
        alarm.flusher.disarm()
        assert not alarm.is_woken()


def test_the_thread_waits_without_a_timeout_once_nothing_was_queued_for_a_millisecond(
    alarm: Alarm,
) -> None:
    alarm.schedule()
    assert alarm.advance(FLUSH_SECONDS) == FLUSH_SECONDS
    assert alarm.advance(FLUSH_SECONDS) is None
    assert alarm.session.flushes == 1


def test_a_task_that_is_queued_during_a_flush_is_scheduled(alarm: Alarm) -> None:
    alarm.session = CountingSession(alarm.schedule)
    alarm.schedule()
    alarm.advance(FLUSH_SECONDS)
    alarm.advance(FLUSH_SECONDS)
    assert alarm.session.flushes == 2


def each_line(function: Callable[..., Any], at: int, act: Callable[[], None]) -> Callable[..., Any]:
    """Return a trace function that calls ``act`` before the given line of a function runs."""
    lines = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == at:
                act()
        return count

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        return count if frame.f_code is function.__code__ else None

    return trace


@pytest.mark.parametrize("line", range(1, 20))
@pytest.mark.parametrize("is_scheduled_before", [False, True])
def test_no_task_is_missed_whichever_line_the_thread_has_reached(
    line: int, is_scheduled_before: bool
) -> None:
    alarm = Alarm()
    if is_scheduled_before:
        alarm.schedule()
    flushes: list[int] = []

    def queue_a_task() -> None:
        alarm.schedule()
        flushes.append(alarm.session.flushes)

    before = sys.gettrace()
    sys.settrace(each_line(Flusher.advance, line, queue_a_task))
    try:
        seconds = alarm.advance(FLUSH_SECONDS)
    finally:
        sys.settrace(before)
    if not flushes:
        return  # ``advance`` has fewer lines on this path
    while alarm.session.flushes == flushes[0]:
        if seconds is None:
            assert alarm.is_woken(), "the thread waits although a task is queued"
            alarm.flusher._asked.get_nowait()
            seconds = 0.0
        assert seconds <= FLUSH_SECONDS * 1.001  # rounding
        seconds = alarm.advance(seconds)


def test_after_an_interrupted_schedule_the_next_task_schedules_the_flush() -> None:
    clock = Clock()
    flusher = Flusher(lambda: None, clock)
    flusher.advance()

    class Interrupted:
        @staticmethod
        def put(request: object) -> None:
            raise KeyboardInterrupt

    flusher._asked = Interrupted()  # type: ignore[assignment, misc]
    with pytest.raises(KeyboardInterrupt):
        flusher.schedule(CountingSession())
    assert flusher.armed is None


def test_a_flush_without_memory_is_repeated(alarm: Alarm) -> None:
    errors = [MemoryError("no room")] * 2

    def fail() -> None:
        if errors:
            raise errors.pop()

    alarm.session = CountingSession(fail)
    alarm.schedule()
    assert [alarm.advance(FLUSH_SECONDS) for _ in range(4)] == [FLUSH_SECONDS] * 3 + [None]
    assert alarm.session.flushes == 3


@pytest.mark.parametrize("failing", range(1, 8))
def test_a_lack_of_memory_does_not_end_the_thread(failing: int) -> None:
    calls = itertools.count()
    main_thread = threading.get_ident()

    def clock() -> float:
        if threading.get_ident() != main_thread and next(calls) < failing:
            raise MemoryError("no room")
        return time.monotonic()

    ended = threading.Event()
    flusher = Flusher(ended.set, clock)
    session = FakeSession()
    session.may_go_on.set()
    flusher.start(session)
    flusher.schedule(session)
    assert session.is_flushing.wait(PATIENCE_SECONDS)
    flusher.stop()
    assert ended.wait(PATIENCE_SECONDS)


def test_a_session_that_cannot_send_delays_no_flush_of_another() -> None:
    stuck, other = FakeSession(), FakeSession()
    flushers = [Flusher(lambda: None) for _ in range(2)]
    for flusher, session in zip(flushers, (stuck, other), strict=True):
        flusher.start(session)
    other.may_go_on.set()
    try:
        flushers[0].schedule(stuck)
        assert stuck.is_flushing.wait(PATIENCE_SECONDS)
        flushers[1].schedule(other)
        assert other.is_flushing.wait(PATIENCE_SECONDS)
    finally:
        stuck.may_go_on.set()
        for flusher in flushers:
            flusher.stop()


def test_the_connection_of_a_session_that_nobody_refers_to_is_ended() -> None:
    ended = threading.Event()
    flusher = Flusher(ended.set)
    session = FakeSession()
    session.may_go_on.set()
    flusher.start(session)
    flusher.schedule(session)
    assert session.is_flushing.wait(PATIENCE_SECONDS)
    del session
    assert ended.wait(PATIENCE_SECONDS)


def threads_of_sessions() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("burn-remote")]


@pytest.mark.parametrize("count", [20])
def test_forgotten_local_devices_leave_no_thread_and_no_session(count: int) -> None:
    before = set(threads_of_sessions())
    sessions = []
    for _ in range(count):
        device = br.LocalDevice()
        assert br.ones((4,), device=device).sum().item() == 4
        sessions.append(weakref.ref(device.session))
        del device
    gc.collect()
    deadline = time.monotonic() + PATIENCE_SECONDS
    for thread in set(threads_of_sessions()) - before:
        while thread.is_alive() and time.monotonic() < deadline:
            gc.collect()  # a thread may have been flushing its session a moment ago
            thread.join(0.01)
        assert not thread.is_alive(), thread
    assert [session() for session in sessions] == [None] * count


def test_a_tensor_keeps_the_session_of_a_device_that_was_forgotten() -> None:
    x = br.ones((4,), device=br.LocalDevice())
    gc.collect()
    assert (x + 1).tolist() == [2] * 4
    assert repr(x.device) == "LocalDevice('numpy')"


def test_a_local_device_that_computes_delays_no_flush_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with br.LocalDevice() as busy, br.LocalDevice() as other, ThreadPoolExecutor(1) as pool:
        is_computing, may_finish = threading.Event(), threading.Event()
        flush = busy.session.flush_waiting

        def compute() -> None:
            is_computing.set()
            assert may_finish.wait(PATIENCE_SECONDS)
            flush()

        monkeypatch.setattr(busy.session, "flush_waiting", compute)
        x = br.ones((4,), device=busy)
        assert is_computing.wait(PATIENCE_SECONDS)
        was_flushed = threading.Event()
        flush_other = other.session.flush_waiting

        def flushed() -> None:
            flush_other()
            was_flushed.set()

        monkeypatch.setattr(other.session, "flush_waiting", flushed)
        pool.submit(br.ones, (4,), device=other)
        try:
            assert was_flushed.wait(PATIENCE_SECONDS)
        finally:
            may_finish.set()
        assert x.tolist() == [1] * 4
