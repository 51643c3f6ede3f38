"""A thread that sends the messages that a link has queued."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty
from typing import Final

from burn_remote_protocol.links.websocket.usable_cores import usable_cores
from burn_remote_protocol.timed_queue import TimedQueue

__all__ = ["BackgroundSender", "has_spare_core"]

# How long the thread waits for another message before it ends. Starting one takes 0.1 ms.
IDLE_SECONDS: Final = 1.0

# A program, its server on the same machine, and the thread. With fewer cores, they would only take
# turns, and changing threads costs 40 µs for each message.
BUSY_CORES: Final = 3


def has_spare_core() -> bool:
    """Return whether this process can use a core for a thread that sends."""
    try:
        return usable_cores() >= BUSY_CORES
    except AttributeError:  # only Linux has it
        return (os.cpu_count() or 1) >= BUSY_CORES


class BackgroundSender:
    """Calls ``flush`` in a thread of its own after each ``wake``.

    The thread starts with the first ``wake`` and ends when there was none for a while. ``flush``
    sends what is queued and raises nothing.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush: Final = flush
        self._lock: Final = threading.Lock()
        self._wakes: Final[TimedQueue[None]] = TimedQueue()
        self._thread: threading.Thread | None = None
        self._has_stopped = False

    def wake(self) -> bool:
        """Have ``flush`` called soon; return whether it will be."""
        with self._lock:
            if self._has_stopped:
                return False
            # A thread that Ctrl-C has kept from starting is replaced.
            if self._thread is None or not self._thread.is_alive():
                try:
                    self._thread = threading.Thread(
                        target=self._run, name="burn-remote-sender", daemon=True
                    )
                    self._thread.start()
                except (RuntimeError, MemoryError):  # this process has no thread left
                    return False
            # Under the lock: the thread ends only if nothing waits for it.
            self._wakes.put(None)
        return True

    def stop(self) -> None:
        """End the thread once its present call of ``flush`` returns."""
        self._has_stopped = True
        self._wakes.put(None)

    def _run(self) -> None:
        while not self._has_stopped:
            try:
                self._wakes.get(IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._wakes.empty():  # otherwise ``wake`` came after the timeout
                        self._thread = None
                        return
                continue
            self._flush()
