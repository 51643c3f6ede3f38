"""Long decoding takes turns, in the order of requests, with pauses between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from types import SimpleNamespace

import msgpack
import pytest

from burn_remote_server.execution import decoding_turns
from burn_remote_server.execution.decoding_turns import (
    LARGE_FRAME_BYTES,
    LONG_WEIGHT,
    NEVER_LONG_BYTES,
    SHORT_SECONDS,
    SMALL_FRAME_BYTES,
    SMALL_WEIGHT_AT_ONCE,
    STEP_SECONDS,
    WEIGHT_AT_ONCE,
    DecodingTurns,
    decoding_weight,
    is_long,
)
from support.waiting import PATIENCE_SECONDS


class Clock:
    """A clock that advances only by what decoding and pauses take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.ends_pauses = False
        self._callbacks: list[Callable[[], None]] = []
        monkeypatch.setattr(decoding_turns, "time", SimpleNamespace(perf_counter=lambda: self.now))
        loop = SimpleNamespace(call_later=self.call_later)
        replaced = SimpleNamespace(
            Lock=asyncio.Lock, get_running_loop=lambda: loop, sleep=self.sleep
        )
        monkeypatch.setattr(decoding_turns, "asyncio", replaced)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.pauses.append(seconds)
        self._callbacks.append(callback)
        if self.ends_pauses:
            self.end_pauses()

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    def end_pauses(self) -> None:
        """End all pauses, also those that begin later."""
        self.ends_pauses = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            asyncio.get_running_loop().call_soon(callback)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def test_the_next_turn_begins_after_a_pause_as_long_as_the_turn(clock: Clock) -> None:
    turns = DecodingTurns()
    began: list[str] = []

    async def decode(name: str, seconds: float) -> None:
        async with turns.turn():
            began.append(name)
            clock.now += seconds

    waiting = [asyncio.create_task(decode(name, 0.04)) for name in ("first", "second", "third")]
    for _ in range(20):
        await asyncio.sleep(0)
    assert began == ["first"]
    assert clock.pauses == [pytest.approx(0.04)]
    clock.end_pauses()
    await asyncio.gather(*waiting)
    assert began == ["first", "second", "third"]
    assert clock.pauses == [pytest.approx(0.04)] * 3


async def test_a_short_turn_ends_without_a_pause(clock: Clock) -> None:
    turns = DecodingTurns()
    for _ in range(3):
        async with turns.turn():
            clock.now += SHORT_SECONDS / 2
    assert not clock.pauses


async def test_a_session_that_requests_turns_again_and_again_delays_another_by_one(
    clock: Clock,
) -> None:
    clock.end_pauses()
    turns = DecodingTurns()
    order: list[str] = []

    async def decode(name: str, count: int) -> None:
        for _ in range(count):
            async with turns.turn():
                order.append(name)
                clock.now += 0.04

    attackers = [asyncio.create_task(decode(f"attacker {n}", 50)) for n in range(4)]
    await asyncio.sleep(0)
    seen = len(order)
    await asyncio.create_task(decode("honest", 1))
    assert order.index("honest") - seen <= len(attackers)
    for attacker in attackers:
        attacker.cancel()
    await asyncio.gather(*attackers, return_exceptions=True)


async def test_the_pause_goes_on_when_the_session_ends_that_took_the_turn(clock: Clock) -> None:
    turns = DecodingTurns()
    began: list[str] = []

    async def decode(name: str) -> None:
        async with turns.turn():
            began.append(name)
            clock.now += 0.04
        await asyncio.sleep(60)

    tasks = [asyncio.create_task(decode(name)) for name in ("invalid", "second")]
    for _ in range(20):
        await asyncio.sleep(0)
    tasks[0].cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert began == ["invalid"]
    clock.end_pauses()
    for _ in range(20):
        await asyncio.sleep(0)
    assert began == ["invalid", "second"]
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_turn_that_fails_lets_others_continue(clock: Clock) -> None:
    turns = DecodingTurns()
    with pytest.raises(ValueError, match="invalid frame"):
        async with turns.turn():
            raise ValueError("invalid frame")
    async with turns.turn():
        pass


async def test_steps_pause_for_as_long_as_they_took(clock: Clock) -> None:
    clock.end_pauses()

    def steps() -> Generator[None, None, str]:
        for _ in range(7):
            clock.now += STEP_SECONDS / 2
            yield
        clock.now += STEP_SECONDS / 2
        return "decoded"

    assert await DecodingTurns().run(steps()) == "decoded"
    assert clock.pauses == [pytest.approx(STEP_SECONDS)] * 4


