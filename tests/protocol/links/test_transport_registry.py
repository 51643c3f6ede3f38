"""The registry of transports: addresses lead to the transport of their scheme."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from burn_remote_protocol.errors import ConnectionFailed
from burn_remote_protocol.links import transport_registry
from burn_remote_protocol.links.addresses import SCHEMES
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.links.transport_interface import Request
from burn_remote_protocol.links.transport_registry import connect, connect_async, listen, register
from burn_remote_protocol.links.websocket.transport import WebSocketTransport
from support.link_servers import link_server
from support.memory_links import MemoryTransport
from support.waiting import PATIENCE_SECONDS


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register the transport of this process's memory; return its scheme."""
    monkeypatch.setitem(SCHEMES, "memory", False)  # both are undone after the test
    monkeypatch.setitem(transport_registry.TRANSPORTS, "memory", WebSocketTransport())
    register("memory", MemoryTransport())
    return "memory"


async def echo(link: AsyncLink, request: Request) -> None:
    await link.send(request.path.encode() + await link.receive())


async def test_a_registered_transport_carries_links_of_its_scheme(memory: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), listen(memory, "box", 0, echo) as listener:
        link = await connect_async(f"{memory}://box:{listener.port}/1", "/session")
        await link.send(b" hello")
        assert await link.receive() == b"/1/session hello"


async def test_the_websocket_transport_carries_the_same_program() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), listen("ws", "127.0.0.1", 0, echo) as listener:
        link = await connect_async(f"ws://127.0.0.1:{listener.port}/1", "/session")
        await link.send(b" hello")
        assert await link.receive() == b"/1/session hello"
        await link.close()


async def test_a_listener_that_stopped_accepting_keeps_its_links(memory: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), listen(memory, "box", 0, echo) as listener:
        link = await connect_async(f"{memory}://box:{listener.port}")
        listener.stop_accepting()
        with pytest.raises(ConnectionFailed, match="nothing listens"):
            await connect_async(f"{memory}://box:{listener.port}")
        await link.send(b"still here")
        assert await link.receive() == b"still here"


def test_a_thread_reaches_a_websocket_server_by_its_address() -> None:
    with link_server() as server:
        link = connect(server.address)
        server.accept().send(b"hello")
        assert link.receive(PATIENCE_SECONDS) == b"hello"
        link.close()


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConnectionFailed, match=r"pigeon:// is not ws:// or wss://"):
        connect("pigeon://box:3000")


def test_a_registered_scheme_is_listed_among_the_known_ones(memory: str) -> None:
    with pytest.raises(ConnectionFailed, match=r"or memory://"):
        connect("pigeon://box:3000")


async def test_tls_for_an_address_that_is_not_encrypted_is_refused() -> None:
    context = ssl.create_default_context()
    with pytest.raises(ConnectionFailed, match="write wss://"):
        connect("ws://127.0.0.1:1", tls=context)
    with pytest.raises(ConnectionFailed, match="write wss://"):
        await connect_async("ws://127.0.0.1:1", tls=context)
