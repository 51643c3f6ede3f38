"""Hosts without listeners in a test's event loop, and a tensor that they expose."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final, TypeVar

import numpy as np

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.interface import Backend
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.tensors.exposed_tensors import Exposed
from support.waiting import PATIENCE_SECONDS

__all__ = ["ARRAY", "KEY", "SPEC", "expose", "hosting", "within_patience"]

KEY: Final = ("native", b"t" * 32)
SPEC: Final = TensorSpec((4,), F32)
ARRAY: Final = np.arange(4, dtype=np.float32)

T = TypeVar("T")


@contextlib.asynccontextmanager
async def hosting(*backends: Backend, **settings: Any) -> AsyncIterator[Host]:
    """Yield a host, by default with one NumPy device, which drains when the context ends."""
    async with asyncio.timeout(2 * PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(Settings(**settings), [*backends] or [NumpyBackend()], tasks)
        try:
            yield host
        finally:
            host.draining.set()


def expose(
    host: Host,
    array: Any = ARRAY,
    spec: TensorSpec = SPEC,
    *,
    device: int = 0,
    key: tuple[str, bytes | int] = KEY,
) -> None:
    """Expose an array of a device once, for a minute."""
    exposed = Exposed(array, spec, host.devices[device].backend)
    host.transfers.expose(key, exposed, owner=host, count=1, expires_seconds=60)


async def within_patience(waited: Awaitable[T]) -> T:
    """Wait for a result. Raises ``TimeoutError`` after ``PATIENCE_SECONDS``."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await waited
