"""Devices of one address share a session, which ends with its last use."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import CodeType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote.devices.shared_sessions import SharedSessions, Use
from burn_remote_protocol.errors import ConnectionFailed
from support.interrupts import InterruptAt, Walk
from support.link_ends import in_thread
from support.waiting import PATIENCE_SECONDS


class FakeSession:
    """A fake session that records only whether it is open."""

    def __init__(self) -> None:
        self.closed = False
        self.closes = 0

    def close(self) -> None:
        self.closed = True
        self.closes += 1

    def settle_connection(self, timeout_seconds: float) -> None:
        pass


Sessions = SharedSessions[FakeSession]


def use(
    sessions: Sessions, key: str = "a", open_session: Callable[[], FakeSession] = FakeSession
) -> Use[FakeSession]:
    return sessions.use(key, open_session, PATIENCE_SECONDS)


class SlowOpening:
    """Opens a session, or raises an error, when the test says so."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.started = threading.Event()
        self.may_finish = threading.Event()
        self.error = error

    def __call__(self) -> FakeSession:
        self.started.set()
        assert self.may_finish.wait(PATIENCE_SECONDS)
        if self.error is not None:
            raise self.error
        return FakeSession()


@pytest.fixture
def sessions() -> Sessions:
    return SharedSessions()


class Breaking(FakeSession):
    """A session that is found to be lost, if it is, when its connection is examined."""

    def __init__(self, is_lost: bool) -> None:
        super().__init__()
        self.is_lost = is_lost
        self.examined: list[float] = []

    def settle_connection(self, timeout_seconds: float) -> None:
        self.examined.append(timeout_seconds)
        self.closed = self.is_lost


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_session_is_shared_unless_its_server_has_lost_it(
    is_lost: bool, sessions: Sessions
) -> None:
    session = Breaking(is_lost)
    first = use(sessions, open_session=lambda: session)
    assert not session.examined
    second = use(sessions)
    assert session.examined == [PATIENCE_SECONDS]
    assert (second.session is session) != is_lost
    assert not second.session.closed
    first.end()
    assert not second.session.closed


class Resuming(FakeSession):
    """A session whose server does not answer while it is resumed."""

    def __init__(self) -> None:
        super().__init__()
        self.examined = threading.Event()
        self.may_finish = threading.Event()

    def settle_connection(self, timeout_seconds: float) -> None:
        self.examined.set()
        assert self.may_finish.wait(timeout_seconds)


