"""Iroh links for event loops: conformance."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES, AsyncLink
from burn_remote_protocol.links.transport_registry import connect_async
from support.async_links import AsyncLinkConformance, OpenAsyncPair
from support.iroh_links import address_of, listening


class TestIrohLink(AsyncLinkConformance):
    @pytest.fixture
    def open_pair(self) -> OpenAsyncPair:
        @contextlib.asynccontextmanager
        async def open_pair(
            max_message_bytes: int = MAX_MESSAGE_BYTES,
        ) -> AsyncIterator[tuple[AsyncLink, AsyncLink]]:
            async with listening(max_message_bytes) as (listener, accepted):
                client = await connect_async(
                    address_of(listener), max_message_bytes=max_message_bytes
                )
                server = await accepted.get()
                try:
                    yield client, server
                finally:
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(client.close())
                        tasks.create_task(server.close())

        return open_pair
