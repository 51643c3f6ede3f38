"""A fetch with enough throughput and a fair share of its connection never fails; others do."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator

import pytest

from burn_remote_protocol.errors import TransferFailed
from burn_remote_server.transfers import throughput_watchdog
from burn_remote_server.transfers.throughput_watchdog import (
    MAX_LAG_BYTES,
    FairShare,
    ThroughputSample,
    receive_within,
    watch_reader,
    watch_throughput,
)
from support.memory_links import async_memory_pair
from support.native_clients import turns

CHUNK = 512 * 1024
STALL_SECONDS = 0.002
RATE = 500_000
FLOOR = 1_000


class Wire:
    """A connection that receives given numbers of bytes per stall time, until the fetch is done."""

    def __init__(self, *came: int) -> None:
        self.came = [*came]
        self.arrived = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def bring(self) -> None:
        if self.came:
            self.arrived += self.came.pop(0)
        else:
            self.done.set_result(None)

    def has_begun(self) -> bool:
        self.bring()  # called once, at the end of the first interval
        return True

    def allowed(self) -> int:
        self.bring()  # called at the start of each later interval
        return 10**9

    async def wait(self) -> None:
        await watch_throughput(
            self.done,
            "a peer",
            STALL_SECONDS,
            has_begun=self.has_begun,
            arrived=lambda: self.arrived,
            allowed=self.allowed,
        )


@pytest.fixture
def rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput_watchdog, "MIN_BYTES_PER_SECOND", RATE)


@pytest.mark.usefixtures("rate")
async def test_an_answer_may_begin_at_the_end_of_a_stall_time_and_then_keeps_the_pace() -> None:
    wire = Wire(1, FLOOR, FLOOR, 10 * FLOOR, FLOOR)
    await wire.wait()
    assert wire.done.done()


@pytest.mark.usefixtures("rate")
async def test_bytes_of_one_stall_time_do_not_count_in_the_next() -> None:
    with pytest.raises(
        TransferFailed, match=r"too little arrived .*: 999 bytes, expected at least 1,000"
    ):
        await Wire(10 * FLOOR, 10 * FLOOR, FLOOR - 1).wait()


@pytest.mark.usefixtures("rate")
async def test_a_peer_that_stops_sending_fails_the_fetch() -> None:
    with pytest.raises(TransferFailed, match=r"nothing arrived from a peer within 0\.002 seconds"):
        await Wire(FLOOR, FLOOR, 0).wait()


def test_a_tensor_that_gets_its_turns_is_within_what_is_allowed() -> None:
    """With a random number of tensors, some of which begin and end meanwhile."""
    rng = random.Random(1)
    for _ in range(50):
        share, arrived, received = FairShare(), rng.randrange(10**9), 0
        waiting = [rng.randrange(1, 10**7) for _ in range(rng.randrange(50))]
        running = begun = len(waiting) + 1
        assert share.allowed(ThroughputSample(arrived, received, running, begun)) > arrived
        for _ in range(200):
            for _ in range(rng.randrange(3)):
                waiting.append(rng.randrange(1, 10**7))
                begun += 1
            arrived += sum(min(CHUNK, left) for left in waiting) + CHUNK
            received += CHUNK
            waiting = [left - CHUNK for left in waiting if left > CHUNK]
            running = len(waiting) + 1
            assert share.allowed(ThroughputSample(arrived, received, running, begun)) > arrived


def test_a_tensor_of_which_nothing_more_arrives_exceeds_the_limit() -> None:
    share = FairShare()
    for arrived in range(0, 10**9, CHUNK):  # the only tensor: it receives all bytes
        assert share.allowed(ThroughputSample(arrived, arrived, 1, 1)) > arrived
    received = arrived
    for _ in range(5 * 2 * MAX_LAG_BYTES // CHUNK):
        arrived += CHUNK  # of another tensor
        allowed = share.allowed(ThroughputSample(arrived, received, 2, 2))
    assert arrived > allowed


async def test_a_fetch_waits_while_its_peer_says_that_it_still_works() -> None:
    reports = iter([0, 0, 1, 2, 3])
    asked = 0

    def count_reports() -> int:
        nonlocal asked
        asked = next(reports, asked)
        return asked

    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(TransferFailed, match="nothing arrived"):
        await watch_throughput(
            done,
            "a peer",
            STALL_SECONDS,
            has_begun=lambda: False,
            arrived=lambda: 0,
            allowed=lambda: 0,
            reports=count_reports,
        )
    assert asked == 3


# -- suspensions ------------------------------------------------------------------------------


@contextlib.contextmanager
def suspensions(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Return a function that lets time pass in which the event loop does not run."""
    loop = asyncio.get_running_loop()
    clock, suspended = loop.time, 0.0

    def suspend(seconds: float) -> None:
        nonlocal suspended
        suspended += seconds

    with monkeypatch.context() as patched:
        patched.setattr(loop, "time", lambda: clock() + suspended)
        yield suspend


async def test_a_server_that_was_suspended_does_not_give_up_a_peer_that_was_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with suspensions(monkeypatch) as suspend:
        watching = asyncio.ensure_future(
            watch_throughput(
                done,
                "a peer",
                100.0,
                has_begun=lambda: False,
                arrived=lambda: 0,
                allowed=lambda: 0,
            )
        )
        await turns(3)
        suspend(1000.0)
        await turns(20)
        assert not watching.done()
        done.set_result(None)
        await watching


async def test_a_message_may_follow_a_suspension_of_both_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    near, far = async_memory_pair()
    with suspensions(monkeypatch) as suspend:
        receiving = asyncio.ensure_future(receive_within(near, 100.0))
        await turns(3)
        suspend(1000.0)
        await turns(20)
        await far.send(b"alive")
        assert await receiving == b"alive"


async def test_receiving_from_a_silent_peer_ends_in_time_and_leaves_no_task() -> None:
    near, _ = async_memory_pair()
    with pytest.raises(TimeoutError):
        await receive_within(near, STALL_SECONDS)
    assert asyncio.all_tasks() == {asyncio.current_task()}


# -- sending ----------------------------------------------------------------------------------


class Reader:
    """A peer that reads given numbers of bytes per stall time, until all is sent."""

    def __init__(self, *read: int) -> None:
        self.read = [0, *read]
        self.sent = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_start = False

    def taken(self) -> int:
        self.is_start = not self.is_start  # called at the start and at the end of each interval
        if self.is_start:
            return self.sent
        self.read.pop(0)
        if len(self.read) <= 1:
            self.done.set_result(None)
        self.sent += self.read[0] if self.read else 0
        return self.sent

    async def wait(self) -> None:
        await watch_reader(self.done, "a peer", STALL_SECONDS, self.taken)


@pytest.mark.usefixtures("rate")
async def test_a_peer_may_read_for_any_time_at_the_minimum_rate() -> None:
    reader = Reader(*[FLOOR] * 20)
    await reader.wait()
    assert reader.sent == 20 * FLOOR


@pytest.mark.usefixtures("rate")
async def test_a_peer_that_reads_too_slowly_ends_the_transfer() -> None:
    with pytest.raises(
        TransferFailed,
        match=r"a peer read 999 bytes within 0\.002 seconds, expected at least 1,000",
    ):
        await Reader(10 * FLOOR, FLOOR - 1, FLOOR).wait()
