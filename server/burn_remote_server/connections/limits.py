"""How many connections may there be, from where, and what becomes of one too many?"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from typing import Any, Final, cast

from burn_remote_protocol.links.websocket.async_connection import DirectServerConnection
from burn_remote_protocol.links.websocket.dialing import (
    KEEPALIVE_IDLE_SECONDS,
    KEEPALIVE_INTERVAL_SECONDS,
    KEEPALIVE_PROBES,
)
from burn_remote_server.telemetry.logs import get_logger

__all__ = ["ConnectionLimits", "CountedConnection"]

# Connections over a limit that are kept for the moment that it takes to tell them so; those over
# this are closed without a word. Larger: a flood holds more sockets. Smaller: fewer are told why.
REFUSALS_AT_ONCE: Final = 32

# How often the log tells of the latter. Larger: a flood is noticed later. Smaller: it fills the
# log.
TOLD_EVERY_SECONDS: Final = 10.0

logger = get_logger(__name__)


class ConnectionLimits:
    """Count connections from the moment that they are accepted. Pure."""

    def __init__(self, allowed: int, allowed_per_address: int) -> None:
        self._allowed: Final = allowed
        self._allowed_per_address: Final = allowed_per_address
        self._open: Counter[str] = Counter()
        self._total = 0
        self._closed = 0
        self._next_telling = 0.0

    def __len__(self) -> int:
        return self._total

    def enter(self, address: str) -> tuple[bool, str]:
        """Count a connection; return whether it may stay a while, and why it is refused, if so.

        ``leave`` must follow in any case.
        """
        self._open[address] += 1
        self._total += 1
        seen = self._open[address]
        if self._total > self._allowed:
            over = self._total - self._allowed
            reason = _refusal("connections", self._total, self._allowed)
        elif seen > self._allowed_per_address:
            over = seen - self._allowed_per_address
            reason = _refusal(f"connections from {address}", seen, self._allowed_per_address)
        else:
            return True, ""
        return over <= REFUSALS_AT_ONCE, reason

    def leave(self, address: str) -> None:
        """Count a connection as closed."""
        self._total -= 1
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def close(self, now_seconds: float) -> int:
        """Count a connection that is closed without a word; return how many of them the log shall
        tell of now, if any."""
        self._closed += 1
        if now_seconds < self._next_telling:
            return 0
        self._next_telling = now_seconds + TOLD_EVERY_SECONDS
        closed, self._closed = self._closed, 0
        return closed


class CountedConnection(DirectServerConnection):
    """A server's connection that counts from its first moment, before it has said anything."""

    def __init__(self, *arguments: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits: Final = limits
        self._address: str | None = None
        self.refusal = ""
        self._is_turned_away = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection; close it at once where even a refusal would be too much."""
        name = transport.get_extra_info("peername")
        self._address = str(name[0]) if isinstance(name, tuple) else "a local socket"
        may_stay, self.refusal = self._limits.enter(self._address)
        if not may_stay:
            self._turn_away(transport)
            return
        _notice_lost_peers(transport.get_extra_info("socket"))
        super().connection_made(transport)

    def _turn_away(self, transport: asyncio.BaseTransport) -> None:
        self._is_turned_away = True  # the library never hears of it
        # A stream's, though uvloop's are not of asyncio's classes.
        cast("asyncio.WriteTransport", transport).abort()
        closed = self._limits.close(self.loop.time())
        if closed:
            logger.warning("connections_closed", count=closed, reason=self.refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection as closed."""
        if self._address is not None:
            self._limits.leave(self._address)
            self._address = None
        if not self._is_turned_away:
            super().connection_lost(exc)


def _notice_lost_peers(sock: socket.socket) -> None:
    """Have the system ask a silent peer for a sign of life, and end the connection without one."""
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", KEEPALIVE_IDLE_SECONDS),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", KEEPALIVE_INTERVAL_SECONDS),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):
            with contextlib.suppress(OSError):  # no TCP: nothing to keep alive
                sock.setsockopt(level, getattr(socket, name), value)


def _refusal(what: str, seen: int, allowed: int) -> str:
    return (
        f"{what}: {seen:,} would be open, {allowed:,} are allowed; close some, or try again later"
    )
