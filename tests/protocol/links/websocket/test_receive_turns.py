"""Turns of connections that receive much at the same time."""

from __future__ import annotations

import asyncio
import gc
import weakref

from burn_remote_protocol.links.websocket.receive_turns import (
    BYTES_AT_ONCE,
    CONTINUED_AT_ONCE,
    PARSED_AT_ONCE,
    SMALL_BYTES,
    ReceiveTurns,
    receive_turns,
)


async def test_a_few_connections_continue_in_each_iteration_in_their_order() -> None:
    turns, continued = ReceiveTurns(), list[int]()
    for number in range(10):
        turns.wait(lambda number=number: continued.append(number))  # type: ignore[misc]
    for iteration in range(1, 6):
        await asyncio.sleep(0)
        assert continued == [*range(min(10, iteration * CONTINUED_AT_ONCE))]


async def test_a_connection_that_pauses_again_continues_after_the_others() -> None:
    turns, continued = ReceiveTurns(), list[str]()

    def greedy() -> None:
        continued.append("greedy")
        if continued.count("greedy") < 3:
            turns.wait(greedy)

    turns.wait(greedy)
    for name in "abc":
        turns.wait(lambda name=name: continued.append(name))  # type: ignore[misc]
    for _ in range(6):
        await asyncio.sleep(0)
    assert continued == ["greedy", "a", "b", "c", "greedy", "greedy"]


async def test_an_error_of_one_connection_stops_no_other() -> None:
    turns, continued = ReceiveTurns(), list[int]()
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, about: errors.append(about["exception"])
    )
    turns.wait(lambda: [][0])
    for number in range(5):
        turns.wait(lambda number=number: continued.append(number))  # type: ignore[misc]
    for _ in range(5):
        await asyncio.sleep(0)
    assert continued == [*range(5)]
    assert [type(error) for error in errors] == [IndexError]


async def test_long_payloads_pause_after_a_number_of_bytes_and_while_others_wait() -> None:
    turns = ReceiveTurns()
    assert not turns.must_pause(BYTES_AT_ONCE // 2)
    assert turns.must_pause(BYTES_AT_ONCE // 2)  # perhaps of another connection
    turns.wait(lambda: None)
    assert turns.must_pause(1)
    await asyncio.sleep(0)
    assert not turns.must_pause(1)


async def test_connections_that_read_much_at_once_parse_a_bounded_number_of_bytes() -> None:
    turns = ReceiveTurns()
    size = PARSED_AT_ONCE // 4
    for _ in range(3):  # iterations of the event loop
        assert [turns.must_wait(size) for _ in range(6)] == [False] * 4 + [True] * 2
        assert not turns.must_wait(SMALL_BYTES - 1)
        await asyncio.sleep(0)
    turns.wait(lambda: None)
    assert turns.must_wait(size)  # after the one that waits
    await asyncio.sleep(0)
    assert not turns.must_wait(size)


def test_all_connections_of_an_event_loop_share_the_turns() -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    assert receive_turns(first) is receive_turns(first)
    assert receive_turns(first) is not receive_turns(second)
    first.close()
    second.close()


def test_the_turns_keep_no_event_loop_alive() -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_pause_once())
    loop.close()
    seen = weakref.ref(loop)
    del loop
    gc.collect()
    assert seen() is None


async def _pause_once() -> None:
    done = asyncio.Event()
    receive_turns(asyncio.get_running_loop()).wait(done.set)
    await done.wait()
