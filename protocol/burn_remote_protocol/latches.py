"""Events between threads that happen once.

``threading.Event`` and ``threading.Condition`` are written in Python. The end of their ``with``
blocks allocates memory; if that fails, their lock stays locked, and the next thread that sets or
awaits the event waits forever, also if its wait has a limit.
"""

from __future__ import annotations

import threading
from typing import Final

__all__ = ["Latch"]


class Latch:
    """An event that happens once, for any number of waiting threads.

    ``_closed`` is released without a call of a Python function, at whose start CPython may run a
    signal handler: its exception would leave the lock taken.
    """

    def __init__(self) -> None:
        # Locked until the event. Whoever acquires it after that releases it for the next one.
        self._closed: Final = threading.Lock()
        self._closed.acquire()
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether the event has happened."""
        return self._is_set

    def set(self) -> None:
        """Note that the event has happened, and wake all threads that wait for it."""
        if not self._is_set:
            self._is_set = True
            try:  # noqa: SIM105 - ``suppress`` needs memory
                self._closed.release()
            except RuntimeError:
                pass  # another thread has opened it at the same moment

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the event; return whether it has happened."""
        if not self._is_set:
            timeout = -1.0 if timeout_seconds is None else max(0.0, timeout_seconds)
            try:
                self._closed.acquire(timeout=timeout)
            finally:  # also if a signal handler raises an exception once the lock is acquired
                if self._is_set:
                    try:  # noqa: SIM105 - as above
                        self._closed.release()
                    except RuntimeError:
                        pass
        return self._is_set
