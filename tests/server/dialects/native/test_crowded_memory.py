"""Batches that arrive while the memory pool has no room for them are executed in parts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import numpy as np
import pytest

from burn_remote_protocol.dialects.bounded_unpacking import unpacked_bytes
from burn_remote_protocol.dialects.native import encode_batch, encode_task
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import ProtocolViolation
from burn_remote_protocol.messages import Drop, Read, Sync, Upload
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.decoding_turns import LARGE_FRAME_BYTES
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings
from support.native_clients import AsyncNativeClient, batch, until
from support.waiting import PATIENCE_SECONDS

SPEC = TensorSpec((4,), F32)
DATA = TensorData(np.arange(4, dtype=np.float32).tobytes(), SPEC.shape, SPEC.dtype)
# A task of lists that are nested 1,000 deep, which no server executes.
NESTED = b"\x92\x20" + b"\x91" * 1000 + b"\xc0"


@contextlib.asynccontextmanager
async def hosting() -> AsyncIterator[Host]:
    async with asyncio.timeout(8 * PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(Settings(max_total_bytes=2**20), [NumpyBackend()], tasks)
        try:
            yield host
        finally:
            host.draining.set()


def fill(host: Host) -> None:
    """Take the rest of the server's memory."""
    pool = host.devices[0].pool
    pool.add(pool.max_bytes - pool.taken)


@pytest.mark.parametrize("count", [200, 2000])
async def test_a_batch_that_memory_has_no_room_for_is_executed_in_order(count: int) -> None:
    first = 2**60  # so that the ids are long
    async with hosting() as host:
        client = AsyncNativeClient(host.devices[0], capacity_bytes=2**20)
        await client.open()
        (session,) = host.sessions
        kept = first + 4 * count
        await client.submit(*(Upload(n, DATA) for n in (first, kept - 1, kept)), Sync(1))
        await client.reply()
        fill(host)
        drops = [Drop(tuple(range(n, n + 4))) for n in range(first, kept, 4)]
        await client.submit(Read(2, kept - 1, SPEC), *drops, Read(3, kept, SPEC), Sync(4))
        assert (len(batch(*drops)) > LARGE_FRAME_BYTES) == (count == 2000)
        assert session.frame_memory.lacks_room(batch(*drops))
        for request in (2, 3, 4):
            assert (await client.reply()).request == request
        session.count()
        assert session.counters.tensors == 1
        await client.hang_up()


async def test_waiting_batches_of_many_sessions_take_no_more_than_their_frames() -> None:
    frame = encode_batch(0, [encode_task(Drop(())), *[NESTED] * 59])
    async with hosting() as host:
        fill(host)
        clients = [AsyncNativeClient(host.devices[0], capacity_bytes=2**20) for _ in range(8)]
        leave = threading.Event()
        pool = host.devices[0].pool
        for client in clients:
            await client.open()
        for session in host.sessions:
            session.submit(lambda: assert_set(leave))
        before = pool.taken
        for client in clients:
            await client.send_counted(frame)
        await until(lambda: all(session.queued == 2 for session in host.sessions))
        assert pool.taken - before <= len(clients) * len(frame)
        assert unpacked_bytes(frame) > 50 * len(frame)
        leave.set()
        for client in clients:
            assert isinstance(await client.reason(), ProtocolViolation)


@pytest.mark.parametrize(
    "damaged",
    [
        lambda frame: frame[:-1],
        lambda frame: frame + b"\x00",
        lambda frame: frame[:1] + b"\x93" + frame[2:],
        lambda frame: frame[:1] + b"\xc0" + frame[2:],
        lambda frame: frame[:2] + b"\xa1" + frame[3:],
    ],
    ids=["cut", "longer", "three values", "no array", "a text for a number"],
)
async def test_a_malformed_batch_ends_its_session_also_while_memory_is_full(
    damaged: object,
) -> None:
    assert callable(damaged)
    frame = batch(*(Drop((n,)) for n in range(1000)))
    async with hosting() as host:
        fill(host)
        client = AsyncNativeClient(host.devices[0], capacity_bytes=2**20)
        await client.open()
        await client.near.send(damaged(frame))
        assert isinstance(await client.reason(), ProtocolViolation)


def assert_set(event: threading.Event) -> None:
    assert event.wait(PATIENCE_SECONDS)


async def test_a_frame_that_counts_as_received_but_is_not_executed_ends_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    async with hosting() as host:
        client = AsyncNativeClient(host.devices[0], capacity_bytes=2**20)
        await client.open()
        (session,) = host.sessions
        monkeypatch.setattr(session, "submit_batch", full)
        await client.submit(Sync(1))
        await until(lambda: not len(host.sessions))
        # After a resume, the client would not send the frame again.
        assert "the server failed: MemoryError" in str(session.error)
