"""The keepalive of asynchronous connections: which ends count as silent."""

from __future__ import annotations

import asyncio

import pytest
from websockets.client import ClientProtocol
from websockets.protocol import State
from websockets.uri import parse_uri

from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.links.transport_registry import connect_async as connect
from support.async_servers import listening, silent_client
from support.waiting import PATIENCE_SECONDS


@pytest.mark.parametrize("asking", ["client", "server"])
async def test_an_end_that_answers_pings_stays_connected(asking: str) -> None:
    async with listening() as (address, accepted):
        client = await connect(address)
        server = await accepted.get()
        asker, other = (client, server) if asking == "client" else (server, client)
        asker.keep_alive(0.2)
        waiting = asyncio.ensure_future(asker.receive())
        async with asyncio.timeout(PATIENCE_SECONDS):
            before = asker.received_bytes
            while asker.received_bytes < before + 4:  # two pongs
                assert not waiting.done()
                await asyncio.sleep(0)
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
