"""Fetches from Burn servers fail if the server is silent, too slow, or sends only pings."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from burn_remote_protocol.dialects.bounded_unpacking import STEP_BYTES
from burn_remote_protocol.dialects.burn_0_21_responses import encode_data
from burn_remote_protocol.dtypes import U8
from burn_remote_protocol.errors import TransferFailed
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.links.transport_registry import connect_async
from burn_remote_protocol.messages import Fetch
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends import open_backends
from burn_remote_server.execution.decoding_turns import DecodingTurns
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.transfers import burn_peer_fetches as module
from burn_remote_server.transfers import throughput_watchdog
from burn_remote_server.transfers.burn_peer_fetches import BurnPeers
from support.waiting import PATIENCE_SECONDS

SPEC = TensorSpec((200,), U8)
MESSAGE = b"".join(encode_data(TensorData(bytes(range(200)), SPEC.shape, SPEC.dtype)))

Answer = Callable[[ServerConnection], Awaitable[None]]


async def dial(address: str, route: str, max_message_bytes: int, token: str) -> AsyncLink:
    return await connect_async(address, route, max_message_bytes=max_message_bytes)


async def fetched(
    answer: Answer,
    stall_seconds: float,
    *,
    max_tensor_bytes: int = SPEC.nbytes,
    decoding: DecodingTurns | None = None,
) -> bytes:
    """Fetch from a peer that sends the given response."""

    async def handle(connection: ServerConnection) -> None:
        await connection.recv()
        with contextlib.suppress(ConnectionClosed):  # the fetch was abandoned
            await answer(connection)
        await connection.wait_closed()

    backend = open_backends("numpy", 1)[0]
    peers = BurnPeers(dial, stall_seconds, Counters(), decoding)
    async with asyncio.timeout(PATIENCE_SECONDS), serve(handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        try:
            task = Fetch(0, f"ws://127.0.0.1:{port}", 1, SPEC)
            array = await peers.fetch("session", backend, task, max_tensor_bytes)
            return bytes(backend.to_bytes(array, SPEC.dtype))
        finally:
            await peers.close()


async def said() -> AsyncIterator[bytes]:
    for byte in MESSAGE:
        yield bytes((byte,))
        await asyncio.sleep(0)


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b""  # empty fragments never reach the message limit
        await asyncio.sleep(0)


async def test_a_message_in_many_fragments_arrives_whole() -> None:
    assert await fetched(lambda peer: peer.send(said()), 5.0) == bytes(range(200))


async def test_a_long_message_that_is_no_tensor_is_unpacked_in_turns() -> None:
    nested = b"\xdc\x01\xf4" + (b"\x91" * 1000 + b"\xc0") * 500
    steps = 0

    class CountingTurns(DecodingTurns):
        async def run(self, steps_of: Generator[None, None, Any]) -> Any:
            return await super().run(counted(steps_of))

    def counted(steps_of: Generator[None, None, Any]) -> Generator[None, None, Any]:
        nonlocal steps
        while True:
            try:
                next(steps_of)
            except StopIteration as ended:
                return ended.value
            steps += 1
            yield

    async def answer(connection: ServerConnection) -> None:
        await connection.send(nested)

    with pytest.raises(TransferFailed, match="cannot fetch"):
        await fetched(answer, 5, max_tensor_bytes=2**20, decoding=CountingTurns())
    assert steps >= len(nested) // STEP_BYTES


async def test_a_fetch_from_a_silent_peer_fails() -> None:
    async def say_nothing(peer: ServerConnection) -> None:
        pass

    with pytest.raises(TransferFailed, match=r"nothing arrived from 127\.0\.0\.1"):
        await fetched(say_nothing, 0.02)


async def test_a_fetch_from_a_peer_that_sends_too_slowly_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(throughput_watchdog, "MIN_BYTES_PER_SECOND", 2**40)
    with pytest.raises(TransferFailed, match=r"too little arrived from 127\.0\.0\.1"):
        await fetched(lambda peer: peer.send(endless()), 0.3, max_tensor_bytes=2**30)


class ReluctantLink:
    """A link that receives nothing; the test decides when its close completes."""

    peer = "a peer"
    received_bytes = 0

    def __init__(self) -> None:
        self.is_ending = asyncio.Event()
        self.may_end = asyncio.Event()

    async def send(self, frame: bytes) -> None:
        pass

    async def receive(self) -> bytes:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_ending.set()
            # Bounded, because pytest cancels this task if the test fails.
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.may_end.wait()
            raise
        raise AssertionError("nothing comes")

    async def close(self) -> None:
        pass


async def test_the_connections_of_one_token_leave_room_for_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 4)
    dialled: asyncio.Queue[str] = asyncio.Queue()

    async def dial_nobody(address: str, route: str, max_message_bytes: int, token: str) -> Any:
        dialled.put_nowait(token)
        await asyncio.Event().wait()
        raise AssertionError("nobody answers")

    peers = BurnPeers(dial_nobody, 1.0, Counters())
    task = Fetch(0, "ws://peer:1", 1, SPEC)
    backend = open_backends("numpy", 1)[0]
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        fetches = [
            tasks.create_task(peers.fetch(owner, backend, task, SPEC.nbytes, token))
            for owner, token in (("first", "alice"), ("second", "alice"), ("third", "bob"))
        ]
        assert [await dialled.get() for _ in fetches] == ["alice", "alice", "bob"]
        with pytest.raises(TransferFailed, match="this client may open no more"):
            await peers.fetch("fourth", backend, task, SPEC.nbytes, "alice")
        for each in fetches:
            each.cancel()


async def test_a_fetch_that_is_cancelled_while_its_connection_ends_is_cancelled() -> None:
    link = ReluctantLink()

    async def dial_link(address: str, route: str, max_message_bytes: int, token: str) -> Any:
        return link

    peers = BurnPeers(dial_link, 0.001, Counters())
    task = Fetch(0, "ws://peer:1", 1, SPEC)
    backend = open_backends("numpy", 1)[0]
    async with asyncio.timeout(PATIENCE_SECONDS):
        fetching = asyncio.create_task(peers.fetch("session", backend, task, SPEC.nbytes))
        await link.is_ending.wait()
        fetching.cancel()
        await asyncio.sleep(0)
        link.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        await peers.close()


async def test_a_peer_that_fills_the_connection_without_a_message_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(throughput_watchdog, "MIN_BYTES_PER_SECOND", 0)
    monkeypatch.setattr(module, "MESSAGE_OVERHEAD_BYTES", 0)
    with pytest.raises(TransferFailed, match="bytes, but the tensor did not make progress"):
        await fetched(lambda peer: peer.send(endless()), 0.3, max_tensor_bytes=8)
