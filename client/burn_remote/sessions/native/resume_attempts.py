"""The policy of resuming a session: when to dial again, and when to give up."""

from __future__ import annotations

import random
import time
from typing import Final

from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionFailed,
    ConnectionLost,
    GarbledBytes,
    SessionLost,
)

__all__ = ["OPEN_AGAIN", "ResumeAttempts"]

# Pauses between attempts to resume are drawn at random up to a bound that doubles, so that many
# clients of a server do not reconnect at the same time.
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 2.0
# If the port of the broken link refuses connections for this long, its server has ended. Sessions
# live in the server's process, so the session is lost. If the host name leads to other addresses
# meanwhile, their refusals say nothing about that server.
REFUSED_SECONDS: Final = 0.5
SHORTEST_ATTEMPT_SECONDS: Final = 0.1
LONGEST_ATTEMPT_SECONDS: Final = 10.0
# The last attempt begins this long before the end of the lease, enough for a handshake over a slow
# network. Otherwise, a server that comes back during the last pause would find no further attempt.
LAST_ATTEMPT_SECONDS: Final = 0.5
# The pause doubles after each run of this many consecutive resumes without progress.
IDLE_RESUMES: Final = 20

# What a program can do about a lost session.
OPEN_AGAIN: Final = "its tensors are gone: open the device again, and make or load them again"


class ResumeAttempts:
    """The attempts to resume a session after one break of its link.

    The caller pauses for ``first_pause()``, and then repeats: ``begin()``, an attempt, and if it
    failed, ``final_error()`` and a pause for ``next_pause()``.
    """

    def __init__(
        self, cause: str, lease_seconds: float, idle_resumes: int, peer_host: str = ""
    ) -> None:
        """Begin at the break.

        ``cause`` is the text of its error. ``idle_resumes`` is the number of consecutive earlier
        resumes after which the link broke again before any frame arrived. ``peer_host`` is the
        numeric address of the broken link's other end, empty if it had none.
        """
        self._peer_host: Final = peer_host
        self._cause: Final = cause
        self._lease_seconds: Final = lease_seconds
        self._deadline: Final = time.monotonic() + lease_seconds
        self._idle_resumes: Final = idle_resumes
        self._most_pause = FIRST_PAUSE_SECONDS
        self._attempt_ends = 0.0
        self._refused_since: float | None = None

    def first_pause(self) -> float:
        """Return the seconds to wait before the first attempt."""
        if not self._idle_resumes:
            return 0.0
        doublings = min(self._idle_resumes // IDLE_RESUMES, 10)
        self._most_pause = min(self._most_pause * 2**doublings, LONGEST_PAUSE_SECONDS)
        return random.uniform(0, self._most_pause)

    def begin(self) -> float:
        """Begin an attempt; return the seconds that it may take."""
        began = time.monotonic()
        # An attempt that gets no answer ends in time for the last attempt.
        last = self._deadline - LAST_ATTEMPT_SECONDS
        self._attempt_ends = last if began < last else self._deadline
        return max(
            SHORTEST_ATTEMPT_SECONDS, min(LONGEST_ATTEMPT_SECONDS, self._attempt_ends - began)
        )

    def final_error(self, error: BurnRemoteError) -> BurnRemoteError | None:
        """Return the error that ends the session after a failed attempt; ``None`` to try again."""
        now = time.monotonic()
        if not self._is_refused(error):
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = now
        cause = self._cause
        if isinstance(error, SessionLost):
            return SessionLost(f"{error}; the connection was lost before: {cause}; {OPEN_AGAIN}")
        if not isinstance(error, ConnectionFailed | ConnectionLost | GarbledBytes):
            return SessionLost(f"{cause}; the server refuses to resume: {error}; {OPEN_AGAIN}")
        if self._refused_since is not None and now - self._refused_since >= REFUSED_SECONDS:
            return ConnectionLost(f"{cause}; nothing listens there any more; {OPEN_AGAIN}")
        if now >= self._deadline:
            return SessionLost(
                f"{cause}; the client could not resume the session within its lease of "
                f"{self._lease_seconds:g} seconds; {OPEN_AGAIN}"
            )
        return None

    def _is_refused(self, error: BurnRemoteError) -> bool:
        """Return whether the address of the broken link refused the connection."""
        if not isinstance(error.__cause__, ConnectionRefusedError):
            return False
        by = error.refused_by if isinstance(error, ConnectionFailed) else ()
        return not (self._peer_host and by) or self._peer_host in by

    def next_pause(self) -> float:
        """Return the seconds to wait before the next attempt."""
        left = max(0.0, self._attempt_ends - time.monotonic())
        pause = min(random.uniform(0, self._most_pause), left)
        self._most_pause = min(2 * self._most_pause, LONGEST_PAUSE_SECONDS)
        return pause
