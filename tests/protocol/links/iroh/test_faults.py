"""Peers that die, fall silent, reset or stall; and what is left after a link."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from burn_remote_protocol.errors import ConnectionLost, ProtocolViolation
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.links.iroh import endpoints, stream_link
from burn_remote_protocol.links.iroh.blocking_link import BlockingIrohLink
from burn_remote_protocol.links.iroh.framing import Kind, close_payload, frame_header
from burn_remote_protocol.links.iroh.library import iroh
from burn_remote_protocol.links.iroh.opening import burn_header, request
from burn_remote_protocol.links.iroh.stream_link import FRAMES_AT_ONCE, StreamLink
from burn_remote_protocol.links.receive_limits import URGENT_BYTES, ThroughputWatchdog
from burn_remote_protocol.links.transport_registry import connect
from support.iroh_links import iroh_server, listening
from support.link_ends import in_thread, take
from support.waiting import PATIENCE_SECONDS, wait_until

# A server that prints its address, and a link that never answers anything.
SERVER = """
import asyncio, sys
from burn_remote_protocol.links.transport_registry import listen
async def silent(link, request):
    await link.send(b"here")
    await asyncio.Event().wait()
async def main():
    async with listen("iroh", "127.0.0.1", 0, silent) as listener:
        print(f"iroh://{listener.node_id}?addr=127.0.0.1:{listener.port}", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""

# A client that leaves without closing its link.
CLIENT = """
import contextlib, sys, threading
from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.links.transport_registry import connect
link = connect(sys.argv[1])
link.send(b"here")
if sys.argv[2] == "waiting":
    def receive():
        with contextlib.suppress(ConnectionLost):
            link.receive()
    threading.Thread(target=receive, daemon=True).start()
"""


@contextlib.contextmanager
def server_process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@contextlib.asynccontextmanager
async def raw_link(alpn: bytes, first: bytes) -> AsyncIterator[tuple[Any, Any, StreamLink]]:
    """Open a stream without a link at the client; yield connection, stream and server's link."""
    endpoint = await endpoints.bind()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS), listening() as (listener, accepted):
            where = iroh.EndpointAddr(
                iroh.EndpointId.from_string(listener.node_id), None, [f"127.0.0.1:{listener.port}"]
            )
            connection = await endpoint.connect(where, alpn)
            stream = await connection.open_bi()
            await stream.send().write_all(first)
            yield connection, stream, await accepted.get()
    finally:
        await endpoints.close(endpoint)


def native_link() -> contextlib.AbstractAsyncContextManager[tuple[Any, Any, StreamLink]]:
    return raw_link(endpoints.NATIVE_ALPN, request("/session", {}))