async def test_one_frame_is_decoded_at_a_time_also_in_steps(clock: Clock) -> None:
    clock.end_pauses()
    turns = DecodingTurns()
    order: list[str] = []

    def steps(name: str) -> Generator[None, None, None]:
        for _ in range(5):
            order.append(name)
            clock.now += 2 * STEP_SECONDS
            yield

    await asyncio.gather(*(turns.run(steps(name)) for name in "abc"))
    assert order == [*"aaaaabbbbbccccc"]


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_steps_that_fail_let_others_continue(clock: Clock, error: type[Exception]) -> None:
    clock.end_pauses()
    turns = DecodingTurns()

    def steps(*, fails: bool) -> Generator[None, None, None]:
        clock.now += 2 * STEP_SECONDS
        yield
        if fails:
            raise error

    with pytest.raises(error):
        await turns.run(steps(fails=True))
    await turns.run(steps(fails=False))


async def test_all_sessions_together_decode_a_bounded_weight_in_an_iteration() -> None:
    turns = DecodingTurns()
    spent = 0
    while turns.allows(LARGE_FRAME_BYTES):
        turns.spend(10_000)
        spent += 10_000
    assert WEIGHT_AT_ONCE <= spent < WEIGHT_AT_ONCE + 10_000
    while turns.allows(SMALL_FRAME_BYTES):  # the long frames of others do not delay small ones
        turns.spend(SMALL_FRAME_BYTES)
        spent += SMALL_FRAME_BYTES
    assert SMALL_WEIGHT_AT_ONCE <= spent < SMALL_WEIGHT_AT_ONCE + SMALL_FRAME_BYTES
    await asyncio.sleep(0)
    assert turns.allows(LARGE_FRAME_BYTES)


async def test_frames_that_wait_are_decoded_in_their_order_one_large_one_in_an_iteration() -> None:
    turns = DecodingTurns()
    turns.spend(WEIGHT_AT_ONCE)
    order: list[int] = []

    async def decode(number: int) -> None:
        await turns.wait(WEIGHT_AT_ONCE)
        turns.spend(WEIGHT_AT_ONCE)
        order.append(number)

    waiting = [asyncio.ensure_future(decode(number)) for number in range(5)]
    waiting[1].cancel()  # a session that ends does not stop the others
    before = 0
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(order) < 4:
            await asyncio.sleep(0)
            assert len(order) - before <= 1
            before = len(order)
    assert order == [0, 2, 3, 4]
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_frames_that_wait_leave_no_room_for_others_before_they_are_decoded() -> None:
    turns = DecodingTurns()
    turns.spend(WEIGHT_AT_ONCE)
    seen: list[bool] = []
    waiting = asyncio.ensure_future(turns.wait(WEIGHT_AT_ONCE))
    waiting.add_done_callback(lambda _: seen.append(turns.allows(LARGE_FRAME_BYTES)))
    await waiting
    assert seen == [False]


def nested(size: int) -> bytes:
    """Return a list of lists nested 1,000 deep, of about ``size`` bytes."""
    each = b"\x91" * 1000 + b"\xc0"
    count = size // len(each)
    return b"\xdc" + count.to_bytes(2, "big") + each * count


def operations(size: int) -> bytes:
    """Return operations with tensor ids of three bytes, of about ``size`` bytes."""
    packed = [msgpack.packb([5, 3000 + number, 4000 + number]) for number in range(size // 8)]
    return b"\xdc" + len(packed).to_bytes(2, "big") + b"".join(packed)


def test_nested_lists_are_decoded_in_turns_and_as_many_bytes_of_operations_are_not() -> None:
    assert is_long(nested(60_000))
    assert not is_long(operations(60_000))
    assert is_long(bytes(LARGE_FRAME_BYTES + 1))
    assert not is_long(bytes(LARGE_FRAME_BYTES))
    assert decoding_weight(nested(60_000)) > 4 * decoding_weight(operations(60_000))


def test_no_frame_of_the_size_that_is_never_long_is_long() -> None:
    worst = b"\x91" * NEVER_LONG_BYTES
    assert decoding_weight(worst) <= LONG_WEIGHT
    assert not is_long(worst)
    assert is_long(worst + b"\x91" * 20)


@pytest.mark.parametrize("size", [10, 1000])
def test_a_view_of_a_frame_has_the_weight_of_the_frame(size: int) -> None:
    frame = b"\x91" * size
    assert decoding_weight(memoryview(b"head" + frame)[4:]) == decoding_weight(frame)
