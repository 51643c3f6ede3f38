"""Asynchronous connections: their bounded queue of messages, and their end."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import select

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from burn_remote_protocol.errors import GarbledBytes, LimitExceeded, ProtocolViolation
from burn_remote_protocol.links.interface import PlacedFrame, Placement
from burn_remote_protocol.links.websocket.async_connection import (
    FRAMES_AT_ONCE,
    RECEIVE_QUEUE_LENGTH,
    DirectClientConnection,
    DirectConnection,
)
from burn_remote_protocol.links.websocket.receive_turns import (
    BYTES_AT_ONCE,
    CONTINUED_AT_ONCE,
    PARSED_AT_ONCE,
)
from burn_remote_protocol.links.websocket.server_connection import DirectServerConnection
from support.async_servers import connected, masked, until
from support.waiting import PATIENCE_SECONDS


async def test_messages_are_received_in_order_until_none_is_left() -> None:
    async with connected() as (connection, client):
        assert connection.take_message() is None
        await client.send(b"one")
        await client.send(b"two")
        assert await connection.receive_message() == b"one"
        assert await connection.receive_message() == b"two"
        assert connection.take_message() is None


async def test_a_cancelled_receive_loses_nothing() -> None:
    async with connected() as (connection, client):
        receiving = asyncio.ensure_future(connection.receive_message())
        await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.wait([receiving])
        await client.send(b"late")
        assert await connection.receive_message() == b"late"


async def test_reading_pauses_while_many_messages_wait_and_resumes_when_half_are_taken() -> None:
    async with connected() as (connection, client):
        count = RECEIVE_QUEUE_LENGTH + 1
        for number in range(count):
            await client.send(b"%d" % number)
        await until(lambda: connection.reading_paused)
        for number in range(count):
            assert connection.reading_paused == (number <= count - RECEIVE_QUEUE_LENGTH // 2 - 1)
            assert await connection.receive_message() == b"%d" % number
        assert not connection.reading_paused
        await client.send(b"next")
        assert await connection.receive_message() == b"next"


async def test_received_bytes_include_frame_headers() -> None:
    async with connected() as (connection, client):
        assert connection.received_bytes == 0
        await client.send(bytes(200))
        await connection.receive_message()
        # 2 bytes, the length in 2 more, the key of the mask in 4
        assert connection.received_bytes == 200 + 8


async def test_a_violation_is_raised_once_and_then_connection_lost() -> None:
    async with connected() as (connection, client):
        await client.send("text")
        with pytest.raises(ProtocolViolation, match="binary"):
            await connection.receive_message()
        with pytest.raises(ConnectionClosed):
            await connection.receive_message()


async def test_messages_before_a_violation_are_delivered() -> None:
    async with connected() as (connection, client):
        await client.send(b"first")
        await client.send("text")
        await until(lambda: connection.state.name != "OPEN")
        assert await connection.receive_message() == b"first"
        with pytest.raises(ProtocolViolation):
            await connection.receive_message()


async def test_a_limit_that_was_lowered_counts_for_the_next_message() -> None:
    async with connected() as (connection, client):
        await client.send(bytes(100))
        assert len(await connection.receive_message()) == 100
        connection.limit_messages(99)
        await client.send(bytes(100))
        with pytest.raises(LimitExceeded) as caught:
            await connection.receive_message()
        assert (caught.value.seen, caught.value.allowed) == (100, 99)


async def test_a_long_message_is_placed_only_if_all_messages_before_it_were_received() -> None:
    message = bytes(range(256)) * 1024
    memory = memoryview(bytearray(len(message) - 4))
    asked: list[bytes] = []

    def place(head: bytes, size: int) -> Placement:
        asked.append(head)
        return Placement(memory[:size], lambda: True)

    async with connected() as (connection, client):
        connection.place_messages(4, place)
        receiving = asyncio.ensure_future(connection.receive_message())
        await asyncio.sleep(0)
        await client.send(message)
        placed = await receiving
        assert isinstance(placed, PlacedFrame)
        assert placed + placed.rest == message
        assert placed.rest.obj is memory.obj
        await client.send(b"before")
        await client.send(message)
        await until(lambda: connection.received_bytes > 2 * len(message))
        assert await connection.receive_message() == b"before"
        assert await connection.receive_message() == message
        assert asked == [message[:4]]


async def test_an_unfinished_message_is_seen() -> None:
    async with connected() as (connection, client):
        part = Frame(Opcode.BINARY, b"part", fin=False).serialize(mask=True)
        client.transport.write(part)
        await until(lambda: connection.is_within_message)
        assert connection.take_message() is None
        client.transport.write(Frame(Opcode.CONT, b"end").serialize(mask=True))
        assert await connection.receive_message() == b"partend"
        assert not connection.is_within_message


async def test_closing_drops_messages_that_were_not_received() -> None:
    async with connected() as (connection, client):
        await client.send(b"unread")
        await client.ping()
        await until(lambda: connection.received_bytes > 0)
        await connection.close(4000, "enough")
        assert connection.take_message() is None
        await client.wait_closed()
        assert (client.close_code, client.close_reason) == (4000, "enough")


async def test_both_kinds_of_connection_share_this_behaviour() -> None:
    assert issubclass(DirectServerConnection, DirectConnection)
    assert issubclass(DirectClientConnection, DirectConnection)


@pytest.mark.parametrize(
    "frames",
    [
        masked(Opcode.PING),
        masked(Opcode.PONG),
        masked(Opcode.BINARY),
        masked(Opcode.BINARY, fin=False) + masked(Opcode.CONT),
    ],
    ids=["pings", "pongs", "messages", "fragments"],
)
async def test_one_iteration_of_the_event_loop_parses_a_bounded_number_of_frames(
    frames: bytes,
) -> None:
    async with connected() as (connection, _):
        connection.data_received(frames * (5 * FRAMES_AT_ONCE) + masked(Opcode.BINARY, b"last"))
        for _ in range(4):
            assert b"last" not in connection._messages
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await connection.receive_message() != b"last":
                pass


async def test_fragments_of_one_message_are_parsed_in_several_iterations() -> None:
    async with connected() as (connection, _):
        part = masked(Opcode.CONT, b"x", fin=False)
        connection.data_received(masked(Opcode.BINARY, fin=False) + part * (5 * FRAMES_AT_ONCE))
        assert connection._parser._state.size <= FRAMES_AT_ONCE
        connection.data_received(masked(Opcode.CONT))
        assert await connection.receive_message() == b"x" * (5 * FRAMES_AT_ONCE)


async def test_reading_a_long_message_pauses_for_an_iteration_of_the_event_loop() -> None:
    async with connected(max_message_bytes=4 * BYTES_AT_ONCE) as (connection, _):
        message = bytes(3 * BYTES_AT_ONCE)
        frame = masked(Opcode.BINARY, message)
        size = BYTES_AT_ONCE // 4
        pauses = 0
        for at in range(0, len(frame), size):
            connection.data_received(frame[at : at + size])
            if not connection.transport.is_reading():
                pauses += 1
                assert connection.received_bytes >= pauses * BYTES_AT_ONCE
                await asyncio.sleep(0)
            assert connection.transport.is_reading()
        assert pauses == 3
        assert await connection.receive_message() == message


async def test_long_messages_that_follow_each_other_are_stored_without_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied = 0
    original = DirectConnection.data_received

    def counted(connection: DirectConnection, data: bytes) -> None:
        nonlocal copied
        copied += len(data)
        original(connection, data)

    monkeypatch.setattr(DirectConnection, "data_received", counted)
    long, short = bytes(range(256)) * 2**11, b"short"
    async with connected() as (connection, client):
        await client.send(long)
        assert await connection.receive_message() == long
        copied = 0
        for _ in range(5):
            await client.send(long)
            assert await connection.receive_message() == long
        assert copied == 0
        # Short messages and control frames end it, and arrive too.
        for message in (short, long, short, long, short * 100):
            await client.send(message)
            pong = await client.ping()
            assert await connection.receive_message() == message
            await pong


async def test_few_connections_with_long_payloads_continue_in_each_iteration() -> None:
    async with contextlib.AsyncExitStack() as stack:
        connections = [(await stack.enter_async_context(connected()))[0] for _ in range(12)]
        message = bytes(2 * BYTES_AT_ONCE)
        frame = masked(Opcode.BINARY, message)
        parts = [frame[at : at + 2**18] for at in range(0, len(frame), 2**18)]
        left = [collections.deque(parts) for _ in connections]
        iterations = list[int]()  # how many connections received in each iteration
        while any(left):
            received = 0
            for connection, rest in zip(connections, left, strict=True):
                if rest and connection.transport.is_reading():
                    connection.data_received(rest.popleft())
                    received += 1
            iterations.append(received)
            await asyncio.sleep(0)
        # At first nobody waits. The bytes that pause the first one may come from several.
        assert iterations[0] == len(connections)
        assert iterations[1] < CONTINUED_AT_ONCE + BYTES_AT_ONCE // 2**18
        assert max(iterations[2:]) == CONTINUED_AT_ONCE
        for connection in connections:
            assert await connection.receive_message() == message


async def test_few_connections_parse_what_they_read_at_the_same_moment() -> None:
    async with contextlib.AsyncExitStack() as stack:
        connections = [(await stack.enter_async_context(connected()))[0] for _ in range(12)]
        messages = [bytes([number]) * 60_000 for number in range(4)]
        data = b"".join(masked(Opcode.BINARY, message) for message in messages)
        for connection in connections:
            connection.data_received(data)
        parsed = [bool(connection._messages) for connection in connections]
        assert parsed == sorted(parsed, reverse=True)
        assert sum(parsed) <= PARSED_AT_ONCE // len(data) + 1
        for iteration in range(1, 12):
            seen = sum(parsed)
            await asyncio.sleep(0)
            parsed = [bool(connection._messages) for connection in connections]
            assert sum(parsed) == min(12, seen + CONTINUED_AT_ONCE), iteration
        for connection in connections:
            assert [await connection.receive_message() for _ in messages] == messages
            assert connection.transport.is_reading()


async def test_messages_that_arrived_before_the_connection_was_lost_are_received() -> None:
    async with connected() as (connection, _):
        sent = [b"%d" % number for number in range(3 * FRAMES_AT_ONCE)]
        connection.data_received(b"".join(masked(Opcode.BINARY, each) for each in sent))
        connection.transport.abort()
        assert [await connection.receive_message() for _ in sent] == sent
        with pytest.raises(ConnectionClosed):
            await connection.receive_message()


async def test_pings_get_one_response_once_the_peer_reads() -> None:
    async with connected() as (connection, client):
        connection.pause_writing()
        first, last = await client.ping(b"first"), await client.ping(b"last")
        await client.send(b"after")
        assert await connection.receive_message() == b"after"
        connection.write_message(b"no pong precedes this")
        await client.recv()
        assert not first.done()
        connection.resume_writing()
        await last
        assert first.done()  # a pong also acknowledges earlier pings
        assert connection._last_ping is None


def test_a_message_written_at_once_has_left_before_the_event_loop_runs_again() -> None:
    uvloop = pytest.importorskip("uvloop")  # asyncio's transport writes at once anyway

    async def write() -> None:
        async with connected() as (connection, client):
            connection.write_at_once(b"reply")
            descriptor = client.transport.get_extra_info("socket").fileno()
            assert select.select([descriptor], [], [], PATIENCE_SECONDS)[0]
            assert await client.recv() == b"reply"

    uvloop.run(write())


# -- calls on arrival -------------------------------------------------------------------------


async def test_messages_that_arrive_while_a_task_waits_are_passed_to_the_handler() -> None:
    async with connected() as (connection, client):
        taken: list[bytes] = []

        def take() -> None:
            while (message := connection.take_message()) is not None:
                taken.append(message)

        connection.on_arrival = take
        waiting = asyncio.ensure_future(connection.receive_message())
        await asyncio.sleep(0)
        for number in range(3):
            await client.send(b"%d" % number)
        await until(lambda: len(taken) == 3)

        assert taken == [b"0", b"1", b"2"]
        assert not waiting.done()
        connection.on_arrival = None
        await client.send(b"last")
        assert await waiting == b"last"


async def test_a_message_that_the_handler_leaves_wakes_the_task() -> None:
    async with connected() as (connection, client):
        taken: list[bytes] = []

        def take() -> None:
            while (message := connection.take_message(longest=3)) is not None:
                taken.append(message)

        connection.on_arrival = take
        waiting = asyncio.ensure_future(connection.receive_message())
        await asyncio.sleep(0)
        await client.send(b"one")
        await client.send(b"longer")

        assert await waiting == b"longer"
        assert taken == [b"one"]


async def test_a_message_that_arrives_alone_is_offered_before_it_is_queued() -> None:
    async with connected() as (connection, client):
        offered: list[bytes] = []

        def take(message: bytes) -> bool:
            offered.append(message)
            return message != b"left"

        connection.on_lone_arrival = take
        waiting = asyncio.ensure_future(connection.receive_message())
        await asyncio.sleep(0)
        await client.send(b"taken")
        await until(lambda: len(offered) == 1)
        assert not waiting.done()

        await client.send(b"left")
        assert await waiting == b"left"
        await client.send(b"for a busy task")
        await until(lambda: connection.received_bytes > 30)
        assert await connection.receive_message() == b"for a busy task"
        assert offered == [b"taken", b"left"]


async def test_an_error_of_the_handler_of_lone_messages_is_raised_where_messages_are_received() -> (
    None
):
    def fail(message: bytes) -> bool:
        raise LookupError("no such thing")

    async with connected() as (connection, client):
        connection.on_lone_arrival = fail
        waiting = asyncio.ensure_future(connection.receive_message())
        await asyncio.sleep(0)
        await client.send(b"one")

        with pytest.raises(LookupError):
            await waiting
        connection.on_lone_arrival = None
        await client.send(b"two")
        assert await connection.receive_message() == b"two"


async def test_a_garbled_message_is_not_offered() -> None:
    def garbled(message: bytes) -> bytes:
        raise GarbledBytes(f"{message!r} is garbled")

    offered: list[bytes] = []

    def take(message: bytes) -> bool:
        offered.append(message)
        return True

    async with connected() as (connection, client):
        connection.on_lone_arrival = take
        connection.open_messages(garbled)
        waiting = asyncio.ensure_future(connection.receive_message())
        await asyncio.sleep(0)
        await client.send(b"one")

        with pytest.raises(GarbledBytes):
            await waiting
        assert not offered


async def test_no_handler_is_called_while_the_task_that_receives_is_busy() -> None:
    async with connected() as (connection, client):
        called: list[bool] = []
        connection.on_arrival = lambda: called.append(True)
        await client.send(b"one")
        await until(lambda: connection.received_bytes)

        assert not called
        assert await connection.receive_message() == b"one"


async def test_what_the_handler_raises_is_raised_where_messages_are_received() -> None:
    def fail() -> None:
        raise LookupError("no such thing")

    async with connected() as (connection, client):
        connection.on_arrival = fail
        waiting = asyncio.ensure_future(connection.receive_message())
        await asyncio.sleep(0)
        await client.send(b"one")

        with pytest.raises(LookupError):
            await waiting
        assert await connection.receive_message() == b"one"


async def test_the_end_of_a_connection_wakes_a_task_whose_messages_a_handler_takes() -> None:
    async with connected() as (connection, client):
        connection.on_arrival = lambda: None
        waiting = asyncio.ensure_future(connection.receive_message())
        await asyncio.sleep(0)
        await client.close()

        with pytest.raises(ConnectionClosed):
            await waiting


async def test_a_garbled_message_wakes_the_task_that_receives() -> None:
    def garbled(message: bytes) -> bytes:
        raise GarbledBytes(f"{message!r} is garbled")

    async with connected() as (connection, client):
        connection.on_arrival = lambda: None
        connection.open_messages(garbled)
        waiting = asyncio.ensure_future(connection.receive_message())
        await asyncio.sleep(0)
        await client.send(b"one")

        with pytest.raises(GarbledBytes):
            await waiting
