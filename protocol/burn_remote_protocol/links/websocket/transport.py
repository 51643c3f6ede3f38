"""The WebSocket transport's entry in the registry of transports."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - connecting to a name uses it
from contextlib import AbstractAsyncContextManager
from typing import Unpack

from burn_remote_protocol.links.addresses import Address
from burn_remote_protocol.links.interface import AsyncLink, BlockingLink
from burn_remote_protocol.links.transport_interface import (
    AsyncOptions,
    BlockingOptions,
    Handle,
    Listener,
    ListenOptions,
)

# Imported with this module, not when the first connection opens: if another thread forks the
# process during an import, the child waits for the end of that import forever.
from burn_remote_protocol.links.websocket import blocking_link

__all__ = ["WebSocketTransport"]


class WebSocketTransport:
    """A ``Transport`` for the schemes ``ws`` and ``wss``.

    Imports of asynchronous links are local: a client of threads must not pay for loading
    ``websockets.asyncio``.
    """

    def connect(self, target: Address, **options: Unpack[BlockingOptions]) -> BlockingLink:
        return blocking_link.connect(target, **options)

    async def connect_async(self, target: Address, **options: Unpack[AsyncOptions]) -> AsyncLink:
        from burn_remote_protocol.links.websocket import async_link

        return await async_link.connect(target, **options)

    def listen(
        self, host: str, port: int, handle: Handle, **options: Unpack[ListenOptions]
    ) -> AbstractAsyncContextManager[Listener]:
        from burn_remote_protocol.links.websocket import listening

        return listening.listen(host, port, handle, **options)
