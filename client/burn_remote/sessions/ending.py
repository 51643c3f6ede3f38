"""The steps that end a connection, which run again if they were interrupted or failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Ending"]

# How often, and after which pauses, a step is tried again for lack of memory. If nobody told them
# that the session has ended, threads would wait for their replies forever.
TRIES: Final = 100
PAUSE_SECONDS: Final = 0.001


class Ending:
    """Runs the steps that end a connection once. Thread-safe.

    If one raises an exception, the steps after it run nevertheless, and the next call, in any
    thread, repeats all of them.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self._thread: int | None = None  # the thread that is inside of the steps

    def complete(self, *steps: Callable[[], object]) -> None:
        """Run the steps, unless they are done or this thread is inside of one of them.

        Raises the first exception of a step, after the other steps.
        """
        thread = threading.get_ident()
        # The main thread may have been interrupted before it could say so; any other completes
        # what it has begun.
        may_begin = self._thread in (None, threading.main_thread().ident)
        if self.is_complete or not may_begin or self._thread == thread:
            return
        self._thread = thread
        try:
            failures = [error for step in steps if (error := _failure_of(step)) is not None]
            if failures:
                raise failures[0]
        except BaseException:
            self._thread = None
            raise
        self.is_complete = True


def _failure_of(step: Callable[[], object]) -> BaseException | None:
    """Run a step, again while memory lacks; return what it raises otherwise."""
    tries = 0
    while True:
        try:
            step()
            return None
        except MemoryError as error:
            tries += 1
            if tries == TRIES:
                return error
            time.sleep(PAUSE_SECONDS)
        except BaseException as error:
            return error
