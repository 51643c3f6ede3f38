"""Counters of what a session has sent and received."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Traffic"]


@dataclass(slots=True)
class Traffic:
    """Counts since the session opened. Bytes are those of the frames, without WebSocket headers.

    ``requests`` counts requests with a response, such as reads, ``sync`` and dtype queries.
    Requests that a program waits for one after the other cost a round trip each. ``followed``
    counts the operations that were sent as part of a graph which the session recognized by itself.
    """

    operations: int = 0
    requests: int = 0
    frames_sent: int = 0
    bytes_sent: int = 0
    frames_received: int = 0
    bytes_received: int = 0
    followed: int = 0

    def __sub__(self, before: Traffic) -> Traffic:
        """Return the difference from an earlier count."""
        return Traffic(
            self.operations - before.operations,
            self.requests - before.requests,
            self.frames_sent - before.frames_sent,
            self.bytes_sent - before.bytes_sent,
            self.frames_received - before.frames_received,
            self.bytes_received - before.bytes_received,
            self.followed - before.followed,
        )
