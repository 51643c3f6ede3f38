"""The periodic work of a process for all of its sessions."""

from __future__ import annotations

import asyncio

from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings


class Watched(NumpyBackend):
    """A backend that counts the calls of ``expire_memory``."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.again = asyncio.Event()

    def expire_memory(self) -> None:
        super().expire_memory()
        self.asked += 1
        if self.asked > 1:
            self.again.set()


async def test_unused_memory_is_returned_periodically() -> None:
    backend = Watched()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        host = Host(Settings(), [backend], tasks)
        await backend.again.wait()
        host.draining.set()
