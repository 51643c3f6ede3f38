"""Limits on the memory and the duration of the messages that one connection receives.

Incomplete and queued messages take memory before the server can check them. This memory counts
against a pool that many connections share. If the pool has too few bytes left, the receiver stops
reading from the connection until there are enough. A connection whose message arrives too slowly is
closed, also if it waits for the pool. Messages may wait for each other: each holds a part of the
pool, and none can be completed. Then the first one that is closed makes room for the others, and
the time in which these waited does not count as slowness of their peers.

A client whose tensors fill the pool must still be able to send the message that drops some. So
short messages have room in a full pool: those of up to ``ALWAYS_BYTES`` always, and those of up to
a connection's ``urgent_bytes`` as long as the pool's room for urgent bytes lasts.
"""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.links.interface import Memory

__all__ = [
    "ALWAYS_BYTES",
    "MAX_WAITS",
    "MIN_BYTES_PER_SECOND",
    "UNCOUNTED_BYTES",
    "URGENT_BYTES",
    "ReceiveBudget",
    "ThroughputWatchdog",
]

# Received bytes of a connection that do not count, so that most messages cost no lock. The server
# counts more than this for each connection when it accepts it.
UNCOUNTED_BYTES: Final = 2**13
# Received bytes that never wait for room: more than most batches have.
ALWAYS_BYTES: Final = 2**15
# Received bytes that also use the pool's room for urgent bytes, unless the connection has another
# limit, and that count once.
URGENT_BYTES: Final = 2**20

# A long message is received in parts, which are then joined; decoding copies the elements again.
COPIES: Final = 2

# Minimum throughput of an incomplete message, averaged over each stall time.
MIN_BYTES_PER_SECOND: Final = 64 * 2**10

# How often one message may wait for room without being slow. It bounds how long a peer that sends
# single bytes to a full pool can keep a message incomplete.
MAX_WAITS: Final = 10


class ReceiveBudget:
    """The pool's bytes that one connection holds for received messages. Performs no I/O."""

    def __init__(self, memory: Memory, urgent_bytes: int | None = None) -> None:
        """``urgent_bytes``: messages of up to this size together are urgent.

        They count as often as others if they have more than ``URGENT_BYTES``.
        """
        self._urgent_bytes: Final = URGENT_BYTES if urgent_bytes is None else urgent_bytes
        self._memory: Final = memory
        self._lacks_room = False
        self._is_urgent = False  # whether the held bytes are
        self.held_bytes = 0

    def __del__(self) -> None:
        self._give_back(self.held_bytes)

    @property
    def is_beyond_urgent(self) -> bool:
        """Whether it holds memory for more than urgent messages."""
        return self.held_bytes > self._urgent_bytes

    def hold(self, size: int) -> bool:
        """Count ``size`` received bytes, in place of those before; return whether to read on.

        The bytes count also if the pool has no room for them, because they have arrived.
        """
        is_urgent = size <= self._urgent_bytes
        counts_once = is_urgent and size <= URGENT_BYTES
        wanted = 0 if size <= UNCOUNTED_BYTES else size if counts_once else COPIES * size
        if wanted == self.held_bytes and not self._lacks_room:
            return True
        if is_urgent is not self._is_urgent:
            self._give_back(self.held_bytes)
            self.held_bytes, self._is_urgent = 0, is_urgent
        more = wanted - self.held_bytes
        self.held_bytes = wanted
        if more < 0:
            self._give_back(-more)
            more = 0
        memory = self._memory
        self._lacks_room = not (memory.take_urgent if is_urgent else memory.take)(more)
        if self._lacks_room:
            (memory.add_urgent if is_urgent else memory.add)(more)
            self._lacks_room = size > ALWAYS_BYTES
        return not self._lacks_room

    def _give_back(self, size: int) -> None:
        memory = self._memory
        (memory.give_back_urgent if self._is_urgent else memory.give_back)(size)


class ThroughputWatchdog:
    """Detects an incomplete message that arrives too slowly. Performs no I/O.

    The owner calls ``is_fast_enough`` once per stall time.
    """

    def __init__(self, stall_seconds: float) -> None:
        self.stall_seconds: Final = stall_seconds
        self._floor: Final = MIN_BYTES_PER_SECOND * stall_seconds
        self._messages = -1
        self._arrived = 0
        self._waiting_message = -1
        self._waits = 0  # of this message

    def is_fast_enough(self, messages: int, arrived: int) -> bool:
        """Whether a message was completed, or enough bytes arrived, since the last call.

        ``messages`` is the number of messages completed so far, ``arrived`` the number of bytes
        received so far.
        """
        is_fast_enough = messages != self._messages or arrived - self._arrived >= self._floor
        self._messages, self._arrived = messages, arrived
        return is_fast_enough

    def restart_after_wait(self, messages: int, arrived: int) -> bool:
        """Start a new measurement, because a message has waited for room, and there is some now.

        Return ``False``, and measure on, if it has waited more than ``MAX_WAITS`` times. The
        arguments are those of ``is_fast_enough``.
        """
        if messages != self._waiting_message:
            self._waiting_message, self._waits = messages, 0
        self._waits += 1
        if self._waits > MAX_WAITS:
            return False
        self._messages, self._arrived = messages, arrived
        return True

    def failure(self, *, is_starved: bool) -> ConnectionLost:
        """Return why the connection ends; ``is_starved``: it waits for the pool."""
        if is_starved:
            return ConnectionLost(f"no memory for a message within {self.stall_seconds:g} s")
        return ConnectionLost(f"a message arrived with less than {MIN_BYTES_PER_SECOND:,} bytes/s")

    def reset(self) -> None:
        """Start a new measurement, after this end did not read from the connection."""
        self._messages = -1
