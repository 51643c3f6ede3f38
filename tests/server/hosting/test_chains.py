"""Servers that wait for each other's tensors: chains of moves, and cycles."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection, serve

from burn_remote_protocol.dialects.native import encode_frame
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import TransferFailed
from burn_remote_protocol.messages import MAX_HOPS, Expose, Fetch, Read, Upload, Welcome
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.dialects.native import peer_handler
from burn_remote_server.dialects.native.peer_handler import serve_peer
from burn_remote_server.execution.native_outbox import NativeOutbox
from burn_remote_server.execution.sessions import Session
from burn_remote_server.hosting.host import Host
from burn_remote_server.hosting.waiting_peers import WaitingPeers
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.tensors.slots import InFlight, ProgressReport
from support.link_servers import direct_options, link_over
from support.native_clients import AsyncNativeClient, until
from support.patient_clock import patient_clock
from support.source_sockets import SourceSocket
from support.waiting import PATIENCE_SECONDS

SPEC = TensorSpec((4,), F32)
DATA = TensorData(np.arange(4, dtype=np.float32).tobytes(), SPEC.shape, SPEC.dtype)
# A target gives up after 1.5 times this.
TIMEOUT_SECONDS = 0.4
# For fetches that must fail.
SHORT_SECONDS = 0.05


class Node:
    """One server with one session, and a client of that session."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.client = AsyncNativeClient(host.devices[0])
        self.address = ""
        self.listening: Any = None

    @property
    def session(self) -> Session:
        (session,) = self.host.sessions
        return session

    @property
    def waits_for(self) -> InFlight | None:
        return self.session.interpreter.tensors.waits_for

    @property
    def reports(self) -> int:
        """How often a source has said that the tensor of a running fetch may still come."""
        peers = [peer.result() for peer in self.host.peers._peers.values() if peer.done()]
        return sum(each.reports for peer in peers for each in peer._downloads.values())

    async def serve_peer(self, connection: ServerConnection) -> None:
        await serve_peer(link_over(connection), self.host)

    async def pass_on(self, source: str, number: int) -> None:
        """Fetch the tensor ``number`` of a source and expose it as the next one."""
        await self.client.submit(Fetch(transfer(number), source, 1, SPEC), expose(number + 1))

    async def read(self, source: str, number: int) -> Any:
        """Return the reply to a read of the tensor ``number`` of a source."""
        await self.client.submit(Fetch(transfer(number), source, 1, SPEC), Read(1, 1, SPEC))
        return (await self.client.reply()).value


def transfer(number: int) -> bytes:
    return bytes([number]) * 32


def expose(number: int) -> Expose:
    return Expose(1, SPEC, 1, transfer(number), 60.0)


@contextlib.asynccontextmanager
async def servers(count: int, timeout_seconds: float) -> AsyncIterator[list[Node]]:
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(patient_clock())
        await stack.enter_async_context(asyncio.timeout(4 * PATIENCE_SECONDS))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        nodes = []
        for _ in range(count):
            settings = Settings(fetch_timeout_seconds=timeout_seconds)
            node = Node(Host(settings, [NumpyBackend()], tasks))
            serving = serve(node.serve_peer, "127.0.0.1", 0, **direct_options())
            node.listening = await stack.enter_async_context(serving)
            node.host.port = node.listening.sockets[0].getsockname()[1]
            node.address = node.host.peer_address(0)
            await node.client.open()
            nodes.append(node)
        try:
            yield nodes
        finally:
            for node in nodes:
                for session in node.host.sessions:
                    node.host.end_session(session)
                await node.client.hang_up()
                await node.host.peers.close()
                node.host.draining.set()


@contextlib.contextmanager
def working(node: Node) -> Iterator[threading.Event]:
    """Let the session of a server work until the event is set."""
    done = threading.Event()
    node.session.submit(lambda: wait(done))
    try:
        yield done
    finally:
        done.set()


def wait(event: threading.Event) -> None:
    assert event.wait(4 * PATIENCE_SECONDS)


