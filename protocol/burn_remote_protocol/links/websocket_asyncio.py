"""How does a task of an event loop exchange frames over a WebSocket?"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from websockets.asyncio.client import connect as open_connection
from websockets.asyncio.connection import Connection
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    PayloadTooBig,
    ProtocolError,
)
from websockets.frames import CloseCode

from burn_remote_protocol.errors import (
    ConnectionFailed,
    ConnectionLost,
    LimitExceeded,
    ProtocolViolation,
)
from burn_remote_protocol.links.addresses import parse_address
from burn_remote_protocol.links.dialing import connection_failure
from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES, NORMAL_CLOSURE

__all__ = ["WebSocketLink", "connect"]

CONNECT_TIMEOUT_SECONDS: Final = 10.0

# How long ``close`` waits for the peer's answer. Larger: a dead peer holds up shutdown. Smaller: a
# slow one is cut off before it read what was sent last.
CLOSE_TIMEOUT_SECONDS: Final = 1.0

# Messages received and not yet taken. Larger: more memory per connection, times the size of a
# message. Smaller: the socket is paused and resumed more often.
RECEIVE_QUEUE_LENGTH: Final = 4

# Bytes handed to the transport before a sender waits. Larger: more memory for a peer that is slow.
# Smaller: the kernel runs dry while the next chunk is prepared.
WRITE_LIMIT_BYTES: Final = 2**20


async def connect(
    address: str,
    route: str = "",
    *,
    tls: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    ping_interval_seconds: float | None = None,
) -> WebSocketLink:
    """Open a link to ``route`` below ``address``, as ``addresses.parse_address`` reads it.

    Raises ``ConnectionFailed`` with one sentence that says what to check.
    """
    target = parse_address(address).joined(route)
    if tls is not None and not target.secure:
        raise ConnectionFailed(f"tls was given, but {target} is not encrypted; write wss://")
    try:
        async with asyncio.timeout(timeout_seconds):
            connection = await open_connection(
                str(target),
                ssl=tls or (True if target.secure else None),
                additional_headers=dict(headers or {}),
                proxy=None,
                open_timeout=None,
                compression=None,
                max_size=max_message_bytes,
                max_queue=RECEIVE_QUEUE_LENGTH,
                write_limit=WRITE_LIMIT_BYTES,
                ping_interval=ping_interval_seconds,
                close_timeout=CLOSE_TIMEOUT_SECONDS,
            )
    except (OSError, InvalidHandshake) as error:
        raise connection_failure(target, error) from error
    return WebSocketLink(connection)


class WebSocketLink:
    """An ``AsyncLink`` over a connection of ``websockets.asyncio``, a server's or a client's."""

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self._peer = _peer_name(connection.remote_address)

    def __repr__(self) -> str:
        return f"<WebSocketLink {self._peer}: {self._connection.state.name.lower()}>"

    @property
    def peer(self) -> str:
        return self._peer

    async def send(self, frame: bytes) -> None:
        try:
            await self._connection.send(frame)
        except ConnectionClosed as error:
            self._raise_lost(error)

    async def send_parts(self, head: bytes, payload: memoryview) -> None:
        await self.send(b"".join((head, payload)))

    async def receive(self) -> bytes:
        try:
            message = await self._connection.recv()
        except ConnectionClosed as error:
            self._raise_violation(error)
            self._raise_lost(error)
        if isinstance(message, str):
            reason = "the peer sent a text message; this protocol is binary"
            await self.close(CloseCode.UNSUPPORTED_DATA, reason)
            raise ProtocolViolation(reason)
        return message

    async def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        await self._connection.close(code, reason.encode()[:123].decode(errors="ignore"))

    def _raise_violation(self, error: ConnectionClosed) -> None:
        match error.__cause__:
            case PayloadTooBig() as cause:
                raise LimitExceeded(
                    "bytes in one message",
                    seen=(cause.size or 0) + (cause.current_size or 0),
                    allowed=cause.max_size,
                ) from error
            case ProtocolError() | UnicodeDecodeError() as cause:
                raise ProtocolViolation(f"{self._peer} broke the protocol: {cause}") from error

    def _raise_lost(self, error: ConnectionClosed) -> NoReturn:
        if error.rcvd is not None and error.rcvd_then_sent is not False:
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
