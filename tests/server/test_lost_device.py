"""Requests that wait for a lost device get an error, and the session can end in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dialects.native import decode_frame, encode_batch, encode_frame
from burn_remote_protocol.dialects.native_tasks import encode_task
from burn_remote_protocol.dtypes import F32, DType
from burn_remote_protocol.errors import DeviceLost, HandshakeRefused, SessionLost
from burn_remote_protocol.messages import (
    Closing,
    Failed,
    Hello,
    Read,
    Refused,
    Reply,
    Sync,
    Task,
    Upload,
)
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.access.admission import NOBODY
from burn_remote_server.backends.array.array_session import ArraySession
from burn_remote_server.backends.interface import Backend, Deliver
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations
from burn_remote_server.dialects.burn_0_21.two_socket_sessions import BurnSessions
from burn_remote_server.dialects.native.session_attachments import Attachments
from burn_remote_server.dialects.native.session_handler import serve_session
from burn_remote_server.hosting import host as host_module
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings
from support.scripted import ScriptedLink
from support.waiting import PATIENCE_SECONDS

LOST = "GPU 0 is lost; restart the server"
HELLO = encode_frame(Hello((1,)))
SPEC = TensorSpec((4,), F32)
DATA = TensorData(np.arange(4, dtype=np.float32).tobytes(), SPEC.shape, SPEC.dtype)


class SlowSession(ArraySession):
    """A session whose device never finishes a request."""

    waiting: list[Deliver]

    def read(self, array: Any, dtype: DType, later: Callable[[], Deliver]) -> memoryview | None:
        self.waiting.append(later())
        return None

    def synced(self, later: Callable[[], Deliver]) -> bool:
        self.waiting.append(later())
        return False


class SlowBackend(NumpyBackend):
    """A device with such sessions; ``lose`` makes it a lost device."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Deliver] = []
        self.lost: str | None = None

    @property
    def failure(self) -> str | None:
        return self.lost

    def open_session(self, custom: CustomOperations = NO_OPERATIONS) -> SlowSession:
        session = SlowSession(self, self._shared, lambda seed: None, custom)
        session.waiting = self.waiting
        return session

    def lose(self) -> None:
        """Fail all waiting requests, as the thread that polls events does."""
        self.lost = LOST
        for deliver in self.waiting:
            deliver(DeviceLost(LOST))


async def test_waiting_reads_and_syncs_fail_and_the_session_drains() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        backend = SlowBackend()
        host = Host(Settings(), [backend], tasks)
        asked: list[Task] = [Upload(1, DATA), Read(1, 1, SPEC), Sync(2)]
        link = ScriptedLink([HELLO, encode_batch(0, [encode_task(task) for task in asked])])
        serving = asyncio.create_task(serve_session(link, host.devices[0], Attachments()))
        await link.wait_sent(1)
        while len(backend.waiting) < 2:  # noqa: ASYNC110 - done when the loop has run the batch
            await asyncio.sleep(0)

        thread = threading.Thread(target=backend.lose)
        thread.start()
        await link.wait_sent(4)
        thread.join(PATIENCE_SECONDS)
        read, failed, synced = map(decode_frame, link.sent[1:4])
        assert isinstance(read, Reply)
        assert isinstance(read.value, DeviceLost)
        assert isinstance(failed, Failed)  # which the client's sync raises
        assert isinstance(failed.error, DeviceLost)
        assert synced == Reply(2, None)

        host.draining.set()
        await serving
        closing = decode_frame(link.sent[-1])
        assert isinstance(closing, Closing)
        assert isinstance(closing.error, SessionLost)


async def test_the_loss_of_an_idle_device_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class AskedBackend(NumpyBackend):
        """A device that records when it is examined."""

        was_asked: asyncio.Event | None = None

        def examine(self) -> None:
            if self.was_asked is not None:
                self.was_asked.set()

    monkeypatch.setattr(host_module, "EXPIRE_EVERY_SECONDS", 0.001)
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        backends: list[Backend] = [AskedBackend(), AskedBackend()]
        host = Host(Settings(), backends, tasks)
        for backend in backends:
            assert isinstance(backend, AskedBackend)
            for _ in range(2):  # again and again
                backend.was_asked = asyncio.Event()
                await backend.was_asked.wait()
        host.draining.set()


async def test_no_session_is_opened_on_a_lost_device_and_none_is_counted() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        backend = SlowBackend()
        host = Host(Settings(), [backend], tasks)
        backend.lost = LOST
        link = ScriptedLink([HELLO])
        await serve_session(link, host.devices[0], Attachments())
        refused = decode_frame(link.sent[-1])
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, HandshakeRefused)
        assert str(refused.error) == LOST
        with pytest.raises(HandshakeRefused, match=LOST):
            BurnSessions().join(host.devices[0], 7, "/request", NOBODY)
        assert len(host.sessions) == 0
        assert host.total().sessions_refused == 1
