"""How does a process listen, which route leads where, and how does it stop?"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import Callable
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from burn_remote_protocol.links.interface import AsyncLink, Listener, Request, Response
from burn_remote_protocol.links.transports import listen
from burn_remote_server import backends
from burn_remote_server.access.admission import token_in_path
from burn_remote_server.custom import load_operations
from burn_remote_server.dialects.burn.routes import burn_routes
from burn_remote_server.dialects.native.routes import native_routes
from burn_remote_server.hosting.host import Device, Host
from burn_remote_server.listeners.connection_limits import ConnectionLimits
from burn_remote_server.listeners.http_responses import ServerState, refuse, respond
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.telemetry.logs import get_logger
from burn_remote_server.telemetry.metrics import Metrics

__all__ = ["serve"]

logger = get_logger(__name__)

# A worker that runs Python dispatch keeps the event loop waiting for up to this long (5 ms by
# default). Smaller: the two switch more often and both get slower.
SWITCH_INTERVAL_SECONDS: Final = 0.0005

# Burn appends its route to the address as it stands: a trailing slash becomes a second one.
_PATH: Final = re.compile(
    r"^(?:/(?P<device>[0-9]{1,4}))?//?(?P<route>session|transfer|request|response|data)$"
)

# What one message may hold before its sender is admitted: a Hello has a few hundred bytes. Larger:
# whoever reaches the port makes the server hold more. Smaller: long tokens and hints do not fit.
OPENING_BYTES: Final = 64 * 1024


async def serve(settings: Settings, *, drain: asyncio.Event, ready: Callable[[Host], None]) -> None:
    """Serve until ``drain`` is set; then finish what is queued, within the configured time.

    ``ready`` is called with the host once the port accepts connections. Raises ``OSError`` where
    the port cannot be had.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    custom = load_operations(settings.custom_operations)
    opened = backends.open_backends(settings.backend, settings.device_count, settings.device_memory)
    async with asyncio.TaskGroup() as tasks:
        host = Host(settings, opened, tasks, custom)
        service = _Service(host)
        try:
            async with service.listen() as listener:
                host.port = listener.port
                ready(host)
                await drain.wait()
                await service.stop(listener)
        finally:
            # Sessions that wait for their client to come back have not ended.
            host.arrivals.close()
        await host.peers.close()


class _Service:
    """Route connections to the pumps and count them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._routes: Final = {**native_routes(), **burn_routes()}
        self._running: dict[asyncio.Task[None], str] = {}
        settings = host.settings
        self._limits: Final = ConnectionLimits(
            settings.max_connections, settings.max_connections_per_address
        )
        self._metrics = Metrics(
            host.total,
            version=_version(),
            backend=host.settings.backend,
            devices=[device.backend for device in host.devices],
        )

    def listen(self) -> contextlib.AbstractAsyncContextManager[Listener]:
        """Return the context in which the port accepts connections."""
        settings = self._host.settings
        return listen(
            "ws",
            settings.host,
            settings.port,
            self._handle,
            respond=self._respond,
            gate=self._limits,
            tls=self._host.tls.context,
            handshake_timeout_seconds=settings.handshake_timeout_seconds,
            max_message_bytes=OPENING_BYTES,
        )

    async def stop(self, listener: Listener) -> None:
        """Accept nothing more, let sessions finish, then close what is left."""
        listener.stop_accepting()
        self._host.draining.set()
        if self._running:
            logger.info("draining", sessions=len(self._host.sessions))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._host.settings.drain_seconds):
                    await self._end_by_themselves()
        for task in [*self._running]:
            task.cancel()
        if self._running:
            await asyncio.wait([*self._running])

    async def _end_by_themselves(self) -> None:
        """Wait until the sessions have ended, then until peers have what they were being sent."""
        sessions = [
            task for task, route in self._running.items() if not self._routes[route].is_for_peers
        ]
        if sessions:
            await asyncio.wait(sessions)
        self._host.deserted.set()
        if self._running:
            await asyncio.wait([*self._running])

    async def _handle(self, link: AsyncLink, request: Request) -> None:
        path, token = token_in_path(request.path)
        device, route = self._find(path)
        task = asyncio.current_task()
        assert task is not None
        self._running[task] = route
        try:
            with contextlib.suppress(asyncio.CancelledError):
                called = _called(request).removesuffix(route)
                await self._routes[route].serve(link, device, token, called)
        finally:
            del self._running[task]

    def _find(self, path: str) -> tuple[Device, str]:
        match = _PATH.match(path)
        if match is None:
            raise LookupError
        return self._host.devices[int(match["device"] or 0)], match["route"]

    def _respond(self, request: Request) -> Response | None:
        """Respond to requests that do not open a link: health, metrics, and wrong addresses."""
        match = _PATH.match(token_in_path(request.path)[0])
        if match is not None and request.headers.get("Upgrade", "").lower() == "websocket":
            device, devices = int(match["device"] or 0), len(self._host.devices)
            refusal = refuse(request.headers, request.refusal, device, devices)
            if refusal is None:
                return None
            status, headers, body = refusal
            # A client that was refused reads no body, but the status line.
            phrase = body.decode().strip()
        else:
            draining = self._host.draining.is_set()
            failures = [device.backend.failure for device in self._host.devices]
            state = ServerState(draining, self._metrics.exposition, failures)
            status, headers, body = respond(request.path, state, is_route=match is not None)
            phrase = HTTPStatus(status).phrase
        return Response(status, phrase, headers, body)


def _called(request: Request) -> str:
    """Return the address, with its route, by which somebody called this server."""
    return f"ws://{request.headers.get('Host', '')}{request.path}"


def _version() -> str:
    try:
        return version("burn-remote")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"
