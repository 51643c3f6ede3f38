"""Threads of sessions wait while the event loop is late, and for no longer than they must."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator

import pytest

from burn_remote_server.execution import loop_pulse
from burn_remote_server.execution.interpreter_turns import InterpreterTurn, InterpreterTurns
from burn_remote_server.execution.loop_pulse import LoopPulse
from support.waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture
def always_late(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A loop that is late between any two beats, and threads that wait for a long time."""
    monkeypatch.setattr(loop_pulse, "LATE_SECONDS", -1.0)
    monkeypatch.setattr(loop_pulse, "PATIENCE_SECONDS", PATIENCE_SECONDS)
    yield


class Calling:
    """Threads of sessions, each of which begins a call."""

    def __init__(self, turns: InterpreterTurns, count: int) -> None:
        self.turns = [InterpreterTurn(turns) for _ in range(count)]
        for turn in self.turns[:-1]:  # the last one joins them
            turns.working.add(turn)
        self.turns[-1].announce()
        self.continued = threading.Semaphore(0)
        self.threads = [threading.Thread(target=self._call, args=(turn,)) for turn in self.turns]
        for thread in self.threads:
            thread.start()

    def _call(self, turn: InterpreterTurn) -> None:
        turn.begin()
        self.continued.release()

    async def join(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in self.threads))
        for turn in self.turns:
            turn.end()


@pytest.mark.usefixtures("always_late")
async def test_threads_wait_until_a_late_loop_has_caught_up() -> None:
    turns = InterpreterTurns()
    calling = Calling(turns, 3)
    wait_until(lambda: len(turns.pulse._waiting) == 3)  # the loop does nothing meanwhile
    assert not calling.continued.acquire(blocking=False)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await calling.join()


@pytest.mark.usefixtures("always_late")
async def test_a_thread_does_not_wait_for_a_loop_that_does_not_catch_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_pulse, "PATIENCE_SECONDS", 0.001)
    calling = Calling(InterpreterTurns(), 2)
    for _ in calling.threads:
        assert calling.continued.acquire(timeout=PATIENCE_SECONDS), "the loop runs no beat here"
    await calling.join()


@pytest.mark.usefixtures("always_late")
async def test_the_only_session_that_works_does_not_wait() -> None:
    turns = InterpreterTurns()
    calling = Calling(turns, 1)
    assert calling.continued.acquire(timeout=PATIENCE_SECONDS)
    assert not turns.pulse._waiting
    await calling.join()


@pytest.mark.usefixtures("always_late")
async def test_the_tasks_of_a_long_batch_wait_too() -> None:
    turns = InterpreterTurns()
    calling = Calling(turns, 2)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in calling.threads))
    turn = calling.turns[0]
    for tasks in (turn.unpaced([1, 2]), turn.paced([1, 2], lambda _: None)):
        turns.working.add(calling.turns[1])
        turns.pulse.start()
        thread = threading.Thread(target=next, args=(tasks,))
        thread.start()
        wait_until(lambda: len(turns.pulse._waiting) == 1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.to_thread(thread.join)
    await calling.join()


async def test_the_pulse_ends_when_it_is_no_longer_needed() -> None:
    beats = iter([True, True, False])
    pulse = LoopPulse(lambda: next(beats))
    pulse.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while pulse._last != math.inf:  # noqa: ASYNC110 - a timer of the loop changes it
            await asyncio.sleep(0)
    assert next(beats, None) is None
    assert not pulse.is_late


async def test_a_lost_beat_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    pulse = LoopPulse(lambda: True)
    monkeypatch.setattr(pulse, "_schedule", lambda: None)  # as if the timer was lost
    pulse.start()
    monkeypatch.undo()
    monkeypatch.setattr(loop_pulse, "LOST_SECONDS", -1.0)
    pulse.recover()
    woken = asyncio.Event()
    pulse.wake_at_next_beat(woken.set)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await woken.wait()
