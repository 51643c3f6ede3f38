"""WebSocket links for event loops: conformance, and behaviour specific to WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as plain_connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.client import ClientProtocol
from websockets.frames import Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from burn_remote_protocol.errors import ConnectionFailed, ConnectionLost, ProtocolViolation
from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES, AsyncLink
from burn_remote_protocol.links.transport_registry import connect_async as connect
from burn_remote_protocol.links.websocket.async_connection import DirectClientConnection
from burn_remote_protocol.links.websocket.async_link import WebSocketLink
from support.async_links import AsyncLinkConformance, OpenAsyncPair
from support.async_servers import listening
from support.link_ends import pattern
from support.link_scripts import frame_bytes
from support.link_servers import direct_options, raw_server, read_to_end


class TestWebSocketLink(AsyncLinkConformance):
    @pytest.fixture
    def open_pair(self) -> OpenAsyncPair:
        @contextlib.asynccontextmanager
        async def open_pair(
            max_message_bytes: int = MAX_MESSAGE_BYTES,
        ) -> AsyncIterator[tuple[AsyncLink, AsyncLink]]:
            async with listening(max_message_bytes) as (address, accepted):
                client = await connect(address, max_message_bytes=max_message_bytes)
                server = await accepted.get()
                try:
                    yield client, server
                finally:
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(client.close())
                        tasks.create_task(server.close())

        return open_pair


async def test_other_tasks_run_between_fragments_although_the_peer_reads_fast() -> None:
    class Accepting:
        """A fake connection that accepts everything at once."""

        remote_address = ("127.0.0.1", 1)

        async def send_fragments(self, message: AsyncIterator[memoryview]) -> None:
            sent.extend([(bytes(fragment), turns) async for fragment in message])

    sent: list[tuple[bytes, int]] = []
    turns = 0
    connection: Any = Accepting()
    sending = asyncio.create_task(WebSocketLink(connection).send_buffers((bytes(9), b"x"), 3))
    while not sending.done():
        await asyncio.sleep(0)
        turns += 1
    assert [fragment for fragment, _ in sent] == [bytes(3)] * 3 + [b"x"]
    assert len({turn for _, turn in sent}) == len(sent)


async def test_fragments_are_no_longer_than_requested() -> None:
    pieces: list[bytes | memoryview] = [b"head", memoryview(pattern(2_500)), b"tail"]
    async with listening() as (address, accepted), plain_connect(address) as client:
        server = await accepted.get()
        await server.send_buffers(pieces, 1000)
        fragments = [fragment async for fragment in client.recv_streaming()]
        assert [len(fragment) for fragment in fragments if fragment] == [4, 1000, 1000, 500, 4]
        assert b"".join(fragments) == b"".join(pieces)  # type: ignore[arg-type]  # it is binary


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


async def test_a_client_that_sends_before_its_admission_is_disconnected() -> None:
    letting_in = asyncio.Event()

    async def wait(_: ServerConnection, __: Request) -> None:
        await letting_in.wait()

    async def nobody(_: ServerConnection) -> None:
        raise AssertionError("the client was admitted")

    options = direct_options()
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


async def test_only_a_server_lends_its_receiving_side() -> None:
    async with listening() as (address, accepted):
        client, server = await connect(address), await accepted.get()
        assert isinstance(client, WebSocketLink)
        waiting = [asyncio.ensure_future(end.receive()) for end in (client, server)]
        await asyncio.sleep(0)
        assert client.lend_receiver() is None
        receiver = server.lend_receiver()
        assert receiver is not None
        receiver.give_back()
        await client.close()
        for each in waiting:
            with pytest.raises(ConnectionLost):
                await each


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


async def test_a_server_that_dies_before_the_request_is_sent_is_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lose_connection(self: DirectClientConnection, *_: Any) -> None:
        self.transport.abort()
        await self.wait_closed()
        await ClientConnection.handshake(self)

    monkeypatch.setattr(DirectClientConnection, "handshake", lose_connection)
    with raw_server(read_to_end) as port, pytest.raises(ConnectionFailed, match="hung up"):
        await connect(f"ws://127.0.0.1:{port}")


async def test_a_malformed_address_is_explained() -> None:
    with pytest.raises(ConnectionFailed, match="write ws://gpu-box:3000"):
        await connect("gpu-box:3000")


async def test_connecting_to_a_silent_server_times_out() -> None:
    with raw_server(read_to_end) as port:
        with pytest.raises(ConnectionFailed, match=r"did not answer within 0\.\d+ seconds"):
            await connect(f"ws://127.0.0.1:{port}", timeout_seconds=0.1)
        await asyncio.sleep(0)  # the loop closes the socket, for which the raw server waits


@pytest.mark.parametrize("cut", [None, 20, -5], ids=["at once", "in the head", "in the body"])
async def test_a_refusal_with_a_body_is_explained_by_its_status(cut: int | None) -> None:
    body = b"connections: 3 would be open,\r\n\r\n2 are allowed"
    length = f"Content-Length: {len(body)}\r\n\r\n".encode()
    response = b"HTTP/1.1 429 close some\r\n" + length + body

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in (response,) if cut is None else (response[:cut], response[cut:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionFailed, match=r"429.*close some"):
            await connect(f"ws://127.0.0.1:{port}")


@pytest.mark.parametrize(
    "location", ["/admin/delete-all", "ws://127.0.0.1:{other}/session", "http://169.254.169.254/"]
)
async def test_a_redirect_is_an_error_and_is_not_followed(location: str) -> None:
    asked: list[str] = []

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append("elsewhere")
        writer.close()

    async with await asyncio.start_server(elsewhere, "127.0.0.1", 0) as other:
        target = location.format(other=other.sockets[0].getsockname()[1])

        async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            asked.append(head.split()[1].decode())
            writer.write(
                f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()
            )
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(redirect, "127.0.0.1", 0) as server:
            address = f"ws://gpu-box:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(ConnectionFailed, match="answered HTTP 302"):
                await connect(address, "/session", connect_to="127.0.0.1")
    assert asked == ["/session"]
