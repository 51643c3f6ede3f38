"""The end of a connection: one error, and steps that run again if they fail or are interrupted."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from burn_remote_protocol.errors import BurnRemoteError

__all__ = ["EndedOnce", "Ending"]

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
        # If ``_thread`` is another thread, that one completes the steps, or resets ``_thread``. The
        # main thread may have left without doing so, because of an interrupt.
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


class EndedOnce(ABC):
    """A connection that the first error ends for good. Thread-safe."""

    # Guards ``error``. Re-entrant.
    _state_lock: AbstractContextManager[Any]

    def __init__(self) -> None:
        self.error: BurnRemoteError | None = None
        self._ending_steps: Final = Ending()

    @abstractmethod
    def _steps_of_end(self, error: BurnRemoteError) -> Sequence[Callable[[], object]]:
        """Return the steps that close the links, fail what is pending, and end the threads."""

    @abstractmethod
    def _note_end(self) -> None:
        """Note under the lock that the session has ended."""

    def end(self, error: BurnRemoteError) -> None:
        """End the session for good. A second call does nothing."""
        has_ended = True
        try:
            with self._state_lock:
                has_ended = self.error is not None
                if has_ended:
                    return
                self.error = error
                self._note_end()
            self._complete_end(error)
        except BaseException:  # Ctrl-C: other threads wait for what has failed
            if not has_ended and self.error is error:
                self._complete_end(error)
            raise

    def _complete_end(self, error: BurnRemoteError) -> None:
        """Run the steps that are left. May be called again."""
        self._ending_steps.complete(*self._steps_of_end(error))
