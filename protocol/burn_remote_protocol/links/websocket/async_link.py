"""How does a task of an event loop exchange frames over a WebSocket?"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn

from websockets.asyncio.client import connect as websocket_connect
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from burn_remote_protocol.errors import (
    ConnectionFailed,
    ConnectionLost,
)
from burn_remote_protocol.links.addresses import Address, parse_address
from burn_remote_protocol.links.interface import (
    MAX_MESSAGE_BYTES,
    NORMAL_CLOSURE,
    short_reason,
)
from burn_remote_protocol.links.websocket.async_connection import (
    DirectClientConnection,
    DirectConnection,
    DirectServerConnection,
)
from burn_remote_protocol.links.websocket.dialing import connection_failure
from burn_remote_protocol.links.websocket.heartbeat import Heartbeat
from burn_remote_protocol.links.websocket.indirect import IndirectConnection

__all__ = ["WebSocketLink", "connect"]

CONNECT_TIMEOUT_SECONDS: Final = 10.0

# How long ``close`` waits for the peer's answer. Larger: a dead peer holds up shutdown. Smaller: a
# slow one is cut off before it read what was sent last.
CLOSE_TIMEOUT_SECONDS: Final = 1.0

# Bytes handed to the transport before a sender waits. Larger: more memory for a peer that is slow.
# Smaller: the kernel runs dry while the next chunk is prepared.
WRITE_LIMIT_BYTES: Final = 2**20


class _DirectConnect(websocket_connect):
    """``websockets``' way to connect, without following redirects.

    A redirect would lead to a path, or with its own name to a host, that nobody checked.
    """

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def connect(
    address: str,
    route: str = "",
    *,
    connect_to: str | None = None,
    tls: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> WebSocketLink:
    """Open a link to ``route`` below ``address``, as ``addresses.parse_address`` reads it.

    ``connect_to`` is the numeric address to use instead of looking the host's name up; TLS still
    checks the name. Raises ``ConnectionFailed`` with one sentence that says what to check.
    """
    target = parse_address(address).joined(route)
    if tls is not None and not target.secure:
        raise ConnectionFailed(f"tls was given, but {target} is not encrypted; write wss://")
    try:
        async with asyncio.timeout(timeout_seconds):
            connection = await _DirectConnect(
                target.uri,
                **_destination(target, connect_to),
                ssl=tls or (True if target.secure else None),
                additional_headers=dict(headers or {}),
                proxy=None,
                open_timeout=None,
                compression=None,
                create_connection=partial(  # type: ignore[arg-type]  # made like a class is
                    DirectClientConnection, max_message_bytes=max_message_bytes
                ),
                write_limit=WRITE_LIMIT_BYTES,
                ping_interval=None,  # see keep_alive
                close_timeout=CLOSE_TIMEOUT_SECONDS,
            )
    except (OSError, InvalidHandshake, ConnectionClosed) as error:
        raise connection_failure(target, error) from error
    return WebSocketLink(connection)


def _destination(target: Address, numeric: str | None) -> dict[str, Any]:
    return {} if numeric is None else {"host": numeric, "port": target.port}


def server_options(*, max_message_bytes: int = MAX_MESSAGE_BYTES) -> dict[str, Any]:
    """Return what ``websockets.asyncio.server.serve`` should be given for links to be fast."""
    return {
        "compression": None,
        "create_connection": partial(DirectServerConnection, max_message_bytes=max_message_bytes),
        "write_limit": WRITE_LIMIT_BYTES,
        "ping_interval": None,  # see keep_alive
        "close_timeout": CLOSE_TIMEOUT_SECONDS,
    }


class WebSocketLink:
    """An ``AsyncLink`` over a connection of ``websockets.asyncio``, a server's or a client's."""

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = (
            connection
            if isinstance(connection, DirectConnection)
            else IndirectConnection(connection)
        )
        self._peer = _peer_name(connection.remote_address)
        self._silence = ""  # why it was ended, if that is the reason

    def __repr__(self) -> str:
        return f"<WebSocketLink {self._peer}: {self._connection.state.name.lower()}>"

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def peer_host(self) -> str:
        """The address of the other end, without its port."""
        address = self._connection.remote_address
        return str(address[0]) if isinstance(address, tuple) else ""

    async def send(self, frame: bytes) -> None:
        try:
            await self._connection.send_message(frame)
        except ConnectionClosed as error:
            self._raise_lost(error)

    async def send_parts(self, head: bytes, payload: memoryview) -> None:
        await self.send_pieces((head, payload))

    async def send_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send one message, made of pieces that do not change. Raises ``ConnectionLost``."""
        try:
            await self._connection.send_message(*pieces)
        except ConnectionClosed as error:
            self._raise_lost(error)

    async def receive(self) -> bytes:
        try:
            return await self._connection.receive_message()
        except ConnectionClosed as error:
            self._raise_lost(error)

    @property
    def arrived_bytes(self) -> int:
        """How much has come, also of a message that is not whole yet."""
        return self._connection.arrived_bytes

    def receive_nowait(self) -> bytes | None:
        """Return the next frame if it is there already."""
        return self._connection.take_message()

    def limit_messages(self, max_message_bytes: int) -> None:
        """Take messages up to another size from now on."""
        self._connection.limit_messages(max_message_bytes)

    def keep_alive(self, interval_seconds: float) -> None:
        """Ping the other end from now on; give it up when it is silent for two intervals."""

        def note_silence() -> None:
            self._silence = f"{self._peer} gave no sign of life for {interval_seconds:g} s"

        if isinstance(self._connection, DirectConnection):
            Heartbeat(self._connection, interval_seconds, note_silence)

    async def probe(self) -> None:
        """Wait until the other end has answered a ping: so far all is well. Raises
        ``ConnectionLost``."""
        try:
            await (await self._connection.ping())
        except ConnectionClosed as error:
            self._raise_lost(error)

    async def send_fragments(
        self, pieces: Sequence[bytes | memoryview], fragment_bytes: int
    ) -> None:
        """Send one message, made of pieces, in fragments. Raises ``ConnectionLost``."""
        fragments = [
            memoryview(piece)[at : at + fragment_bytes]
            for piece in pieces
            for at in range(0, len(piece), fragment_bytes)
        ]
        try:
            await self._connection.send(fragments)
        except ConnectionClosed as error:
            self._raise_lost(error)

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


def _peer_name(address: Any) -> str:
    match address:
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(address) or "an unnamed socket"
