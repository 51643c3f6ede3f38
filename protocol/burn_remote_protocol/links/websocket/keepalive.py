"""When is a ping to be sent, and when is a peer given up that answers none?"""

from __future__ import annotations

import enum
import time
from typing import Final

__all__ = ["Due", "Pings"]


class Due(enum.Enum):
    """What should be there by now."""

    NOTHING = enum.auto()
    PING = enum.auto()
    ANSWER = enum.auto()


class Pings:
    """Keeps the times. Without an interval, nothing is ever due."""

    def __init__(self, interval_seconds: float | None) -> None:
        self.interval_seconds: Final = interval_seconds or 0.0
        self._due = None if interval_seconds is None else time.monotonic() + interval_seconds
        self._waiting = False

    def seconds_until(self, deadline: float | None) -> float | None:
        """Return how long to wait for the deadline or the next ping, whichever comes first."""
        moments = [moment for moment in (deadline, self._due) if moment is not None]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def due_now(self) -> Due:
        """Tell what is due; a ping counts as sent by this."""
        now = time.monotonic()
        if self._due is None or now < self._due:
            return Due.NOTHING
        if self._waiting:
            return Due.ANSWER
        # In this order: another thread that looks in between must not take the old moment for that
        # of the answer.
        self._due = now + self.interval_seconds
        self._waiting = True
        return Due.PING

    def answered(self) -> None:
        """Note that the peer gave a sign of life."""
        self._waiting = False
