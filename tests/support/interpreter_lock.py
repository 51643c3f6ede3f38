"""Whether a call lets other threads run, without measuring time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

__all__ = ["releases_interpreter_lock"]

# A thread that waits for the lock of the interpreter asks for it after this time. So it never asks.
NEVER_SECONDS = 1_000_000.0

# Calls within which the system starts the other thread at least once, on a busy machine too.
MOST_CALLS = 1_000


def releases_interpreter_lock(call: Callable[[], object]) -> bool:
    """Whether other threads run during ``call``, which is called several times."""
    before = sys.getswitchinterval()
    begun, may_run, has_run = threading.Event(), threading.Event(), threading.Event()

    def other() -> None:
        begun.set()
        may_run.wait()
        has_run.set()

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait()
    sys.setswitchinterval(NEVER_SECONDS)
    try:
        may_run.set()
        for _ in range(MOST_CALLS):
            call()
            if has_run.is_set():
                return True
        return False
    finally:
        sys.setswitchinterval(before)
        thread.join()
