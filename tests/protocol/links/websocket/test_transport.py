"""The WebSocket transport opens and accepts links, and loads only the modules in use."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from burn_remote_protocol.links.addresses import parse_address
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.links.transport_interface import Request
from burn_remote_protocol.links.transport_registry import TRANSPORTS
from burn_remote_protocol.links.websocket.async_link import WebSocketLink
from burn_remote_protocol.links.websocket.blocking_link import BlockingWebSocket
from burn_remote_protocol.links.websocket.transport import WebSocketTransport
from support.link_servers import link_server
from support.waiting import PATIENCE_SECONDS


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_it_serves_the_schemes_of_websockets(scheme: str) -> None:
    assert isinstance(TRANSPORTS[scheme], WebSocketTransport)


def test_it_opens_links_for_threads_with_the_options_given() -> None:
    with link_server() as server:
        link = WebSocketTransport().connect(parse_address(server.address), max_message_bytes=3)
        assert isinstance(link, BlockingWebSocket)
        end = server.accept()
        end.send(b"abc")
        assert link.receive(PATIENCE_SECONDS) == b"abc"
        link.close()


async def test_it_accepts_links_and_opens_them_for_event_loops() -> None:
    seen: list[str] = []

    async def handle(link: AsyncLink, request: Request) -> None:
        seen.append(request.path)
        await link.send(await link.receive())

    transport = WebSocketTransport()
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        transport.listen("127.0.0.1", 0, handle) as listener,
    ):
        link = await transport.connect_async(parse_address(f"ws://127.0.0.1:{listener.port}/a"))
        assert isinstance(link, WebSocketLink)
        await link.send(b"echo")
        assert await link.receive() == b"echo"
        await link.close()
    assert seen == ["/a"]


def test_a_client_of_threads_does_not_load_the_asynchronous_library() -> None:
    program = (
        "import sys; from burn_remote_protocol.links import transport_registry;"
        "from burn_remote_protocol.links.websocket import blocking_link;"
        "sys.exit(any(name.startswith('websockets.asyncio') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
