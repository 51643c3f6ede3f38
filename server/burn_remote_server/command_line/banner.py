"""The startup message of a server: a panel for operators and the ready line for programs."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final, TextIO

from burn_remote_protocol.collectives import EngineKind
from burn_remote_server.settings.byte_sizes import format_bytes
from burn_remote_server.settings.listen_address import http_authority, reachable_host
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.telemetry.logs import get_logger

__all__ = ["announce", "facts", "ready_line"]

logger = get_logger(__name__)

# The distributions that can provide each backend's array library. The version is read from the
# package metadata, because only backends import array libraries.
_ARRAY_LIBRARIES: Final = {
    "numpy": ("numpy",),
    "cupy": ("cupy-cuda12x", "cupy-cuda13x", "cupy"),
}


def ready_line(addresses: Sequence[str]) -> str:
    """Return the line that programs wait for: everything after ``at`` is addresses."""
    return f"burn-remote-server is ready at {' '.join(addresses)}"


def announce(
    about: Mapping[str, str], addresses: Sequence[str], *, out: TextIO, terminal: TextIO
) -> None:
    """Announce that the server is ready.

    A terminal gets a panel, anything else a log line. ``out`` gets the ready line and nothing else,
    so a program can read the port from it.
    """
    if terminal.isatty():
        _show_panel(about, terminal)
    else:
        logger.info("ready", **about)
    try:
        out.write(ready_line(addresses) + "\n")
        out.flush()
    except BrokenPipeError:
        # The parent process does not read the output. Continue to serve.
        logger.debug("ready line not read")
    except OSError as error:  # such as a full file system
        logger.warning("ready line not written", reason=str(error))


def facts(
    settings: Settings,
    addresses: Sequence[str],
    port: int,
    dialects: Sequence[str],
    engines: Iterable[EngineKind],
) -> dict[str, str]:
    """Return the facts that the startup message shows, in order."""
    about = {"address": " ".join(addresses)}
    if settings.iroh_port is not None and settings.iroh_key_file is None:
        about["node id"] = "new at each start; --iroh-key-file keeps it"
    peer_address = settings.peer_address(port)
    if peer_address not in addresses:
        about["peers use"] = peer_address
    devices = "1 device" if settings.device_count == 1 else f"{settings.device_count} devices"
    library = _library_version(settings.backend)
    about["computes"] = f"{library}, {devices}, Python {platform.python_version()}"
    about["speaks"] = ", ".join(dialects)
    about["groups by"] = ", ".join(map(str, engines))
    share = settings.max_session_bytes
    session = "80 % of memory" if share is None else format_bytes(share)
    about["limits"] = (
        f"{settings.max_sessions:,} sessions, each {session} and "
        f"{settings.max_session_tensors:,} tensors"
    )
    about["stops"] = f"on SIGTERM or Ctrl-C, within {settings.drain_seconds:g} s"
    scheme = "https" if settings.is_secure else "http"
    health = f"{scheme}://{http_authority(reachable_host(settings.host), port)}"
    about["health"] = f"{health}/healthz /readyz /metrics"
    return about


def _library_version(backend: str) -> str:
    for distribution in _ARRAY_LIBRARIES.get(backend, ()):
        try:
            return f"{backend} {version(distribution)}"
        except PackageNotFoundError:
            continue
    return backend


def _show_panel(about: Mapping[str, str], terminal: TextIO) -> None:
    # Local imports: a server without a terminal does not need rich, whose import takes a tenth of
    # the server's start.
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in about.items():
        table.add_row(label, text)
    title = f"burn-remote-server {version('burn-remote')}"
    console = Console(file=terminal)
    console.print(Panel(table, title=title, title_align="left", expand=False), highlight=False)
