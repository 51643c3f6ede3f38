"""Turns in which the connections of an event loop continue to receive."""

from __future__ import annotations

import asyncio
import collections
import weakref
from collections.abc import Callable
from typing import Final

from burn_remote_protocol.loop_calls import LoopCall

__all__ = [
    "BYTES_AT_ONCE",
    "CONTINUED_AT_ONCE",
    "PARSED_AT_ONCE",
    "SMALL_BYTES",
    "ReceiveTurns",
    "receive_turns",
]

# Bytes received without a pause, of one connection, and of the long payloads of all connections.
# uvloop reads up to 32 times from a socket, 8 MiB, before it looks at others: with new memory from
# the system for a long message, that took 50 ms.
BYTES_AT_ONCE: Final = 2**20

# Connections that continue in one iteration of the event loop. Each reads up to 1 MiB, which in a
# virtual machine takes 5 ms for each huge page that the system has to provide, or parses its next
# frames in 0.7 ms. Another request takes about five iterations.
CONTINUED_AT_ONCE: Final = 2

# In one iteration of the event loop, no further connection begins to parse what it has read once
# others have begun with this many bytes: uvloop reads up to 256 KiB from each of them. Removing the
# masks of 256 KiB, comparing checksums and queueing the messages took 0.4 to 6 ms, the latter with
# new memory from the system; with 64 connections at once, 40 ms.
PARSED_AT_ONCE: Final = 2**18
# Smaller reads do not wait, and do not count.
SMALL_BYTES: Final = 2**14


class ReceiveTurns:
    """A queue of connections that paused, so that other work of their event loop is not delayed.

    Without it, all of them would continue in the next iteration. A client whose request takes five
    iterations would then wait five times for each connection that receives much.
    """

    def __init__(self) -> None:
        self._waiting: Final[collections.deque[Callable[[], None]]] = collections.deque()
        self._continuing: Final = LoopCall(self._continue, lambda: bool(self._waiting))
        self._long_bytes = 0  # of long payloads, since a connection last paused
        self._parsed_bytes = 0  # in this iteration
        self._beginning: Final = LoopCall(self._begin_iteration, lambda: self._parsed_bytes > 0)

    def must_pause(self, count: int) -> bool:
        """Count ``count`` bytes of a long payload; return whether their connection must pause.

        It must if others wait, so that no connection receives much more than the others.
        """
        self._long_bytes += count
        return bool(self._waiting) or self._long_bytes >= BYTES_AT_ONCE

    def must_wait(self, count: int) -> bool:
        """Return whether to wait before ``count`` bytes are parsed that were read at once.

        If not, count them as parsed.
        """
        if count < SMALL_BYTES:
            return False
        if self._waiting or self._parsed_bytes >= PARSED_AT_ONCE:
            return True
        self._beginning.request()
        self._parsed_bytes += count
        return False

    def _begin_iteration(self) -> None:
        self._parsed_bytes = 0

    def wait(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` in a later iteration of the event loop, after those that wait already."""
        self._long_bytes = 0
        self._waiting.append(resume)
        self._continuing.request()

    def _continue(self) -> None:
        try:
            for _ in range(min(CONTINUED_AT_ONCE, len(self._waiting))):
                self._waiting.popleft()()
        finally:
            if self._waiting:
                self._continuing.request()


# By event loop, because a process may run several, each in its own thread.
_turns: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ReceiveTurns]] = (
    weakref.WeakKeyDictionary()
)


def receive_turns(loop: asyncio.AbstractEventLoop) -> ReceiveTurns:
    """Return the turns of an event loop, which all its connections share."""
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = ReceiveTurns()
    return turns
