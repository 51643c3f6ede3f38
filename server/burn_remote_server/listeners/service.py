"""The service of a process: its listening port, routes and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from burn_remote_protocol.bounded_threads import BoundedThreadPool
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.links.transport_interface import (
    KeyedListener,
    Listener,
    Request,
    Response,
)
from burn_remote_protocol.links.transport_registry import listen, listen_with_key
from burn_remote_protocol.loop_calls import Signal
from burn_remote_server import backends
from burn_remote_server.access.admission import token_in_path
from burn_remote_server.access.node_key import read_node_key
from burn_remote_server.backends.array.kernels import blas_threads
from burn_remote_server.custom import load_operations
from burn_remote_server.dialects.burn_0_21.routes import burn_0_21_routes
from burn_remote_server.dialects.burn_0_22.routes import burn_0_22_sessions
from burn_remote_server.dialects.burn_0_22.tensor_handler import serve_tensor
from burn_remote_server.dialects.native.routes import native_routes
from burn_remote_server.dialects.websocket_route import Route
from burn_remote_server.fusion.runtime_selection import with_fusion
from burn_remote_server.hosting.host import Device, Host
from burn_remote_server.listeners.connection_limits import ConnectionLimits
from burn_remote_server.listeners.http_responses import (
    ServerState,
    is_for_metrics,
    is_health_check,
    refuse,
    respond,
)
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.telemetry.logs import get_logger
from burn_remote_server.telemetry.metrics import Metrics

__all__ = ["serve"]

logger = get_logger(__name__)

# The longest time that a worker holds the interpreter lock while the event loop waits for it.
# Python's default of 5 ms delays the event loop. With a shorter interval than this, frequent
# switches slow down both threads.
SWITCH_INTERVAL_SECONDS: Final = 0.0005

# Burn appends its route to the address unchanged, so a trailing slash in the address produces "//".
_PATH: Final = re.compile(
    r"^(?:/(?P<device>[0-9]{1,4}))?//?(?P<route>session|transfer|request|response|data)$"
)

# Stands for a stream of Burn 0.22 over which a server fetches a tensor. No path of a WebSocket or
# of a native client matches it.
TENSOR_STREAM: Final = "/tensor"

# The routes for native clients over Iroh. Those of Burn 0.21 exist over WebSockets only.
IROH_ROUTES: Final = ("session", "transfer")

# The largest message before a client is admitted. A ``Hello`` usually has a few hundred bytes, but
# one with long tokens and settings must fit too.
OPENING_BYTES: Final = 64 * 1024

# The least memory of all sessions. A session and its connection count with 100 KiB, and sessions
# take memory in shares.
MIN_TOTAL_BYTES: Final = 2**20

# Threads for ``asyncio.to_thread``, as many as those of asyncio's own pool.
MOST_LOOP_THREADS: Final = 32

# How long a stopping server waits for clients to receive the reason.
NOTICE_SECONDS: Final = 1.0


async def serve(settings: Settings, *, drain: Signal, ready: Callable[[Host], None]) -> None:
    """Serve until ``drain`` is set; then finish queued work, within the configured time.

    Calls ``ready`` with the host once the port accepts connections. Raises ``OSError`` if the
    port cannot be opened, and ``UsageError`` for a backend that cannot do what the settings ask.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    pool = BoundedThreadPool(min(MOST_LOOP_THREADS, (os.cpu_count() or 1) + 4), "loop-thread")
    asyncio.get_running_loop().set_default_executor(pool)
    custom = load_operations(settings.custom_operations)
    opened = backends.open_backends(
        settings.backend, settings.device_count, settings.device_memory, tf32=settings.tf32
    )
    blas_threads.start_threads()
    for backend in opened:
        total = settings.total_bytes(backend.memory_bytes())
        if total < MIN_TOTAL_BYTES:
            raise UsageError(
                f"max_total_bytes: {total:,} bytes are too few for a session and its connection; "
                f"set at least {MIN_TOTAL_BYTES:,}"
            )
    if settings.nccl and not opened[0].has_communicators:
        raise UsageError(
            f"the backend {settings.backend!r} has no NCCL: use the backend 'cupy' and a CuPy with "
            "NCCL, or leave out --nccl"
        )
    if settings.fusion:
        opened = [with_fusion(backend, compiles=settings.compiled_kernels) for backend in opened]
    async with asyncio.TaskGroup() as tasks:
        host = Host(settings, opened, tasks, custom)
        service = _Service(host)
        try:
            async with contextlib.AsyncExitStack() as stack:
                listener = await stack.enter_async_context(service.listen())
                host.port = listener.port
                listeners = [listener]
                if settings.iroh_port is not None:
                    host.iroh = await stack.enter_async_context(
                        service.listen_on_iroh(settings.iroh_port)
                    )
                    listeners.append(host.iroh)
                ready(host)
                await drain.wait()
                await service.stop(listeners)
        finally:
            # Disconnected sessions are still open until their leases expire. Cancel their fetches.
            host.close_fetches()
        await host.peers.close()


