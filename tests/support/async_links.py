"""The conformance tests of ``AsyncLink``.

A test module subclasses ``AsyncLinkConformance`` and provides a pair of ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

import pytest

from burn_remote_protocol.errors import ConnectionLost, GarbledBytes, LimitExceeded
from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES, AsyncLink
from support.link_ends import SENDERS, SIZES, pattern
from support.waiting import PATIENCE_SECONDS

__all__ = ["AsyncLinkConformance", "OpenAsyncPair"]


class OpenAsyncPair(Protocol):
    """Open both ends of a connection and close them when the context ends."""

    def __call__(
        self, max_message_bytes: int = ...
    ) -> contextlib.AbstractAsyncContextManager[tuple[AsyncLink, AsyncLink]]: ...


class AsyncLinkConformance:
    """Tests of both directions. Subclasses provide the fixture ``open_pair``."""

    @pytest.fixture(params=["one way", "the other way"])
    def forwards(self, request: pytest.FixtureRequest) -> bool:
        return bool(request.param == "one way")

    @pytest.fixture
    def open_ends(self, open_pair: OpenAsyncPair, forwards: bool) -> OpenAsyncPair:
        """Open the pair with its ends in either order, in a context with a timeout."""

        @contextlib.asynccontextmanager
        async def open_ends(max_message_bytes: int = MAX_MESSAGE_BYTES):  # type: ignore[no-untyped-def]
            async with asyncio.timeout(4 * PATIENCE_SECONDS), open_pair(max_message_bytes) as pair:
                yield pair if forwards else pair[::-1]

        return open_ends

    @pytest.mark.parametrize("size", SIZES)
    async def test_a_frame_of_any_size_arrives_unchanged(
        self, open_ends: OpenAsyncPair, size: int
    ) -> None:
        async with open_ends() as (near, far), asyncio.TaskGroup() as tasks:
            for frame in (pattern(size), b"what follows it"):
                tasks.create_task(near.send(frame))
                assert await far.receive() == frame

    @pytest.mark.parametrize("size", SIZES)
    async def test_parts_arrive_as_one_frame(self, open_ends: OpenAsyncPair, size: int) -> None:
        payload = pattern(size)
        async with open_ends() as (near, far), asyncio.TaskGroup() as tasks:
            for head in (b"", b"head!", pattern(300)):
                tasks.create_task(near.send_parts(head, memoryview(payload)))
                assert await far.receive() == head + payload

    async def test_pieces_of_any_size_arrive_as_one_frame(self, open_ends: OpenAsyncPair) -> None:
        large, small = pattern(70_000), memoryview(pattern(5_000))
        pieces: list[bytes | memoryview] = [b"head", large, b"", small, b"tail"]
        async with open_ends() as (near, far), asyncio.TaskGroup() as tasks:
            for fragment_bytes in (None, 1000):
                tasks.create_task(near.send_buffers(pieces, fragment_bytes))
                assert await far.receive() == b"".join(pieces)
            for slice_bytes in (7, 1000, 10**6):
                tasks.create_task(near.send_slices(pieces, slice_bytes))
                assert await far.receive() == b"".join(pieces)
            await near.send(b"what follows it")
            assert await far.receive() == b"what follows it"

    async def test_a_frame_sent_without_waiting_arrives_whole_and_in_order(
        self, open_ends: OpenAsyncPair
    ) -> None:
        async with open_ends() as (near, far):
            await near.send(b"first")
            if near.is_writable():
                near.send_nowait(b"head", memoryview(pattern(5_000)))
            else:  # a client's end, and one in memory
                await near.send_parts(b"head", memoryview(pattern(5_000)))
            await near.send(b"last")
            assert await far.receive() == b"first"
            assert await far.receive() == b"head" + pattern(5_000)
            assert await far.receive() == b"last"

    async def test_a_frame_sent_at_once_comes_after_those_sent_before_it(
        self, open_ends: OpenAsyncPair
    ) -> None:
        sizes = (1, 5_000, 100_000, 2, 300, 3)
        async with open_ends() as (near, far):
            if not near.is_writable():  # a client's end, and one in memory
                return
            for size in sizes:
                send = near.send_nowait if size % 100 == 0 else near.send_at_once
                send(pattern(size))
            for size in sizes:
                assert await far.receive() == pattern(size)

    async def test_frames_that_have_arrived_are_received_without_waiting(
        self, open_ends: OpenAsyncPair
    ) -> None:
        frames = [b"one", b"two", b"three"]
        async with open_ends() as (near, far):
            assert far.receive_nowait() is None
            for frame in frames:
                await near.send(frame)
            received: list[bytes] = []
            while len(received) < len(frames):
                found = far.receive_nowait()
                if found is None:
                    await asyncio.sleep(0)
                else:
                    received.append(found)
            assert received == frames
            assert far.receive_nowait() is None

    async def test_frames_are_opened_in_order_also_those_that_have_arrived_before(
        self, open_ends: OpenAsyncPair
    ) -> None:
        opened: list[bytes] = []

        def open_frame(frame: bytes) -> bytes:
            opened.append(frame)
            return b"opened " + frame

        async with open_ends() as (near, far):
            for frame in (b"0", b"1", b"2"):
                await near.send(frame)
            assert await far.receive() == b"0"
            far.open_frames(open_frame)
            await near.send(b"3")
            assert [await far.receive() for _ in range(3)] == [
                b"opened 1",
                b"opened 2",
                b"opened 3",
            ]
            assert opened == [b"1", b"2", b"3"]

    async def test_a_frame_that_cannot_be_opened_is_an_error_after_those_before_it(
        self, open_ends: OpenAsyncPair
    ) -> None:
        def open_frame(frame: bytes) -> bytes:
            if frame == b"bad":
                raise GarbledBytes("it is bad")
            return frame

        async with open_ends() as (near, far):
            far.open_frames(open_frame)
            for frame in (b"one", b"two", b"bad"):
                await near.send(frame)
            assert [await far.receive() for _ in range(2)] == [b"one", b"two"]
            with pytest.raises(GarbledBytes, match="it is bad"):
                await far.receive()

    async def test_received_bytes_grow_with_each_frame(self, open_ends: OpenAsyncPair) -> None:
        async with open_ends() as (near, far):
            before = far.received_bytes
            await near.send(pattern(5000))
            await far.receive()
            assert far.received_bytes - before >= 5000

    async def test_a_new_size_limit_applies_to_the_next_message(
        self, open_ends: OpenAsyncPair
    ) -> None:
        async with open_ends(10) as (near, far):
            far.limit_messages(1000)
            await near.send(bytes(1000))
            assert await far.receive() == bytes(1000)
            far.limit_messages(100)
            await near.send(bytes(101))
            with pytest.raises(LimitExceeded):
                await far.receive()

    async def test_a_probe_returns_while_the_other_end_lives_and_fails_after_it_closed(
        self, open_ends: OpenAsyncPair
    ) -> None:
        async with open_ends() as (near, far), asyncio.TaskGroup() as tasks:
            await near.probe()
            closing = tasks.create_task(far.close())
            with pytest.raises(ConnectionLost):
                await near.receive()
            await closing
            with pytest.raises(ConnectionLost):
                await near.probe()

    async def test_a_link_that_is_kept_alive_stays_open(self, open_ends: OpenAsyncPair) -> None:
        async with open_ends() as (near, far):
            near.keep_alive(60)
            await near.send(b"alive")
            assert await far.receive() == b"alive"

    async def test_a_frame_of_64_mib_arrives_unchanged(self, open_ends: OpenAsyncPair) -> None:
        frame = pattern(MAX_MESSAGE_BYTES)
        async with open_ends() as (near, far), asyncio.TaskGroup() as tasks:
            tasks.create_task(near.send(frame))
            assert await far.receive() == frame

    async def test_frames_of_concurrent_senders_never_interleave(
        self, open_ends: OpenAsyncPair
    ) -> None:
        sizes = [1, 70_000, 300, 300_000, 17_000, 125]

        async def send_all(link: AsyncLink, sender: int) -> None:
            for number, size in enumerate(sizes):
                payload = bytes([sender]) * size
                await link.send_parts(bytes([sender, number]), memoryview(payload))

        async with open_ends() as (near, far), asyncio.TaskGroup() as tasks:
            for sender in range(SENDERS):
                tasks.create_task(send_all(near, sender))
            numbers: dict[int, list[int]] = {sender: [] for sender in range(SENDERS)}
            for _ in range(SENDERS * len(sizes)):
                frame = await far.receive()
                assert frame[2:] == bytes([frame[0]]) * sizes[frame[1]]
                numbers[frame[0]].append(frame[1])
        assert all(order == list(range(len(sizes))) for order in numbers.values())

    async def test_a_sender_waits_while_nobody_receives(self, open_ends: OpenAsyncPair) -> None:
        sent, has_waited = 0, False

        async def send_all(link: AsyncLink) -> None:
            nonlocal sent
            while sent < 64 and not has_waited:
                await link.send(bytes(2**20))
                sent += 1

        async with open_ends() as (near, far), asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(send_all(near))
            before = -1
            while sent > before:
                before = sent
                await asyncio.wait([sending], timeout=0.2)
            assert not sending.done(), "nothing bounds what the link holds"
            has_waited = True
            for _ in range(sent + 1):
                assert await far.receive() == bytes(2**20)

    async def test_a_cancelled_receive_loses_nothing(self, open_ends: OpenAsyncPair) -> None:
        async with open_ends() as (near, far):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await far.receive()
            await near.send(b"one")
            await near.send(b"two")
            assert [await far.receive(), await far.receive()] == [b"one", b"two"]

    async def test_closing_is_seen_by_the_other_end_after_the_frames_before_it(
        self, open_ends: OpenAsyncPair
    ) -> None:
        async with open_ends() as (near, far), asyncio.TaskGroup() as tasks:
            await near.send(b"last words")
            tasks.create_task(near.close(4001, "had enough"))
            assert await far.receive() == b"last words"
            for _ in range(2):
                with pytest.raises(ConnectionLost, match=r"4001.*had enough"):
                    await far.receive()
            with pytest.raises(ConnectionLost):
                await far.send(b"too late")

    async def test_a_closed_link_raises_connection_lost_and_may_be_closed_again(
        self, open_ends: OpenAsyncPair
    ) -> None:
        async with open_ends() as (near, far), asyncio.TaskGroup() as tasks:
            closing = tasks.create_task(near.close())
            with pytest.raises(ConnectionLost):
                await far.receive()
            await closing
            await near.close()
            with pytest.raises(ConnectionLost, match="this program closed"):
                await near.send(b"")
            with pytest.raises(ConnectionLost, match="this program closed"):
                await near.receive()

    async def test_a_message_over_the_limit_is_refused_and_ends_the_link(
        self, open_ends: OpenAsyncPair
    ) -> None:
        async with open_ends(1000) as (near, far), asyncio.TaskGroup() as tasks:
            await near.send(bytes(1000))
            assert await far.receive() == bytes(1000)
            sending = tasks.create_task(near.send(bytes(1001)))
            with pytest.raises(LimitExceeded) as caught:
                await far.receive()
            assert (caught.value.seen, caught.value.allowed) == (1001, 1000)
            with contextlib.suppress(ConnectionLost):
                await sending
            with pytest.raises(ConnectionLost, match="1009"):
                await near.receive()