def burn_link() -> contextlib.AbstractAsyncContextManager[tuple[Any, Any, StreamLink]]:
    return raw_link(endpoints.BURN_ALPN, burn_header("/session"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_peer_that_is_killed_or_stopped_is_noticed_by_pings(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_gone = threading.Event()

    async def until_answered(seconds: float) -> None:
        """Give a living peer the time that it needs on a busy machine to answer a ping."""
        before = inner._received_bytes
        while (  # noqa: ASYNC110 - there is no event to wait for
            seconds and inner._received_bytes == before and not is_gone.is_set()
        ):
            await asyncio.sleep(0.01)
        if is_gone.is_set() or not seconds:
            await asyncio.sleep(seconds)

    with server_process() as (process, address):
        link = connect(address, close_timeout_seconds=0)
        assert isinstance(link, BlockingIrohLink)
        inner = link._inner
        assert take(link) == b"here"
        patched = SimpleNamespace(**{**vars(asyncio), "sleep": until_answered})
        monkeypatch.setattr(stream_link, "asyncio", patched)
        beats: list[None] = []
        link.keep_alive(0.2, lambda: beats.append(None))
        receiving = in_thread(link.receive, None)
        wait_until(lambda: len(beats) > 3)
        assert not receiving.done()
        os.kill(process.pid, number)
        is_gone.set()
        with pytest.raises(ConnectionLost, match=r"gave no sign of life for 0\.2 s"):
            receiving.result(PATIENCE_SECONDS)
        link.close()


async def test_a_client_that_falls_silent_is_noticed_by_the_servers_pings() -> None:
    async with native_link() as (_, _, link):
        link.keep_alive(0.05)  # nobody answers at the client's end
        with pytest.raises(ConnectionLost, match="gave no sign of life"):
            await link.receive()


async def test_a_stream_that_ends_within_a_frame_is_connection_lost() -> None:
    for opened in (native_link, burn_link):
        async with opened() as (_, stream, link):
            await stream.send().write_all(frame_header(4) + b"four" + frame_header(9) + b"half")
            await stream.send().finish()
            assert await link.receive() == b"four"
            with pytest.raises(ConnectionLost, match="hung up"):
                await link.receive()


async def test_a_reset_stream_is_connection_lost() -> None:
    for opened in (native_link, burn_link):
        async with opened() as (_, stream, link):
            await stream.send().reset(7)
            with pytest.raises(ConnectionLost, match="broke"):
                await link.receive()
            with pytest.raises(ConnectionLost):
                await link.send(b"")


async def test_a_client_that_stops_the_servers_stream_does_not_end_what_it_sends() -> None:
    async with burn_link() as (_, stream, link):
        await stream.recv().stop(7)
        await stream.send().write_all(frame_header(4) + b"last")
        await link.send(b"nobody reads this")
        assert await link.receive() == b"last"


async def test_a_closed_connection_has_the_peers_code_and_reason() -> None:
    async with native_link() as (connection, _, link):
        connection.close(4003, b"out of patience")
        with pytest.raises(ConnectionLost, match="4003 out of patience"):
            await link.receive()


async def test_an_unknown_kind_of_frame_is_a_violation_that_ends_the_link() -> None:
    async with native_link() as (connection, stream, link):
        await stream.send().write_all(bytes(7) + b"\7")
        with pytest.raises(ProtocolViolation, match="unknown kind of frame 7"):
            await link.receive()
        with pytest.raises(ConnectionLost):
            await link.receive()
        assert "(code 1002)" in await connection.closed()


async def test_a_close_without_a_payload_is_understood() -> None:
    for payload, text in ((b"", "without a code"), (close_payload(4004, "bye"), "4004 bye")):
        async with native_link() as (_, stream, link):
            await stream.send().write_all(frame_header(len(payload), Kind.CLOSE) + payload)
            with pytest.raises(ConnectionLost, match=text):
                await link.receive()


async def test_pings_of_a_peer_that_reads_nothing_occupy_no_memory() -> None:
    async with native_link() as (_, stream, link):
        pings = frame_header(125, Kind.PING) + bytes(125)
        for _ in range(20):
            await stream.send().write_all(pings * 500)  # 1.3 MB of pings and pongs in all
        await stream.send().write_all(frame_header(4) + b"last")
        assert await link.receive() == b"last"
        assert link.queued_bytes < 2 * 2**20


async def test_many_small_messages_are_taken_in_turns() -> None:
    async with native_link() as (_, stream, link):
        sending = asyncio.ensure_future(stream.send().write_all(frame_header(0) * 4000))
        received = most = 0
        while received < 4000:
            await asyncio.sleep(0)
            taken = 0
            while link.receive_nowait() is not None:
                taken += 1
            received += taken
            most = max(most, taken)
        await sending
        assert most <= FRAMES_AT_ONCE


async def test_what_follows_a_violation_is_not_read() -> None:
    async with native_link() as (_, stream, link):
        wrong = frame_header(1) + b"x" + bytes(7) + b"\7"
        await stream.send().write_all(wrong + frame_header(0) * 1000)
        assert await link.receive() == b"x"
        with pytest.raises(ProtocolViolation, match="unknown kind of frame 7"):
            await link.receive()
        with pytest.raises(ConnectionLost):
            await link.receive()
        assert not link._unparsed


class Budget:
    """A pool of memory."""

    def __init__(self, free: int) -> None:
        self.free = free

    def take(self, size: int) -> bool:
        if size > self.free:
            return False
        self.free -= size
        return True

    take_urgent = take

    def add(self, size: int) -> None:
        self.free -= size

    def give_back(self, size: int) -> None:
        self.free += size

    add_urgent = add
    give_back_urgent = give_back


async def test_a_large_message_counts_against_the_pool_while_it_arrives() -> None:
    size, budget = 8 * 2**20, Budget(32 * 2**20)
    async with burn_link() as (_, stream, link):
        link.limit_messages(size)
        link.count_received(budget, PATIENCE_SECONDS)
        await stream.send().write_all(frame_header(size))
        for _ in range(7):
            await stream.send().write_all(bytes(2**20))
        while link.received_bytes < 7 * 2**20:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)
        assert 32 * 2**20 - budget.free > URGENT_BYTES
        await stream.send().write_all(bytes(2**20))
        assert len(await link.receive()) == size
    assert budget.free == 32 * 2**20


async def test_a_message_without_room_in_the_pool_ends_the_link_and_not_the_memory() -> None:
    budget = Budget(2**20)
    async with burn_link() as (_, stream, link):
        link.count_received(budget, 0.3)
        sending = asyncio.ensure_future(
            stream.send().write_all(frame_header(2**25) + bytes(3 * 2**20))
        )
        with pytest.raises(ConnectionLost, match="no memory for a message"):
            await link.receive()
        assert link.received_bytes < 2 * URGENT_BYTES
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    assert budget.free == 2**20


async def test_a_message_that_has_room_again_when_it_would_be_ended_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, budget = 3 * 2**20, Budget(2**20)
    async with burn_link() as (_, stream, link):
        link.count_received(budget, PATIENCE_SECONDS)
        sending = asyncio.ensure_future(stream.send().write_all(frame_header(size) + bytes(size)))
        while not link._is_starved:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)
        budget.free = 2**25
        watchdog = ThroughputWatchdog(0)
        is_fast = iter([True, False])  # the message began, and has been slow since
        monkeypatch.setattr(watchdog, "is_fast_enough", lambda *_: next(is_fast, True))
        watching = asyncio.ensure_future(link._watch_throughput(watchdog))
        assert len(await link.receive()) == size
        assert next(is_fast, None) is None
        await sending
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_message_that_stalls_ends_the_link() -> None:
    async with burn_link() as (_, stream, link):
        link.count_received(Budget(2**30), 0.1)
        await stream.send().write_all(frame_header(1000) + b"begin")
        with pytest.raises(ConnectionLost, match="arrived with less than"):
            await link.receive()


async def test_an_idle_link_does_not_count_as_stalled() -> None:
    async with burn_link() as (_, stream, link):
        link.count_received(Budget(2**30), 0.05)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await link.receive()
        await stream.send().write_all(frame_header(5) + b"still")
        assert await link.receive() == b"still"


def test_a_closed_link_leaves_no_thread_and_no_object() -> None:
    with iroh_server() as server:
        before = {*threading.enumerate()}
        links: list[BlockingLink] = [connect(server.address) for _ in range(3)]
        for link in links:
            link.send(bytes(10))
            assert len(server.accept().receive()) == 10
        links[0].close()
        links[1].close(4000, "bye")
        links[2].close()
        assert {*threading.enumerate()} <= before
        # Objects of the library keep its memory and sockets, also while somebody keeps the link.
        gc.collect()
        library = ("Endpoint", "Connection", "SendStream", "RecvStream", "BiStream")
        client_ends = [getattr(each, "_inner") for each in links]  # noqa: B009 - of a protocol
        held = [value for end in client_ends for value in vars(end).values()]
        assert [value for value in held if type(value).__name__ in library] == []
        links.clear()
        del link, client_ends, held
        gc.collect()
        kept = [each for each in gc.get_objects() if type(each).__name__ == "BlockingIrohLink"]
        assert kept == []


def test_a_failed_connection_leaves_no_thread() -> None:
    before = {*threading.enumerate()}
    for _ in range(2):
        with pytest.raises(Exception, match="did not answer"):
            connect(f"iroh://{endpoints.node_id(bytes(32))}?addr=127.0.0.1:9", timeout_seconds=0.1)
    assert {*threading.enumerate()} <= before


@pytest.mark.parametrize("state", ["idle", "waiting"])
def test_a_program_that_never_closes_its_link_exits_normally(state: str) -> None:
    with iroh_server() as server:
        for _ in range(3):
            left = subprocess.run(
                [sys.executable, "-c", CLIENT, server.address, state],
                check=False,
                capture_output=True,
                timeout=PATIENCE_SECONDS,
            )
            assert (left.returncode, left.stderr) == (0, b"")
            assert server.accept().receive() == b"here"
