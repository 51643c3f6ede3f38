"""Limits on the memory and the duration of the messages that one connection receives.

Incomplete and queued messages take memory before the server can check them. This memory counts
against a pool that many connections share. If the pool has too few bytes left, the receiver stops
reading from the connection until there are enough. A connection whose message arrives too slowly is
closed, also if it waits for the pool.
"""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.links.interface import Memory

__all__ = ["MIN_BYTES_PER_SECOND", "UNCOUNTED_BYTES", "ReceiveBudget", "ThroughputWatchdog"]

# Bytes that a connection may hold without counting, so that a client whose tensors fill the pool
# can still send the message that drops some. Chunks of uploads are half as large.
UNCOUNTED_BYTES: Final = 2**20

# A message is received in parts, which are then joined; decoding copies the elements again.
COPIES: Final = 2

# Minimum throughput of an incomplete message, averaged over each stall time.
MIN_BYTES_PER_SECOND: Final = 64 * 2**10


class ReceiveBudget:
    """The pool's bytes that one connection holds for received messages. Performs no I/O."""

    def __init__(self, memory: Memory, uncounted_bytes: int | None = None) -> None:
        """``uncounted_bytes``: up to this number of received bytes do not count."""
        self.uncounted_bytes: Final = (
            UNCOUNTED_BYTES if uncounted_bytes is None else uncounted_bytes
        )
        self._memory: Final = memory
        self.held_bytes = 0

    def __del__(self) -> None:
        self._memory.give_back(self.held_bytes)

    def hold(self, size: int) -> bool:
        """Hold memory for ``size`` received bytes, in place of the amount held before.

        Returns ``False``, changing nothing, if the pool has too few bytes left.
        """
        wanted = COPIES * size if size > self.uncounted_bytes else 0
        more = wanted - self.held_bytes
        if more > 0 and not self._memory.take(more):
            return False
        if more < 0:
            self._memory.give_back(-more)
        self.held_bytes = wanted
        return True


class ThroughputWatchdog:
    """Detects an incomplete message that arrives too slowly. Performs no I/O.

    The owner calls ``is_fast_enough`` once per stall time.
    """

    def __init__(self, stall_seconds: float) -> None:
        self.stall_seconds: Final = stall_seconds
        self._floor: Final = MIN_BYTES_PER_SECOND * stall_seconds
        self._messages = -1
        self._arrived = 0

    def is_fast_enough(self, messages: int, arrived: int) -> bool:
        """Whether a message was completed, or enough bytes arrived, since the last call.

        ``messages`` is the number of messages completed so far, ``arrived`` the number of bytes
        received so far.
        """
        is_fast_enough = messages != self._messages or arrived - self._arrived >= self._floor
        self._messages, self._arrived = messages, arrived
        return is_fast_enough

    def failure(self, *, is_starved: bool) -> ConnectionLost:
        """Return why the connection ends; ``is_starved``: it waits for the pool."""
        if is_starved:
            return ConnectionLost(f"no memory for a message within {self.stall_seconds:g} s")
        return ConnectionLost(f"a message arrived with less than {MIN_BYTES_PER_SECOND:,} bytes/s")

    def reset(self) -> None:
        """Start a new measurement, after this end did not read from the connection."""
        self._messages = -1
