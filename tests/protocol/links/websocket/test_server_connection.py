"""Server connections whose receiving side a thread borrows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from burn_remote_protocol.errors import ConnectionLost, ProtocolViolation
from burn_remote_protocol.links.websocket.server_connection import DirectServerConnection
from burn_remote_protocol.links.websocket.thread_receiver import ThreadReceiver
from support.async_servers import connected, until
from support.waiting import PATIENCE_SECONDS


@contextlib.asynccontextmanager
async def lent() -> AsyncIterator[tuple[DirectServerConnection, Any, ThreadReceiver, Any]]:
    """Yield a connection, its client, the lent receiver, and the task that waits for a message."""
    async with connected() as (connection, client):
        waiting = asyncio.ensure_future(connection.receive_message())
        await until(lambda: connection._receiver is not None)
        receiver = connection.lend_receiver()
        assert receiver is not None
        yield connection, client, receiver, waiting
        waiting.cancel()
        await asyncio.wait([waiting])


async def in_thread(receiver: ThreadReceiver) -> list[bytes]:
    return await asyncio.to_thread(receiver.receive, PATIENCE_SECONDS)


async def test_only_the_thread_receives_until_it_gives_the_connection_back() -> None:
    async with lent() as (connection, client, receiver, waiting):
        assert connection.lend_receiver() is None  # it is lent already
        await client.send(b"one")
        assert await in_thread(receiver) == [b"one"]
        assert not waiting.done()
        receiver.give_back()
        await client.send(b"two")
        assert await waiting == b"two"
        assert connection.received_bytes == 2 * (2 + 4 + 3)


async def test_messages_that_the_thread_leaves_come_before_later_ones() -> None:
    async with lent() as (connection, client, receiver, waiting):
        await client.send(b"one")
        messages = await in_thread(receiver)
        await client.send(b"two")
        receiver.give_back(messages)
        assert await waiting == b"one"
        assert await connection.receive_message() == b"two"


async def test_the_thread_and_then_the_event_loop_reply_in_order() -> None:
    async with lent() as (connection, client, receiver, _):
        assert receiver.send(b"one")
        receiver.give_back()
        await until(lambda: connection._lent is None)
        await connection.send_message(b"two")
        assert [await client.recv(), await client.recv()] == [b"one", b"two"]
        assert connection.sent_bytes == 2 * (2 + 3)


async def test_a_ping_that_the_thread_finds_is_answered() -> None:
    async with lent() as (_, client, receiver, waiting):
        answered = await client.ping()
        assert await in_thread(receiver) == []
        receiver.give_back()
        await answered
        await client.send(b"later")
        assert await waiting == b"later"


async def test_a_long_message_that_begins_in_the_thread_is_received() -> None:
    message = bytes(range(256)) * 10_000
    async with lent() as (_, client, receiver, waiting):
        sending = asyncio.ensure_future(client.send(message))
        assert await in_thread(receiver) == []
        receiver.give_back()
        assert await waiting == message
        await sending


async def test_a_violation_that_the_thread_finds_ends_the_connection() -> None:
    async with lent() as (_, client, receiver, waiting):
        client.transport.write(b"\x83\x80\0\0\0\0")  # an unknown opcode
        assert await in_thread(receiver) == []
        receiver.give_back()
        with pytest.raises(ProtocolViolation, match="0x83"):
            await waiting


async def test_the_end_that_the_thread_finds_ends_the_connection() -> None:
    async with lent() as (_, client, receiver, waiting):
        client.transport.abort()
        assert await in_thread(receiver) == []
        receiver.give_back()
        with pytest.raises(ConnectionClosed):
            await waiting


async def test_a_connection_that_is_closed_meanwhile_is_not_read_by_the_thread() -> None:
    async with lent() as (connection, client, receiver, waiting):
        await client.send(b"unread")
        connection.transport.abort()
        with pytest.raises(ConnectionClosed):
            await waiting
        assert receiver.receive(0) == []
        assert receiver.send(b"unsent") is False
        receiver.give_back()
        await until(lambda: connection._lent is None)


async def test_closing_makes_the_thread_give_the_connection_back() -> None:
    async with lent() as (connection, client, receiver, waiting):
        receiving = asyncio.ensure_future(in_thread(receiver))
        closing = asyncio.ensure_future(connection.close())
        await until(lambda: connection._closing)
        assert await receiving == []  # the client's close frame wakes the thread
        receiver.give_back()
        await closing
        await client.wait_closed()
        with pytest.raises(ConnectionClosed):
            await waiting


async def test_a_slow_message_is_noticed_again_after_the_thread() -> None:
    async with connected() as (connection, client):
        connection.count_received(Room(), stall_seconds=0.01)
        waiting = asyncio.ensure_future(connection.receive_message())
        await until(lambda: connection._receiver is not None)
        receiver = connection.lend_receiver()
        assert receiver is not None
        client.transport.write(Frame(Opcode.BINARY, bytes(1000)).serialize(mask=True)[:500])
        assert await asyncio.to_thread(receiver.receive, 0.05) == []
        receiver.give_back()
        with pytest.raises(ConnectionLost, match="bytes/s"):
            await waiting


class Room:
    """A memory pool with room for everything."""

    def take(self, size: int) -> bool:
        return size >= 0

    take_urgent = take

    def add(self, size: int) -> None:
        """Do nothing."""

    def give_back(self, size: int) -> None:
        """Do nothing."""

    add_urgent = add
    give_back_urgent = give_back


async def test_a_connection_is_lent_only_while_its_task_waits() -> None:
    async with connected() as (connection, client):
        assert connection.lend_receiver() is None  # nothing waits in ``receive_message``
        waiting = asyncio.ensure_future(connection.receive_message())
        await until(lambda: connection._receiver is not None)
        receiver = connection.lend_receiver()
        assert receiver is not None
        receiver.give_back()
        await client.send(b"one")
        assert await waiting == b"one"


async def test_a_connection_receives_again_if_the_call_that_returns_it_is_lost() -> None:
    async with lent() as (connection, client, receiver, waiting):
        connection.recover()
        await client.send(b"one")
        messages = await in_thread(receiver)
        returned = receiver._returned
        receiver._returned = lambda: None  # type: ignore[misc]
        receiver.give_back(messages)
        connection.recover()
        assert connection._lent is receiver  # the call may still come
        connection.recover()
        assert await waiting == b"one"
        returned()  # late
        await client.send(b"two")
        assert await connection.receive_message() == b"two"


async def test_a_connection_ends_if_the_timeout_of_its_closing_handshake_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with lent() as (connection, _, receiver, waiting):
        monkeypatch.setattr(connection, "close_timeout", 0.0)
        with monkeypatch.context() as patched:
            patched.setattr(Connection, "close", never_ends)
            closing = asyncio.ensure_future(connection.close())
            await until(lambda: connection._closing)
        connection.recover()
        assert not connection.transport.is_closing()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not connection._is_lost:
                await asyncio.sleep(0)
                connection.recover()
        with pytest.raises(ConnectionClosed):
            await waiting
        receiver.give_back()
        closing.cancel()


async def never_ends(*_: object) -> None:
    await asyncio.get_running_loop().create_future()
