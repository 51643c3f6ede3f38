"""Frames of Burn's dialects that arrive while memory is full are executed message by message."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgpack
import numpy as np
import pytest

from burn_remote_protocol.dialects.bounded_unpacking import unpacked_bytes
from burn_remote_protocol.dialects.burn_0_21 import encode_init, encode_tasks
from burn_remote_protocol.dialects.burn_0_21_responses import decode_reply as decode_0_21
from burn_remote_protocol.dialects.burn_0_22 import SessionInit
from burn_remote_protocol.dialects.burn_0_22 import encode_init as encode_init_0_22
from burn_remote_protocol.dialects.burn_0_22_responses import decode_reply as decode_0_22
from burn_remote_protocol.dialects.burn_0_22_tasks import encode_close, encode_task, joined
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.messages import Execute, Read, Sync, Task, Upload
from burn_remote_protocol.operations.encoding import encode_operation
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.operations.vocabularies import Vocabulary
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.dialects.burn_0_21.socket_handlers import serve_request, serve_response
from burn_remote_server.dialects.burn_0_21.two_socket_sessions import BurnSessions
from burn_remote_server.dialects.burn_0_22.routes import burn_0_22_sessions
from burn_remote_server.execution.frame_memory import PART_BYTES
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings
from support.kernels import signature
from support.native_clients import until
from support.scripted import ScriptedLink
from support.waiting import PATIENCE_SECONDS

SPEC = TensorSpec((4,), F32)
DATA = TensorData(np.arange(4, dtype=np.float32).tobytes(), SPEC.shape, SPEC.dtype)
LONG = TensorSpec((500,), F32)
LONG_DATA = TensorData(np.arange(500, dtype=np.float32).tobytes(), LONG.shape, LONG.dtype)
NESTED = b"\x91" * 1000 + b"\xc0"
SERVER = "ws://here:1"


class Burn021:
    """A scripted client of Burn 0.21."""

    decode = staticmethod(decode_0_21)

    def __init__(self, host: Host, number: int) -> None:
        self.requests: Any = ScriptedLink([encode_init(number)])
        self.replies: Any = ScriptedLink([encode_init(number)])
        sessions = BurnSessions()
        self.serving = [
            asyncio.create_task(serve_request(self.requests, host.devices[0], sessions, None)),
            asyncio.create_task(serve_response(self.replies, host.devices[0], sessions, None)),
        ]

    @staticmethod
    def frames(tasks: Sequence[Task]) -> list[bytes]:
        return [
            encode_tasks([task], task.request if isinstance(task, Read | Sync) else number)
            for number, task in enumerate(tasks, 1000)
        ]

    @staticmethod
    def nested() -> list[bytes]:
        return [b"\xdc" + (60).to_bytes(2, "big") + NESTED * 60]

    def answers(self) -> list[Any]:
        return [self.decode(frame) for frame in self.replies.sent]

    async def end(self) -> None:
        for link in (self.requests, self.replies):
            link.end()
        await asyncio.gather(*self.serving)


def message(task: Task) -> bytes:
    """Encode a message of Burn 0.22."""
    if not isinstance(task, Execute):
        return encode_task([task], SERVER)
    operation = encode_operation(task.operation, Vocabulary.BURN_0_22)
    packed: bytes = msgpack.packb({"Task": {"RegisterOperation": [[0], operation]}})
    return packed


class Burn022:
    """A scripted client of Burn 0.22."""

    decode = staticmethod(decode_0_22)

    def __init__(self, host: Host, number: int) -> None:
        self.requests: Any = ScriptedLink([])
        first = encode_init_0_22(SessionInit(2, number, 0, b""))
        serve = burn_0_22_sessions()
        self.serving = [
            asyncio.ensure_future(serve(self.requests, host.devices[0], None, SERVER, first))
        ]

    @staticmethod
    def frames(tasks: Sequence[Task]) -> list[bytes]:
        return [*joined([message(task) for task in tasks])]

    @staticmethod
    def nested() -> list[bytes]:
        return [b"\xdc" + (60).to_bytes(2, "big") + NESTED * 60]

    def answers(self) -> list[Any]:
        return [self.decode(frame) for frame in self.requests.sent[1:]]

    async def end(self) -> None:
        self.requests.end()
        await asyncio.gather(*self.serving)


Client = Burn021 | Burn022
CLIENTS = pytest.mark.parametrize("client_type", [Burn021, Burn022])


@contextlib.asynccontextmanager
async def hosting() -> AsyncIterator[Host]:
    async with asyncio.timeout(8 * PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        yield Host(Settings(max_total_bytes=2**20), [NumpyBackend()], tasks)


def fill(host: Host) -> None:
    """Take the rest of the server's memory."""
    pool = host.devices[0].pool
    pool.add(pool.max_bytes - pool.taken)


