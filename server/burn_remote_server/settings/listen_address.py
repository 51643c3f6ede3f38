"""Listen addresses: defaults, wildcards and their notation.

Uses only the standard library, because the health check imports it.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "http_authority",
    "is_wildcard",
    "reachable_host",
    "unknown_host",
    "websocket_address",
]

# Loopback: only this machine can connect until the operator decides otherwise.
DEFAULT_HOST: Final = "127.0.0.1"
# The port of Burn's examples; clients use it when an address names none.
DEFAULT_PORT: Final = 3000

_WILDCARDS: Final = {"": DEFAULT_HOST, "0.0.0.0": DEFAULT_HOST, "::": "::1"}


def is_wildcard(host: str) -> bool:
    """Whether ``host`` means all interfaces, which is not an address to connect to."""
    return host in _WILDCARDS


def reachable_host(host: str) -> str:
    """Return the host through which this machine reaches a server that listens on ``host``."""
    return _WILDCARDS.get(host, host)


def unknown_host(host: str) -> str:
    """Return the error text for a host that is not an address of this machine."""
    return (
        f"--host {host!r} is not a name or address of this machine; use 127.0.0.1 to accept "
        "connections only from this machine, or 0.0.0.0 to accept them from its networks"
    )


def http_authority(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def websocket_address(host: str, port: int, device: int = 0, *, secure: bool = False) -> str:
    """Return a client's address: ``ws://host:port``, with ``/1`` for the second device."""
    path = f"/{device}" if device else ""
    scheme = "wss" if secure else "ws"
    return f"{scheme}://{http_authority(host, port)}{path}"
