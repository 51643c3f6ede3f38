"""What does a process do for all its sessions: flush them, forget them in a fork, end them well?"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
import weakref
from typing import Final, Protocol

__all__ = ["FLUSH_SECONDS", "Flushable", "schedule_flush", "watch"]

# How long an operation may wait for company. Larger: a server idles longer while a program thinks.
# Smaller: more frames with fewer operations.
FLUSH_SECONDS: Final = 0.001


class Flushable(Protocol):
    """A session, as far as the process-wide services know it."""

    def flush_waiting(self) -> None:
        """Send what waits. Called once for each ``schedule_flush``."""
        ...

    def close(self) -> None:
        """End it in order."""
        ...

    def abandon_after_fork(self) -> None:
        """Make every use in this child process an error; touch neither locks nor the socket."""
        ...


# SimpleQueue.put may be called from __del__, even in a thread that is inside it: nothing else here
# may.
_waiting: queue.SimpleQueue[Flushable | None] = queue.SimpleQueue()
_watched: weakref.WeakSet[Flushable] = weakref.WeakSet()
_start: threading.Lock = threading.Lock()
_thread: threading.Thread | None = None


def watch(session: Flushable) -> None:
    """Flush this session when it asks, close it at exit, abandon it in forked children."""
    global _thread
    with _start:
        _watched.add(session)
        if _thread is None:
            _thread = threading.Thread(target=_flush_waiting, name="burn-remote-flush", daemon=True)
            _thread.start()


def schedule_flush(session: Flushable) -> None:
    """Have a session flushed ``FLUSH_SECONDS`` from now. Never blocks; safe in ``__del__``."""
    _waiting.put(session)


def _flush_waiting() -> None:
    while (session := _waiting.get()) is not None:
        time.sleep(FLUSH_SECONDS)
        session.flush_waiting()
        # Those that asked meanwhile go now: each sleeping in turn would add up.
        for _ in range(_waiting.qsize()):
            if (session := _waiting.get()) is None:
                return
            session.flush_waiting()
        session = None  # or the last session would stay alive until the next one asks


def _close_all() -> None:
    for session in [*_watched]:
        with contextlib.suppress(Exception):  # the interpreter is ending; nobody can act on it
            session.close()
    _waiting.put(None)


def _after_fork() -> None:
    global _thread, _waiting, _start
    _thread, _waiting, _start = None, queue.SimpleQueue(), threading.Lock()
    for session in [*_watched]:
        session.abandon_after_fork()
    _watched.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
