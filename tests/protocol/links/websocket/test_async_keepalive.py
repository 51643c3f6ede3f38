"""The keepalive of asynchronous connections: which ends count as silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from websockets.client import ClientProtocol
from websockets.protocol import State
from websockets.uri import parse_uri

from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.links.transport_registry import connect_async as connect
from burn_remote_protocol.links.websocket import async_link
from burn_remote_protocol.links.websocket.async_keepalive import Keepalive
from burn_remote_protocol.links.websocket.keepalive import PART_BYTES
from support.async_servers import listening, silent_client
from support.waiting import PATIENCE_SECONDS


@pytest.mark.parametrize("asking", ["client", "server"])
async def test_an_end_that_answers_pings_stays_connected(
    asking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[Keepalive] = []
    monkeypatch.setattr(async_link, "Keepalive", lambda *given: timers.append(Keepalive(*given)))
    async with listening() as (address, accepted):
        client = await connect(address)
        server = await accepted.get()
        asker, other = (client, server) if asking == "client" else (server, client)
        asker.keep_alive(3600.0)  # the test ends the intervals
        (timer,) = timers
        waiting = asyncio.ensure_future(asker.receive())
        async with asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(3):
                before = asker.received_bytes
                while asker.received_bytes < before + 2:  # noqa: ASYNC110 - until a pong came
                    await asyncio.sleep(0)
                timer._beat()
                assert not waiting.done()
            await other.send(b"alive")
            assert await waiting == b"alive"
        await client.close()


async def test_an_end_that_does_not_answer_is_lost() -> None:
    async with listening() as (address, accepted), silent_client(address):
        server = await accepted.get()
        server.keep_alive(0.01)
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(ConnectionLost, match=r"gave no sign of life for 0\.01 s"):
                await server.receive()


async def test_an_end_that_does_not_read_is_lost_too() -> None:
    async with listening() as (address, accepted), silent_client(address):
        server = await accepted.get()
        server.keep_alive(0.05)
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(ConnectionLost, match="gave no sign of life"):
                while True:
                    await server.send(bytes(2**20))


async def test_an_end_whose_frames_are_not_read_does_not_count_as_silent() -> None:
    async with listening() as (address, accepted), silent_client(address) as (reader, writer):
        server = await accepted.get()
        frames = ClientProtocol(parse_uri(address), state=State.OPEN)
        for _ in range(20):
            frames.send_binary(b"kept waiting")
        writer.write(b"".join(frames.data_to_send()))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while server.received_bytes < 20 * 18:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0)
            server.keep_alive(0.01)
            # Ten pings of two bytes: the server continues to ping and keeps the connection.
            await reader.readexactly(20)
            assert await server.receive() == b"kept waiting"


class SlicingConnection:
    """A connection in the middle of a sliced frame, whose timer the test runs."""

    def __init__(self) -> None:
        self.state = State.OPEN
        self.reading_paused = self.is_within_message = self.is_aborted = False
        self.sends_elsewhere = self.sends_slices = True
        self.received_bytes = self.sent_bytes = self.pings = 0
        self.transport = self.protocol = self.loop = self
        self.connection_lost_waiter = asyncio.get_running_loop().create_future()
        self.due: list[Callable[[], None]] = []

    def end_slices(self) -> None:
        self.sends_elsewhere = self.sends_slices = False

    def beat(self) -> None:
        self.due.pop()()

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.due.append(call)

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def send_ping(self, data: bytes) -> None:
        assert not self.sends_elsewhere, "a ping inside a frame"
        self.pings += 1

    def send_data(self) -> None:
        pass


async def test_pings_continue_after_a_frame_that_was_sent_in_slices() -> None:
    connection = SlicingConnection()
    Keepalive(cast("Any", connection), 1.0, lambda: None)
    connection.sent_bytes += PART_BYTES
    connection.beat()
    connection.end_slices()
    connection.beat()  # the peer was not asked, and has said nothing
    assert connection.pings == 1 and not connection.is_aborted
    connection.received_bytes += 2
    connection.beat()
    assert connection.pings == 2
    connection.beat()
    assert connection.is_aborted


async def test_an_end_that_does_not_read_the_slices_of_a_frame_is_lost() -> None:
    connection = SlicingConnection()
    silences: list[None] = []
    Keepalive(cast("Any", connection), 1.0, lambda: silences.append(None))
    connection.beat()
    assert connection.is_aborted and silences == [None]
