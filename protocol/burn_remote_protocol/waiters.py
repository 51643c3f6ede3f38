"""The threads that wait for a change, without a lock that an interrupt could leave taken.

``threading.Condition`` and ``threading.Event`` take their lock in Python code. CPython may run a
signal handler after the lock was taken and before the block that releases it, or between the start
of ``__exit__`` and the release. If the handler raises an exception, as that of Ctrl-C does, the
lock stays taken for good, and every thread that needs it hangs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = ["Waiters"]


class Waiters:
    """Threads that wait until a predicate of a state is true.

    Whoever changes the state calls ``wake`` afterwards. There is no lock: a waiting thread
    registers before it looks at the state, so it is woken by each change that it has not seen.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        # One lock for each waiting thread, which waits by acquiring it a second time.
        self._waiting: Final[set[threading.Lock]] = set()

    def wake(self) -> None:
        """Let all waiting threads look at the state again."""
        if self._waiting:
            try:
                for waiter in [*self._waiting]:
                    try:
                        waiter.release()
                    except RuntimeError as error:  # it was woken already, and has not looked yet
                        pass_on_of_signal_handler(error)
            except BaseException:  # Ctrl-C: the other threads must look too
                self.wake()
                raise

    def wait_until(self, is_true: Callable[[], bool], timeout_seconds: float | None = None) -> bool:
        """Wait until ``is_true()``; return ``False`` at the timeout.

        ``is_true`` must be true in every call after the change, or until the caller acts on it.
        Call this without a lock that the changing thread needs.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        waiter = threading.Lock()
        waiter.acquire()
        try:
            self._waiting.add(waiter)
            while not is_true():
                left = -1.0 if deadline is None else deadline - time.monotonic()
                if deadline is not None and left <= 0:
                    return False
                waiter.acquire(timeout=left)
            return True
        finally:
            self._waiting.discard(waiter)
