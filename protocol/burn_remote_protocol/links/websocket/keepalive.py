"""The times of a blocking link's pings, and when its peer counts as silent."""

from __future__ import annotations

import enum
import time
from typing import Final

__all__ = ["PART_BYTES", "Due", "Pings"]

# What must arrive within an interval of a message that is not complete to count as a sign of life:
# more than the pings and pongs that a peer sends. A flipped bit in a frame's length makes them look
# like parts of a message that never ends.
PART_BYTES: Final = 1024


class Due(enum.Enum):
    """What is due now."""

    NOTHING = enum.auto()
    PING = enum.auto()
    ANSWER = enum.auto()


class Pings:
    """Keeps the times. Without an interval, nothing is ever due."""

    def __init__(self, interval_seconds: float | None) -> None:
        self.interval_seconds: Final = interval_seconds or 0.0
        self._due = None if interval_seconds is None else time.monotonic() + interval_seconds
        self._waiting = False
        self._part_bytes = 0

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
        # ``_due`` first: a thread that looks in between must not think that the answer is overdue.
        self._due = now + self.interval_seconds
        self._part_bytes = 0
        self._waiting = True
        return Due.PING

    def answered(self) -> None:
        """Note a whole message, or a control frame between messages."""
        self._waiting = False

    def arrived(self, count: int) -> None:
        """Note bytes of a message that may not be complete."""
        self._part_bytes += count
        if self._part_bytes >= PART_BYTES:
            self._waiting = False
