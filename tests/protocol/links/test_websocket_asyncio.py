"""Do WebSockets on an event loop keep the contract of links, as servers and as clients?"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import connect as plain_connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.client import ClientProtocol
from websockets.frames import Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from burn_remote_protocol.errors import ConnectionFailed, ConnectionLost, ProtocolViolation
from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES, AsyncLink
from burn_remote_protocol.links.websocket_asyncio import WebSocketLink, connect, server_options
from support.async_links import AsyncLinkConformance, OpenAsyncPair
from support.link_ends import pattern
from support.link_scripts import frame_bytes
from support.link_servers import raw_server, read_to_end


@contextlib.asynccontextmanager
async def listening(
    max_message_bytes: int = MAX_MESSAGE_BYTES, *, direct: bool = True
) -> AsyncIterator[tuple[str, asyncio.Queue[WebSocketLink]]]:
    """Run a server; yield its address and where its ends of connections come out."""
    accepted: asyncio.Queue[WebSocketLink] = asyncio.Queue(1)

    async def handle(connection: ServerConnection) -> None:
        await accepted.put(WebSocketLink(connection))
        await connection.wait_closed()

    options: dict[str, Any] = {"max_size": max_message_bytes}
    if direct:
        options = server_options(max_message_bytes=max_message_bytes)
    async with serve(handle, "127.0.0.1", 0, **options) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"ws://127.0.0.1:{port}", accepted


class TestWebSocketLink(AsyncLinkConformance):
    @pytest.fixture(params=["direct", "indirect"])
    def open_pair(self, request: pytest.FixtureRequest) -> OpenAsyncPair:
        @contextlib.asynccontextmanager
        async def open_pair(
            max_message_bytes: int = MAX_MESSAGE_BYTES,
        ) -> AsyncIterator[tuple[AsyncLink, AsyncLink]]:
            async with listening(max_message_bytes, direct=request.param == "direct") as (
                address,
                accepted,
            ):
                client = await connect(address, max_message_bytes=max_message_bytes)
                server = await accepted.get()
                try:
                    yield client, server
                finally:
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(client.close())
                        tasks.create_task(server.close())

        return open_pair


async def test_a_text_message_is_a_violation_that_ends_the_link() -> None:
    async with listening() as (address, accepted), plain_connect(address) as client:
        server = await accepted.get()
        await client.send("hello?")
        with pytest.raises(ProtocolViolation, match="binary"):
            await server.receive()
        with pytest.raises(ConnectionLost):
            await server.send(b"")


async def test_a_frame_that_breaks_the_protocol_is_a_violation_that_ends_the_link() -> None:
    async with listening() as (address, accepted), plain_connect(address) as client:
        server = await accepted.get()
        client.transport.write(b"\x83\x80\0\0\0\0" + bytes(1000))  # an unknown opcode
        with pytest.raises(ProtocolViolation, match="0x83"):
            await server.receive()
        with pytest.raises(ConnectionLost, match="this program closed"):
            await server.receive()


async def test_frames_that_come_with_the_handshake_are_received() -> None:
    def behave(sock: socket.socket) -> None:
        protocol = ServerProtocol()
        protocol.receive_data(sock.recv(2**16))
        request = protocol.events_received()[0]
        assert isinstance(request, Request)
        protocol.send_response(protocol.accept(request))
        protocol.send_binary(b"early")
        protocol.send_binary(pattern(100_000))
        sock.sendall(b"".join(protocol.data_to_send()))
        sock.sendall(frame_bytes(Opcode.CLOSE, b""))

    with raw_server(behave) as port:
        link = await connect(f"ws://127.0.0.1:{port}")
        assert [await link.receive(), await link.receive()] == [b"early", pattern(100_000)]
        with pytest.raises(ConnectionLost):
            await link.receive()


async def test_frames_that_come_byte_by_byte_are_put_together() -> None:
    async with listening() as (address, accepted):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.split(":")[-1]))
        client = ClientProtocol(parse_uri(address))
        client.send_request(client.connect())
        for byte in b"".join(client.data_to_send()):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        client.receive_data(await reader.readuntil(b"\r\n\r\n"))
        server = await accepted.get()
        client.send_binary(pattern(300))
        client.send_ping(b"?")
        client.send_binary(b"next")
        for byte in b"".join(client.data_to_send()):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert [await server.receive(), await server.receive()] == [pattern(300), b"next"]
        assert await reader.readexactly(3) == frame_bytes(Opcode.PONG, b"?")
        writer.close()
        with pytest.raises(ConnectionLost, match="hung up"):
            await server.receive()


async def test_a_client_that_sends_before_it_was_let_in_is_cut_off() -> None:
    letting_in = asyncio.Event()

    async def wait(_: ServerConnection, __: Request) -> None:
        await letting_in.wait()

    async def nobody(_: ServerConnection) -> None:
        raise AssertionError("was let in")

    options = server_options()
    async with serve(nobody, "127.0.0.1", 0, process_request=wait, **options) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = ClientProtocol(parse_uri(f"ws://127.0.0.1:{port}"))
        client.send_request(client.connect())
        writer.write(b"".join(client.data_to_send()) + bytes(2**17))
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        letting_in.set()
        writer.close()


async def test_pings_of_the_server_are_answered_and_keep_the_connection() -> None:
    async with listening() as (address, accepted):
        client = await connect(address, ping_interval_seconds=0.01)
        server = await accepted.get()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.receive()
        await server.send(b"alive")
        assert await client.receive() == b"alive"
        await client.close()


async def test_a_reset_connection_is_connection_lost() -> None:
    async with listening() as (address, accepted):
        client = await plain_connect(address)
        server = await accepted.get()
        client.transport.abort()
        with pytest.raises(ConnectionLost, match=r"hung up|broke"):
            await server.receive()


async def test_the_peer_is_named_by_host_and_port() -> None:
    async with listening() as (address, accepted):
        client = await connect(address)
        server = await accepted.get()
        assert f"ws://{client.peer}" == address
        assert server.peer.startswith("127.0.0.1:")
        await client.close()


async def test_a_refused_port_is_explained() -> None:
    with pytest.raises(ConnectionFailed, match="nothing listens at ws://"):
        await connect("ws://127.0.0.1:1")


async def test_a_malformed_address_is_explained() -> None:
    with pytest.raises(ConnectionFailed, match="write ws://gpu-box:3000"):
        await connect("gpu-box:3000")


async def test_a_server_that_says_nothing_is_given_up_on() -> None:
    with raw_server(read_to_end) as port:
        with pytest.raises(ConnectionFailed, match="did not answer in time"):
            await connect(f"ws://127.0.0.1:{port}", timeout_seconds=0.1)
        await asyncio.sleep(0)  # the loop closes the socket, for which the raw server waits
