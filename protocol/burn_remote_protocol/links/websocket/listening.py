"""The server's side of the WebSocket transport: a port that accepts links."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

from websockets.asyncio import server as websocket_server
from websockets.asyncio.server import Server, ServerConnection
from websockets.datastructures import Headers, MultipleValuesError
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response as HttpResponse

from burn_remote_protocol.links.interface import (
    MAX_MESSAGE_BYTES,
    ConnectionGate,
    Handle,
    Listener,
    Request,
    Respond,
)
from burn_remote_protocol.links.websocket.async_connection import DirectServerConnection
from burn_remote_protocol.links.websocket.async_link import CONNECTION_OPTIONS, WebSocketLink
from burn_remote_protocol.links.websocket.keepalive import enable_tcp_keepalive

__all__ = ["listen"]


@contextlib.asynccontextmanager
async def listen(
    host: str,
    port: int,
    handle: Handle,
    *,
    respond: Respond | None = None,
    gate: ConnectionGate | None = None,
    tls: ssl.SSLContext | None = None,
    handshake_timeout_seconds: float | None = None,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> AsyncIterator[Listener]:
    """Accept links until the context ends; the options are those of ``Transport.listen``."""

    async def handle_connection(connection: ServerConnection) -> None:
        assert isinstance(connection, _GatedConnection)  # made by create_connection
        assert connection.request is not None  # set before a handler runs
        await handle(WebSocketLink(connection), _request(connection, connection.request))

    def process_request(connection: ServerConnection, request: HttpRequest) -> HttpResponse | None:
        try:
            response = None if respond is None else respond(_request(connection, request))
        except MultipleValuesError:
            return connection.respond(HTTPStatus.BAD_REQUEST, "A header occurs more than once.\n")
        if response is None:
            return None
        headers = Headers(response.headers)
        headers["Content-Length"] = str(len(response.body))
        headers["Connection"] = "close"
        return HttpResponse(response.status, response.phrase, headers, response.body)

    options: dict[str, Any] = dict(CONNECTION_OPTIONS)
    if tls is not None:
        options["ssl_handshake_timeout"] = handshake_timeout_seconds
    async with websocket_server.serve(
        handle_connection,
        host,
        port,
        process_request=process_request,
        ssl=tls,
        # Bounds the whole HTTP request, also one that arrives byte by byte.
        open_timeout=handshake_timeout_seconds,
        server_header=None,
        create_connection=partial(  # type: ignore[arg-type]  # called like a class
            _GatedConnection, gate=gate, max_message_bytes=max_message_bytes
        ),
        **options,
    ) as server:
        yield _Listener(server)


class _Listener:
    """A ``Listener`` over a server of ``websockets``."""

    def __init__(self, server: Server) -> None:
        self._server: Final = server

    @property
    def port(self) -> int:
        return int(next(iter(self._server.sockets)).getsockname()[1])

    def stop_accepting(self) -> None:
        self._server.close(close_connections=False)


def _request(connection: ServerConnection, request: HttpRequest) -> Request:
    return Request(request.path, request.headers, getattr(connection, "refusal", ""))


class _GatedConnection(DirectServerConnection):
    """A server's connection that the gate checks as soon as it is accepted."""

    def __init__(self, *arguments: Any, gate: ConnectionGate | None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._gate: Final = gate
        self._address: str | None = None
        self._is_rejected = False
        self.refusal = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection; abort it if the gate does not keep it."""
        if self._gate is not None:
            name = transport.get_extra_info("peername")
            self._address = str(name[0]) if isinstance(name, tuple) else "a local socket"
            may_stay, self.refusal = self._gate.enter(self._address)
            if not may_stay:
                self._is_rejected = True  # the library never learns of the connection
                # A stream transport, though uvloop's classes do not inherit from asyncio's.
                cast("asyncio.WriteTransport", transport).abort()
                self._gate.record_rejection(self.refusal, self.loop.time())
                return
        with contextlib.suppress(OSError):  # a socket that is not TCP has no keepalive
            enable_tcp_keepalive(transport.get_extra_info("socket"))
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection."""
        if self._gate is not None and self._address is not None:
            self._gate.leave(self._address)
            self._address = None
        if not self._is_rejected:
            super().connection_lost(exc)