@CLIENTS
async def test_frames_that_memory_has_no_room_for_are_executed_in_order(
    client_type: Callable[[Host, int], Client],
) -> None:
    async with hosting() as host:
        client = client_type(host, 7)
        await until(lambda: len(host.sessions) == 1)
        client.requests.say(client.frames([Upload(1, DATA), Sync(5)]))
        await until(lambda: len(client.answers()) == 1)
        (session,) = host.sessions
        fill(host)
        add = signature("Numeric.Add", SPEC, SPEC)
        steps = [Execute(Operation(add, (1, 1, 1))) for _ in range(20)]
        frames = client.frames([*steps, Upload(3, LONG_DATA), Read(6, 1, SPEC), Read(7, 3, LONG)])
        assert any(
            len(frame) > PART_BYTES and session.frame_memory.lacks_room(frame) for frame in frames
        )
        client.requests.say(frames)
        await until(lambda: len(client.answers()) == 3)
        _, doubled, uploaded = client.answers()
        assert (doubled.request, uploaded.request) == (6, 7)
        assert np.frombuffer(doubled.value.bytes, np.float32).tolist() == [
            number * 2.0**20 for number in range(4)
        ]
        assert "are allowed" in str(uploaded.value)
        await client.end()


@CLIENTS
async def test_waiting_frames_of_many_sessions_take_no_more_than_their_bytes(
    client_type: Callable[[Host, int], Client],
) -> None:
    async with hosting() as host:
        fill(host)
        clients = [client_type(host, number) for number in range(1, 9)]
        await until(lambda: len(host.sessions) == len(clients))
        leave = threading.Event()
        for session in host.sessions:
            session.submit(lambda: assert_set(leave))
        before = host.devices[0].pool.taken
        (frame,) = clients[0].nested()
        for client in clients:
            client.requests.say([frame])
        await until(lambda: all(session.queued == 2 for session in host.sessions))
        assert host.devices[0].pool.taken - before <= len(clients) * len(frame)
        assert unpacked_bytes(frame) > 50 * len(frame)
        leave.set()
        for client in clients:
            client.requests.say(client.frames([Sync(5)]))  # answered, because the session stays
        await until(lambda: all(client.answers() for client in clients))
        for client in clients:
            await client.end()


@pytest.mark.parametrize("rest", [b"", b"\x00"], ids=["whole", "longer"])
async def test_a_session_closes_although_memory_is_full(rest: bytes) -> None:
    async with hosting() as host:
        client = Burn022(host, 7)
        await until(lambda: len(host.sessions) == 1)
        fill(host)
        messages = [encode_task([Upload(n, LONG_DATA)], SERVER) for n in range(3)]
        (frame,) = joined([*messages, encode_close(7)])
        client.requests.say([frame + rest])
        if rest:  # malformed, so the session fails and stays open
            client.requests.say(client.frames([Sync(5)]))
            await until(lambda: len(client.answers()) >= 1)
            client.requests.end()
        await asyncio.gather(*client.serving)
        assert len(host.sessions) == 0


def assert_set(event: threading.Event) -> None:
    assert event.wait(PATIENCE_SECONDS)
