"""Sessions share the event loop fairly; the tests count work, not time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import numpy as np
import pytest

from burn_remote_protocol.dialects.native import (
    decode_frame,
    encode_batch,
    encode_frame,
    encode_task,
)
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.messages import Hello, Read, Sync, Upload
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends import open_backends
from burn_remote_server.dialects.native.session_attachments import Attachments
from burn_remote_server.dialects.native.session_handler import serve_session
from burn_remote_server.execution.costs import decoded_bytes
from burn_remote_server.execution.sessions import FRAME_COST, TURN_COST
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings
from support.native_clients import until
from support.scripted import ScriptedLink
from support.waiting import PATIENCE_SECONDS

HELLO = encode_frame(Hello((1,)))
SPEC = TensorSpec((4,), F32)
DATA = TensorData(np.arange(4, dtype=np.float32).tobytes(), SPEC.shape, SPEC.dtype)
# Iterations of the event loop to open a session and answer a read, with some margin.
TURNS = 12


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        yield Host(Settings(), open_backends("numpy", 1), tasks)


def uploads(count: int) -> list[bytes]:
    return [encode_batch(0, [encode_task(Upload(1, DATA))]) for _ in range(count)]


async def test_a_read_is_answered_while_another_session_has_a_hundred_thousand_frames_waiting(
    host: Host,
) -> None:
    greedy = ScriptedLink([HELLO, *uploads(100_000)])
    left: list[int] = []

    patient = ScriptedLink(
        [HELLO, encode_batch(0, [encode_task(Upload(1, DATA)), encode_task(Read(1, 1, SPEC))])],
        lambda _: left.append(len(greedy.frames)),
    )
    serving = [
        asyncio.create_task(serve_session(link, host.devices[0], Attachments()))
        for link in (greedy, patient)
    ]
    await patient.wait_sent(2)  # the welcome, and the answer
    # Each iteration of the event loop handles at most this many frames of the greedy session.
    frames_per_turn = TURN_COST // FRAME_COST + 1
    assert 100_000 - left[1] <= TURNS * frames_per_turn
    assert left[1] > 90_000  # the greedy session still had work
    greedy.frames.clear()
    for link in (greedy, patient):
        link.end()
    await asyncio.gather(*serving)


async def test_a_read_is_answered_while_another_session_is_inside_a_long_operation(
    host: Host,
) -> None:
    busy, patient = ScriptedLink([HELLO]), ScriptedLink([HELLO])
    serving = [
        asyncio.create_task(serve_session(link, host.devices[0], Attachments()))
        for link in (busy, patient)
    ]
    await busy.wait_sent(1)
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        assert leave.wait(PATIENCE_SECONDS)

    session = next(iter(host.sessions))  # the one opened first
    session.submit(work)
    await asyncio.to_thread(entered.wait, PATIENCE_SECONDS)
    patient.say([encode_batch(0, [encode_task(Sync(1))])])
    await patient.wait_sent(2)  # the welcome, and the answer
    assert session.queued == 1  # still inside
    leave.set()
    for link in (busy, patient):
        link.end()
    await asyncio.gather(*serving)


@pytest.mark.parametrize("limit", [{"session_queue_batches": 3}, {"session_queue_bytes": 2**21}])
async def test_a_session_whose_queue_is_full_is_not_read(limit: dict[str, int]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(Settings(**limit), open_backends("numpy", 1), tasks)
        frame = encode_batch(0, [encode_task(Upload(1, big()))] * 20)
        link = ScriptedLink([HELLO])
        serving = asyncio.create_task(serve_session(link, host.devices[0], Attachments()))
        await link.wait_sent(1)
        session = next(iter(host.sessions))
        leave = threading.Event()
        session.submit(lambda: assert_soon(leave))
        link.say([frame] * 100)
        # One blocked call, and the frames up to the one that reached the limit.
        by_bytes = 2**21 // decoded_bytes(decode_frame(frame), frame) + 1
        expected = limit.get("session_queue_batches", by_bytes + 1)
        await until(lambda: session.queued >= expected)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert session.queued == expected
        assert len(link.frames) == 100 - (session.queued - 1)
        leave.set()
        link.end()
        await serving
        assert not link.frames  # all frames are read afterwards


def assert_soon(event: threading.Event) -> None:
    assert event.wait(PATIENCE_SECONDS)


def big() -> TensorData:
    return TensorData(bytes(16_000), (4000,), F32)
