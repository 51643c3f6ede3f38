"""What does the address mean that somebody typed?"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from burn_remote_protocol.errors import ConnectionFailed

__all__ = ["DEFAULT_PORT", "Address", "parse_address"]

# The port of Burn's own servers, so that one address means the same to both.
DEFAULT_PORT: Final = 3000

_SECURE: Final = {"ws": False, "wss": True}
_MEANT: Final = {"http": "ws", "https": "wss", "tcp": "ws", "grpc": "ws"}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: ``ws://host:port/prefix``, ``secure`` for ``wss``.

    ``host`` has no brackets; ``path`` is ``""`` or begins with a slash and does not end with one.
    """

    secure: bool
    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self.secure else 'ws'}://{host}:{self.port}{self.path}"

    def joined(self, route: str) -> Address:
        """Return the address of a route (``"/session"``) below this one."""
        return Address(self.secure, self.host, self.port, self.path + route.rstrip("/"))


def parse_address(text: str) -> Address:
    """Read ``ws://host[:port][/prefix]`` or the same with ``wss``.

    Raises ``ConnectionFailed`` that says what to write instead.
    """
    text = text.strip()
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator:
        raise _malformed(text, "it does not begin with ws:// or wss://", _suggestion(text))
    if scheme not in _SECURE:
        suggestion = f"{_MEANT.get(scheme, 'ws')}://{rest or 'host:3000'}"
        raise _malformed(text, f"{scheme}:// is not ws:// or wss://", suggestion)
    parts = _split(text)
    example = f"{scheme}://host:{DEFAULT_PORT}"
    if not parts.hostname:
        raise _malformed(text, "it names no host", example)
    if parts.username is not None or parts.password is not None:
        # Not repeated in the text: it holds a password.
        raise ConnectionFailed(
            "an address must not contain a user name or password, which end up in logs; "
            "pass token=… instead"
        )
    if parts.query or parts.fragment:
        raise _malformed(text, "it has a ? or # part", text.split("?")[0].split("#")[0])
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise _malformed(text, "the port is not a number from 1 to 65535", example)
    return Address(
        _SECURE[scheme], _ascii_host(text, parts.hostname), port or DEFAULT_PORT, _path(text, parts)
    )


def _split(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:
        raise _malformed(text, str(error), f"ws://host:{DEFAULT_PORT}") from error


def _path(text: str, parts: SplitResult) -> str:
    path = parts.path.rstrip("/")
    if not path.isascii() or any(character <= " " for character in path):
        raise _malformed(text, "its path has spaces or non-ASCII characters", "ws://host:3000/1")
    return path


def _ascii_host(text: str, host: str) -> str:
    try:
        name = host if host.isascii() else host.encode("idna").decode()
        if any(character <= " " for character in name):
            raise ValueError
        if ":" in name:
            ipaddress.IPv6Address(name)
    except ValueError as error:
        raise _malformed(text, f"{host!r} is no host name", f"ws://host:{DEFAULT_PORT}") from error
    return name


def _suggestion(text: str) -> str:
    """Guess what was meant by a text without ``://``: ``gpu-box:3000``, ``ws:/gpu-box``."""
    scheme, _, rest = text.partition(":")
    if scheme.lower() in _SECURE | _MEANT:
        text = rest
        scheme = _MEANT.get(scheme.lower(), scheme.lower())
    else:
        scheme = "ws"
    return f"{scheme}://{text.strip('/') or f'host:{DEFAULT_PORT}'}"


def _malformed(text: str, problem: str, suggestion: str) -> ConnectionFailed:
    return ConnectionFailed(f"{text!r} is no address, {problem}; write {suggestion}")
