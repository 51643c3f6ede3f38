"""Polling for messages that arrive soon."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from burn_remote_protocol.links.websocket import busy_polling
from burn_remote_protocol.links.websocket.busy_polling import (
    CHECK_MESSAGES,
    CROWDED_MESSAGES,
    FIRST_CROWDED_MESSAGES,
    LATE_SECONDS,
    LONG_MESSAGES,
    POLL_SECONDS,
    SHORT_SECONDS,
    SHORT_WAITS,
    LoopPolling,
    ThreadPolling,
    is_crowded,
    loop_polling,
)
from burn_remote_protocol.links.websocket.socket_streams import PlainStream
from support.async_servers import connected, until

TICK = 1e-6


class Machine:
    """A clock that a test moves, and the number of times that runnable threads were counted."""

    def __init__(self) -> None:
        self.now = 100.0
        self.is_crowded = False
        self.counts = 0

    def clock(self) -> float:
        return self.now

    def count(self) -> bool:
        self.counts += 1
        return self.is_crowded


class Thread:
    """A thread that waits for messages, each of which comes after a given time."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.polling = ThreadPolling(machine.clock, machine.count)
        self.timeouts: list[int] = []

    def wait(self, seconds: float) -> list[int]:
        """Wait for one message; return the timeouts of the polls."""
        due = self.machine.now + seconds
        self.timeouts = []

        def poll(milliseconds: int) -> bool:
            self.timeouts.append(milliseconds)
            left = due - self.machine.now
            self.machine.now += min(left, milliseconds / 1000) if milliseconds else TICK
            return self.machine.now >= due

        self.polling.wait(poll)
        self.machine.now = max(self.machine.now, due)
        return self.timeouts


