"""The steps that end a connection, which run again if Ctrl-C interrupted them."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Ending"]


class Ending:
    """Runs the steps that end a connection once. Thread-safe.

    If Ctrl-C interrupts them, a call in another thread repeats them.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self._thread: int | None = None  # the thread that has begun last

    def complete(self, *steps: Callable[[], object]) -> None:
        """Run the steps, unless they are done or this thread is inside of one of them."""
        thread = threading.get_ident()
        # Only the main thread may have been interrupted; any other completes what it has begun.
        may_begin = self._thread in (None, threading.main_thread().ident)
        if self.is_complete or not may_begin or self._thread == thread:
            return
        self._thread = thread
        for step in steps:
            step()
        self.is_complete = True
