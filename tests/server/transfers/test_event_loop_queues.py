"""Work in bounded batches lets the event loop run other tasks in between."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from burn_remote_protocol.loop_calls import recover
from burn_remote_server.transfers import event_loop_queues
from burn_remote_server.transfers.event_loop_queues import (
    LONGEST_SECONDS,
    BatchedCalls,
    CallQueue,
    Deadlines,
)
from support.waiting import PATIENCE_SECONDS


async def test_a_queue_makes_a_bounded_number_of_calls_in_each_turn_of_the_loop() -> None:
    loop = asyncio.get_running_loop()
    made: list[int] = []
    queue = CallQueue(loop, 10)
    for number in range(35):
        queue.add(partial(made.append, number))
    seen = []
    while len(made) < 35:
        await asyncio.sleep(0)
        seen.append(len(made))
    assert made == [*range(35)]
    assert max(after - before for before, after in zip([0, *seen], seen, strict=False)) <= 10


async def test_a_call_that_raises_does_not_prevent_later_calls() -> None:
    loop = asyncio.get_running_loop()
    raised: list[object] = []
    loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
    made = asyncio.Event()
    queue = CallQueue(loop, 10)

    def broken() -> None:
        raise ValueError("broken")

    queue.add(broken)
    queue.add(made.set)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await made.wait()
    assert [type(error) for error in raised] == [ValueError]


async def _counts_per_turn(made: list[int], count: int) -> list[int]:
    """Return how many entries each turn of the loop adds until there are ``count``."""
    seen = [len(made)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(made) < count:
            await asyncio.sleep(0)
            seen.append(len(made))
    return [after - before for before, after in itertools.pairwise(seen)]


async def test_items_that_expire_at_one_moment_expire_in_several_turns() -> None:
    expired: list[int] = []
    deadlines = Deadlines(0.0, expired.append, per_iteration=10)
    for number in range(35):
        deadlines.add(number)
    assert max(await _counts_per_turn(expired, 35)) <= 10
    assert expired == [*range(35)]


async def test_an_item_that_was_discarded_does_not_expire() -> None:
    expired: list[int] = []
    deadlines = Deadlines(0.0, expired.append)
    deadlines.add(1)
    deadlines.add(2)
    deadlines.discard(1)
    await _counts_per_turn(expired, 1)
    assert expired == [2]


async def test_an_item_that_is_added_after_all_have_expired_expires_too() -> None:
    expired: list[int] = []
    deadlines = Deadlines(0.0, expired.append)
    for number in range(3):
        deadlines.add(number)
        await _counts_per_turn(expired, number + 1)
    assert expired == [0, 1, 2]


async def test_items_are_handled_in_slices_and_in_their_order() -> None:
    handled: list[int] = []
    batched = BatchedCalls(asyncio.get_running_loop(), 10)
    batched.call(handled.append, range(35))
    batched.call(handled.append, range(35, 55))
    assert not handled
    assert max(await _counts_per_turn(handled, 55)) <= 10
    assert handled == [*range(55)]


async def test_slices_that_are_finished_handle_the_rest_at_once() -> None:
    handled: list[int] = []
    batched = BatchedCalls(asyncio.get_running_loop(), 10)
    batched.call(handled.append, range(35))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 0 < len(handled) < 35
    batched.finish()
    assert handled == [*range(35)]


async def test_calls_that_take_long_are_divided_among_more_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    handled: list[int] = []

    def handle(number: int) -> None:
        nonlocal now
        now += LONGEST_SECONDS / 3
        handled.append(number)

    monkeypatch.setattr(event_loop_queues, "time", SimpleNamespace(perf_counter=lambda: now))
    batched = BatchedCalls(asyncio.get_running_loop(), 10)
    batched.call(handle, range(20))
    assert max(await _counts_per_turn(handled, 20)) <= 4
    deadlines = Deadlines(0.0, handle, per_iteration=10)
    for number in range(20, 40):
        deadlines.add(number)
    assert max(await _counts_per_turn(handled, 40)) <= 4
    assert handled == [*range(40)]


def test_what_is_added_after_the_loop_has_closed_is_refused_each_time() -> None:
    loop = asyncio.new_event_loop()
    queue = CallQueue(loop, 10)
    loop.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            queue.add(list)


async def test_deadlines_that_are_late_have_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    call_at = loop.call_at

    def noted(*arguments: Any) -> asyncio.TimerHandle:
        timers.append(call_at(*arguments))
        return timers[-1]

    monkeypatch.setattr(loop, "call_at", noted)
    monkeypatch.setattr(event_loop_queues, "LATE_SECONDS", -3600.0)  # every timer seems late
    expired: list[str] = []
    deadlines = Deadlines(600.0, expired.append)
    deadlines.add("item")
    for _ in range(10):
        await asyncio.sleep(0)
        recover(loop)
    await asyncio.sleep(0)
    assert len(timers) > 2
    assert sum(not timer.cancelled() for timer in timers) == 1
    deadlines.discard("item")
