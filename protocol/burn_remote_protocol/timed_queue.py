"""A queue whose ``get`` keeps its timeout.

``queue.SimpleQueue.get`` may wait forever: if its thread is suspended for longer than the timeout
after it has found the queue empty, the remaining time is negative, and CPython takes a negative
timeout for none (seen with 3.11; the code of 3.7 to 3.14 is the same). On a busy machine, a thread
that waits a millisecond at a time hangs within hours.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty
from typing import Final, Generic, TypeVar

from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = ["TimedQueue"]

T = TypeVar("T")


class TimedQueue(Generic[T]):
    """A first-in, first-out queue without a bound, for any number of producers and one consumer.

    ``put`` never blocks, and may be called in ``__del__``, also by a thread inside this queue.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._items: Final[deque[T]] = deque()
        # Released by each ``put``. If there is no item, the consumer acquires it, which waits for a
        # ``put``, and then looks at the items again.
        self._has_news: Final = threading.Lock()
        self._has_news.acquire()

    def empty(self) -> bool:
        """Whether there is no item."""
        return not self._items

    @property
    def count(self) -> int:
        """Number of items."""
        return len(self._items)

    def put(self, item: T) -> None:
        """Append an item."""
        try:
            self._items.append(item)
        finally:  # also if a Ctrl-C comes directly after ``append``
            try:
                self._has_news.release()
            except RuntimeError as error:
                # An earlier ``put`` released it, and the consumer has not acquired it since.
                pass_on_of_signal_handler(error)

    def get(self, timeout_seconds: float | None = None) -> T:
        """Remove and return the first item; wait for one. Raises ``queue.Empty`` at the timeout."""
        deadline = None if timeout_seconds is None else self._clock() + timeout_seconds
        while True:
            if self._items:
                return self._items.popleft()
            left = -1.0 if deadline is None else max(0.0, deadline - self._clock())
            if not self._has_news.acquire(timeout=left):
                return self.get_nowait()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for an item, without removing it; return ``False`` at the timeout."""
        deadline = self._clock() + timeout_seconds
        while not self._items:
            if not self._has_news.acquire(timeout=max(0.0, deadline - self._clock())):
                return bool(self._items)
        return True

    def get_nowait(self) -> T:
        """Remove and return the first item. Raises ``queue.Empty``."""
        try:
            return self._items.popleft()
        except IndexError:
            raise Empty from None
