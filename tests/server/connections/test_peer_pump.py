"""A peer learns why a tensor cannot come, and a server that stops does not wait for it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from burn_remote_protocol.dialects.native import VERSIONS, decode_frame, encode_frame
from burn_remote_protocol.dtypes import F32, DType
from burn_remote_protocol.errors import DeviceLost
from burn_remote_protocol.messages import FetchRequest, Hello, Reply
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.connections.peer_pump import serve_peer
from burn_remote_server.host import Host
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.transfers.exposed import Exposed
from support.scripted import ScriptedLink

ID = b"t" * 32
SPEC = TensorSpec((4,), F32)


class LostBackend(NumpyBackend):
    """A device that was lost after a tensor had been exposed."""

    def to_bytes(self, array: Any, dtype: DType) -> memoryview:
        raise DeviceLost("GPU 0 is lost")


async def test_a_tensor_of_a_lost_device_is_refused_and_holds_up_no_stop() -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        backend = LostBackend()
        host = Host(Settings(), [backend], tasks)
        exposed = Exposed(np.zeros(4, np.float32), SPEC, backend)
        host.transfers.expose(("native", ID), exposed, owner=host, count=1, expires_seconds=60)
        frames = [Hello(VERSIONS), FetchRequest(1, ID, 0)]
        link = ScriptedLink(map(encode_frame, frames))
        serving = asyncio.create_task(serve_peer(link, host))
        await link.wait_sent(2)  # the welcome, and the answer
        answer = decode_frame(link.sent[1])
        assert isinstance(answer, Reply)
        assert isinstance(answer.value, DeviceLost)

        host.deserted.set()
        await serving
        assert len(host.transfers) == 0
