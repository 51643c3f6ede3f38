"""Limits on open connections, in total and per address."""

from __future__ import annotations

from collections import Counter
from typing import Final

from burn_remote_server.access.quota import Pool
from burn_remote_server.telemetry.logs import get_logger

__all__ = ["CONNECTION_BYTES", "ConnectionLimits"]

# Memory of a connection: 12 KiB of objects, and received bytes that do not count otherwise.
CONNECTION_BYTES: Final = 20 * 1024

# At most this many connections over a limit are kept open to receive a refusal. Further ones are
# closed without a response, so that a flood of connections occupies few sockets.
REFUSALS_AT_ONCE: Final = 32

# Shortest time between two log entries about connections closed without a response, so that a flood
# of them does not fill the log.
LOG_INTERVAL_SECONDS: Final = 10.0

logger = get_logger(__name__)


class ConnectionLimits:
    """The ``ConnectionGate`` of a server. Counts connections from the moment they are accepted.

    ``memory`` counts the memory of the connections, also beyond its limit: clients must be able to
    resume their sessions, peers to fetch tensors, and health checks to be answered.
    """

    def __init__(self, allowed: int, allowed_per_address: int, memory: Pool) -> None:
        self._allowed: Final = allowed
        self._allowed_per_address: Final = allowed_per_address
        self._memory: Final = memory
        self._open: Counter[str] = Counter()
        self._total = 0
        self._closed = 0
        self._next_log_seconds = 0.0

    def __len__(self) -> int:
        return self._total

    def enter(self, address: str) -> tuple[bool, str]:
        """Count a connection; return whether to keep it, and the reason if it is refused.

        A refused connection may be kept to send it a response.

        The caller must call ``leave`` in every case.
        """
        self._open[address] += 1
        self._total += 1
        self._memory.add(CONNECTION_BYTES)
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
        self._memory.give_back(CONNECTION_BYTES)
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def record_rejection(self, reason: str, now_seconds: float) -> None:
        """Log connections that were closed without a response, at most once per interval."""
        closed = self.close(now_seconds)
        if closed:
            logger.warning("connections closed", count=closed, reason=reason)

    def close(self, now_seconds: float) -> int:
        """Count a connection that was closed without a response.

        Return the number of such connections to log now: 0 within the interval after a log entry.
        """
        self._closed += 1
        if now_seconds < self._next_log_seconds:
            return 0
        self._next_log_seconds = now_seconds + LOG_INTERVAL_SECONDS
        closed, self._closed = self._closed, 0
        return closed


def _refusal(what: str, seen: int, allowed: int) -> str:
    return (
        f"{what}: {seen:,} would be open, {allowed:,} are allowed; close some, or try again later"
    )
