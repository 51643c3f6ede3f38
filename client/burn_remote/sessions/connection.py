"""How do frames get to the server and back, even if the connection breaks in between?

Every session frame is kept until the server has it. When the link breaks, a thread of its own dials
again within the session's lease, tells the server what arrived, and sends the rest again; the
program notices nothing but time. Two locks: one keeps the order of sending and may be held for
long, one guards the window and never is, so that receiving never waits for sending.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Final

from burn_remote.sessions.receiving import Receiver
from burn_remote.sessions.traffic import Traffic
from burn_remote_protocol.dialects.native import VERSIONS, decode_frame, encode_frame
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ClosedDevice,
    ConnectionFailed,
    ConnectionLost,
    SessionLost,
)
from burn_remote_protocol.handshake import accepted
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.messages import Acknowledged, Closing, Hello, Resume, Welcome
from burn_remote_protocol.replay import ACKNOWLEDGE_EVERY, REPLAY_BYTES, ReplayWindow

__all__ = ["Connection", "Dial"]

Dial = Callable[[float], BlockingLink]
Parts = tuple[bytes, bytes | None]

CLIENT_NAME: Final = "burn_remote (Python)"

# Pauses between attempts to connect again, doubled each time and drawn at random up to that.
# Longer: a short break costs more. Shorter: many clients of a restarted server all come at once.
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 2.0
# A port that refuses connections this long belongs to no server any more: sessions live in a
# server's process, so there is nothing to come back to. Longer: a dead server is told later.
REFUSED_SECONDS: Final = 0.5
ATTEMPT_SECONDS: Final = 10.0


class Connection:
    """One session's connection. ``handle`` gets each frame, ``lost`` the error that ended it."""

    def __init__(
        self,
        dial: Dial,
        token: str | None,
        timeout_seconds: float,
        handle: Callable[[bytes], None],
        lost: Callable[[BurnRemoteError], None],
    ) -> None:
        self.traffic: Final = Traffic()
        self.error: BurnRemoteError | None = None
        self._dial = dial
        self._token = token
        self._lost = lost
        self._sending = threading.Lock()
        self._window: ReplayWindow[Parts] = ReplayWindow()
        self._changed = threading.Condition()  # guards the window, the link's state and the error
        self._connected = True
        self._received = 0
        self._told = 0
        self._link, self.welcome = self._open(timeout_seconds, None)
        self.receiver: Final = Receiver(self._link, handle, self._break)

    @property
    def address(self) -> str:
        """The server's address."""
        return self._link.address

    def take_received(self) -> int:
        """Return the session frames received so far, for a frame that tells the server."""
        self._told = self._received
        return self._received

    @property
    def acknowledgement_due(self) -> bool:
        """Whether the server should be told soon what has arrived."""
        return self._received - self._told >= ACKNOWLEDGE_EVERY

    def note_received(self) -> None:
        """Count a session frame."""
        self._received += 1

    def note_acknowledged(self, received: int) -> None:
        """Forget what the server has. Raises ``SessionLost`` for an impossible number."""
        with self._changed:
            self._window.acknowledge(received)
            self._changed.notify_all()

    # -- sending ------------------------------------------------------------------------------

    def send(self, frame: bytes, payload: memoryview | None = None) -> None:
        """Send a session frame, or keep it until the connection is back.

        Blocks while the window is full: that is the backpressure. Raises the connection's error
        once it has ended for good.
        """
        while not self._send_if_room(frame, payload):
            # Not under the sending lock: whoever brings the connection back, and so makes room,
            # needs that.
            with self._changed:
                self._changed.wait_for(self._has_room)

    def _has_room(self) -> bool:
        return self.error is not None or self._window.bytes < REPLAY_BYTES

    def _send_if_room(self, frame: bytes, payload: memoryview | None) -> bool:
        size = len(frame) + (len(payload) if payload is not None else 0)
        with self._sending:
            with self._changed:
                self._raise_error()
                if not self._has_room():
                    return False
                if self._resumable:
                    kept = None if payload is None else payload.tobytes()
                    self._window.append((frame, kept), size)
                connected = self._connected
            self.traffic.frames_sent += 1
            self.traffic.bytes_sent += size
            if connected:
                self._pass_on(self._link, frame, payload)
        return True

    def acknowledge(self) -> None:
        """Tell the server what has arrived, in a frame of its own."""
        with self._sending:
            if self.error is None and self._connected:
                frame = encode_frame(Acknowledged(self.take_received()))
                self._pass_on(self._link, frame, None)

    def _pass_on(self, link: BlockingLink, frame: bytes, payload: memoryview | None) -> None:
        try:
            if payload is None:
                link.send(frame)
            else:
                link.send_parts(frame, payload)
        except ConnectionLost as error:
            # The frame is in the window: it goes out again when the connection is back.
            self._break(link, error)

    @property
    def _resumable(self) -> bool:
        return self.welcome.lease_seconds > 0

    # -- breaking and coming back -------------------------------------------------------------

    def _break(self, link: BlockingLink, error: BurnRemoteError) -> None:
        """Note that a link broke; come back if possible. Any thread, any number of times."""
        with self._changed:
            if self.error is not None or not self._connected or link is not self._link:
                return
            self._connected = False
        comes_back = isinstance(error, ConnectionLost) and not isinstance(error, SessionLost)
        if not comes_back or not self._resumable:
            self.end(error)
        else:
            threading.Thread(
                target=self._come_back, args=(error,), name="burn-remote-reconnect", daemon=True
            ).start()

    def _come_back(self, cause: BurnRemoteError) -> None:
        self._link.close()
        deadline = time.monotonic() + self.welcome.lease_seconds
        refused_since: float | None = None
        pause = FIRST_PAUSE_SECONDS
        while self.error is None:
            try:
                self._resume(deadline)
                return
            except ConnectionFailed as error:
                now = time.monotonic()
                if not isinstance(error.__cause__, ConnectionRefusedError):
                    refused_since = None
                elif refused_since is None:
                    refused_since = now
                elif now - refused_since >= REFUSED_SECONDS:
                    self.end(ConnectionLost(f"{cause}; nothing listens there any more"))
                    return
            except SessionLost as error:
                self.end(error)
                return
            except ConnectionLost:
                refused_since = None
            except BurnRemoteError as error:
                self.end(SessionLost(f"{cause}; the server will not go on: {error}"))
                return
            if time.monotonic() >= deadline:
                self.end(
                    SessionLost(
                        f"{cause}; it did not come back within its lease of "
                        f"{self.welcome.lease_seconds:g} seconds"
                    )
                )
                return
            with self._changed:
                self._changed.wait(random.uniform(0, pause))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _resume(self, deadline: float) -> None:
        timeout = max(0.1, min(ATTEMPT_SECONDS, deadline - time.monotonic()))
        resume = Resume(self.welcome.session, self.welcome.secret, self._received)
        link, welcome = self._open(timeout, resume)
        with self._sending:
            with self._changed:
                self._window.acknowledge(welcome.received)
                again = [*self._window.frames()]
                if self.error is not None:
                    link.close()
                    return
                self._link = link
                self._told = self._received
                self._connected = True
            # Receiving starts first: the server may have to send before it can read all of this.
            self.receiver.use(link)
            for frame, payload in again:
                self._pass_on(link, frame, memoryview(payload) if payload is not None else None)
        with self._changed:
            self._changed.notify_all()

    def _open(self, timeout_seconds: float, resume: Resume | None) -> tuple[BlockingLink, Welcome]:
        link = self._dial(timeout_seconds)
        try:
            hello = Hello(VERSIONS, token=self._token, resume=resume, client=CLIENT_NAME)
            link.send(encode_frame(hello))
            answer = link.receive(timeout_seconds)
            if answer is None:
                raise ConnectionLost(
                    f"{link.address} did not answer the handshake within "
                    f"{timeout_seconds:g} seconds"
                )
            welcome = accepted(decode_frame(answer), VERSIONS)
            if heartbeat := welcome.limits.get("heartbeat_milliseconds"):
                link.keep_alive(heartbeat / 1000)
            return link, welcome
        except BaseException:
            link.close()
            raise

    # -- the end ------------------------------------------------------------------------------

    def end(self, error: BurnRemoteError) -> None:
        """End the connection for good. A second time does nothing."""
        with self._changed:
            if self.error is not None:
                return
            self.error = error
            self._connected = False
            self._changed.notify_all()
        self._link.close()
        self._lost(error)
        self.receiver.close()

    def close(self) -> None:
        """Say goodbye, so that the server need not wait for this client to come back, and end."""
        with contextlib.suppress(BurnRemoteError), self._sending:
            if self.error is None and self._connected:
                self._link.send(encode_frame(Closing(ClosedDevice("the client closed the device"))))
        self.end(ClosedDevice(f"the device at {self.address} was closed"))

    def abandon(self, error: BurnRemoteError) -> None:
        """Fail from now on; touch neither the locks nor the socket, which the parent still uses."""
        self.error = error
        self._sending = threading.Lock()
        self._changed = threading.Condition()

    def _raise_error(self) -> None:
        if self.error is not None:
            raise fresh(self.error)


def fresh(error: BurnRemoteError) -> BurnRemoteError:
    """Return an error like this one: each raise gets a traceback of its own."""
    # Not by calling the class: some take keywords that are no arguments of the exception.
    again = error.__class__.__new__(error.__class__, *error.args)
    again.__dict__.update(error.__dict__)
    again.__cause__ = error.__cause__
    return again
