"""What must be sent again after a broken connection? Pure bookkeeping, the same on both sides.

A connection delivers frames in order, so counting them is enough: each side says how many of the
other's session frames it has, and the other sends the rest again. Frames that only open,
acknowledge or close are not counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from burn_remote_protocol.errors import SessionLost

__all__ = ["ACKNOWLEDGE_EVERY", "REPLAY_BYTES", "ReplayWindow"]

# Frames after which the receiver says how many it has. Larger: the sender keeps more. Smaller: more
# frames that only acknowledge.
ACKNOWLEDGE_EVERY: Final = 16
# What a client keeps of what it sent, and so the most that an upload may be ahead of the server.
# Larger: more memory in the client's process. Smaller: an upload waits for acknowledgements.
REPLAY_BYTES: Final = 64 * 1024 * 1024

F = TypeVar("F")


class ReplayWindow(Generic[F]):
    """The frames that the other side may not have. Not thread-safe."""

    def __init__(self) -> None:
        self._frames: deque[tuple[F, int]] = deque()
        self._acknowledged = 0
        self.bytes = 0

    @property
    def sent(self) -> int:
        """Frames sent since the session opened."""
        return self._acknowledged + len(self._frames)

    def __len__(self) -> int:
        return len(self._frames)

    def append(self, frame: F, size: int) -> None:
        """Keep a frame that is being sent."""
        self._frames.append((frame, size))
        self.bytes += size

    def acknowledge(self, received: int) -> None:
        """Forget what the other side has.

        Raises ``SessionLost`` when that is less than it said before, or more than was sent: then
        the two sides do not speak of the same session.
        """
        if not self._acknowledged <= received <= self.sent:
            raise SessionLost(
                f"the other side says it has {received:,} frames; "
                f"{self._acknowledged:,} to {self.sent:,} are possible"
            )
        for _ in range(received - self._acknowledged):
            _, size = self._frames.popleft()
            self.bytes -= size
        self._acknowledged = received

    def frames(self) -> Iterator[F]:
        """Return what must be sent again, oldest first."""
        return (frame for frame, _ in [*self._frames])
