"""Native sessions, each with the connection that serves it or the lease that keeps it.

``protocol/…/session_states.py`` decides what happens; this module performs it. Everything here runs
on the event loop, and taking a session over from another connection never waits: so resumes that
overlap are carried out one after the other, and the last one wins.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Any, Final

from burn_remote_protocol.errors import LimitExceeded, SessionLost
from burn_remote_protocol.messages import Acknowledged, Resume
from burn_remote_protocol.session_states import Duty, Event, Role, SessionEnd
from burn_remote_server.dialects.native.frame_writer import FrameWriter
from burn_remote_server.execution.outbox import Frame, NativeOutbox
from burn_remote_server.execution.sessions import Session

__all__ = ["Attachment", "Attachments"]

# What may be sent and not acknowledged. A client that reads acknowledges every few frames; one that
# never does would hold arrays here that it has long dropped.
MAX_UNACKNOWLEDGED_BYTES: Final = 2**30
MAX_UNACKNOWLEDGED_FRAMES: Final = 65_536


class Attachment:
    """A native session with its outbox, its counts of frames, and the connection that serves it.

    ``free`` drops the session; it is called once.
    """

    def __init__(
        self, session: Session, outbox: NativeOutbox, free: Callable[[Attachment], None]
    ) -> None:
        self.session: Final = session
        self.outbox: Final = outbox
        self._free: Final = free
        self._end: Final[SessionEnd[Frame]] = SessionEnd(Role.SERVER, outbox.window)
        self._end.fire(Event.OPENED)
        self._connection: asyncio.Task[Any] | None = None
        self._writer: FrameWriter | None = None
        self._lease: asyncio.TimerHandle | None = None

    @property
    def received(self) -> int:
        """Session frames received from the client."""
        return self._end.received

    def attach(self, connection: asyncio.Task[Any], writer: FrameWriter) -> int:
        """Let a connection serve the session; return the number of its link."""
        self._connection = connection
        self._writer = writer
        self._end.take_received()
        self.session.notify = writer.wake
        return self._end.link

    def resume(self, received: int) -> None:
        """Take the session away from its connection or its lease, for the one that resumes it.

        Raises ``SessionLost`` and changes nothing where that cannot succeed.
        """
        duty = self._end.resumed(received)
        self._end.begin_link()
        if Duty.STOP_LEASE in duty:
            self._stop_lease()
        if Duty.HANG_UP in duty:
            self._hang_up()
        if Duty.REPLAY in duty:
            self.outbox.replay()

    def serves(self, link: int) -> bool:
        """Whether the link with this number serves the session, and no later one."""
        return link == self._end.link

    def detach(self, link: int, lease_seconds: float) -> None:
        """Keep the session without a connection until its client resumes it or the lease ends."""
        if Duty.START_LEASE not in self._end.broke(link):
            return
        self._hang_up()
        self._lease = asyncio.get_running_loop().call_later(lease_seconds, self._expire)

    def close(self, link: int) -> None:
        """End the session, if the link with this number serves it."""
        if self.serves(link):
            self._perform(self._end.fire(Event.CLOSE))

    def leave(self) -> None:
        """Note that the client said ``Closing``: nobody can resume the session any more."""
        self._end.fire(Event.CLOSING)

    def _expire(self) -> None:
        self._perform(self._end.fire(Event.EXPIRED))

    def _perform(self, duty: Duty) -> None:
        if Duty.STOP_LEASE in duty:
            self._stop_lease()
        if Duty.FREE in duty:
            self._free(self)

    def _stop_lease(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None

    def _hang_up(self) -> None:
        """Stop the connection that serves the session; it closes its link by itself."""
        self.session.notify = _ignore
        if self._writer is not None:
            # At once: a frame that it took from now on would go to the old link only.
            self._writer.stop()
            self._writer = None
        if self._connection is not None and self._connection is not asyncio.current_task():
            self._connection.cancel()
        self._connection = None

    def note_frame(self, link: int) -> None:
        """Count a session frame from the client."""
        self._end.receive(link)

    def note_acknowledged(self, received: int) -> None:
        """Forget frames that the client has. Raises ``ProtocolViolation``, ``LimitExceeded``."""
        self._end.acknowledge(received)
        window = self.outbox.window
        if window.bytes > MAX_UNACKNOWLEDGED_BYTES:
            allowed = MAX_UNACKNOWLEDGED_BYTES
            raise LimitExceeded("unacknowledged bytes", seen=window.bytes, allowed=allowed)
        if len(window) > MAX_UNACKNOWLEDGED_FRAMES:
            allowed = MAX_UNACKNOWLEDGED_FRAMES
            raise LimitExceeded("unacknowledged frames", seen=len(window), allowed=allowed)

    @property
    def owes_acknowledgement(self) -> bool:
        """Whether the client should be told what has arrived."""
        return self._end.owes_acknowledgement

    def acknowledgement(self) -> Acknowledged:
        """Return what tells the client how many of its frames have arrived."""
        return Acknowledged(self._end.take_received())


def _ignore() -> None:
    """Do nothing: no connection serves the session."""


class Attachments:
    """All native sessions of a process, by id."""

    def __init__(self) -> None:
        self._attachments: dict[int, Attachment] = {}

    def add(self, attachment: Attachment) -> None:
        """Remember a session, so that its client can resume it."""
        self._attachments[attachment.session.identifier] = attachment

    def forget(self, attachment: Attachment) -> None:
        """Forget a session that has ended."""
        self._attachments.pop(attachment.session.identifier, None)

    def resume(self, resume: Resume, token: str) -> Attachment:
        """Return the session that a client resumes, free of its old connection.

        ``token`` is the name of the token that the client presents. Raises ``SessionLost`` for a
        session that is not here, is not this client's, or cannot be resumed.
        """
        attachment = self._attachments.get(resume.session)
        # One sentence for all three, so that whoever guesses ids learns nothing.
        if (
            attachment is None
            or not hmac.compare_digest(attachment.session.secret, resume.secret)
            or attachment.session.token != token
        ):
            raise SessionLost("the server does not know this session (any more)")
        attachment.resume(resume.received)
        return attachment
