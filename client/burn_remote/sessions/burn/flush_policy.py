"""When the queued tasks of a Burn session are sent.

They are sent together: when there are many, when much memory waits to be freed on the server, when
a thread waits for a response, or else after a millisecond.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Final

from burn_remote.sessions.burn.burn_connection import BurnConnection
from burn_remote.sessions.burn.outgoing_queue import Outgoing
from burn_remote.sessions.lifetime import BATCH_TASKS, DROP_BYTES, Flushable, Flusher
from burn_remote_protocol.errors import BurnRemoteError

__all__ = ["FlushPolicy"]


class FlushPolicy:
    """Sends what a session's queue holds. ``lock`` guards both, and the order of what is issued."""

    def __init__(
        self,
        session: Flushable,
        outgoing: Outgoing,
        connection: BurnConnection,
        flusher: Flusher,
    ) -> None:
        self.lock = threading.Lock()
        self._session: Final = session
        self._flusher: Final = flusher
        self._outgoing: Final = outgoing
        self._connection: Final = connection
        self._undropped_bytes = 0
        self._is_scheduled = False

    def added(self, made_bytes: int = 0) -> None:
        """Note that something waits, which makes tensors of so many bytes. The lock is held."""
        self._undropped_bytes += made_bytes
        if len(self._outgoing) >= BATCH_TASKS or self._undropped_bytes >= DROP_BYTES:
            self.leave()
        else:
            self.leave_soon()

    def leave(self) -> None:
        """Send what waits, now. The lock is held. Raises what ended the session."""
        self._undropped_bytes = 0
        frames = self._outgoing.take()
        if frames:
            self._connection.send(frames)

    def leave_soon(self) -> None:
        """Have what waits sent within a millisecond. Lock-free: it is called by ``__del__``."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._flusher.schedule(self._session)

    def flush(self) -> None:
        """Send what waits, now. Raises what ended the session while sending."""
        with self.lock:
            if self._connection.error is None:
                self.leave()

    def flush_waiting(self) -> None:
        """Send what has waited for its millisecond."""
        self._is_scheduled = False
        # An error stays with the connection: whoever uses the session next is told.
        with contextlib.suppress(BurnRemoteError):
            self.flush()
