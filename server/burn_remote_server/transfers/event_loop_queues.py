"""Queues that limit the number of calls per iteration of the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final, Generic, TypeVar

from burn_remote_protocol.loop_calls import LoopCall

__all__ = ["LONGEST_SECONDS", "BatchedCalls", "CallQueue", "Deadlines"]

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

# No further call begins in an iteration after this time. Threads of busy sessions take the
# interpreter lock for 0.5 ms each: 64 calls of 5 ms of processor time took 20 to 48 ms beside six
# such threads, and a request of another client takes about five iterations.
LONGEST_SECONDS: Final = 0.002

# A timer that is later than this was lost, for lack of memory, or the loop is very busy.
LATE_SECONDS: Final = 1.0


class CallQueue:
    """A queue of calls; each iteration of the event loop makes at most ``per_iteration`` calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop, per_iteration: int) -> None:
        self._loop: Final = loop
        self._per_iteration: Final = per_iteration
        self._lock: Final = threading.Lock()
        self._calls: Final[deque[Callable[[], object]]] = deque()
        self._running: Final = LoopCall(self._run, lambda: bool(self._calls))
        self._is_scheduled = False

    def add(self, call: Callable[[], object]) -> None:
        """Queue a call. Thread-safe.

        Raises ``RuntimeError`` if the loop has closed.
        """
        with self._lock:
            if not self._is_scheduled:
                self._loop.call_soon_threadsafe(self._run)
                self._is_scheduled = True
            self._calls.append(call)

    def _run(self) -> None:
        try:
            with self._lock:
                count = min(self._per_iteration, len(self._calls))
            for _ in range(count):
                self._calls.popleft()()
        finally:
            with self._lock:
                self._is_scheduled = bool(self._calls)
            if self._is_scheduled:
                self._running.request()


class BatchedCalls:
    """Calls a function for each of many items, at most ``per_iteration`` per iteration of the loop.

    An iteration makes fewer calls if they take longer than ``LONGEST_SECONDS``. Belongs to the
    event loop's thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, per_iteration: int) -> None:
        self._per_iteration: Final = per_iteration
        self._begun: Final[deque[Iterator[object]]] = deque()
        self._running: Final = LoopCall(self._run, lambda: bool(self._begun))

    def call(self, call: Callable[[T], object], items: Iterable[T]) -> None:
        """Call ``call(item)`` for each item, beginning with the next iteration of the loop."""
        self._begun.append(map(call, items))
        self._running.request()

    def finish(self) -> None:
        """Make all remaining calls now."""
        while self._begun:
            deque(self._begun.popleft(), maxlen=0)

    def _run(self) -> None:
        if not self._begun:
            return
        try:
            calls = self._begun[0]
            end = time.perf_counter() + LONGEST_SECONDS
            for _ in range(self._per_iteration):
                try:
                    next(calls)
                except StopIteration:
                    self._begun.popleft()
                    break
                if time.perf_counter() >= end:
                    break
        finally:
            if self._begun:
                self._running.request()


class Deadlines(Generic[H]):
    """Items with a common timeout; each iteration of the loop expires at most ``per_iteration``.

    Separate timers could all fire in one iteration. An iteration expires fewer items if that takes
    longer than ``LONGEST_SECONDS``. Thread-safe; ``expire`` is called with each
    item in the event loop's thread.
    """

    def __init__(
        self, seconds: float, expire: Callable[[H], None], per_iteration: int = 64
    ) -> None:
        self._seconds: Final = seconds
        self._call: Final = expire
        self._per_iteration: Final = per_iteration
        self._loop: Final = asyncio.get_running_loop()
        self._lock: Final = threading.Lock()
        # In the order of their deadlines.
        self._items: Final[OrderedDict[H, float]] = OrderedDict()
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._catching_up: Final = LoopCall(self._expire, self._is_late)

    def add(self, item: H) -> None:
        """Start the timeout of an item. Raises ``RuntimeError`` if the loop has closed."""
        with self._lock:
            if not self._is_scheduled:
                self._loop.call_soon_threadsafe(self._schedule)
                self._is_scheduled = True
            self._items[item] = self._loop.time() + self._seconds

    def items(self) -> list[H]:
        """Return the items that have not expired."""
        with self._lock:
            return [*self._items]

    def discard(self, item: H) -> None:
        """Remove an item, so that it does not expire."""
        with self._lock:
            self._items.pop(item, None)

    def _is_late(self) -> bool:
        """Return whether the timer of the first item must have been lost."""
        first = next(iter(self._items.values()), None)
        return first is not None and first + LATE_SECONDS < self._loop.time()

    def _schedule(self) -> None:
        with self._lock:
            first = next(iter(self._items.values()), None)
            self._is_scheduled = first is not None
        if self._timer is not None:
            self._timer.cancel()  # ``_catching_up`` may come before a timer that is only late
        self._timer = None if first is None else self._loop.call_at(first, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        end = time.perf_counter() + LONGEST_SECONDS
        try:
            for _ in range(self._per_iteration):
                with self._lock:
                    if not self._items:
                        break
                    item = next(iter(self._items))
                    if self._items[item] > now:
                        break
                    del self._items[item]
                self._call(item)
                if time.perf_counter() >= end:
                    break
        finally:
            self._schedule()  # at once if the first item is due
