"""Links in memory implement the interfaces of links."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES, AsyncLink, BlockingLink
from support.async_links import AsyncLinkConformance, OpenAsyncPair
from support.link_ends import FarEnd, OpenPair
from support.links import BlockingLinkConformance
from support.memory_links import MemoryFarEnd, async_memory_pair, memory_pair


class TestMemoryLink(BlockingLinkConformance):
    @pytest.fixture
    def open_pair(self) -> OpenPair:
        def open_pair(max_message_bytes: int = MAX_MESSAGE_BYTES) -> tuple[BlockingLink, FarEnd]:
            near, far = memory_pair(max_message_bytes=max_message_bytes)
            return near, MemoryFarEnd(far)

        return open_pair


class TestAsyncMemoryLink(AsyncLinkConformance):
    @pytest.fixture
    def open_pair(self) -> OpenAsyncPair:
        @contextlib.asynccontextmanager
        async def open_pair(
            max_message_bytes: int = MAX_MESSAGE_BYTES,
        ) -> AsyncIterator[tuple[AsyncLink, AsyncLink]]:
            yield async_memory_pair(max_message_bytes=max_message_bytes)

        return open_pair
