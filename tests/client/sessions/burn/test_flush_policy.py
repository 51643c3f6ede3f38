"""Queued tasks are sent when they are many, on a flush, or after a millisecond."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote.sessions.burn.burn_version_differences import Burn021
from burn_remote.sessions.burn.flush_policy import UNSENT_BYTES, FlushPolicy
from burn_remote.sessions.burn.outgoing_queue import Outgoing
from burn_remote.sessions.lifetime import BATCH_TASKS
from burn_remote_protocol.errors import BurnRemoteError, ConnectionLost, SessionLost
from burn_remote_protocol.messages import Seed


class Connection:
    """Records the frames that are sent."""

    def __init__(self) -> None:
        self.error: BurnRemoteError | None = None
        self.sent: list[int] = []
        self.bug: Exception | None = None

    def end(self, error: BurnRemoteError) -> None:
        self.error = error

    def send(self, frames: list[bytes]) -> None:
        if self.bug is not None:
            raise self.bug
        if self.error is not None:
            raise self.error
        self.sent.append(len(frames))
        frames.clear()


class NeverFlushing:
    """A fake of the flushing thread, whose millisecond never passes."""

    def __init__(self, asked: list[object]) -> None:
        self._asked = asked
        self.armed: object = None

    def schedule(self, session: object) -> None:
        self._asked.append(session)
        self.armed = session

    def disarm(self) -> None:
        self.armed = None


@pytest.fixture
def scheduled() -> list[object]:
    """The sessions that scheduled a flush."""
    return []


@pytest.fixture
def connection() -> Connection:
    return Connection()


@pytest.fixture
def outgoing() -> Outgoing:
    return Outgoing(Burn021())


@pytest.fixture
def policy(outgoing: Outgoing, connection: Any, scheduled: list[object]) -> FlushPolicy:
    session: Any = "session"
    flusher: Any = NeverFlushing(scheduled)
    return FlushPolicy(session, outgoing, connection, flusher)


def add(policy: FlushPolicy, outgoing: Outgoing, made_bytes: int = 0) -> None:
    with policy.free_lock():
        outgoing.task(Seed(0))
        policy.added(made_bytes)


def test_a_few_tasks_are_queued_and_schedule_one_flush(
    policy: FlushPolicy, outgoing: Outgoing, connection: Connection, scheduled: list[object]
) -> None:
    for _ in range(3):
        add(policy, outgoing)
    assert (connection.sent, scheduled) == ([], ["session"])
    policy.flush_waiting()
    add(policy, outgoing)
    assert (connection.sent, scheduled) == ([3], ["session"] * 2)


def test_a_batch_that_is_sent_when_it_is_full_leaves_no_flush_scheduled(
    policy: FlushPolicy, outgoing: Outgoing, scheduled: list[object]
) -> None:
    for _ in range(BATCH_TASKS):
        add(policy, outgoing)
    assert policy._flusher.armed is None
    add(policy, outgoing)
    assert scheduled == ["session"] * 2


def test_many_tasks_are_sent_at_once(
    policy: FlushPolicy, outgoing: Outgoing, connection: Connection
) -> None:
    for _ in range(BATCH_TASKS):
        add(policy, outgoing)
    assert connection.sent == [BATCH_TASKS]


def test_tasks_with_large_outputs_are_sent_at_once(
    policy: FlushPolicy, outgoing: Outgoing, connection: Connection
) -> None:
    for _ in range(4):
        add(policy, outgoing, UNSENT_BYTES // 2)
    assert connection.sent == [2, 2]


def test_flushing_an_empty_queue_sends_nothing(policy: FlushPolicy, connection: Connection) -> None:
    policy.flush()
    assert connection.sent == []


def test_an_error_is_raised_by_a_flush_and_not_by_a_scheduled_flush(
    policy: FlushPolicy, outgoing: Outgoing, connection: Connection
) -> None:
    add(policy, outgoing)
    connection.error = ConnectionLost("gone")
    policy.flush_waiting()
    policy.flush()
    with policy.free_lock(), pytest.raises(ConnectionLost, match="gone"):
        policy.send_now()


def test_a_bug_in_a_scheduled_flush_ends_the_session(
    policy: FlushPolicy, outgoing: Outgoing, connection: Connection
) -> None:
    add(policy, outgoing)
    connection.bug = RuntimeError("can't start new thread")
    policy.flush_waiting()
    assert isinstance(connection.error, SessionLost)
    assert "failed with RuntimeError: can't start new thread" in str(connection.error)