class _Service:
    """Routes connections to the handlers of the dialects and tracks the running ones."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._routes: Final = {
            **native_routes(burn_0_22_sessions()),
            **burn_0_21_routes(),
            # Streams of Burn 0.22 over Iroh, which have no paths.
            "tensor": Route(serve_tensor, is_for_peers=True),
        }
        self._running: dict[asyncio.Task[None], str] = {}
        settings = host.settings
        self._limits: Final = ConnectionLimits(
            settings.max_connections,
            settings.max_connections_per_address,
            host.devices[0].host_memory,
        )
        self._metrics = Metrics(
            host.total,
            version=_version(),
            backend=host.settings.backend,
            devices=[device.backend for device in host.devices],
            kept=[device.kept for device in host.devices],
        )

    def listen(self) -> contextlib.AbstractAsyncContextManager[Listener]:
        """Return a context manager during which the port accepts connections."""
        settings = self._host.settings
        return listen(
            "ws",
            settings.host,
            settings.port,
            self._handle,
            respond=self._respond,
            gate=self._limits,
            is_urgent=is_health_check,
            is_prompt=is_for_metrics,
            tls=self._host.tls.context,
            handshake_timeout_seconds=settings.handshake_timeout_seconds,
            max_message_bytes=OPENING_BYTES,
        )

    def listen_on_iroh(self, port: int) -> contextlib.AbstractAsyncContextManager[KeyedListener]:
        """Return a context manager during which the server accepts connections over Iroh.

        Raises ``InvalidNodeKey``.
        """
        settings = self._host.settings
        return listen_with_key(
            "iroh",
            settings.host,
            port,
            self._handle,
            respond=self._respond_on_iroh,
            gate=self._limits,
            handshake_timeout_seconds=settings.handshake_timeout_seconds,
            max_message_bytes=OPENING_BYTES,
            key=read_node_key(settings.iroh_key_file),
            relays=settings.iroh_relays,
        )

    async def stop(self, listeners: Sequence[Listener]) -> None:
        """Accept no new connections, let sessions finish, then close the remaining ones."""
        for listener in listeners:
            listener.stop_accepting()
        self._host.draining.set()
        if self._running:
            logger.info("draining", sessions=len(self._host.sessions))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._host.settings.drain_seconds):
                    await self._wait_for_connections()
        # After the first cancellation, handlers send the reason to their clients. The second one
        # ends handlers whose clients do not read it.
        for seconds in (NOTICE_SECONDS, None):
            for task in [*self._running]:
                task.cancel()
            if self._running:
                await asyncio.wait([*self._running], timeout=seconds)

    async def _wait_for_connections(self) -> None:
        """Wait for the sessions to end, then for peers to receive the tensors being sent."""
        sessions = [
            task for task, route in self._running.items() if not self._routes[route].is_for_peers
        ]
        if sessions:
            await asyncio.wait(sessions)
        self._host.sessions_ended.set()
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
                address = self._requested_address(request).removesuffix(route)
                await self._routes[route].serve(link, device, token, address)
        finally:
            del self._running[task]

    def _requested_address(self, request: Request) -> str:
        """Return the address, with the route, that the client used for this server."""
        host = request.headers.get("Host", "")
        if not host and self._host.iroh is not None:
            return f"iroh://{self._host.iroh.address.host}{request.path}"
        return f"ws://{host}{request.path}"

    def _respond_on_iroh(self, request: Request) -> Response | None:
        """Refuse a native client's request for a path that has no native route."""
        match = _PATH.match(token_in_path(request.path)[0])
        if match is None or match["route"] not in IROH_ROUTES:
            return Response(
                HTTPStatus.NOT_FOUND, f"there is nothing at {request.path!r:.200}", {}, b""
            )
        device, devices = int(match["device"] or 0), len(self._host.devices)
        refusal = refuse(request.headers, request.refusal, device, devices)
        if refusal is None:
            return None
        status, headers, body = refusal
        return Response(status, body.decode().strip(), headers, body)

    def _find(self, path: str) -> tuple[Device, str]:
        if path == TENSOR_STREAM:
            return self._host.devices[0], "tensor"
        match = _PATH.match(path)
        if match is None:
            raise LookupError
        return self._host.devices[int(match["device"] or 0)], match["route"]

    def _respond(self, request: Request) -> Response | None:
        """Respond to a request that opens no link: health, metrics, or a wrong address."""
        match = _PATH.match(token_in_path(request.path)[0])
        if match is not None and request.headers.get("Upgrade", "").lower() == "websocket":
            device, devices = int(match["device"] or 0), len(self._host.devices)
            refusal = refuse(request.headers, request.refusal, device, devices)
            if refusal is None:
                return None
            status, headers, body = refusal
            # A refused WebSocket client reads the status line, but not the body.
            phrase = body.decode().strip()
        else:
            draining = self._host.draining.is_set()
            failures = [device.backend.failure for device in self._host.devices]
            state = ServerState(
                draining, self._metrics.exposition, failures, self._host.sessions.stuck
            )
            status, headers, body = respond(request.path, state, is_route=match is not None)
            phrase = HTTPStatus(status).phrase
        return Response(status, phrase, headers, body)


def _version() -> str:
    try:
        return version("burn-remote")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"
