"""A session that fails ends with an answer for whoever waits, and can be ended in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from burn_remote_protocol.dialects.native import decode_frame, encode_batch, encode_frame
from burn_remote_protocol.dialects.native_tasks import encode_task
from burn_remote_protocol.dtypes import F32, DType
from burn_remote_protocol.messages import Closing, Hello, Read, Upload
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.array.session import ArraySession
from burn_remote_server.backends.interface import Deliver
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations
from burn_remote_server.dialects.native.attachments import Attachments
from burn_remote_server.dialects.native.session_pump import serve_session
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings
from support.scripted import ScriptedLink

SPEC = TensorSpec((4,), F32)
DATA = TensorData(np.zeros(4, np.float32).tobytes(), SPEC.shape, SPEC.dtype)


class Interrupted(NumpyBackend):
    """A device whose reads end the thread that asks for them."""

    def open_session(self, custom: CustomOperations = NO_OPERATIONS) -> ArraySession:
        return InterruptedSession(self, self._shared, lambda seed: None, custom)


class InterruptedSession(ArraySession):
    def read(self, array: Any, dtype: DType, later: Callable[[], Deliver]) -> memoryview | None:
        raise KeyboardInterrupt


async def test_what_would_end_a_session_s_thread_ends_the_session_and_is_told() -> None:
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        host = Host(Settings(inline_cost_limit=0), [Interrupted()], tasks)
        batch = encode_batch(0, [encode_task(task) for task in (Upload(1, DATA), Read(1, 1, SPEC))])
        link = ScriptedLink([encode_frame(Hello((1,))), batch])
        await serve_session(link, host.devices[0], Attachments())
        closing = decode_frame(link.sent[-1])
        assert isinstance(closing, Closing)
        assert "the server failed: KeyboardInterrupt" in str(closing.error)
        assert not host.sessions
        host.draining.set()
