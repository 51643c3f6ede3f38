"""The daemon process: its event loop, signals, startup message and startup errors."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import sys
from collections.abc import Callable
from typing import Final

from burn_remote_protocol.dialects import native
from burn_remote_protocol.errors import BurnRemoteError
from burn_remote_protocol.loop_calls import Signal
from burn_remote_server.backends.numpy.memory_limits import resident_bytes
from burn_remote_server.command_line import banner, signals
from burn_remote_server.command_line.garbage_collection import BoundedCollector
from burn_remote_server.command_line.heap_trimming import (
    HeapTrimmer,
    keep_freed_memory,
    malloc_trim,
    share_one_heap,
    trims_after,
)
from burn_remote_server.command_line.loop_watchdog import GRACE_SECONDS, LoopWatchdog
from burn_remote_server.command_line.systemd import READY, STOPPING, notify
from burn_remote_server.execution.worker import is_any_running
from burn_remote_server.hosting.host import Host
from burn_remote_server.listeners import service
from burn_remote_server.settings.listen_address import (
    http_authority,
    reachable_host,
    unknown_host,
    websocket_address,
)
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.telemetry import logs as telemetry

__all__ = ["CannotStart", "run"]

DIALECTS: Final = (
    *(f"native protocol {number}" for number in native.VERSIONS),
    "Burn 0.21",
    "Burn 0.22",
)

# How often a full garbage collection examines all objects, which stops the server for up to 100 ms.
EXAMINE_EVERY_SECONDS: Final = 60.0


class CannotStart(BurnRemoteError):
    """The server cannot start to listen. The text says why and what to do."""

    code = "cannot_start"


def run(settings: Settings, *, exit_now: Callable[[int], object] = os._exit) -> None:
    """Serve until a signal arrives and all sessions are drained. Raises ``CannotStart``.

    If a session's thread is still computing after that, the process ends here, with exit code 0.
    """
    log = telemetry.configure(settings.log_level, settings.log_format)
    share_one_heap()
    is_ready = False
    ends = contextlib.ExitStack()
    begin_to_drain: Callable[[], None] = _nothing

    def announce(host: Host) -> None:
        nonlocal is_ready
        is_ready = True
        watchdog = LoopWatchdog(
            asyncio.get_running_loop(),
            host.examine_loop,
            begin_to_drain,
            settings.drain_seconds + GRACE_SECONDS,
            leave,
        )
        watchdog.start()
        watchdog.watch_signals()
        ends.callback(watchdog.end)
        collector = BoundedCollector()
        collector.install()
        asyncio.get_running_loop().call_later(EXAMINE_EVERY_SECONDS, _examine, collector)
        _trim_heaps(host)
        signals.on_hangup(asyncio.get_running_loop(), host.reload)
        addresses = [
            websocket_address(
                reachable_host(settings.host), host.port, device.index, secure=settings.is_secure
            )
            for device in host.devices
        ]
        addresses += host.iroh_addresses()
        about = banner.facts(settings, addresses, host.port, DIALECTS, host.groups.engines)
        banner.announce(about, addresses, out=sys.stdout, terminal=sys.stderr)
        notify(READY, f"ready at {' '.join(addresses)}")

    def leave(code: int) -> None:
        log.flush()
        exit_now(code)

    async def serve() -> None:
        nonlocal begin_to_drain
        drain = Signal()

        def begin() -> None:
            if not drain.is_set():
                notify(STOPPING, "draining")
            drain.set()

        begin_to_drain = begin
        signals.install(asyncio.get_running_loop(), begin_to_drain, exit_now=leave)
        await service.serve(settings, drain=drain, ready=announce)

    problem: Exception | None = None
    try:
        with ends, asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve())
    except* (BurnRemoteError, OSError) as group:
        if is_ready:
            raise  # not a configuration error: keep the traceback
        problem = _first(group)
    if problem is not None:
        raise CannotStart(_explain(problem, settings)) from problem
    if is_any_running():
        # A normal exit runs OpenBLAS's exit handler, which waits for OpenBLAS's threads. It waits
        # forever if another thread is inside a matrix product at that moment.
        log.flush()
        with contextlib.suppress(OSError):  # a full file system
            sys.stdout.flush()
            sys.stderr.flush()
        exit_now(0)


def _nothing() -> None:
    """Do nothing: the server does not run yet."""


def _trim_heaps(host: Host) -> None:
    """Start to return freed memory to the system, if the C library is glibc, which keeps it."""
    trim = malloc_trim()
    if trim is not None:
        keep_freed_memory(min(trims_after(pool.max_bytes) for pool in host.memory_pools))
        HeapTrimmer(host.memory_pools, trim, resident_bytes).start()


def _examine(collector: BoundedCollector) -> None:
    """Examine frozen objects too, now and every minute."""
    collector.examine_all()
    asyncio.get_running_loop().call_later(EXAMINE_EVERY_SECONDS, _examine, collector)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory if uvloop is installed, else ``None`` (asyncio's own)."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _first(error: Exception) -> Exception:
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


def _explain(problem: Exception, settings: Settings) -> str:
    """Return one sentence: why the server cannot listen, and what to do."""
    address = http_authority(settings.host, settings.port)
    if isinstance(problem, socket.gaierror):
        return unknown_host(settings.host)
    match getattr(problem, "errno", None):
        case errno.EADDRINUSE:
            return (
                f"{address} is in use by another program; stop that program, "
                "or choose another port with --port (0 takes any free port)"
            )
        case errno.EACCES | errno.EPERM:
            return (
                f"this user may not listen on {address}; "
                "ports below 1024 need privileges, so choose a higher port with --port"
            )
        case errno.EADDRNOTAVAIL:
            return (
                f"{address} is not an address of this machine; use 127.0.0.1 to accept "
                "connections only from this machine, or 0.0.0.0 to accept them from its networks"
            )
    return str(problem)