@pytest.mark.parametrize("count", [3, 4])
async def test_the_last_of_a_chain_waits_while_the_first_works(count: int) -> None:
    async with servers(count, TIMEOUT_SECONDS) as nodes:
        first, *between, last = nodes
        with working(first) as done:
            await first.client.submit(Upload(1, DATA), expose(1))
            for number, (source, target) in enumerate(zip(nodes, between, strict=False), 1):
                await target.pass_on(source.address, number)
            reading = asyncio.create_task(last.read(between[-1].address, count - 1))
            await until(lambda: last.reports >= 2)  # two timeouts
            slot = last.waits_for
            assert slot is not None
            assert slot.last_report is not None
            assert slot.last_report.hops >= 1
            done.set()
            assert await reading == DATA.bytes


async def test_a_server_that_waits_after_it_has_worked_passes_reports_on() -> None:
    async with servers(3, TIMEOUT_SECONDS) as (a, b, c):
        with working(a) as a_done, working(b) as b_done:
            await a.client.submit(Upload(1, DATA), expose(1))
            await b.pass_on(a.address, 1)
            reading = asyncio.create_task(c.read(b.address, 2))
            await until(lambda: c.reports >= 1)  # b itself works
            b_done.set()
            await until(lambda: c.reports >= 3)
            a_done.set()
            assert await reading == DATA.bytes


async def test_servers_that_wait_for_each_other_fail_after_a_bounded_number_of_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[int] = []

    class Recording(NativeOutbox):
        def wait(self, request: int, hops: int) -> None:
            told.append(hops)
            super().wait(request, hops)

    timeouts: dict[object, int] = {}

    def give_up(waiting: WaitingPeers, fetch: Any) -> None:
        timeouts[fetch] = timeouts.get(fetch, 0) + 1
        expire(waiting, fetch)

    expire = WaitingPeers._give_up
    monkeypatch.setattr(WaitingPeers, "_give_up", give_up)
    monkeypatch.setattr(peer_handler, "NativeOutbox", Recording)
    async with servers(3, TIMEOUT_SECONDS) as (a, b, c):
        await a.pass_on(b.address, 2)  # exposes 3
        await b.client.submit(Fetch(transfer(3), a.address, 1, SPEC), expose(2))
        assert isinstance(await c.read(b.address, 2), TransferFailed)
        await until(lambda: not a.session.queued and not b.session.queued)
    assert told
    assert max(told) <= MAX_HOPS
    # Each report of a fetch but the first has more hops than the one before, or a timeout sent it.
    assert len(told) <= sum(timeouts.values()) + len(timeouts) * MAX_HOPS
    # The hops reach the limit within one timeout, not one hop in each.
    assert max(timeouts.values()) <= 3


async def test_the_last_of_a_chain_learns_which_source_has_died() -> None:
    async with servers(3, TIMEOUT_SECONDS) as (a, b, c):
        with working(a):
            await a.client.submit(Upload(1, DATA), expose(1))
            await b.pass_on(a.address, 1)
            reading = asyncio.create_task(c.read(b.address, 2))
            await until(lambda: c.reports >= 2)
            a.listening.close()
            failure = await reading
    assert isinstance(failure, TransferFailed)
    assert str(a.host.port) in str(failure)


async def test_the_last_of_a_chain_learns_which_source_is_silent() -> None:
    welcome = encode_frame(Welcome(1, 0, b"", 0.0, {}, {}, "ws://source:1"))

    async def keep_silent(connection: ServerConnection) -> None:
        source = SourceSocket(connection)
        await source.recv()
        await source.send(welcome)
        await source.wait_closed()

    async with (
        serve(keep_silent, "127.0.0.1", 0) as silent,
        servers(2, TIMEOUT_SECONDS) as (b, c),
    ):
        port = silent.sockets[0].getsockname()[1]
        await b.pass_on(f"ws://127.0.0.1:{port}", 1)
        failure = await c.read(b.address, 2)
    assert isinstance(failure, TransferFailed)
    assert f"nothing arrived from 127.0.0.1:{port}" in str(failure)


@pytest.mark.parametrize(
    ("hops", "age", "passed_on"),
    [(0, 0.0, 1), (0, 1.2, 1), (0, 1.3, 2), (0, 2.6, 3), (7, 1.0, 8), (8, 0.0, 9)],
)
def test_a_report_gains_a_hop_with_each_server_and_with_age(
    hops: int, age: float, passed_on: int
) -> None:
    assert ProgressReport(100.0, hops).hops_after(100.0 + age, 1.25) == passed_on
