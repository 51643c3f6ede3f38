"""Callbacks for CUDA events, called from one polling thread.

CUDA's own callbacks run on a CUDA thread that must take Python's interpreter lock while CUDA waits
for it. That deadlocks if a thread that holds the lock calls CUDA. Therefore one Python thread polls
the awaited events. The events of a stream pass in the order in which they were recorded, so the
thread queries only the oldest event of each stream: a group may await 32 collectives, and a query
holds the interpreter lock for about 3 µs.

Each poll takes the interpreter lock from the threads that issue work. So the thread polls often
only while somebody waits for an event, and less often the more events must pass before that one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final

from burn_remote_server.telemetry.logs import get_logger

__all__ = [
    "INTERVAL_SECONDS",
    "NOT_READY",
    "PATIENT_SECONDS",
    "Awaited",
    "EventPoller",
    "EventQueue",
]

logger = get_logger(__name__)

# The polling interval for the oldest event of a stream. It delays each read by up to this time.
# With a shorter one, other threads wait for the interpreter lock more often.
INTERVAL_SECONDS: Final = 50e-6
# If other events must pass before the awaited one, the thread polls again after this fraction of
# the time that they will take. That is estimated from the last events, so it may be too long.
POLLED_FRACTION: Final = 0.5
# The longest interval, also for events that nobody waits for. Their callbacks free memory, so a
# longer one would let programs that drop results hold more of them.
PATIENT_SECONDS: Final = 1e-3

# The status of a pending event: cudaErrorNotReady.
NOT_READY: Final = 600


class Awaited:
    """An event, its callback, and whether somebody waits for it."""

    __slots__ = ("event", "is_urgent", "passed")

    def __init__(self, event: Any, passed: Callable[[int], None], *, is_urgent: bool) -> None:
        self.event = event
        self.passed = passed
        self.is_urgent = is_urgent


class EventQueue(deque[Awaited]):
    """The awaited events of a stream, the oldest first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._passed_at = clock()
        self._seconds_each = 0.0  # how long the last events took

    def note_passed(self, count: int) -> None:
        """Note that events have passed since the last call."""
        now = self._clock()
        self._seconds_each = (now - self._passed_at) / count
        self._passed_at = now

    def interval(self) -> float:
        """Return when to poll again: soon if somebody waits for one of the next events."""
        for place, awaited in enumerate(self):
            if awaited.is_urgent:
                seconds = POLLED_FRACTION * place * self._seconds_each
                return min(max(INTERVAL_SECONDS, seconds), PATIENT_SECONDS)
        return PATIENT_SECONDS


class EventPoller:
    """A thread that polls CUDA events and invokes a callback for each event that has passed.

    ``status(event)`` returns 0 for a passed event, ``NOT_READY`` for a pending one, and otherwise a
    CUDA error.
    """

    def __init__(self, device: Any, status: Callable[[Any], int]) -> None:
        self._device: Final = device
        self._status: Final = status
        self._new: Final[deque[tuple[Hashable, Awaited]]] = deque()
        self._hurried: Final[deque[Any]] = deque()
        # Released to wake the thread, which acquires it to sleep.
        self._has_news: Final = threading.Lock()
        self._has_news.acquire()
        self._is_idle = False  # the thread sleeps without a limit, or is about to
        self._start: Final = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(
        self,
        event: Any,
        passed: Callable[[int], None],
        stream: Hashable,
        *,
        is_patient: bool = False,
    ) -> None:
        """Call ``passed(status)`` once the event has passed; status 0 means success.

        Events of the same ``stream`` must be given in the order in which they were recorded.
        ``is_patient``: nobody waits for the event until ``hurry`` is called.
        """
        self._new.append((stream, Awaited(event, passed, is_urgent=not is_patient)))
        if self._thread is None:
            with self._start:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name=f"gpu-{self._device.id}", daemon=True
                    )
                    self._thread.start()
        if not is_patient or self._is_idle:
            self._wake()

    def hurry(self, event: Any) -> None:
        """Note that somebody waits for an event that was passed to ``call``."""
        self._hurried.append(event)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # another thread woke it, and it has not run since
            self._has_news.release()

    def _run(self) -> None:
        with contextlib.suppress(RuntimeError):  # the device is lost; its events report that
            self._device.use()
        waiting: dict[Hashable, EventQueue] = {}
        while True:
            self._take_news(waiting)
            for stream in [*waiting]:
                self._poll(waiting[stream])
                if not waiting[stream]:
                    del waiting[stream]
            if waiting:
                self._has_news.acquire(timeout=min(map(EventQueue.interval, waiting.values())))
                continue
            # ``call`` adds the event before it looks whether this thread is idle, so one of both
            # threads sees what the other one wrote.
            self._is_idle = True
            if not self._new:
                self._has_news.acquire()
            self._is_idle = False

    def _take_news(self, waiting: dict[Hashable, EventQueue]) -> None:
        # Before the events that are new, because ``hurry`` comes after ``call``.
        hurried = []
        while self._hurried:
            hurried.append(self._hurried.popleft())
        while self._new:
            stream, awaited = self._new.popleft()
            if stream not in waiting:
                waiting[stream] = EventQueue()
            waiting[stream].append(awaited)
        for queue in waiting.values() if hurried else ():
            for awaited in queue:
                if any(awaited.event is event for event in hurried):
                    awaited.is_urgent = True

    def _poll(self, queue: EventQueue) -> None:
        """Invoke the callbacks of a stream's events, up to the first one that is pending."""
        count = 0
        while queue:
            status = self._status(queue[0].event)
            if status == NOT_READY:
                break
            passed = queue.popleft().passed
            _invoke(passed, status)
            del passed
            count += 1
        if count and queue:
            queue.note_passed(count)


def _invoke(passed: Callable[[int], None], status: int) -> None:
    try:
        passed(status)
    except Exception:  # a defect in one callback must not stop the others
        logger.exception("event callback failed")
