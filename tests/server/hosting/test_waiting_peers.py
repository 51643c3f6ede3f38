"""Fetches of peers that wait for a tensor, and the progress reports to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from burn_remote_protocol.errors import TransferFailed
from burn_remote_protocol.ids import new_transfer_id
from burn_remote_protocol.messages import MAX_HOPS, FetchRequest
from burn_remote_server.hosting import waiting_peers as module
from burn_remote_server.hosting.host import NATIVE_TRANSFERS
from burn_remote_server.hosting.waiting_peers import WaitingPeers
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.tensors.exposed_tensors import MAX_WAITING, Exposed, Transfers
from burn_remote_server.transfers.outgoing_transfers import OutgoingTransfers
from support.engines import RecordingOutbox
from support.hosts import ARRAY, KEY, SPEC, expose, hosting, within_patience
from support.native_clients import turns, until


def named(session: int) -> tuple[str, bytes]:
    """Return the key of a transfer id that names a session."""
    return NATIVE_TRANSFERS, new_transfer_id(session)


@dataclass
class Waiting:
    """A session that waits for a tensor of another server."""

    hops: int | None
    counters: Counters = field(default_factory=Counters)
    moment: float = 0.0
    stale_seconds: float = 0.0

    def hops_since(self, moment: float, now: float, stale_seconds: float) -> int | None:
        self.moment, self.stale_seconds = moment, stale_seconds
        return self.hops


def waiting_peers(sessions: Sequence[Waiting], timeout_seconds: float) -> WaitingPeers:
    """Return the waiting fetches of a process with these sessions."""
    stand_ins: Any = sessions
    return WaitingPeers(stand_ins, Transfers(), set(), timeout_seconds, 2**30)


@pytest.mark.parametrize(
    ("sessions", "expected"), [((3, None, 2, 5), 2), ((3, 0), 0), ((MAX_HOPS,), MAX_HOPS)]
)
async def test_a_waiting_peer_gets_the_report_with_the_fewest_hops(
    sessions: tuple[int | None, ...], expected: int
) -> None:
    reports: list[int] = []
    waiting = waiting_peers([Waiting(hops) for hops in sessions], 0.01)
    fetching = asyncio.create_task(waiting.exposed(KEY, reports.append))
    await until(lambda: len(reports) > 1)
    fetching.cancel()
    assert {*reports} == {expected}


async def test_a_session_counts_that_was_busy_from_one_timeout_after_the_fetch_on() -> None:
    session = Waiting(1)
    assert waiting_peers([session], 10).hops(100.0) == 1
    assert session.moment == 110.0
    # A source sends a report in each timeout, so one that is just as old is not stale.
    assert session.stale_seconds > 10


@pytest.mark.parametrize("hops", [None, MAX_HOPS + 1])
async def test_a_peer_stops_waiting_if_no_session_makes_progress(hops: int | None) -> None:
    with pytest.raises(TransferFailed, match="no tensor was exposed"):
        await within_patience(waiting_peers([Waiting(hops)], 0.01).exposed(KEY))


async def test_a_peer_gets_a_tensor_that_was_exposed_before_or_after_it_asked() -> None:
    async with hosting() as host:
        expose(host)
        assert (await within_patience(host.waiting_peers.exposed(KEY))).array is ARRAY
        waiting = asyncio.create_task(host.waiting_peers.exposed(KEY))
        await turns(2)
        expose(host)
        assert (await within_patience(waiting)).array is ARRAY
        assert len(host.transfers) == 0


async def test_a_peer_waits_a_bounded_time_and_learns_why() -> None:
    async with hosting(fetch_timeout_seconds=0.01) as host:
        with pytest.raises(TransferFailed, match=r"within 0\.01 seconds.*sync it before"):
            await within_patience(host.waiting_peers.exposed(KEY))
        expose(host)
        assert len(host.transfers) == 1  # the fetch that timed out did not take the tensor


async def test_one_host_has_at_most_half_of_the_places_for_fetches_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LEAST_WAITING", 4)
    async with hosting(max_total_bytes=module.WAITING_DIVISOR) as host:

        def fetch(number: int, peer_host: str) -> asyncio.Task[Exposed]:
            key = NATIVE_TRANSFERS, number.to_bytes(32, "big")
            return asyncio.create_task(host.waiting_peers.exposed(key, peer_host=peer_host))

        waiting = [fetch(number, "192.0.2.1") for number in range(3)]
        await turns(2)
        assert [one.done() for one in waiting] == [False, False, True]
        with pytest.raises(TransferFailed, match=r"2 fetches of your server.* 4 may wait"):
            await waiting.pop()
        other = fetch(3, "192.0.2.2")
        await turns(2)
        assert not other.done()
        expose(host, key=(NATIVE_TRANSFERS, bytes(32)))
        assert (await within_patience(waiting[0])).array is ARRAY
        again = fetch(4, "192.0.2.1")
        await turns(2)
        assert not again.done()  # in the place of the one that has its tensor
        for one in (*waiting, other, again):
            one.cancel()
        await turns(2)
        assert host.waiting_peers.places.total == 0


async def test_a_server_with_little_memory_has_fewer_places_for_fetches_that_wait() -> None:
    async with hosting(max_total_bytes=2**26) as host:
        assert host.waiting_peers.places.allowed == 2**26 // 8 // 4096
    async with hosting(max_total_bytes=2**50) as host:
        assert host.waiting_peers.places.allowed == MAX_WAITING


async def test_a_peer_learns_at_once_that_the_session_of_its_tensor_has_ended() -> None:
    async with hosting(fetch_timeout_seconds=3600) as host:
        session = host.devices[0].open_session(7, RecordingOutbox(), NATIVE_TRANSFERS)
        waiting = [asyncio.create_task(host.waiting_peers.exposed(named(7))) for _ in range(200)]
        key = named(7)
        exposed = asyncio.create_task(host.waiting_peers.exposed(key))
        await turns(2)
        expose(host, key=key)
        assert (await within_patience(exposed)).array is ARRAY
        with pytest.raises(TransferFailed, match="has ended on its server"):
            await within_patience(host.waiting_peers.exposed(named(8)))
        assert not any(one.done() for one in waiting)
        host.end_session(session)
        for one in waiting:
            with pytest.raises(TransferFailed, match="has ended on its server"):
                await within_patience(one)
        assert not host.waiting_peers._by_source
        assert not host.transfers._waiting


async def test_a_peer_waits_for_the_tensor_of_an_ended_session_that_is_being_sent() -> None:
    # The connection that carries it broke, and the source has not noticed.
    async with hosting(fetch_timeout_seconds=3600) as host:
        key = named(7)
        sending = OutgoingTransfers(host.transfers, NATIVE_TRANSFERS, 60.0)
        host.outgoing_transfers.add(sending)
        sending.begin(FetchRequest(1, key[1]), Exposed(ARRAY, SPEC, host.devices[0].backend))
        waiting = asyncio.create_task(host.waiting_peers.exposed(key))
        await turns(2)
        assert not waiting.done()
        sending.expose_again()
        assert (await within_patience(waiting)).array is ARRAY


@pytest.mark.parametrize("is_exposed_first", [True, False])
async def test_a_tensor_whose_fetch_a_peer_cancels_can_be_fetched_again(
    is_exposed_first: bool,
) -> None:
    """Cancel a fetch after each number of turns, until it has got its tensor."""
    async with hosting() as host:
        count, is_over = 0, False
        while not is_over:
            if is_exposed_first:
                expose(host)
            fetching = asyncio.create_task(host.waiting_peers.exposed(KEY))
            if not is_exposed_first:
                await turns(2)
                expose(host)
            await turns(count)
            is_over = fetching.done()
            fetching.cancel()
            await asyncio.wait([fetching])
            assert fetching.cancelled() != is_over
            if not is_over:
                await turns(2)
                assert (await within_patience(host.waiting_peers.exposed(KEY))).array is ARRAY
            assert len(host.transfers) == 0
            count += 1
        assert count > 1
