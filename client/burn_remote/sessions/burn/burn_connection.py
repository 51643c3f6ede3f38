"""The sockets of a session in one of Burn's dialects.

Burn 0.21 sends tasks on ``/request`` and responses on ``/response``; Burn 0.22 sends both on
``/session``. The dialects cannot resume a session, and a real server does not report that an
operation failed: it closes a socket, often only ``/request``. All sockets are therefore watched.
None is ever pinged, because a ping would end the session.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from burn_remote.sessions.burn.burn_version_differences import (
    USUAL_CLOSE_REASON,
    BurnRelease,
    DialRoute,
)
from burn_remote.sessions.ending import EndedOnce
from burn_remote.sessions.receiver import Receiver
from burn_remote.sessions.stack_room import check_stack_room
from burn_remote.sessions.traffic import Traffic
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ClosedDevice,
    ConnectionLost,
    ProtocolViolation,
    SessionLost,
    fresh,
)
from burn_remote_protocol.links.interface import BlockingLink

__all__ = ["BurnConnection", "DialRoute"]


class BurnConnection(EndedOnce):
    """The sockets of one session.

    ``handle`` receives each response, and ``lost`` the error that ended the session.
    """

    def __init__(
        self,
        dial: DialRoute,
        handle: Callable[[bytes], None],
        lost: Callable[[BurnRemoteError], None],
        explain: Callable[[], str],
        release: BurnRelease,
        timeout_seconds: float,
    ) -> None:
        """Open the sockets.

        Raises ``ConnectionFailed``, ``ConnectionLost``, ``HandshakeRefused``.
        """
        super().__init__()
        self.traffic: Final = Traffic()
        self._lost = lost
        self._explain = explain
        self._state_lock = threading.RLock()
        self._closing: ClosedDevice | None = None
        self._last_frames: list[bytes] | None = None  # those that ``close`` has not sent yet
        self._release: Final = release
        self._requests, self._responses, self.bool_store = release.open(dial, timeout_seconds)
        self.receiver: Final = Receiver(self._responses, handle, self._break)
        self._watcher: Final = (
            None
            if self._requests is self._responses
            else Receiver(self._requests, _refuse, self._break)
        )

    @property
    def address(self) -> str:
        """The server's address, with the route of the tasks."""
        return self._requests.address

    def runs_here(self) -> bool:
        """Return whether this thread receives."""
        watcher = self._watcher
        return self.receiver.runs_here() or (watcher is not None and watcher.runs_here())

    def start(self) -> None:
        """Watch all sockets."""
        self.receiver.start()
        if self._watcher is not None:
            self._watcher.start()

    def send(self, frames: list[bytes]) -> None:
        """Send frames in order, in few system calls. Raises the error that ended the session.

        The link removes the frames from the list when it takes them: see
        ``BlockingLink.send_together``.
        """
        check_stack_room()
        self.raise_error()
        count, size = len(frames), sum(map(len, frames))
        try:
            self._requests.send_together(frames)
        except ConnectionLost as error:
            self._break(self._requests, error)
            self.raise_error()
        self.traffic.frames_sent += count
        self.traffic.bytes_sent += size

    def raise_error(self) -> None:
        """Raise the error that ended the session, if it has ended."""
        if self.error is not None:
            raise fresh(self.error)

    def _break(self, link: BlockingLink, error: BurnRemoteError) -> None:
        is_own = isinstance(error, SessionLost) or isinstance(error.__cause__, MemoryError)
        if is_own or not isinstance(error, ConnectionLost):  # the server did not hang up
            self.end(error)
            return
        if self._closing is not None:
            self.end(self._closing)
            return
        # A server that gives a reason, such as an unknown token, did not panic.
        says_why = error.close_reason not in ("", USUAL_CLOSE_REASON)
        cause = "" if says_why else f"; {self._release.collapse}"
        lost = ConnectionLost(f"{error}{cause}{self._explain()}")
        lost.close_reason = error.close_reason
        lost.__cause__ = error
        self.end(lost)

    def _note_end(self) -> None:
        """Do nothing: the sockets have no further state."""

    def _steps_of_end(self, error: BurnRemoteError) -> Sequence[Callable[[], object]]:
        watcher = self._watcher
        return (
            self._close_links,
            partial(self._lost, error),
            self.receiver.close,
            *(() if watcher is None else (watcher.close,)),
        )

    def close(self, last_frames: Callable[[], list[bytes]]) -> None:
        """Send the last frames and a close message, and end the session.

        If Ctrl-C interrupts this or ``end``, a second call does what was left.
        """
        closed = ClosedDevice(f"this program closed its connection to {self.address}")
        if self.error is None:
            # The server hangs up when the last message arrives, which a receiver may notice first.
            self._closing = closed
            with contextlib.suppress(ConnectionLost):
                if self._last_frames is None:
                    last = self._release.frames([self._release.last_message()])
                    self._last_frames = [*last_frames(), *last]
                # The link removes the frames that it takes, so a second call sends the others.
                self._requests.send_together(self._last_frames)
        self.end(closed)
        if self.error is not None:
            self._complete_end(self.error)

    def abandon(self, error: BurnRemoteError) -> None:
        """Fail every later use in a forked child; send nothing on the sockets of its parent."""
        self.error = error
        self._ending_steps.is_complete = True
        self._state_lock = threading.RLock()

    def _close_links(self) -> None:
        for link in (self._requests, self._responses):
            link.close()


def _refuse(frame: bytes) -> None:
    raise ProtocolViolation("a frame arrived on /request, where a Burn server sends none")
