"""Policy for sending the queued tasks of a Burn session.

Tasks are sent in groups: when many are queued, when drops in the queue would free much memory on
the server, when a thread waits for a response, and at the latest after a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from burn_remote.sessions.burn.burn_connection import BurnConnection
from burn_remote.sessions.burn.outgoing_queue import Outgoing
from burn_remote.sessions.lifetime import BATCH_TASKS, Flushable, Flusher, flush_or_end, nested_use
from burn_remote.sessions.quick_locks import QuickLock

__all__ = ["UNSENT_BYTES", "FlushPolicy"]

# The queue is sent once its operations have produced this many bytes, so that the server soon frees
# the tensors that the queue drops. A smaller value would send more frames.
UNSENT_BYTES: Final = 4 * 1024 * 1024


class FlushPolicy:
    """Sends a session's queue. One lock guards this object, the queue, and the order of tasks."""

    def __init__(
        self,
        session: Flushable,
        outgoing: Outgoing,
        connection: BurnConnection,
        flusher: Flusher,
    ) -> None:
        self.renew_lock()
        self._session: Final = session
        self._flusher: Final = flusher
        self._outgoing: Final = outgoing
        self._connection: Final = connection
        self._undropped_bytes = 0

    def renew_lock(self) -> None:
        """Replace the lock, which another thread may have held when this process was forked."""
        lock = QuickLock()
        self._lock: AbstractContextManager[Any] = lock.held
        self.is_locked: Callable[[], bool] = lock.is_owned

    def free_lock(self) -> AbstractContextManager[Any]:
        """Return the lock. Raises ``UsageError`` if this thread holds it, so was interrupted."""
        if self.is_locked():
            raise nested_use(self._connection.address)
        return self._lock

    def added(self, made_bytes: int = 0) -> None:
        """Account for a queued task with outputs of ``made_bytes``. The caller holds the lock."""
        self._undropped_bytes += made_bytes
        if len(self._outgoing) >= BATCH_TASKS or self._undropped_bytes >= UNSENT_BYTES:
            self.send_now()
        else:
            self.send_soon()

    def send_now(self) -> None:
        """Send the queue now; the caller holds the lock. Raises the session's final error."""
        self._undropped_bytes = 0
        self._flusher.disarm()
        try:
            frames = self._outgoing.take()
            if frames:
                self._connection.send(frames)
        except BaseException:
            # Ctrl-C or a lack of memory: what the link did not take is sent with the next tasks.
            if self._connection.error is None:
                self.send_soon()
            raise

    def send_soon(self) -> None:
        """Schedule a send within a millisecond. Lock-free, because ``__del__`` calls it."""
        if self._flusher.armed is None:
            self._flusher.schedule(self._session)

    def flush(self) -> None:
        """Send the queue now. Raises the error that ended the session."""
        with self.free_lock():
            if self._connection.error is None:
                self.send_now()

    def flush_waiting(self) -> None:
        """Send the queue; the flusher calls this a millisecond after ``send_soon``."""
        flush_or_end(self.flush, self._connection.end)
