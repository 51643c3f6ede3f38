"""Incoming messages take bytes from a pool, and a message that is too slow ends its connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.links.receive_limits import (
    ALWAYS_BYTES,
    COPIES,
    MAX_WAITS,
    MIN_BYTES_PER_SECOND,
    UNCOUNTED_BYTES,
    ReceiveBudget,
    ThroughputWatchdog,
)
from burn_remote_protocol.links.websocket.server_connection import DirectServerConnection
from support.async_servers import connected, until
from support.link_servers import link_server
from support.waiting import PATIENCE_SECONDS

MIB = 2**20


class Budget:
    """A pool of bytes."""

    def __init__(self, max_bytes: int, urgent_room: int = 0) -> None:
        self.max_bytes = max_bytes
        self.urgent_room = urgent_room
        self.taken = 0
        self.has_refused = threading.Event()

    def take(self, size: int) -> bool:
        if self.taken + size > self.max_bytes:
            self.has_refused.set()
            return False
        self.taken += size
        return True

    def take_urgent(self, size: int) -> bool:
        if self.taken + size > self.max_bytes + self.urgent_room:
            return False
        self.taken += size
        return True

    def add(self, size: int) -> None:
        self.taken += size

    def give_back(self, size: int) -> None:
        self.taken -= size

    add_urgent = add
    give_back_urgent = give_back


def test_all_received_bytes_but_the_first_ones_count() -> None:
    budget = Budget(10 * MIB)
    held = ReceiveBudget(budget)
    assert held.hold(UNCOUNTED_BYTES)
    assert budget.taken == 0
    assert held.hold(UNCOUNTED_BYTES + 1)
    assert budget.taken == UNCOUNTED_BYTES + 1
    assert held.hold(2 * MIB)
    assert budget.taken == COPIES * 2 * MIB
    assert held.hold(0)
    assert budget.taken == 0


def test_bytes_without_room_count_until_there_is_room_again() -> None:
    budget = Budget(10 * MIB)
    held = ReceiveBudget(budget)
    assert not held.hold(6 * MIB)
    assert budget.taken == COPIES * 6 * MIB
    assert not held.hold(6 * MIB)
    budget.max_bytes = 12 * MIB
    assert held.hold(6 * MIB)
    assert budget.taken == COPIES * 6 * MIB


def test_short_messages_have_room_in_a_full_pool() -> None:
    budget = Budget(0, urgent_room=MIB // 2)
    first, second, third = ReceiveBudget(budget), ReceiveBudget(budget), ReceiveBudget(budget, 1000)
    assert first.hold(MIB // 2)
    assert not second.hold(MIB // 2)  # the room for urgent bytes is used
    assert second.hold(ALWAYS_BYTES)
    assert not third.hold(ALWAYS_BYTES + 1)
    assert first.hold(0)
    assert not third.hold(ALWAYS_BYTES + 1)  # never urgent in this connection


def test_urgent_messages_may_be_longer_and_count_as_often_as_others() -> None:
    budget = Budget(0, urgent_room=2 * COPIES * MIB)
    held = ReceiveBudget(budget, 2 * MIB)
    assert held.hold(MIB)
    assert budget.taken == MIB
    assert held.hold(2 * MIB)
    assert budget.taken == COPIES * 2 * MIB
    assert not held.hold(2 * MIB + 1)


def test_a_closed_connection_returns_its_bytes_to_the_pool() -> None:
    budget = Budget(10 * MIB)
    held = ReceiveBudget(budget)
    held.hold(3 * MIB)
    del held
    assert budget.taken == 0


def test_a_message_with_enough_throughput_continues() -> None:
    watchdog = ThroughputWatchdog(2.0)
    assert watchdog.is_fast_enough(0, 0)
    assert watchdog.is_fast_enough(0, 2 * MIN_BYTES_PER_SECOND)
    assert not watchdog.is_fast_enough(0, 4 * MIN_BYTES_PER_SECOND - 1)


def test_a_message_that_just_began_is_not_too_slow() -> None:
    watchdog = ThroughputWatchdog(2.0)
    watchdog.is_fast_enough(0, 0)
    assert watchdog.is_fast_enough(1, 1)
    watchdog.reset()
    assert watchdog.is_fast_enough(1, 1)


def test_the_time_in_which_a_message_waited_for_room_is_not_slowness() -> None:
    watchdog = ThroughputWatchdog(2.0)
    watchdog.is_fast_enough(0, 0)
    assert watchdog.restart_after_wait(0, 1000)
    assert not watchdog.is_fast_enough(0, 1000 + 2 * MIN_BYTES_PER_SECOND - 1)
    assert watchdog.is_fast_enough(0, 1000 + 4 * MIN_BYTES_PER_SECOND)


def test_a_message_that_waits_for_room_too_often_is_measured_like_others() -> None:
    watchdog = ThroughputWatchdog(2.0)
    watchdog.is_fast_enough(0, 0)
    assert all(watchdog.restart_after_wait(0, 0) for _ in range(MAX_WAITS))
    assert not watchdog.restart_after_wait(0, 2 * MIN_BYTES_PER_SECOND)
    assert watchdog.is_fast_enough(0, 2 * MIN_BYTES_PER_SECOND)
    assert watchdog.restart_after_wait(1, 0)


@contextlib.contextmanager
def raw_client(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as client:
        client.sendall(
            b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        while not client.recv(4096).endswith(b"\r\n\r\n"):
            pass
        yield client


def head(size: int) -> bytes:
    return bytes([0x82, 0xFF]) + struct.pack(">Q", size) + b"\0\0\0\0"


@pytest.mark.parametrize("loop_name", ["asyncio", "uvloop"])
def test_an_unfinished_message_takes_no_more_than_the_pool_and_ends_because_it_is_slow(
    loop_name: str,
) -> None:
    budget = Budget(8 * MIB)
    with link_server(loop_name) as server, raw_client(server.port) as client:
        end = server.accept()
        connection = end.connection
        assert isinstance(connection, DirectServerConnection)

        async def receive() -> bytes:
            connection.count_received(budget, 0.2)
            return await connection.receive_message()

        received = asyncio.run_coroutine_threadsafe(receive(), server.loop)
        # The server stops reading until it ends the message, and then discards the rest.
        with contextlib.suppress(OSError):
            client.sendall(head(64 * MIB) + bytes(64 * MIB))
        with pytest.raises(ConnectionLost, match="no memory for a message within"):
            received.result(PATIENCE_SECONDS)
        assert connection.received_bytes < budget.max_bytes
        assert budget.taken == 0


def test_a_message_waiting_for_memory_continues_when_memory_is_free() -> None:
    budget = Budget(8 * MIB)
    budget.take(7 * MIB)
    size = 4 * MIB  # more than what several reads bring, so that memory is refused before the end
    with link_server() as server, raw_client(server.port) as client:
        end = server.accept()
        connection = end.connection
        assert isinstance(connection, DirectServerConnection)

        async def receive() -> bytes:
            connection.count_received(budget, 5)
            return await connection.receive_message()

        received = asyncio.run_coroutine_threadsafe(receive(), server.loop)
        client.sendall(head(size) + bytes(size))
        assert budget.has_refused.wait(PATIENCE_SECONDS)
        assert not received.done()
        server.loop.call_soon_threadsafe(budget.give_back, 7 * MIB)
        assert len(received.result(PATIENCE_SECONDS)) == size


async def test_of_messages_that_wait_for_each_others_room_only_one_is_ended() -> None:
    budget = Budget(MIB)
    message = bytes(4 * MIB)
    async with contextlib.AsyncExitStack() as stack:
        ends = [await stack.enter_async_context(connected()) for _ in range(3)]
        for connection, _ in ends:
            connection.count_received(budget, PATIENCE_SECONDS)
        sending = [asyncio.ensure_future(client.send(message)) for _, client in ends]
        await until(lambda: all(connection._is_starved for connection, _ in ends))
        budget.max_bytes = budget.taken - 1
        for connection, _ in ends:
            connection._check_throughput()
        assert not ends[1][0]._is_starved
        budget.max_bytes = 100 * MIB
        with pytest.raises(ConnectionLost, match="no memory for a message within"):
            await ends[0][0].receive_message()
        for connection, _ in ends[1:]:
            assert await connection.receive_message() == message
        await asyncio.gather(*sending, return_exceptions=True)


async def test_a_connection_that_lacks_room_again_and_again_has_one_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = Budget(MIB)
    async with connected() as (connection, _):
        connection.count_received(budget, PATIENCE_SECONDS)
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []
        call_later = loop.call_later

        def noted(
            seconds: float, call: Any, *arguments: Any, **options: Any
        ) -> asyncio.TimerHandle:
            timer = call_later(seconds, call, *arguments, **options)
            if call == connection._look_for_room:
                timers.append(timer)
            return timer

        monkeypatch.setattr(loop, "call_later", noted)
        for _ in range(5):
            connection._message_bytes = 4 * MIB
            connection._count_received()
            assert connection._is_starved
            connection._message_bytes = 0
            connection._count_received()
            assert not connection._is_starved
        assert len(timers) == 5
        assert sum(not timer.cancelled() for timer in timers) == 1


@pytest.mark.parametrize("loop_name", ["asyncio", "uvloop"])
def test_messages_of_any_length_follow_each_other(loop_name: str) -> None:
    sizes = [3 * MIB + 5, 1, 70_000, 600_000, 0, 2 * MIB, 300_000, 300_001, 9]
    messages = [(bytes(range(251)) * (size // 251 + 1))[:size] for size in sizes]
    with link_server(loop_name) as server, raw_client(server.port) as client:
        end = server.accept()
        sending = threading.Thread(
            target=client.sendall, args=(b"".join(head(len(m)) + m for m in messages),)
        )
        sending.start()
        connection = end.connection
        assert isinstance(connection, DirectServerConnection)

        async def receive() -> list[bytes]:
            return [bytes(await connection.receive_message()) for _ in messages]

        assert end.run(receive()) == messages
        sending.join()
