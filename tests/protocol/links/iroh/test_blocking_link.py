"""Iroh links for threads: conformance."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES, BlockingLink
from burn_remote_protocol.links.transport_registry import connect
from support.iroh_links import iroh_server
from support.link_ends import FarEnd, OpenPair
from support.link_servers import LOOPS
from support.links import BlockingLinkConformance


class TestBlockingIrohLink(BlockingLinkConformance):
    @pytest.fixture(params=[*LOOPS])
    def open_pair(self, request: pytest.FixtureRequest) -> Iterator[OpenPair]:
        with contextlib.ExitStack() as stack:

            def open_pair(
                max_message_bytes: int = MAX_MESSAGE_BYTES,
            ) -> tuple[BlockingLink, FarEnd]:
                server = stack.enter_context(
                    iroh_server(request.param, max_message_bytes=max_message_bytes)
                )
                link = connect(server.address, max_message_bytes=max_message_bytes)
                stack.callback(link.close)
                return link, server.accept()

            yield open_pair
