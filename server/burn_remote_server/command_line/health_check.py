"""The health check ``burn-remote-server --check``.

Containers run it every few seconds, so it imports only a few standard library modules.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from burn_remote_server.settings.listen_address import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    http_authority,
    reachable_host,
)

__all__ = ["Target", "check", "main", "target"]

# Below the timeout of the container's health check (5 s), at which Docker kills the check before it
# can print a reason; long enough for a server with a busy event loop.
TIMEOUT_SECONDS: Final = 3.0
# Enough for the status line; the rest of the response is not read.
STATUS_BYTES: Final = 64
# The settings that determine how to reach a server.
_SETTINGS: Final = ("host", "port", "tls_certificate", "tls_client_ca")


class Target(NamedTuple):
    """The address of the server to check."""

    host: str
    port: int
    tls: bool = False
    wants_certificate: bool = False


def main(arguments: Sequence[str]) -> int:
    """Check the server that the arguments select; return 0 if it is healthy, else 1."""
    try:
        problem = check(target(arguments, os.environ))
    except ValueError as error:
        problem = str(error)
    if problem is None:
        return 0
    sys.stderr.write(f"burn-remote-server: {problem}\n")
    return 1


def target(arguments: Sequence[str], environment: Mapping[str, str]) -> Target:
    """Return the server from ``--address``, or else the configured one.

    Raises ``ValueError`` for an invalid address or port.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for setting in ("address", "config", *_SETTINGS):
        parser.add_argument(f"--{setting.replace('_', '-')}")
    flags, _ = parser.parse_known_args(arguments)  # ignore the server's other flags
    if flags.address is not None:
        return _read_address(flags.address)
    config = flags.config or environment.get("BURN_REMOTE_CONFIG")
    file = _read_file(Path(config)) if config else {}
    variables = {name: environment.get(f"BURN_REMOTE_{name.upper()}") for name in _SETTINGS}
    if str(variables["port"]).startswith("tcp://"):  # set by Kubernetes for a service
        variables["port"] = None
    found = {name: getattr(flags, name) or variables[name] or file.get(name) for name in _SETTINGS}
    port = str(found["port"] or DEFAULT_PORT)
    if not port.isdecimal():
        raise ValueError(f"the port is {port!r}; expected a whole number")
    return Target(
        reachable_host(str(found["host"] or DEFAULT_HOST)),
        int(port),
        tls=bool(found["tls_certificate"]),
        wants_certificate=bool(found["tls_client_ca"]),
    )


def _read_address(address: str) -> Target:
    parts = urlsplit(address if "://" in address else f"ws://{address}")
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError:
        port = 0
    if parts.scheme not in ("ws", "wss", "http", "https") or not parts.hostname or not port:
        raise ValueError(f"--address is {address!r}; expected one such as ws://127.0.0.1:3000")
    return Target(reachable_host(parts.hostname), port, parts.scheme in ("wss", "https"))


def _read_file(path: Path) -> dict[str, str | int]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from error


def check(server: Target) -> str | None:
    """Request ``/healthz``; return ``None`` if the server is healthy, else the problem."""
    authority = http_authority(server.host, server.port)
    try:
        status = _request_status(server, authority)
    except TimeoutError:
        return f"{authority} did not answer within {TIMEOUT_SECONDS:g} seconds"
    except OSError as error:
        return f"{authority} cannot be reached: {error.strerror or error}"
    if status.startswith(b"HTTP/1.1 200"):
        return None
    if server.wants_certificate and not status:
        # The server refused the connection because the check has no client certificate. So the
        # server's event loop runs.
        return None
    if not status and not server.tls:
        return (
            f"{authority} closed the connection without an answer; if the server uses TLS, give "
            f"--tls-certificate, or --address wss://{authority}"
        )
    answer = status.split(b"\r\n")[0].decode("latin-1")
    return f"{authority} is not a healthy burn-remote-server: it answered {answer!r}"


def _request_status(server: Target, authority: str) -> bytes:
    request = f"GET /healthz HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n"
    address = (server.host, server.port)
    with socket.create_connection(address, timeout=TIMEOUT_SECONDS) as connection:
        if server.tls:
            import ssl  # takes 20 ms; only needed with TLS

            # The check tests whether the server works, not its identity: a container checks itself
            # at an address that its certificate does not name.
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            with context.wrap_socket(connection, server_hostname=server.host) as encrypted:
                encrypted.sendall(request.encode("ascii"))
                return encrypted.recv(STATUS_BYTES)
        connection.sendall(request.encode("ascii"))
        return connection.recv(STATUS_BYTES)
