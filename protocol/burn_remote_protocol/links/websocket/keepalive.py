"""Keepalive: the kernel's TCP probes, and the schedule of pings on a link for threads.

``KeepaliveTimer`` has three states: nothing is due, a ping is due, or the response to a ping is
overdue. Each ping starts one interval. A whole message, a control frame between messages, or
``PART_BYTES`` of an incomplete message count as its response. A peer that sends none of these for a
whole interval after a ping is considered dead.
"""

from __future__ import annotations

import enum
import socket
import time
from typing import Final

__all__ = ["PART_BYTES", "KeepaliveTimer", "TimerEvent", "enable_tcp_keepalive"]

# The fewest bytes of an incomplete message that count as a sign of life. If a bit of a frame's
# length is flipped, the peer's later pings and pongs look like parts of a message that never ends.
# Pings and pongs alone have fewer bytes per interval than this.
PART_BYTES: Final = 1024

# The kernel probes an idle peer, and the connection fails after about a minute without a response.
# A WebSocket ping would do the same, but crashes Burn 0.21's server.
TCP_IDLE_SECONDS: Final = 30
TCP_INTERVAL_SECONDS: Final = 10
TCP_PROBES: Final = 3


def enable_tcp_keepalive(sock: socket.socket) -> None:
    """Let the kernel end the connection if the peer's machine vanishes. Raises ``OSError``."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", TCP_IDLE_SECONDS),
        ("TCP_KEEPINTVL", TCP_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", TCP_PROBES),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class TimerEvent(enum.Enum):
    """The event that is due."""

    NOTHING = enum.auto()
    PING = enum.auto()
    NO_RESPONSE = enum.auto()  # the response to the last ping is overdue


class KeepaliveTimer:
    """Decides when to ping the peer, and when it is considered dead.

    ``None`` as the interval turns both off.
    """

    def __init__(self, interval_seconds: float | None) -> None:
        self.interval_seconds: Final = interval_seconds or 0.0
        self._due = None if interval_seconds is None else time.monotonic() + interval_seconds
        self._awaits_response = False
        self._part_bytes = 0

    def seconds_until(self, deadline: float | None) -> float | None:
        """Return the time until the deadline or the next event, whichever comes first."""
        moments = [moment for moment in (deadline, self._due) if moment is not None]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def next_event(self) -> TimerEvent:
        """Return the event that is due. After ``PING``, the ping counts as sent."""
        now = time.monotonic()
        if self._due is None or now < self._due:
            return TimerEvent.NOTHING
        if self._awaits_response:
            return TimerEvent.NO_RESPONSE
        # Set the deadline first: another thread that runs between these lines must not find this
        # ping's response overdue because of the old deadline.
        self._due = now + self.interval_seconds
        self._part_bytes = 0
        self._awaits_response = True
        return TimerEvent.PING

    def record_message(self) -> None:
        """Record a whole message, or a control frame between messages."""
        self._awaits_response = False

    def record_part(self, count: int) -> None:
        """Record ``count`` bytes of a message that may be incomplete."""
        self._part_bytes += count
        if self._part_bytes >= PART_BYTES:
            self._awaits_response = False
