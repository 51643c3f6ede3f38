"""How many connections may there be, from where, and what becomes of one too many?"""

from __future__ import annotations

from collections import Counter
from typing import Final

from burn_remote_server.telemetry.logs import get_logger

__all__ = ["ConnectionLimits"]

# Connections over a limit that are kept for the moment that it takes to tell them so; those over
# this are closed without a word. Larger: a flood holds more sockets. Smaller: fewer are told why.
REFUSALS_AT_ONCE: Final = 32

# How often the log tells of the latter. Larger: a flood is noticed later. Smaller: it fills the
# log.
TOLD_EVERY_SECONDS: Final = 10.0

logger = get_logger(__name__)


class ConnectionLimits:
    """The ``ConnectionGate`` of a server: counts connections from the moment they are accepted."""

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

    def turned_away(self, reason: str, now_seconds: float) -> None:
        """Log connections that were closed without a response, at most once per interval."""
        closed = self.close(now_seconds)
        if closed:
            logger.warning("connections_closed", count=closed, reason=reason)

    def close(self, now_seconds: float) -> int:
        """Count a connection that is closed without a word; return how many of them the log shall
        tell of now, if any."""
        self._closed += 1
        if now_seconds < self._next_telling:
            return 0
        self._next_telling = now_seconds + TOLD_EVERY_SECONDS
        closed, self._closed = self._closed, 0
        return closed


def _refusal(what: str, seen: int, allowed: int) -> str:
    return (
        f"{what}: {seen:,} would be open, {allowed:,} are allowed; close some, or try again later"
    )
