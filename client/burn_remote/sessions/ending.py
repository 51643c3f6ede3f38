"""The steps that end a connection, which run again if they were interrupted or failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Ending"]

# How often, and after which pauses, a step that lacks memory is tried again. A step that did not
# run could leave threads waiting forever for replies of a session that has ended.
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
        # An interrupt of the main thread may come before ``_thread`` is reset. Any other thread
        # completes what it has begun, or resets it.
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
    """Run a step; return the exception that it raises. While it lacks memory, run it again."""
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
