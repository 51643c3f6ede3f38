"""The Iroh transport's entry in the registry of transports."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Unpack

from burn_remote_protocol.links.addresses import Address
from burn_remote_protocol.links.interface import AsyncLink, BlockingLink
from burn_remote_protocol.links.transport_interface import (
    AsyncOptions,
    BlockingOptions,
    Handle,
    KeyedListener,
    KeyedListenOptions,
)

__all__ = ["IrohTransport"]


class IrohTransport:
    """A ``KeyedTransport`` for the scheme ``iroh``.

    All imports are local: the package ``iroh`` is optional, and loading it takes a tenth of a
    second.
    """

    def connect(self, target: Address, **options: Unpack[BlockingOptions]) -> BlockingLink:
        from burn_remote_protocol.links.iroh import blocking_link

        return blocking_link.connect(target, **options)

    async def connect_async(self, target: Address, **options: Unpack[AsyncOptions]) -> AsyncLink:
        from burn_remote_protocol.links.iroh import async_link

        return await async_link.connect(target, **options)

    def listen(
        self, host: str, port: int, handle: Handle, **options: Unpack[KeyedListenOptions]
    ) -> AbstractAsyncContextManager[KeyedListener]:
        from burn_remote_protocol.links.iroh import listening

        return listening.listen(host, port, handle, **options)
