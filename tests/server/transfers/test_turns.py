"""Work that is cut into slices leaves the event loop to others in between."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from burn_remote_protocol.errors import TransferFailed
from burn_remote_server.transfers.turns import Deadlines, TurnQueue


async def test_a_queue_makes_a_bounded_number_of_calls_in_each_turn_of_the_loop() -> None:
    loop = asyncio.get_running_loop()
    made: list[int] = []
    queue = TurnQueue(loop, 10)
    for number in range(35):
        queue.add(partial(made.append, number))
    seen = []
    while len(made) < 35:
        await asyncio.sleep(0)
        seen.append(len(made))
    assert made == [*range(35)]
    assert max(after - before for before, after in zip([0, *seen], seen, strict=False)) <= 10


async def test_a_call_that_raises_does_not_keep_those_behind_it_from_being_made() -> None:
    loop = asyncio.get_running_loop()
    raised: list[object] = []
    loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
    made = asyncio.Event()
    queue = TurnQueue(loop, 10)

    def broken() -> None:
        raise ValueError("broken")

    queue.add(broken)
    queue.add(made.set)
    async with asyncio.timeout(5):
        await made.wait()
    assert [type(error) for error in raised] == [ValueError]


async def test_futures_whose_time_is_over_at_one_moment_fail_in_several_turns() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(0.0, lambda: TransferFailed("too late"), at_once=10)
    futures = [loop.create_future() for _ in range(35)]
    for future in futures:
        deadlines.add(future)
    counts = []
    async with asyncio.timeout(5):
        while not all(future.done() for future in futures):
            await asyncio.sleep(0)
            counts.append(sum(future.done() for future in futures))
    assert max(after - before for before, after in zip([0, *counts], counts, strict=False)) <= 10
    for future in futures:
        with pytest.raises(TransferFailed, match="too late"):
            future.result()


async def test_a_future_that_was_discarded_is_left_alone() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(0.0, lambda: TransferFailed("too late"))
    discarded, kept = loop.create_future(), loop.create_future()
    deadlines.add(discarded)
    deadlines.add(kept)
    deadlines.discard(discarded)
    async with asyncio.timeout(5):
        with pytest.raises(TransferFailed):
            await kept
    assert not discarded.done()
    discarded.cancel()
