"""Turns of threads, in the order in which they ask for them."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from burn_remote_protocol.latches import Latch

__all__ = ["ThreadTurns"]

# How often a waiting thread looks whether its work has been cancelled.
LOOK_SECONDS: Final = 0.1


class ThreadTurns:
    """A lock that threads get in the order in which they ask for it. Thread-safe."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        # The threads that wait, oldest first, behind the one that has the turn.
        self._queue: Final[deque[Latch]] = deque()

    @property
    def waiting(self) -> int:
        """Number of threads that wait for a turn."""
        return max(0, len(self._queue) - 1)

    @contextlib.contextmanager
    def turn(self, is_cancelled: Callable[[], bool]) -> Iterator[bool]:
        """Wait for a turn, which ends with the context.

        The context is ``False`` if ``is_cancelled`` returned ``True`` before the turn came.
        """
        mine = Latch()
        try:
            with self._lock:
                self._queue.append(mine)
                self._queue[0].set()
            while not (is_mine := mine.wait(LOOK_SECONDS)) and not is_cancelled():
                pass
            yield is_mine
        finally:
            with self._lock:
                if mine in self._queue:
                    self._queue.remove(mine)
                if self._queue:
                    self._queue[0].set()
