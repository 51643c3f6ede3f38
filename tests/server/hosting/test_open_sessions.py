"""Sessions count against the limit as long as they occupy a thread, and each ends once."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import HandshakeRefused
from burn_remote_protocol.messages import Upload
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.access.quota import Pool
from burn_remote_server.execution.worker import Worker
from burn_remote_server.hosting.open_sessions import OpenSessions
from support.native_clients import until
from support.running_sessions import Gate, Running
from support.waiting import PATIENCE_SECONDS

DATA = TensorData(np.zeros(4, np.float32).tobytes(), (4,), F32)


async def test_the_number_of_open_sessions_is_limited_and_each_ends_once() -> None:
    sessions = OpenSessions(1)
    running = Running()
    sessions.add(running.session)
    with pytest.raises(HandshakeRefused, match="the server has 1 open sessions"):
        sessions.draw_id()
    assert [*sessions] == [running.session]
    sessions.remove(running.session)
    sessions.remove(running.session)
    assert running.stopped_fetching == 1
    assert len(sessions) == 0
    assert sessions.draw_id() >= 0


async def test_a_session_that_ends_during_an_operation_counts_until_that_returns() -> None:
    sessions = OpenSessions(2)
    async with asyncio.timeout(PATIENCE_SECONDS):
        running = Running()
        running.session.token = "alice"
        sessions.add(running.session)
        gate = Gate(running.session)
        await until(gate.entered.is_set)
        sessions.remove(running.session)
        assert len(sessions) == 0
        assert (sessions.count_of("alice"), sessions.count_of("bob")) == (1, 0)
        sessions.draw_id()
        second = Running()
        sessions.add(second.session)
        with pytest.raises(HandshakeRefused, match=r"2 open sessions \(1 of them ended, but"):
            sessions.draw_id()
        gate.opened.set()
        await until(lambda: not running.session.is_working)
        assert sessions.count_of("alice") == 0
        sessions.draw_id()
    sessions.remove(second.session)


def full_of_one_session() -> tuple[OpenSessions, Pool, Running]:
    """Return a registry with room for one session, its memory pool, and the session in it."""
    sessions, pool = OpenSessions(1), Pool(2**30)
    running = Running(memory=pool, own_bytes=1000)
    sessions.add(running.session)
    running.submit(Upload(1, DATA))
    return sessions, pool, running


async def test_an_ended_session_whose_thread_died_is_freed_and_counts_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions, pool, running = full_of_one_session()
    with monkeypatch.context() as patched:
        patched.setattr(Worker, "_work", lambda self: None)  # Python could not register the thread
        running.session.submit(lambda: None)
    thread = running.session._worker._thread
    assert thread is not None
    thread.join(PATIENCE_SECONDS)
    sessions.remove(running.session)
    sessions.end_dead()
    assert not running.session.is_working
    assert not running.below.interpreter.tensors.arrays
    assert pool.taken == 0
    sessions.draw_id()


async def test_an_ended_session_whose_thread_dies_later_is_freed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions, pool, running = full_of_one_session()
    may_die = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(Worker, "_work", lambda self: may_die.wait(PATIENCE_SECONDS))
        running.session.submit(lambda: None)
    sessions.remove(running.session)
    sessions.end_dead()
    assert running.session.is_working
    thread = running.session._worker._thread
    assert thread is not None
    may_die.set()
    thread.join(PATIENCE_SECONDS)
    for _ in range(2):
        sessions.end_dead()
    assert not running.session.is_working
    assert not running.below.interpreter.tensors.arrays
    assert pool.taken == 0
    sessions.draw_id()
