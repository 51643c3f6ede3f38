"""Callbacks for CUDA events, called from one polling thread.

CUDA's own callbacks run on a CUDA thread that must take Python's interpreter lock while CUDA waits
for it. That deadlocks if a thread that holds the lock calls CUDA. Therefore one Python thread polls
the awaited events. The events of a stream pass in the order in which they were recorded, so the
thread queries only the oldest event of each stream: a group may await 32 collectives, and a query
holds the interpreter lock for about 3 µs.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final

from burn_remote_server.telemetry.logs import get_logger

__all__ = ["NOT_READY", "EventPoller"]

logger = get_logger(__name__)

# The polling interval. It delays each read by up to this time. With a shorter one, other threads
# wait for the interpreter lock more often.
INTERVAL_SECONDS: Final = 50e-6

# The status of a pending event: cudaErrorNotReady.
NOT_READY: Final = 600


class EventPoller:
    """A thread that polls CUDA events and invokes a callback for each event that has passed.

    ``status(event)`` returns 0 for a passed event, ``NOT_READY`` for a pending one, and otherwise a
    CUDA error.
    """

    def __init__(self, device: Any, status: Callable[[Any], int]) -> None:
        self._device: Final = device
        self._status: Final = status
        self._new: Final[deque[tuple[Hashable, Any, Callable[[int], None]]]] = deque()
        self._is_wanted: Final = threading.Event()
        self._start: Final = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(self, event: Any, passed: Callable[[int], None], stream: Hashable) -> None:
        """Call ``passed(status)`` once the event has passed; status 0 means success.

        Events of the same ``stream`` must be given in the order in which they were recorded.
        """
        self._new.append((stream, event, passed))
        if self._thread is None:
            with self._start:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name=f"gpu-{self._device.id}", daemon=True
                    )
                    self._thread.start()
        self._is_wanted.set()

    def _run(self) -> None:
        with contextlib.suppress(RuntimeError):  # the device is lost; its events report that
            self._device.use()
        waiting: dict[Hashable, deque[tuple[Any, Callable[[int], None]]]] = {}
        while True:
            if not waiting:
                self._is_wanted.wait()
                self._is_wanted.clear()
            while self._new:
                stream, event, passed = self._new.popleft()
                waiting.setdefault(stream, deque()).append((event, passed))
                del event, passed
            for stream in [*waiting]:
                self._poll(waiting[stream])
                if not waiting[stream]:
                    del waiting[stream]
            if waiting:
                time.sleep(INTERVAL_SECONDS)

    def _poll(self, line: deque[tuple[Any, Callable[[int], None]]]) -> None:
        """Invoke the callbacks of a stream's events, up to the first one that is pending."""
        while line:
            status = self._status(line[0][0])
            if status == NOT_READY:
                return
            passed = line.popleft()[1]
            _invoke(passed, status)
            del passed


def _invoke(passed: Callable[[int], None], status: int) -> None:
    try:
        passed(status)
    except Exception:  # a defect in one callback must not stop the others
        logger.exception("event callback failed")
