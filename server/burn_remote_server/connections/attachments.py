"""Which connection serves a native session at the moment, and how long may it have none?"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Any, Final

from burn_remote_protocol.errors import LimitExceeded, SessionLost
from burn_remote_protocol.messages import Acknowledged, Resume
from burn_remote_protocol.replay import ACKNOWLEDGE_EVERY
from burn_remote_server.execution.outbox import NativeOutbox
from burn_remote_server.execution.sessions import Session

__all__ = ["Attachment", "Attachments"]

# Sent and not acknowledged. A client that reads acknowledges every few frames; one that never does
# would hold arrays here that it has long dropped.
MAX_UNACKNOWLEDGED_BYTES: Final = 2**30
MAX_UNACKNOWLEDGED_FRAMES: Final = 65_536


class Attachment:
    """A native session with its outbox, its count of received frames, and its connection."""

    def __init__(self, session: Session, outbox: NativeOutbox) -> None:
        self.session: Final = session
        self.outbox: Final = outbox
        self.received = 0
        self._told = 0
        self._connection: asyncio.Task[Any] | None = None
        self._lease: asyncio.TimerHandle | None = None

    def attach(self, connection: asyncio.Task[Any], notify: Callable[[], None]) -> None:
        """Let a connection serve the session."""
        self._connection = connection
        self._told = self.received
        self.session.notify = notify

    def serves(self, connection: asyncio.Task[Any] | None) -> bool:
        """Whether this connection serves the session, and not a later one."""
        return self._connection is connection

    def detach(self, lease_seconds: float, expire: Callable[[], None]) -> None:
        """Keep the session without a connection until its client comes back or the lease ends."""
        self._connection = None
        self.session.notify = _ignore
        self._lease = asyncio.get_running_loop().call_later(lease_seconds, expire)

    async def release(self) -> None:
        """End the lease and the connection that there may be: the client has opened another."""
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cancel()
            await asyncio.wait([connection])

    def note_frame(self) -> None:
        """Count a session frame from the client."""
        self.received += 1

    def note_acknowledged(self, received: int) -> None:
        """Forget frames that the client has. Raises ``SessionLost``, ``LimitExceeded``."""
        window = self.outbox.window
        window.acknowledge(received)
        if window.bytes > MAX_UNACKNOWLEDGED_BYTES:
            allowed = MAX_UNACKNOWLEDGED_BYTES
            raise LimitExceeded("unacknowledged bytes", seen=window.bytes, allowed=allowed)
        if len(window) > MAX_UNACKNOWLEDGED_FRAMES:
            allowed = MAX_UNACKNOWLEDGED_FRAMES
            raise LimitExceeded("unacknowledged frames", seen=len(window), allowed=allowed)

    def acknowledgement(self) -> Acknowledged | None:
        """Return what to tell the client of its frames, now and then."""
        if self.received - self._told < ACKNOWLEDGE_EVERY:
            return None
        self._told = self.received
        return Acknowledged(self.received)


def _ignore() -> None:
    """Nobody needs to be told: the session has no connection."""


class Attachments:
    """All native sessions of a process, by id."""

    def __init__(self) -> None:
        self._attachments: dict[int, Attachment] = {}

    def add(self, attachment: Attachment) -> None:
        """Remember a session, so that its client can come back to it."""
        self._attachments[attachment.session.identifier] = attachment

    def forget(self, attachment: Attachment) -> None:
        """Forget a session that has ended."""
        self._attachments.pop(attachment.session.identifier, None)

    async def resume(self, resume: Resume) -> Attachment:
        """Return the session that a client comes back to, free of its old connection.

        Raises ``SessionLost`` for one that is not here, or is not this client's.
        """
        attachment = self._attachments.get(resume.session)
        # One sentence for both: whoever guesses ids learns nothing.
        if attachment is None or not hmac.compare_digest(attachment.session.secret, resume.secret):
            raise SessionLost("the server does not know this session (any more)")
        await attachment.release()
        attachment.outbox.send_again(resume.received)
        return attachment