class Loop:
    """An event loop whose turns a test takes, and a client whose messages it handles."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.turns: list[Callable[[], None]] = []
        self.polling = LoopPolling(self.turns.append, machine.clock, machine.count)

    def handle(self, source: object, seconds: float) -> None:
        """Handle a message that arrives after ``seconds``, without turns meanwhile."""
        self.machine.now += seconds
        if self.polling.pause:  # as a connection does
            self.polling.pause -= 1
            return
        self.polling.note_arrival(source)
        self.polling.note_reply()

    def turn(self, seconds: float = TICK) -> bool:
        """Take one turn after ``seconds``; return whether another one follows."""
        self.machine.now += seconds
        self.turns.pop()()
        return bool(self.turns)


def begun() -> tuple[Machine, Thread]:
    """Return a thread that polls from now on."""
    thread = Thread(machine := Machine())
    for _ in range(SHORT_WAITS):
        thread.wait(POLL_SECONDS / 2)
    return machine, thread


def begun_loop(source: object) -> tuple[Machine, Loop]:
    """Return a loop that polls from now on."""
    loop = Loop(machine := Machine())
    for _ in range(SHORT_WAITS + 1):
        loop.handle(source, SHORT_SECONDS / 2)
    assert loop.turns
    return machine, loop


def test_a_thread_polls_only_after_several_short_waits() -> None:
    thread = Thread(Machine())
    for _ in range(SHORT_WAITS):
        assert thread.wait(POLL_SECONDS / 2) == [1]  # it blocks
    assert set(thread.wait(POLL_SECONDS / 2)) == {0}


@pytest.mark.parametrize("seconds", [1.1 * SHORT_SECONDS, 0.01, 10.0])
def test_a_thread_never_polls_for_a_peer_that_is_far_away(seconds: float) -> None:
    thread = Thread(Machine())
    for _ in range(3 * SHORT_WAITS):
        assert thread.wait(seconds) == [1]
        assert thread.polling.pause == LONG_MESSAGES
        thread.polling.pause = 0


def test_a_thread_whose_poll_finds_nothing_stops_soon_and_begins_anew() -> None:
    machine, thread = begun()
    start = machine.now
    count = len(thread.wait(1.0))
    assert count * TICK < POLL_SECONDS + 2 * TICK
    assert machine.now == start + 1.0
    assert thread.polling.pause == LONG_MESSAGES
    assert thread.wait(POLL_SECONDS / 2) == [1]


def test_a_thread_does_not_poll_where_more_threads_are_runnable_than_cores() -> None:
    thread = Thread(machine := Machine())
    machine.is_crowded = True
    for _ in range(SHORT_WAITS):
        thread.wait(POLL_SECONDS / 2)
    assert (machine.counts, thread.polling.pause) == (1, FIRST_CROWDED_MESSAGES)
    assert thread.wait(POLL_SECONDS / 2) == [1]


def test_a_thread_that_polls_notices_that_other_programs_need_the_cores() -> None:
    machine, thread = begun()
    machine.is_crowded = True
    for _ in range(CHECK_MESSAGES):
        assert thread.polling.pause == 0
        thread.wait(POLL_SECONDS / 2)
    assert (machine.counts, thread.polling.pause) == (2, FIRST_CROWDED_MESSAGES)


def test_pauses_grow_while_a_machine_stays_crowded_and_begin_anew_afterwards() -> None:
    thread = Thread(machine := Machine())
    pauses = []
    for machine.is_crowded in (*[True] * 7, False, True):
        thread.polling.pause = 0
        for _ in range(SHORT_WAITS):
            thread.wait(POLL_SECONDS / 2)
        pauses.append(thread.polling.pause)
        if not machine.is_crowded:
            thread.wait(1.0)  # it stops polling
    first = FIRST_CROWDED_MESSAGES
    growing = [first * 4**number for number in range(7)]
    assert pauses == [*(min(one, CROWDED_MESSAGES) for one in growing), 0, first]


def test_a_loop_polls_until_the_next_message_is_late() -> None:
    machine, loop = begun_loop(source := object())
    loop.handle(source, POLL_SECONDS / 2)
    start = machine.now
    while loop.turn():
        pass
    assert POLL_SECONDS <= machine.now - start < POLL_SECONDS + 3 * TICK
    assert loop.polling.pause == LONG_MESSAGES


def test_a_loop_takes_one_turn_at_a_time_however_many_messages_arrive() -> None:
    _, loop = begun_loop(source := object())
    for _ in range(5):
        loop.handle(source, TICK)
        assert len(loop.turns) == 1


def test_a_loop_never_polls_for_messages_of_several_connections() -> None:
    loop, sources = Loop(Machine()), [object(), object()]
    for number in range(5 * SHORT_WAITS):
        loop.handle(sources[number % 2], TICK)
    assert not loop.turns


def test_a_loop_stops_polling_when_another_connection_sends() -> None:
    one, other = object(), object()
    _, loop = begun_loop(one)
    assert loop.turn()
    loop.handle(other, TICK)
    assert not loop.turn()


def test_a_loop_with_other_work_stops_polling() -> None:
    _, loop = begun_loop(object())
    assert loop.turn()
    assert not loop.turn(2 * LATE_SECONDS)


def test_a_loop_polls_again_some_messages_after_a_long_wait() -> None:
    machine, loop = begun_loop(source := object())
    assert not loop.turn(2 * POLL_SECONDS)
    for pause in (LONG_MESSAGES, CROWDED_MESSAGES):
        loop.polling.pause = pause
        for _ in range(pause + SHORT_WAITS + 1):
            assert not loop.turns
            loop.handle(source, SHORT_SECONDS / 2)
        assert loop.turns
        assert not loop.turn(2 * POLL_SECONDS)
    assert not machine.is_crowded


def test_a_loop_never_polls_for_a_client_that_is_far_away() -> None:
    loop, source = Loop(Machine()), object()
    for _ in range(3 * SHORT_WAITS):
        loop.handle(source, 1.1 * SHORT_SECONDS)
        loop.polling.pause = 0
    assert not loop.turns


def test_a_loop_does_not_poll_where_more_threads_are_runnable_than_cores() -> None:
    loop, source = Loop(machine := Machine()), object()
    machine.is_crowded = True
    for _ in range(SHORT_WAITS + 1):
        loop.handle(source, TICK)
    assert not loop.turns
    assert loop.polling.pause == FIRST_CROWDED_MESSAGES


@pytest.mark.parametrize(
    ("load", "cores", "expected"),
    [
        (b"0.20 0.18 0.12 1/80 11206\n", 2, False),
        (b"0.20 0.18 0.12 2/80 11206\n", 2, False),
        (b"0.20 0.18 0.12 3/80 11206\n", 2, True),
        (b"0.20 0.18 0.12 3/80 11206\n", 64, False),
        (b"0.20 0.18 0.12 1/80 11206\n", 1, True),  # the peer may need the only core
        (b"0.00 0.00 0.00 0/0 0\n", 2, True),
        (b"unknown\n", 2, True),
        (None, 2, True),
    ],
)
def test_a_machine_is_crowded_unless_the_system_says_otherwise(
    load: bytes | None,
    cores: int,
    expected: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "loadavg"
    if load is not None:
        file.write_bytes(load)
    monkeypatch.setattr(busy_polling, "_LOAD", str(file))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(cores)}, raising=False)
    assert is_crowded() is expected


def test_a_stream_that_polls_reads_all_bytes_and_the_end() -> None:
    near, far = socket.socketpair()
    stream = PlainStream(near)
    machine, thread = begun()
    stream._polling = thread.polling
    received: list[bytes] = []
    for number in range(10):
        far.sendall(bytes([number]))
        assert stream.read(received, 100, None)
    far.close()
    assert stream.read(received, 100, None)
    assert received == [*(bytes([number]) for number in range(10)), b""]
    assert machine.counts == 1
    stream.close()


async def test_a_connection_measures_again_after_a_pause_of_as_many_messages() -> None:
    async with connected() as (connection, client):
        polling = connection._polling
        assert polling is loop_polling(asyncio.get_running_loop())
        polling.pause = 3
        for left in (2, 1, 0, 0):
            # Only a message for which the task waits is taken at once.
            waiting = asyncio.ensure_future(connection.receive_message())
            await until(lambda: connection._receiver is not None)
            await client.send(b"x")
            assert await waiting == b"x"
            assert polling.pause == left
        assert polling._source == id(connection)


async def test_a_loop_polls_only_after_messages_that_are_answered_at_once() -> None:
    async with connected() as (connection, client):
        replies: list[bytes] = []

        def answer(frame: bytes) -> bool:
            if frame == b"answered":
                connection.write_at_once(b"reply")
            return True

        connection.on_lone_arrival = answer
        waiting = asyncio.ensure_future(connection.receive_message())
        await until(lambda: connection._receiver is not None)
        polling = connection._polling
        for message, is_noted in ((b"queued", False), (b"answered", True)):
            polling.pause = 0
            await client.send(message)
            await until(lambda: connection._message_count == 1 + is_noted)  # noqa: B023
            assert bool(polling._replied_at) is is_noted
        replies.append(await client.recv())
        assert replies == [b"reply"]
        waiting.cancel()
        await asyncio.wait([waiting])


def test_a_loop_that_polled_can_be_freed() -> None:
    loop = asyncio.new_event_loop()
    polling = loop_polling(loop)
    assert loop_polling(loop) is polling
    loop.close()
    reference = weakref.ref(loop)
    del loop
    gc.collect()
    assert reference() is None
    polling._call_soon(lambda: None)  # does nothing
