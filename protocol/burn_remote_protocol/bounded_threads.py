"""Threads whose ``start`` never waits forever.

``threading.Thread.start`` waits without a limit until the new thread says that it runs. A thread
that has no memory for its first steps never does, so the thread that started it, such as an event
loop, would hang.
"""

from __future__ import annotations

import threading
from typing import Final

from burn_remote_protocol.latches import Latch

__all__ = ["START_SECONDS", "BoundedThread"]

# A thread starts within a millisecond, or within seconds if the machine is very busy.
START_SECONDS: Final = 5.0

# Not formatted when it is raised: memory may lack then.
_NOT_STARTED: Final = (
    f"a new thread did not start within {START_SECONDS:g} seconds; the system may lack memory"
)


class _NotInTime(RuntimeError):
    """A thread did not start in time."""


class BoundedThread(threading.Thread):
    """A daemon thread whose ``start`` raises ``RuntimeError`` if it does not run in time.

    ``start`` also raises ``RuntimeError`` if the system has no thread, and ``MemoryError``. A
    thread whose ``start`` raised never calls its function, also if it begins later.
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        """Prepare a thread, as ``threading.Thread`` does."""
        super().__init__(*arguments, **{"daemon": True, **options})  # type: ignore[arg-type]
        self._started = _BoundedEvent()
        # Acquired by ``run``, or by a ``start`` that gives up: by whichever comes first.
        self._is_decided: Final = threading.Lock()

    def start(self) -> None:
        """Start the thread, and wait until it runs. Raises ``RuntimeError``, ``MemoryError``."""
        try:
            super().start()
        except (_NotInTime, MemoryError):
            # Otherwise the thread began at the end of the wait, and runs.
            if self._is_decided.acquire(blocking=False):
                raise

    def run(self) -> None:
        """Call the thread's function, unless ``start`` has given up."""
        if self._is_decided.acquire(blocking=False):
            super().run()


class _BoundedEvent(Latch):
    """An event for which nobody waits longer than ``START_SECONDS``.

    Also not if the new thread ends inside of ``set``.
    """

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the event. Raises ``RuntimeError`` if it does not happen in time."""
        if not super().wait(START_SECONDS if timeout_seconds is None else timeout_seconds):
            raise _NotInTime(_NOT_STARTED)
        return True

    def _at_fork_reinit(self) -> None:
        """Do nothing: after a fork, only the thread that forked goes on, and it was started."""
