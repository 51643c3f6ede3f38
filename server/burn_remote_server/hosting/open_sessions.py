"""The sessions of a process: those that are open, and those that have ended but still work."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Final

from burn_remote_protocol.errors import HandshakeRefused
from burn_remote_server.execution.sessions import Session

__all__ = ["OpenSessions"]


class OpenSessions:
    """The sessions of a process by number. Belongs to the event loop's thread."""

    def __init__(self, limit: int) -> None:
        self._limit: Final = limit
        self._open: dict[int, Session] = {}
        # Sessions that were ended because of an operation that has still not returned.
        self._stuck: set[Session] = set()
        # Sessions that were removed while their thread was busy.
        self._ending: set[Session] = set()
        self.lost_operations = 0

    @property
    def stuck(self) -> int:
        """Number of operations that were given up and have not returned yet."""
        return len(self._stuck)

    def give_up_stuck(self, seconds: float) -> None:
        """End sessions whose operations do not return; ``seconds`` passed since the last call."""
        self._stuck = {session for session in self._stuck if session.queued}
        for session in self:
            if session.give_up_if_stuck(seconds):
                self._stuck.add(session)
                self.lost_operations += 1

    def end_dead(self) -> None:
        """End sessions whose threads have died, and notify the connections of failed ones again.

        An earlier notice may be lost.
        """
        for ended in self._ending:
            ended.fail_if_dead()
        for session in self:
            session.fail_if_dead()
            if session.error is not None:
                session.notify()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Session]:
        return iter([*self._open.values()])

    def __contains__(self, identifier: int) -> bool:
        """Return whether a session with this number is open. Any thread may call this."""
        return identifier in self._open

    def draw_id(self) -> int:
        """Return an id for a new session. Raises ``HandshakeRefused`` if too many are open."""
        ended = len(self._busy_ended())
        if len(self._open) + ended >= self._limit:
            busy = f" ({ended} of them ended, but their operations have not returned)"
            raise HandshakeRefused(
                f"the server has {self._limit} open sessions{busy if ended else ''}, its maximum; "
                "try again later"
            )
        return secrets.randbits(63)

    def count_of(self, token: str) -> int:
        """Return how many sessions of a token are open, or ended with a thread that is busy."""
        return sum(session.token == token for session in (*self, *self._busy_ended()))

    def _busy_ended(self) -> set[Session]:
        """Return the sessions that have ended and whose operations have not returned.

        Their threads cannot be stopped. If they did not count, a client that closes its sessions
        during long operations could occupy any number of threads.
        """
        self._ending = {session for session in self._ending if session.is_working}
        return self._ending

    def add(self, session: Session) -> None:
        """Add an open session."""
        self._open[session.identifier] = session

    def remove(self, session: Session) -> None:
        """Remove and end a session."""
        if self._open.pop(session.identifier, None) is not None:
            session.end()
            if session.is_working:
                self._ending.add(session)
