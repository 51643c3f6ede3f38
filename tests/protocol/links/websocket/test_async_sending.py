"""The sending side of asynchronous connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from support.async_servers import connected, until


class RecordingTransport:
    """A transport that counts the calls that pass it bytes."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes | memoryview) -> None:
        self.calls += 1
        self._transport.write(data)

    def writelines(self, buffers: Iterable[bytes | memoryview]) -> None:
        self.calls += 1
        self._transport.writelines(buffers)


@pytest.mark.parametrize("size", [0, 1000, 2**19])
async def test_a_message_is_passed_to_the_transport_in_one_call(size: int) -> None:
    async with connected() as (connection, client):
        connection.transport = transport = RecordingTransport(connection.transport)  # type: ignore[assignment]
        payload = bytes(range(250)) * (size // 250)
        await connection.send_message(b"head", memoryview(payload))
        assert transport.calls == 1
        assert await client.recv() == b"head" + payload


async def test_sent_bytes_include_fragments() -> None:
    async def fragments() -> AsyncIterator[memoryview]:
        yield memoryview(b"one")
        yield memoryview(b"two!")

    async with connected() as (connection, client):
        before = connection.sent_bytes
        await connection.send_fragments(fragments())
        assert await client.recv() == b"onetwo!"
        await connection.drained()
        assert connection.sent_bytes == before + 7


async def test_slices_are_passed_to_the_transport_one_by_one_and_arrive_as_one_frame() -> None:
    async with connected() as (connection, client):
        connection.transport = transport = RecordingTransport(connection.transport)  # type: ignore[assignment]
        payload = bytes(range(250)) * 40
        before = connection.sent_bytes
        await connection.send_slices((b"head", memoryview(payload), b"end"), 1000)
        assert transport.calls == 11
        fragments = [fragment async for fragment in client.recv_streaming()]
        assert fragments == [b"head" + payload + b"end"]
        await connection.drained()
        assert connection.sent_bytes == before + len(payload) + 7 + 4


async def test_other_tasks_run_between_slices() -> None:
    async with connected() as (connection, client):
        sending = asyncio.ensure_future(connection.send_slices((bytes(5000),), 1000))
        await asyncio.sleep(0)
        assert connection.sends_elsewhere
        assert not sending.done()
        await sending
        assert await client.recv() == bytes(5000)


async def test_a_ping_during_slices_is_answered_after_the_frame() -> None:
    async with connected() as (connection, client):
        sending = asyncio.ensure_future(connection.send_slices((bytes(2**24),), 1000))
        await asyncio.sleep(0)
        pong = await client.ping()
        assert await client.recv() == bytes(2**24)
        await pong
        await sending


async def test_an_incomplete_frame_ends_the_connection() -> None:
    async with connected() as (connection, client):
        sending = asyncio.ensure_future(connection.send_slices((bytes(5000),), 1000))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(ConnectionClosed):
            await client.recv()
        with pytest.raises(ConnectionClosed):
            await connection.send_slices((bytes(10),), 4)


async def test_bytes_that_the_kernel_accepted_count_as_sent() -> None:
    async with connected() as (connection, client):
        await connection.send_message(bytes(100), bytes(26))
        assert await client.recv() == bytes(126)
        assert connection.sent_bytes == 126 + 4


@pytest.mark.parametrize("sizes", [(), (0,), (3, 4), (5000, 3, 5000), (2**20, 2**20)])
async def test_pieces_arrive_as_one_message(sizes: tuple[int, ...]) -> None:
    async with connected() as (connection, client):
        pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
        sending = asyncio.ensure_future(connection.send_message(*pieces))
        assert await client.recv() == b"".join(pieces)
        await sending


async def test_a_sender_waits_while_its_peer_does_not_read() -> None:
    async with connected() as (connection, client):
        block = bytes(2**20)

        async def send_all() -> None:
            for _ in range(64):
                await connection.send_message(block)

        sending = asyncio.ensure_future(send_all())
        await until(lambda: connection.transport.get_write_buffer_size() > 0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not sending.done()
        for _ in range(64):
            assert len(await client.recv()) == len(block)
        await sending


async def test_a_sender_that_waits_learns_that_the_connection_ended() -> None:
    async with connected() as (connection, client):

        async def send_forever() -> None:
            while True:
                await connection.send_message(bytes(2**20))

        sending = asyncio.ensure_future(send_forever())
        await until(lambda: connection.transport.get_write_buffer_size() > 0)
        client.transport.abort()
        with pytest.raises(ConnectionClosed):
            await sending
