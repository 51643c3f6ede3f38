"""A link over a WebSocket for the tasks of an event loop, and how a client opens one."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn

from websockets.asyncio.client import connect as websocket_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.links.addresses import Address
from burn_remote_protocol.links.interface import (
    CLOSE_TIMEOUT_SECONDS,
    MAX_MESSAGE_BYTES,
    NORMAL_CLOSURE,
    Allocate,
    FrameSender,
    Memory,
    PlaceFrame,
    short_reason,
)
from burn_remote_protocol.links.transport_interface import CONNECT_TIMEOUT_SECONDS, KeyedListener
from burn_remote_protocol.links.websocket.async_connection import (
    DirectClientConnection,
    DirectConnection,
)
from burn_remote_protocol.links.websocket.async_keepalive import Keepalive
from burn_remote_protocol.links.websocket.dialing import connection_failure
from burn_remote_protocol.links.websocket.frame_sender import LoopSender, SocketSender
from burn_remote_protocol.links.websocket.server_connection import DirectServerConnection
from burn_remote_protocol.links.websocket.thread_receiver import ThreadReceiver

__all__ = ["CONNECTION_OPTIONS", "WebSocketLink", "connect"]

# A sender waits while the transport's buffer holds more bytes than this. It is enough to keep the
# kernel busy while the next chunk is prepared, and it bounds the memory that a slow peer occupies.
WRITE_LIMIT_BYTES: Final = 2**20

# Options of ``websockets`` for both ends of a link.
CONNECTION_OPTIONS: Final[Mapping[str, Any]] = {
    "compression": None,
    "write_limit": WRITE_LIMIT_BYTES,
    "ping_interval": None,  # see ``keep_alive``
    "close_timeout": CLOSE_TIMEOUT_SECONDS,
}


class _DirectConnect(websocket_connect):
    """``connect`` of ``websockets``, except that it follows no redirects.

    A redirect could lead to a path or a host that was not checked.
    """

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def connect(
    target: Address,
    *,
    connect_to: str | None = None,
    tls: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    speaks_burn: bool = False,
    identity: KeyedListener | None = None,
) -> WebSocketLink:
    """Open a link; the options are those of ``AsyncOptions``.

    Raises ``ConnectionFailed`` with one sentence that says what to check.
    """
    destination: dict[str, Any] = {}
    if connect_to is not None:
        destination = {"host": connect_to, "port": target.port}
    try:
        async with asyncio.timeout(timeout_seconds):
            connection = await _DirectConnect(
                target.uri,
                **destination,
                ssl=tls or (True if target.secure else None),
                additional_headers=dict(headers or {}),
                proxy=None,
                open_timeout=None,
                create_connection=partial(  # type: ignore[arg-type]  # called like a class
                    DirectClientConnection, max_message_bytes=max_message_bytes
                ),
                **CONNECTION_OPTIONS,
            )
    except (OSError, InvalidHandshake, ConnectionClosed) as error:
        raise connection_failure(target, error, timeout_seconds) from error
    assert isinstance(connection, DirectConnection)  # made by create_connection
    return WebSocketLink(connection)


class WebSocketLink:
    """An ``AsyncLink`` over a server's or a client's ``DirectConnection``."""

    def __init__(self, connection: DirectConnection) -> None:
        self._connection: Final = connection
        self._peer = _peer_name(connection.remote_address)
        self._silence = ""  # why ``keep_alive`` ended the connection, if it did

    def __repr__(self) -> str:
        return f"<WebSocketLink {self._peer}: {self._connection.state.name.lower()}>"

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def peer_host(self) -> str:
        address = self._connection.remote_address
        return str(address[0]) if isinstance(address, tuple) else ""

    @property
    def received_bytes(self) -> int:
        return self._connection.received_bytes

    @property
    def sent_bytes(self) -> int:
        return self._connection.sent_bytes

    async def send(self, frame: bytes) -> None:
        try:
            await self._connection.send_message(frame)
        except ConnectionClosed as error:
            self._raise_lost(error)

    async def send_parts(self, head: bytes, payload: memoryview) -> None:
        await self.send_buffers((head, payload))

    def is_writable(self) -> bool:
        return self._connection.is_writable()

    def send_nowait(self, *buffers: bytes | memoryview) -> None:
        self._connection.write_message(*buffers)

    def send_at_once(self, frame: bytes) -> None:
        self._connection.write_at_once(frame)

    async def send_buffers(
        self, buffers: Sequence[bytes | memoryview], fragment_bytes: int | None = None
    ) -> None:
        try:
            if fragment_bytes is None:
                await self._connection.send_message(*buffers)
            else:
                await self._connection.send_fragments(_fragments(buffers, fragment_bytes))
        except ConnectionClosed as error:
            self._raise_lost(error)

    async def send_slices(self, buffers: Sequence[bytes | memoryview], slice_bytes: int) -> None:
        try:
            await self._connection.send_slices(buffers, slice_bytes)
        except ConnectionClosed as error:
            self._raise_lost(error)

    async def receive(self) -> bytes:
        try:
            return await self._connection.receive_message()
        except ConnectionClosed as error:
            self._raise_lost(error)

    def receive_nowait(self, longest: int | None = None) -> bytes | None:
        return self._connection.take_message(longest)

    def call_on_arrival(
        self, handler: Callable[[], None] | None, take: Callable[[Any], bool] | None = None
    ) -> None:
        self._connection.on_arrival = handler
        self._connection.on_lone_arrival = take

    def lend_receiver(self) -> ThreadReceiver | None:
        connection = self._connection
        if isinstance(connection, DirectServerConnection):
            return connection.lend_receiver()
        return None

    def open_frames(self, open_frame: Callable[[bytes], Any]) -> None:
        self._connection.open_messages(open_frame)

    def limit_messages(self, max_message_bytes: int, allocate: Allocate | None = None) -> None:
        self._connection.limit_messages(max_message_bytes, allocate)

    def place_frames(self, head_bytes: int, place: PlaceFrame) -> None:
        self._connection.place_messages(head_bytes, place)

    def count_received(
        self, memory: Memory, stall_seconds: float, urgent_bytes: int | None = None
    ) -> None:
        self._connection.count_received(memory, stall_seconds, urgent_bytes)

    def keep_alive(self, interval_seconds: float) -> None:
        def note_silence() -> None:
            self._silence = f"{self._peer} gave no sign of life for {interval_seconds:g} s"

        Keepalive(self._connection, interval_seconds, note_silence)

    async def probe(self) -> None:
        try:
            await (await self._connection.ping())
        except ConnectionClosed as error:
            self._raise_lost(error)

    async def frame_sender(self, check: Callable[[], None]) -> FrameSender:
        connection = self._connection
        transport = connection.transport
        if connection.sends_masked or transport.get_extra_info("sslcontext") is not None:
            return LoopSender(self, asyncio.get_running_loop(), check)
        await connection.drained()
        connection.sends_elsewhere = True
        try:
            descriptor = transport.get_extra_info("socket").fileno()
            return SocketSender(descriptor, self._peer, check)
        except OSError as error:
            raise ConnectionLost(f"{self._peer} hung up") from error

    async def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        await self._connection.close(code, short_reason(reason))

    def _raise_lost(self, error: ConnectionClosed) -> NoReturn:
        if self._silence:
            text = self._silence
        elif error.rcvd is not None and error.rcvd_then_sent is not False:
            text = f"{self._peer} closed the connection: {error.rcvd}"
        elif error.sent is not None:
            text = f"this program closed the connection to {self._peer}: {error.sent}"
        elif isinstance(error.__cause__, OSError) and error.__cause__.strerror:
            text = f"the connection to {self._peer} broke: {error.__cause__.strerror}"
        else:
            text = f"{self._peer} hung up"
        raise ConnectionLost(text) from error


async def _fragments(buffers: Sequence[bytes | memoryview], size: int) -> AsyncIterator[memoryview]:
    """Yield the buffers in parts; other tasks run after each.

    Sending does not yield while the peer reads fast enough.
    """
    for buffer in buffers:
        for at in range(0, len(buffer), size):
            yield memoryview(buffer)[at : at + size]
            await asyncio.sleep(0)


def _peer_name(address: Any) -> str:
    match address:
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(address) or "an unnamed socket"
