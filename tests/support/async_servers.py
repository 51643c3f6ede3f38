"""Servers in the event loop of a test, and clients whose bytes the test controls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES
from burn_remote_protocol.links.websocket.async_link import WebSocketLink
from burn_remote_protocol.links.websocket.server_connection import DirectServerConnection
from support.link_servers import direct_options, link_over
from support.waiting import PATIENCE_SECONDS

__all__ = ["connected", "listening", "masked", "silent_client", "until"]


@contextlib.asynccontextmanager
async def connected(
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> AsyncIterator[tuple[DirectServerConnection, Any]]:
    """Yield a server's connection, and that of an ordinary ``websockets`` client."""
    accepted: asyncio.Queue[Any] = asyncio.Queue(1)

    async def handle(connection: Any) -> None:
        await accepted.put(connection)
        await connection.wait_closed()

    async with (
        asyncio.timeout(2 * PATIENCE_SECONDS),
        serve(handle, "127.0.0.1", 0, **direct_options(max_message_bytes)) as server,
    ):
        port = next(iter(server.sockets)).getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}", max_size=None) as client:
            yield await accepted.get(), client


async def until(condition: Any) -> None:
    """Let the event loop run until a condition holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if condition():
                return
            await asyncio.sleep(0)


def masked(opcode: Opcode, payload: bytes = b"", *, fin: bool = True) -> bytes:
    """Return a frame as a client sends it."""
    return Frame(opcode, payload, fin).serialize(mask=True)


@contextlib.asynccontextmanager
async def listening(
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> AsyncIterator[tuple[str, asyncio.Queue[WebSocketLink]]]:
    """Run a server; yield its address and a queue of its ends of connections."""
    accepted: asyncio.Queue[WebSocketLink] = asyncio.Queue(1)

    async def handle(connection: ServerConnection) -> None:
        await accepted.put(link_over(connection))
        await connection.wait_closed()

    options = direct_options(max_message_bytes)
    async with serve(handle, "127.0.0.1", 0, **options) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"ws://127.0.0.1:{port}", accepted


@contextlib.asynccontextmanager
async def silent_client(
    address: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Perform the handshake and then neither read nor send; the test may."""
    uri = parse_uri(address)
    reader, writer = await asyncio.open_connection(uri.host, uri.port)
    client = ClientProtocol(uri)
    client.send_request(client.connect())
    writer.write(b"".join(client.data_to_send()))
    await reader.readuntil(b"\r\n\r\n")
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
