"""How does a process listen, which route leads where, and how does it stop?"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from websockets.asyncio import server as websocket_server
from websockets.asyncio.server import Server, ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from burn_remote_protocol.errors import HandshakeRefused
from burn_remote_protocol.links.websocket_asyncio import WebSocketLink, server_options
from burn_remote_server import backends
from burn_remote_server.access import token_in_path
from burn_remote_server.burn_pump import serve_data, serve_request, serve_response
from burn_remote_server.configuration import Settings
from burn_remote_server.connections import ConnectionLimits, CountedConnection
from burn_remote_server.health import ServerState, refuse, respond
from burn_remote_server.host import Device, Host
from burn_remote_server.metrics import Metrics
from burn_remote_server.peer_pump import serve_peer
from burn_remote_server.pump import serve_session
from burn_remote_server.telemetry import get_logger

__all__ = ["serve"]

logger = get_logger(__name__)

# A worker that runs Python dispatch keeps the event loop waiting for up to this long (5 ms by
# default). Smaller: the two switch more often and both get slower.
SWITCH_INTERVAL_SECONDS: Final = 0.0005

# Burn appends its route to the address as it stands: a trailing slash becomes a second one.
_PATH: Final = re.compile(
    r"^(?:/(?P<device>\d{1,4}))?//?(?P<route>session|transfer|request|response|data)$"
)

Serve = Callable[[WebSocketLink, Device, str | None, str], Awaitable[None]]

# What one message may hold before its sender is admitted: a Hello has a few hundred bytes. Larger:
# whoever reaches the port makes the server hold more. Smaller: long tokens and hints do not fit.
OPENING_BYTES: Final = 64 * 1024


def _serve_session(
    link: WebSocketLink, device: Device, token: str | None, _: str
) -> Awaitable[None]:
    def admitted() -> None:
        link.limit_messages(device.host.settings.max_message_bytes)

    return serve_session(link, device, token, admitted)


def _serve_request(
    link: WebSocketLink, device: Device, token: str | None, called: str
) -> Awaitable[None]:
    # Burn's client sends its first tensors right behind its opening.
    with contextlib.suppress(HandshakeRefused):
        device.host.access.admit(token)
        link.limit_messages(device.host.settings.max_message_bytes)
    return serve_request(link, device, token, called)


_ROUTES: Final[dict[str, Serve]] = {
    "session": _serve_session,
    "transfer": lambda link, device, token, _: serve_peer(link, device.host, token),
    "request": _serve_request,
    "response": serve_response,
    "data": serve_data,
}


async def serve(settings: Settings, *, drain: asyncio.Event, ready: Callable[[Host], None]) -> None:
    """Serve until ``drain`` is set; then finish what is queued, within the configured time.

    ``ready`` is called with the host once the port accepts connections. Raises ``OSError`` where
    the port cannot be had.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    opened = backends.open_backends(settings.backend, settings.device_count)
    async with asyncio.TaskGroup() as tasks:
        host = Host(settings, opened, tasks)
        service = _Service(host)
        async with service.listen() as server:
            host.port = server.sockets[0].getsockname()[1]
            ready(host)
            await drain.wait()
            await service.stop(server)
        await host.peers.close()


class _Service:
    """Route connections to the pumps and count them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._running: set[asyncio.Task[None]] = set()
        settings = host.settings
        self._limits: Final = ConnectionLimits(
            settings.max_connections, settings.max_connections_per_address
        )
        self._metrics = Metrics(
            host.total,
            version=_version(),
            backend=host.settings.backend,
        )

    def listen(self) -> contextlib.AbstractAsyncContextManager[Server]:
        """Return the listening server, to be entered as a context."""
        settings = self._host.settings
        seconds = settings.handshake_timeout_seconds
        context = self._host.tls.context
        options = server_options(max_message_bytes=OPENING_BYTES)
        if context is not None:
            options["ssl_handshake_timeout"] = seconds
        options["create_connection"] = partial(
            CountedConnection,
            limits=self._limits,
            max_message_bytes=OPENING_BYTES,
        )
        listening: contextlib.AbstractAsyncContextManager[Server] = websocket_server.serve(
            self._handle,
            settings.host,
            settings.port,
            process_request=self._answer_http,
            ssl=context,
            # The time for a whole HTTP request: one that comes byte by byte ends here.
            open_timeout=seconds,
            server_header=None,
            **options,
        )
        return listening

    async def stop(self, server: Server) -> None:
        """Accept nothing more, let sessions finish, then close what is left."""
        server.close(close_connections=False)
        self._host.draining.set()
        if self._running:
            logger.info("draining", sessions=len(self._host.sessions))
            await asyncio.wait(self._running, timeout=self._host.settings.drain_seconds)
        for task in [*self._running]:
            task.cancel()
        if self._running:
            await asyncio.wait([*self._running])

    async def _handle(self, connection: ServerConnection) -> None:
        assert connection.request is not None  # set before a handler runs
        link = WebSocketLink(connection)
        path, token = token_in_path(connection.request.path)
        device, route = self._find(path)
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                called = _called(connection.request).removesuffix(route)
                await _ROUTES[route](link, device, token, called)
        finally:
            self._running.discard(task)

    def _find(self, path: str) -> tuple[Device, str]:
        match = _PATH.match(path)
        if match is None:
            raise LookupError
        index = int(match["device"] or 0)
        if index >= len(self._host.devices):
            raise LookupError
        return self._host.devices[index], match["route"]

    def _answer_http(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer what is no WebSocket of ours: health, metrics, and wrong addresses."""
        try:
            self._find(token_in_path(request.path)[0])
            is_route = True
        except LookupError:
            is_route = False
        if is_route and request.headers.get("Upgrade", "").lower() == "websocket":
            refusal = refuse(request.headers, getattr(connection, "refusal", ""))
            if refusal is None:
                return None
            status, headers, body = refusal
        else:
            draining = self._host.draining.is_set()
            state = ServerState(draining, self._metrics.exposition)
            status, headers, body = respond(request.path, state, is_route=is_route)
        response = Response(status, HTTPStatus(status).phrase, Headers(headers), body)
        response.headers["Content-Length"] = str(len(body))
        response.headers["Connection"] = "close"
        return response


def _called(request: Request) -> str:
    """Return the address, with its route, by which somebody called this server."""
    return f"ws://{request.headers.get('Host', '')}{request.path}"


def _version() -> str:
    try:
        return version("burn-remote")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"
