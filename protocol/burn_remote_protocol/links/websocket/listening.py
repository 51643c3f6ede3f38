"""The server's side of the WebSocket transport: a port that accepts links."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

from websockets.asyncio import server as websocket_server
from websockets.asyncio.server import Server, ServerConnection
from websockets.datastructures import Headers, MultipleValuesError
from websockets.exceptions import SecurityError
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response as HttpResponse
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES
from burn_remote_protocol.links.transport_interface import (
    ConnectionGate,
    Handle,
    Listener,
    Request,
    Respond,
)
from burn_remote_protocol.links.websocket.accepting import Accepted, Acceptor
from burn_remote_protocol.links.websocket.async_link import CONNECTION_OPTIONS, WebSocketLink
from burn_remote_protocol.links.websocket.keepalive import enable_tcp_keepalive
from burn_remote_protocol.links.websocket.server_connection import DirectServerConnection

__all__ = ["listen"]

END_OF_REQUEST: Final = b"\r\n\r\n"


@contextlib.asynccontextmanager
async def listen(
    host: str,
    port: int,
    handle: Handle,
    *,
    respond: Respond | None = None,
    gate: ConnectionGate | None = None,
    is_urgent: Callable[[bytes], bool] = lambda _: False,
    is_prompt: Callable[[bytes], bool] = lambda _: False,
    tls: ssl.SSLContext | None = None,
    handshake_timeout_seconds: float | None = None,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> AsyncIterator[Listener]:
    """Accept links until the context ends; the options are those of ``Transport.listen``."""

    async def handle_connection(connection: ServerConnection) -> None:
        assert isinstance(connection, _GatedConnection)  # made by _Starter
        assert connection.request is not None  # set before a handler runs
        await handle(WebSocketLink(connection), _request(connection, connection.request))

    def process_request(connection: ServerConnection, request: HttpRequest) -> HttpResponse | None:
        assert isinstance(connection, _GatedConnection)  # made by _Starter
        try:
            return http_response(request, connection.refusal)
        except MultipleValuesError:
            return connection.respond(HTTPStatus.BAD_REQUEST, "A header occurs more than once.\n")

    def http_response(request: HttpRequest, refusal: str) -> HttpResponse | None:
        """Raises ``MultipleValuesError``."""
        request.headers.get("Host")  # handlers read it after the handshake
        if respond is None:
            return None
        response = respond(Request(request.path, request.headers, refusal))
        if response is None:
            return None
        headers = Headers(response.headers)
        headers["Content-Length"] = str(len(response.body))
        headers["Connection"] = "close"
        return HttpResponse(response.status, response.phrase, headers, response.body)

    def answer(accepted: Accepted, received: bytes) -> bytes | None:
        request = None if tls is not None else _whole_request(received)
        if request is None:
            return None
        try:
            response = http_response(request, accepted.refusal)
        except MultipleValuesError:
            return None
        return None if response is None else response.serialize()

    server = await websocket_server.serve(
        handle_connection,
        host,
        port,
        process_request=process_request,
        # Bounds the whole HTTP request, also one that arrives byte by byte.
        open_timeout=handshake_timeout_seconds,
        server_header=None,
        start_serving=False,  # the acceptor does
        **CONNECTION_OPTIONS,
    )
    async with server, contextlib.AsyncExitStack() as stack:
        sockets = [_duplicate(each) for each in server.sockets]
        starter = _Starter(server, max_message_bytes, tls, handshake_timeout_seconds)
        stack.push_async_callback(starter.close)
        acceptor = Acceptor(
            sockets,
            starter.start,
            gate=gate,
            is_urgent=is_urgent,
            is_prompt=is_prompt,
            timeout_seconds=handshake_timeout_seconds,
            answer=answer,
        )
        stack.callback(acceptor.stop)
        # The library refuses handshakes while its own server does not accept.
        server.is_serving = lambda: acceptor.is_accepting  # type: ignore[method-assign]
        yield _Listener(server, acceptor)


class _Listener:
    """A ``Listener`` over an acceptor and a server of ``websockets``."""

    def __init__(self, server: Server, acceptor: Acceptor) -> None:
        self._server: Final = server
        self._acceptor: Final = acceptor
        self._port: Final = int(next(iter(server.sockets)).getsockname()[1])

    @property
    def port(self) -> int:
        return self._port

    def stop_accepting(self) -> None:
        self._acceptor.stop()
        self._server.close(close_connections=False)


class _Starter:
    """Starts accepted connections: TLS and the handshake of a WebSocket."""

    def __init__(
        self,
        server: Server,
        max_message_bytes: int,
        tls: ssl.SSLContext | None,
        handshake_timeout_seconds: float | None,
    ) -> None:
        self._server: Final = server
        self._max_message_bytes: Final = max_message_bytes
        self._tls: Final[dict[str, Any]] = {}
        if tls is not None:
            self._tls["ssl"] = tls
            self._tls["ssl_handshake_timeout"] = handshake_timeout_seconds
            self._tls["ssl_shutdown_timeout"] = CONNECTION_OPTIONS["close_timeout"]
        self._starting: Final[set[asyncio.Task[None]]] = set()

    def start(self, accepted: Accepted) -> None:
        """Start a connection in a task."""
        coroutine = self._start(accepted)
        try:
            task = asyncio.create_task(coroutine)
        except MemoryError:
            coroutine.close()
            accepted.close()
            raise
        self._starting.add(task)
        task.add_done_callback(partial(self._end, accepted))

    async def close(self) -> None:
        """Cancel TLS handshakes that are under way."""
        for task in [*self._starting]:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)

    async def _start(self, accepted: Accepted) -> None:
        connection = _GatedConnection(self._server, accepted, self._max_message_bytes)
        accepted.is_started = True
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: connection, accepted.socket, **self._tls
        )

    def _end(self, accepted: Accepted, task: asyncio.Task[None]) -> None:
        """Stop counting a connection that was not made; no callback of it follows.

        Not in ``_start``, which never runs if its task is cancelled before.
        """
        self._starting.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        if accepted.is_started:
            accepted.leave()  # the event loop closes the socket
        else:
            accepted.close()
        if error is not None and not isinstance(error, OSError):  # TLS failed
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a connection was not started", "exception": error, "task": task}
            )


def _duplicate(listening: Any) -> socket.socket:
    """Return another descriptor of a socket, because the event loop may own the given one."""
    return socket.fromfd(listening.fileno(), listening.family, listening.type, listening.proto)


def _whole_request(received: bytes) -> HttpRequest | None:
    """Parse bytes that are exactly one valid request without a body; else return ``None``."""
    if received.find(END_OF_REQUEST) != len(received) - len(END_OF_REQUEST):
        return None
    reader = StreamReader()
    reader.feed_data(received)
    parser = HttpRequest.parse(reader.read_line)
    try:
        next(parser)
    except StopIteration as parsed:
        request: HttpRequest = parsed.value
        return request
    except (EOFError, NotImplementedError, SecurityError, ValueError):
        pass
    return None


def _request(connection: _GatedConnection, request: HttpRequest) -> Request:
    return Request(request.path, request.headers, connection.refusal)


class _GatedConnection(DirectServerConnection):
    """A server's connection that the acceptor's gate counts until it ends."""

    def __init__(self, server: Server, accepted: Accepted, max_message_bytes: int) -> None:
        super().__init__(
            ServerProtocol(logger=server.logger),
            server,
            max_message_bytes=max_message_bytes,
            ping_interval=CONNECTION_OPTIONS["ping_interval"],
            close_timeout=CONNECTION_OPTIONS["close_timeout"],
            write_limit=CONNECTION_OPTIONS["write_limit"],
        )
        self._accepted: Final = accepted

    @property
    def refusal(self) -> str:
        """Why the gate refuses the connection, or empty."""
        return self._accepted.refusal

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Enable TCP keepalive, and begin the handshake."""
        try:
            with contextlib.suppress(OSError):  # a socket that is not TCP has no keepalive
                enable_tcp_keepalive(transport.get_extra_info("socket"))
            super().connection_made(transport)
        except BaseException:  # for lack of memory: nobody else would close it
            cast("asyncio.Transport", transport).abort()
            raise

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection."""
        self._accepted.leave()
        super().connection_lost(exc)
