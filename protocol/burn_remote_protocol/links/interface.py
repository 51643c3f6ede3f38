"""What does every connection between two ends offer, whatever carries it?

A link carries *frames*: byte strings that arrive whole, once and in order. Two contracts: one for
threads (the client), one for an event loop (servers and their peers).

Which error means what:

- ``ConnectionLost``: the link is dead, whoever ended it. The text has the peer's code and reason
  where it gave one. Every later call raises it again.
- ``ProtocolViolation`` from ``receive``: the peer sent what no link carries (a text message, broken
  framing); ``LimitExceeded``: more in one message than ``max_message_bytes``. The link is dead too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

__all__ = [
    "GOING_AWAY",
    "MAX_MESSAGE_BYTES",
    "MESSAGE_TOO_BIG",
    "NORMAL_CLOSURE",
    "PROTOCOL_ERROR",
    "AsyncLink",
    "BlockingLink",
    "short_reason",
]

# The most that one message may hold unless a link is opened with another limit. Larger: a broken
# peer makes us allocate that much. Smaller: Burn 0.21, which sends a tensor as one message, is cut
# off earlier than by its own server, which accepts this much.
MAX_MESSAGE_BYTES: Final = 64 * 2**20

# Close codes of RFC 6455, section 7.4.1.
NORMAL_CLOSURE: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
MESSAGE_TOO_BIG: Final = 1009


def short_reason(reason: str) -> str:
    """Cut a reason to what a close frame can hold, 123 bytes, at a character."""
    return reason.encode()[:123].decode(errors="ignore")


class BlockingLink(Protocol):
    """One end of a connection, used by threads.

    Any number of threads may send; frames never interleave. At most one thread receives at a time,
    which is the caller's duty; another may be in ``wait_readable`` meanwhile. Whoever opened a link
    closes it, also after ``ConnectionLost``.
    """

    @property
    def address(self) -> str:
        """Name the other end, for messages to people: ``"ws://gpu-box:3000/session"``."""
        ...

    @property
    def closed(self) -> bool:
        """Tell whether the link is known to be dead. It may be dead unnoticed."""
        ...

    @property
    def detects_corruption(self) -> bool:
        """Whether what arrives is what was sent, as over TLS and within a process."""
        ...

    def send(self, frame: bytes) -> None:
        """Send one frame; return when the operating system took it, which is the backpressure.

        After a ``KeyboardInterrupt`` the link still works: what the operating system did not take
        of the frame goes out before the next one. Raises ``ConnectionLost``.
        """
        ...

    def send_parts(self, head: bytes, payload: memoryview) -> None:
        """Send ``head`` and ``payload`` as one frame, without joining them first.

        ``payload`` is one-dimensional, contiguous and of bytes; it may change once this returns.
        Raises ``ConnectionLost``.
        """
        ...

    def receive(self, timeout_seconds: float | None = None) -> bytes | None:
        """Return the next frame, or ``None`` when none was complete in time (0: look, don't wait).

        A ``KeyboardInterrupt`` while waiting loses nothing: the next call continues. Frames that
        came before the end of the link are returned before the end is raised. Raises
        ``ConnectionLost``, ``ProtocolViolation``.
        """
        ...

    def wait_readable(self, timeout_seconds: float | None = None) -> bool:
        """Return ``True`` when a frame, or the end of the link, may be there to ``receive``.

        Takes nothing. ``False``: the time is over, or somebody called ``interrupt``.
        """
        ...

    def keep_alive(self, interval_seconds: float, beat: Callable[[], None] | None = None) -> None:
        """Ping the other end each interval, while a thread receives or waits.

        ``beat`` is called with each ping, by that thread; it must not send. Without a sign of life
        for two intervals the link ends with ``ConnectionLost``. Whatever arrives is one, except
        that a part of a message only counts from 1 KiB on.
        """
        ...

    def interrupt(self) -> None:
        """Make ``wait_readable`` in another thread return; if none is in it, the next one."""
        ...

    def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        """Tell the other end, and end the link here, within a bounded time. Never raises.

        Threads inside any other method leave it with ``ConnectionLost``. Closing again does
        nothing.
        """
        ...


class AsyncLink(Protocol):
    """One end of a connection, used by the tasks of one event loop.

    Any number of tasks may send; frames never interleave. At most one task receives at a time.
    """

    @property
    def peer(self) -> str:
        """Name the other end, for logs: ``"192.0.2.7:51034"``."""
        ...

    async def send(self, frame: bytes) -> None:
        """Send one frame; wait while the peer is slow to take it. Raises ``ConnectionLost``."""
        ...

    async def send_parts(self, head: bytes, payload: memoryview) -> None:
        """Send ``head`` and ``payload`` as one frame, without joining them first.

        ``payload`` is one-dimensional, contiguous and of bytes. It must not change afterwards: the
        link may hold on to it until the peer took it. Raises ``ConnectionLost``.
        """
        ...

    async def receive(self) -> bytes:
        """Return the next frame. Cancelling it loses nothing.

        Raises ``ConnectionLost``, ``ProtocolViolation``.
        """
        ...

    async def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        """Tell the other end, and end the link, within a bounded time. Never raises."""
        ...
