"""Work on the event loop that is cut into slices, so that everything else gets its turn."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Deadlines", "TurnQueue"]


class TurnQueue:
    """Calls for the event loop, of which it makes a bounded number in each of its turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop, at_once: int) -> None:
        self._loop: Final = loop
        self._at_once: Final = at_once
        self._lock: Final = threading.Lock()
        self._calls: Final[deque[Callable[[], object]]] = deque()
        self._is_scheduled = False

    def add(self, call: Callable[[], object]) -> None:
        """Make a call later, after those added before. Any thread.

        Raises ``RuntimeError`` where the loop has closed.
        """
        with self._lock:
            self._calls.append(call)
            if self._is_scheduled:
                return
            self._is_scheduled = True
        self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        try:
            for _ in range(min(self._at_once, len(self._calls))):
                self._calls.popleft()()
        finally:
            with self._lock:
                self._is_scheduled = bool(self._calls)
            if self._is_scheduled:
                self._loop.call_soon(self._run)


class Deadlines:
    """Futures that fail after the same time each, a bounded number per turn of the event loop.

    Timers of their own would all fire in one turn. Belongs to the event loop's thread.
    """

    def __init__(self, seconds: float, failure: Callable[[], Exception], at_once: int = 64) -> None:
        self._seconds: Final = seconds
        self._failure: Final = failure
        self._at_once: Final = at_once
        self._loop: Final = asyncio.get_running_loop()
        # In the order of their deadlines.
        self._futures: Final[OrderedDict[asyncio.Future[Any], float]] = OrderedDict()
        self._timer: asyncio.Handle | None = None

    def add(self, future: asyncio.Future[Any]) -> None:
        """Let a future fail when its time is over."""
        self._futures[future] = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._expire)

    def discard(self, future: asyncio.Future[Any]) -> None:
        """Forget a future that nobody waits for any more."""
        self._futures.pop(future, None)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for _ in range(self._at_once):
            if not self._futures:
                return
            future, deadline = next(iter(self._futures.items()))
            if deadline > now:
                self._timer = self._loop.call_at(deadline, self._expire)
                return
            del self._futures[future]
            if not future.done():
                future.set_exception(self._failure())
        self._timer = self._loop.call_soon(self._expire)
