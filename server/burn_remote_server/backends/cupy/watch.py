"""Who is told when a GPU has passed an event?

CUDA can call back by itself, but from a thread that must wait for Python's interpreter lock while
CUDA waits for that thread: a program whose other threads hold the lock and ask CUDA something then
stands still. So one thread of ours asks about the events that somebody waits for.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from burn_remote_server.telemetry.logs import get_logger

__all__ = ["NOT_READY", "Watch"]

logger = get_logger(__name__)

# How often it asks. Longer: reads take so much longer. Shorter: the thread takes the interpreter
# from others more often, while something is awaited.
INTERVAL_SECONDS: Final = 50e-6

# What ``cudaEventQuery`` says of an event that is still ahead: ``cudaErrorNotReady``.
NOT_READY: Final = 600


class Watch:
    """One thread that calls whoever waits for an event, in the order in which events pass.

    ``status`` asks about an event: 0 is passed, ``NOT_READY`` ahead, anything else CUDA's error.
    """

    def __init__(self, device: Any, status: Callable[[Any], int]) -> None:
        self._device: Final = device
        self._status: Final = status
        self._new: Final[deque[tuple[Any, Callable[[int], None]]]] = deque()
        self._is_wanted: Final = threading.Event()
        self._start: Final = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(self, event: Any, passed: Callable[[int], None]) -> None:
        """Call ``passed(status)`` once the event has passed; 0 is success."""
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
        with contextlib.suppress(
            RuntimeError
        ):  # CUDA's, of a device that is lost: its events say so
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
                    _tell(passed, status)
                del event, passed
            waiting = ahead
            del ahead
            if waiting:
                time.sleep(INTERVAL_SECONDS)


def _tell(passed: Callable[[int], None], status: int) -> None:
    try:
        passed(status)
    except Exception:  # a defect of ours: it costs one answer, and not those of all sessions
        logger.exception("event_not_told")
