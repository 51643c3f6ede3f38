"""Callbacks for CUDA events, called from one polling thread.

CUDA's own callbacks run on a CUDA thread that must take Python's interpreter lock while CUDA waits
for it. That deadlocks if a thread that holds the lock calls CUDA. Therefore one Python thread polls
the awaited events.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from burn_remote_server.telemetry.logs import get_logger

__all__ = ["NOT_READY", "EventPoller"]

logger = get_logger(__name__)

# The polling interval. It delays each read by up to this time; a shorter one takes the interpreter
# lock from other threads more often.
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
        self._new: Final[deque[tuple[Any, Callable[[int], None]]]] = deque()
        self._is_wanted: Final = threading.Event()
        self._start: Final = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(self, event: Any, passed: Callable[[int], None]) -> None:
        """Call ``passed(status)`` once the event has passed; status 0 means success."""
        self._new.append((event, passed))
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
        waiting: list[tuple[Any, Callable[[int], None]]] = []
        while True:
            if not waiting:
                self._is_wanted.wait()
                self._is_wanted.clear()
            while self._new:
                waiting.append(self._new.popleft())
            ahead = []
            for event, passed in waiting:
                status = self._status(event)
                if status == NOT_READY:
                    ahead.append((event, passed))
                else:
                    _invoke(passed, status)
                del event, passed
            waiting = ahead
            del ahead
            if waiting:
                time.sleep(INTERVAL_SECONDS)


def _invoke(passed: Callable[[int], None], status: int) -> None:
    try:
        passed(status)
    except Exception:  # a defect in one callback must not stop the others
        logger.exception("event_callback_failed")