def test_a_session_that_is_being_resumed_delays_no_other_and_no_forked_child(
    sessions: Sessions,
) -> None:
    session = Resuming()
    first = use(sessions, "silent", lambda: session)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(use, sessions, "silent")
        assert session.examined.wait(PATIENCE_SECONDS)
        assert not use(sessions, "healthy").session.closed
        child = os.fork()
        if child == 0:
            own = use(sessions, "silent").session
            os._exit(0 if own is not session and not own.closed else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        session.may_finish.set()
        assert opening.result(PATIENCE_SECONDS).session is session
    first.end()


def test_an_unresponsive_host_does_not_delay_others(sessions: Sessions) -> None:
    slow = SlowOpening()
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(use, sessions, "silent", slow)
        assert slow.started.wait(PATIENCE_SECONDS)
        assert not use(sessions, "healthy").session.closed
        slow.may_finish.set()
        assert not opening.result(PATIENCE_SECONDS).session.closed


def test_threads_that_want_one_session_open_it_once(sessions: Sessions) -> None:
    slow = SlowOpening()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(use, sessions, "a", slow)
        assert slow.started.wait(PATIENCE_SECONDS)
        second = pool.submit(use, sessions, "a", slow)
        slow.may_finish.set()
        assert first.result(PATIENCE_SECONDS).session is second.result(PATIENCE_SECONDS).session


def test_a_thread_waiting_for_another_gets_its_error(sessions: Sessions) -> None:
    slow = SlowOpening(ConnectionFailed("nothing listens"))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(use, sessions, "a", slow)
        assert slow.started.wait(PATIENCE_SECONDS)
        second = pool.submit(use, sessions, "a", slow)
        slow.may_finish.set()
        for attempt in (first, second):
            with pytest.raises(ConnectionFailed, match="nothing listens"):
                attempt.result(PATIENCE_SECONDS)
    assert not use(sessions).session.closed


def test_a_thread_waiting_for_an_interrupted_one_opens_the_session_itself(
    sessions: Sessions,
) -> None:
    slow = SlowOpening(KeyboardInterrupt())
    joined = threading.Event()

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            use(sessions, "a", slow)

    def waiting() -> Use[FakeSession]:
        joined.set()
        return use(sessions, "a")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(interrupted)
        assert slow.started.wait(PATIENCE_SECONDS)
        second = pool.submit(waiting)
        assert joined.wait(PATIENCE_SECONDS)
        slow.may_finish.set()
        first.result(PATIENCE_SECONDS)
        assert not second.result(PATIENCE_SECONDS).session.closed


def test_waiting_for_another_thread_is_bounded(sessions: Sessions) -> None:
    slow = SlowOpening()
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(use, sessions, "a", slow)
        assert slow.started.wait(PATIENCE_SECONDS)
        with pytest.raises(ConnectionFailed, match="another thread"):
            sessions.use("a", FakeSession, 0.01)
        slow.may_finish.set()
        opening.result(PATIENCE_SECONDS)


def test_a_session_ends_with_its_last_use(sessions: Sessions) -> None:
    first, second = use(sessions), use(sessions)
    session = first.session
    first.end()
    first.end()
    assert not session.closed
    second.end()
    second.end()
    assert session.closes == 1
    assert session.closed


def test_a_garbage_collected_use_neither_holds_nor_closes_a_session(sessions: Sessions) -> None:
    kept, forgotten = use(sessions), use(sessions)
    session = kept.session
    del forgotten
    gc.collect()
    assert not session.closed
    kept.end()
    assert session.closed


def test_after_the_last_use_another_session_is_opened(sessions: Sessions) -> None:
    first = use(sessions)
    session = first.session
    first.end()
    assert use(sessions).session is not session


def test_a_session_that_ended_unexpectedly_is_opened_again(sessions: Sessions) -> None:
    first = use(sessions)
    first.session.close()
    assert not use(sessions).session.closed


def test_a_child_forked_during_an_opening_opens_its_own_session(sessions: Sessions) -> None:
    slow = SlowOpening()
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(use, sessions, "a", slow)
        assert slow.started.wait(PATIENCE_SECONDS)
        child = os.fork()
        if child == 0:
            os._exit(0 if not use(sessions, "a").session.closed else 1)
        slow.may_finish.set()
        opening.result(PATIENCE_SECONDS)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def codes_of(*owners: type[Any]) -> frozenset[CodeType]:
    functions = [
        function
        for owner in owners
        for _, function in inspect.getmembers(owner, inspect.isfunction)
    ]
    return frozenset(function.__code__ for function in functions)


def test_after_ctrl_c_at_any_line_of_opening_another_device_opens(sessions: Sessions) -> None:
    codes = codes_of(SharedSessions)
    walk = Walk()
    for run, place in enumerate(walk):
        key = f"host {run}"
        interrupt = InterruptAt(place, codes)
        with interrupt.watching():
            use(sessions, key)
        # It would wait for a thread that is gone.
        other = in_thread(use, sessions, key).result(PATIENCE_SECONDS)
        assert not other.session.closed, interrupt.place
        other.end()
    walk.check(SharedSessions.use, SharedSessions._join)


def test_after_ctrl_c_at_any_line_of_closing_the_last_use_closes(sessions: Sessions) -> None:
    codes = codes_of(SharedSessions, Use)
    walk = Walk()
    for place in walk:
        first, last = use(sessions), use(sessions)
        session = first.session
        interrupt = InterruptAt(place, codes)
        with interrupt.watching():
            first.end()
        assert not session.closed, interrupt.place
        first.end()
        last.end()
        assert session.closed, interrupt.place
        assert not use(sessions).session.closed
        sessions._shared.clear()
    walk.check(Use.end, SharedSessions.give_back)


def test_a_failed_opening_is_forgotten_with_the_frames_of_its_program(sessions: Sessions) -> None:
    class Large:
        """Something that a program holds."""

    def fail() -> FakeSession:
        raise ConnectionFailed("nothing listens")

    def opening() -> weakref.ref[Large]:
        large = Large()
        with contextlib.suppress(ConnectionFailed):
            use(sessions, "a", fail)
        return weakref.ref(large)

    gc.disable()
    try:
        assert opening()() is None
    finally:
        gc.enable()
    assert not sessions._shared


def test_threads_that_open_and_close_at_once_never_get_a_closed_session(
    sessions: Sessions,
) -> None:
    opened: list[FakeSession] = []
    together = threading.Barrier(8)

    def open_session() -> FakeSession:
        opened.append(FakeSession())
        return opened[-1]

    def run() -> None:
        together.wait(PATIENCE_SECONDS)
        for _ in range(200):
            mine = use(sessions, "a", open_session)
            assert not mine.session.closed
            mine.end()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(run) for _ in range(8)]:
            done.result(PATIENCE_SECONDS)
    assert all(session.closed for session in opened)
    assert not sessions._shared


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["open", "end", "forget", "die"])))
)
def test_a_session_is_open_exactly_while_it_has_uses(steps: list[tuple[str, str]]) -> None:
    sessions: Sessions = SharedSessions()
    uses: dict[str, list[Use[FakeSession]]] = {"a": [], "b": []}
    for key, step in steps:
        held = uses[key]
        if step == "open":
            held.append(use(sessions, key))
            assert len({id(each.session) for each in held}) == 1
            assert not held[0].session.closed
        elif step == "end" and held:
            ended = held.pop()
            ended.end()
            assert ended.session.closed == (not held)
        elif step == "forget" and len(held) > 1:
            held.pop()
            assert not held[0].session.closed
        elif step == "die" and held:
            held[0].session.close()
            held.clear()
