"""Native sessions, each with the connection that serves it or the lease that keeps it alive.

The state machine is in ``protocol/…/session_states.py``; this module performs its actions.
All methods run on the event loop. A resume never waits, so concurrent resumes happen one after the
other, and the last one wins.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Any, Final

from burn_remote_protocol.errors import LimitExceeded, SessionLost
from burn_remote_protocol.messages import Acknowledged, Resume
from burn_remote_protocol.session_states import Action, Event, Role, SessionEnd, State
from burn_remote_server.dialects.native.frame_writer import FrameWriter
from burn_remote_server.execution.native_outbox import Frame, NativeOutbox
from burn_remote_server.execution.sessions import Session

__all__ = ["Attachment", "Attachments"]

# Limits of the replay window. Clients acknowledge every few frames. Without limits, a client that
# never acknowledges would keep dropped arrays alive.
MAX_UNACKNOWLEDGED_BYTES: Final = 2**30
MAX_UNACKNOWLEDGED_FRAMES: Final = 65_536


class Attachment:
    """A native session with its outbox, its frame counters, and the connection that serves it.

    ``free`` ends the session; it is called once.
    """

    def __init__(
        self, session: Session, outbox: NativeOutbox, free: Callable[[Attachment], None]
    ) -> None:
        self.session: Final = session
        self.outbox: Final = outbox
        self._free: Final = free
        self._end: Final[SessionEnd[Frame]] = SessionEnd(Role.SERVER, outbox.window)
        self._end.fire(Event.OPENED)
        # Counts a session frame from the client, with the number of its link.
        self.note_frame: Final = self._end.receive
        self.note_chunk: Final = self._end.note_chunk
        self._connection: asyncio.Task[Any] | None = None
        self._writer: FrameWriter | None = None
        self._lease: asyncio.TimerHandle | None = None

    @property
    def received(self) -> int:
        """Session frames received from the client."""
        return self._end.received

    def attach(self, connection: asyncio.Task[Any], writer: FrameWriter) -> int:
        """Attach the session to a connection; return the number of its link."""
        self._connection = connection
        self._writer = writer
        self._end.take_received()
        self.session.notify = writer.wake
        return self._end.link

    def resume(self, received: int) -> None:
        """Detach the session from its connection or lease, so that a new connection can resume it.

        Raises ``SessionLost``, changing nothing, if the session cannot be resumed.
        """
        actions = self._end.resumed(received)
        self._end.begin_link()
        if Action.STOP_LEASE in actions:
            self._stop_lease()
        if Action.CLOSE_LINK in actions:
            self._close_link()
        if Action.REPLAY in actions:
            self.outbox.replay()

    def serves(self, link: int) -> bool:
        """Whether the link with this number still serves the session."""
        return link == self._end.link

    def detach(self, link: int, lease_seconds: float) -> None:
        """Keep the session without a connection until it is resumed or the lease expires.

        If its client has sent ``Closing``, keep it only until its queued work is done.
        """
        if Action.START_LEASE not in self._end.broke(link):
            return
        self._close_link()
        try:
            self._lease = asyncio.get_running_loop().call_later(lease_seconds, self._expire)
        except MemoryError:
            self._expire()  # without a lease, the session would never end
            return
        if self.is_leaving:
            self.session.notify = self._finish_if_idle
            self._finish_if_idle()

    def close(self, link: int) -> None:
        """End the session, if the link with this number serves it."""
        if self.serves(link):
            self._perform(self._end.fire(Event.CLOSE))

    def leave(self) -> None:
        """Record that the client sent ``Closing``, so the session can no longer be resumed."""
        self._end.fire(Event.CLOSING)

    @property
    def is_leaving(self) -> bool:
        """Whether the client has sent ``Closing``, and its work is not done."""
        return self._end.state is State.LEAVING

    def _finish_if_idle(self) -> None:
        if not self.session.queued or self.session.error is not None:
            self._perform(self._end.fire(Event.FINISHED))

    def _expire(self) -> None:
        self._perform(self._end.fire(Event.EXPIRED))

    def _perform(self, actions: Action) -> None:
        if Action.STOP_LEASE in actions:
            self._stop_lease()
        if Action.FREE in actions:
            self._free(self)

    def _stop_lease(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None

    def _close_link(self) -> None:
        """Cancel the connection that serves the session; its handler closes the link."""
        self.session.notify = _ignore
        if self._writer is not None:
            # Now, because the writer would send frames on the old link until its task has ended.
            self._writer.stop()
            self._writer = None
        if self._connection is not None and self._connection is not asyncio.current_task():
            self._connection.cancel()
        self._connection = None

    def check_acknowledged(self, received: int) -> None:
        """Check what a client acknowledges, before ``note_acknowledged``.

        Raises ``ProtocolViolation``.
        """
        self.outbox.window.check(received)

    def note_acknowledged(self, received: int) -> None:
        """Remove acknowledged frames from the replay window.

        Raises ``ProtocolViolation``, ``LimitExceeded``.
        """
        window = self.outbox.window
        window.acknowledge(received)
        if window.bytes > MAX_UNACKNOWLEDGED_BYTES:
            allowed = MAX_UNACKNOWLEDGED_BYTES
            raise LimitExceeded("unacknowledged bytes", seen=window.bytes, allowed=allowed)
        if window.sent - window.acknowledged > MAX_UNACKNOWLEDGED_FRAMES:
            allowed = MAX_UNACKNOWLEDGED_FRAMES
            raise LimitExceeded("unacknowledged frames", seen=len(window), allowed=allowed)

    @property
    def owes_acknowledgement(self) -> bool:
        """Whether an acknowledgement is due."""
        return self._end.owes_acknowledgement

    def acknowledgement(self) -> Acknowledged:
        """Return an acknowledgement of the client's frames."""
        return Acknowledged(self._end.take_received())


def _ignore() -> None:
    """Do nothing: no connection serves the session."""


class Attachments:
    """All native sessions of a process, by id."""

    def __init__(self) -> None:
        self._attachments: dict[int, Attachment] = {}

    def add(self, attachment: Attachment) -> None:
        """Register a session, so that its client can resume it."""
        self._attachments[attachment.session.identifier] = attachment

    def forget(self, attachment: Attachment) -> None:
        """Remove a session that has ended."""
        self._attachments.pop(attachment.session.identifier, None)

    def resume(self, resume: Resume, token: str) -> Attachment:
        """Return the session that a client resumes, detached from its old connection.

        ``token`` is the name of the token that the client presents. Raises ``SessionLost`` if the
        session is unknown, belongs to another client, or cannot be resumed.
        """
        attachment = self._attachments.get(resume.session)
        # One error for all cases, so that a client that guesses ids learns nothing.
        if (
            attachment is None
            or not hmac.compare_digest(attachment.session.secret, resume.secret)
            or attachment.session.token != token
        ):
            raise SessionLost("the server does not know this session, or it has ended")
        attachment.resume(resume.received)
        return attachment
