"""Memory and pace of the messages that one connection receives.

What arrives of a message lies in memory before anybody knows what it is for. It is taken out of a
pool that the receiver shares with others; a connection for which the pool has no room is not read
until there is some. A message that does not come fast enough ends the connection, also one that
waits for room.
"""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.links.interface import Memory

__all__ = ["SLOWEST_BYTES_PER_SECOND", "UNCOUNTED_BYTES", "Intake", "Pace"]

# What a connection may hold without counting, so that a client whose tensors fill the pool can
# still send the message that drops some. Uploads come in chunks of half of it.
UNCOUNTED_BYTES: Final = 2**20

# A message is held in parts, joined, and decoded, which copies its elements.
COPIES: Final = 2

# What must arrive of an unfinished message, on average over each stall time.
SLOWEST_BYTES_PER_SECOND: Final = 64 * 2**10


class Intake:
    """The bytes that a connection took out of a pool for what it received. Performs no I/O."""

    def __init__(self, memory: Memory) -> None:
        self._memory: Final = memory
        self.taken = 0

    def __del__(self) -> None:
        self._memory.give_back(self.taken)

    def hold(self, size: int) -> bool:
        """Count ``size`` bytes in place of those before; ``False`` where there is no room."""
        wanted = COPIES * size if size > UNCOUNTED_BYTES else 0
        more = wanted - self.taken
        if more > 0 and not self._memory.take(more):
            return False
        if more < 0:
            self._memory.give_back(-more)
        self.taken = wanted
        return True


class Pace:
    """Whether an unfinished message comes fast enough. Performs no I/O.

    ``is_kept`` is asked once per stall time.
    """

    def __init__(self, stall_seconds: float) -> None:
        self.stall_seconds: Final = stall_seconds
        self._floor: Final = SLOWEST_BYTES_PER_SECOND * stall_seconds
        self._messages = -1
        self._arrived = 0

    def is_kept(self, messages: int, arrived: int) -> bool:
        """Whether another message began since the last call, or enough bytes came.

        ``messages`` have come whole, ``arrived`` bytes in all.
        """
        is_kept = messages != self._messages or arrived - self._arrived >= self._floor
        self._messages, self._arrived = messages, arrived
        return is_kept

    def forgive(self) -> None:
        """Begin anew: the connection was not read for a while."""
        self._messages = -1
