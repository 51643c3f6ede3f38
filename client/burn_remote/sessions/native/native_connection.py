"""The client's end of a session: sends frames, and resumes over a new link after a break.

``protocol/…/session_states.py`` decides what happens; this module performs it. When the link
breaks, a thread dials again within the session's lease and tells the server which frames arrived.
Then it sends the frames again that the server did not receive. The program notices only a delay.

Two locks: ``_sending`` keeps the order of what is sent and may be held while a send blocks.
``_state_lock`` guards the state and is never held across I/O, so receiving never waits for sending.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from burn_remote.sessions.ending import EndedOnce
from burn_remote.sessions.lifetime import nested_use
from burn_remote.sessions.native.link_opening import Dial, open_link, send_closing
from burn_remote.sessions.native.nested_calls import NestedCalls
from burn_remote.sessions.native.resume_attempts import OPEN_AGAIN, ResumeAttempts
from burn_remote.sessions.native.reused_memory import ReusedMemory
from burn_remote.sessions.quick_locks import QuickLock
from burn_remote.sessions.receiver import Receiver
from burn_remote.sessions.stack_room import check_stack_room
from burn_remote.sessions.traffic import Traffic
from burn_remote_protocol.dialects.native import (
    CHUNK_BYTES,
    LARGE_CHUNK_BYTES,
    UPLOAD_CHUNK_BYTES,
    encode_frame,
)
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ClosedDevice,
    ConnectionLost,
    GarbledBytes,
    LimitExceeded,
    SessionLost,
    fresh,
)
from burn_remote_protocol.links.checksummed_links import HEADER_BYTES, CheckedLink
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.messages import Acknowledged, Resume, Welcome
from burn_remote_protocol.session_states import (
    REPLAY_BYTES,
    Action,
    Event,
    Handover,
    Role,
    SessionEnd,
    State,
)
from burn_remote_protocol.signal_exceptions import is_of_signal_handler
from burn_remote_protocol.waiters import Waiters

__all__ = ["Connection"]

_logger: Final = logging.getLogger("burn_remote")

Parts = tuple[bytes, memoryview | None]

# How long closing tries to tell a busy server to skip its work. A server that it does not reach
# skips the work when the lease expires.
DISCARD_SECONDS: Final = 2.0


def _nothing() -> None:
    """Do nothing."""


def _never() -> bool:
    return False


class Connection(EndedOnce):
    """One session's connection.

    ``handle(link, frame)`` is called with each frame and the number of its link, and ``lost`` with
    the error that ended the session. A thread that must not send calls ``due``, so that another
    thread calls ``acknowledge`` soon. ``nested`` learns when a thread sends.
    """

    def __init__(
        self,
        dial: Dial,
        token: str | None,
        timeout_seconds: float,
        handle: Callable[[int, bytes | memoryview], None],
        lost: Callable[[BurnRemoteError], None],
        due: Callable[[], None] = _nothing,
        nested: NestedCalls | None = None,
    ) -> None:
        super().__init__()
        self.traffic: Final = Traffic()
        self._dial = dial
        self._token = token
        self._lost = lost
        self._due = due
        self._beat_due = False
        self._is_leaving = False  # whether ``Closing`` has been sent, or is being sent
        # How to send ``Closing`` over a new link, until ``discard`` has done so.
        self._farewell: Resume | None = None
        self._resuming: int | None = None  # the thread that resumes the session
        self._renew_locks()
        self._nested: Final = nested or NestedCalls(_never)
        self._end: SessionEnd[Parts] = SessionEnd(Role.CLIENT)
        self._link, self.welcome = open_link(dial, token, timeout_seconds, None, self._beat)
        try:
            self._is_resumable: Final = self.welcome.lease_seconds > 0
            # The size of an upload's chunks. A server that does not announce its limit accepts the
            # chunks that servers themselves send.
            announced = self.welcome.limits.get("chunk_bytes", CHUNK_BYTES)
            size = max(1, min(UPLOAD_CHUNK_BYTES, announced))
            self.chunk_bytes: Final = size
            # The size of chunks over a fast connection: several of the others, or one.
            large = max(size, min(LARGE_CHUNK_BYTES, announced) // size * size)
            self.large_chunk_bytes: Final = large
            # Memory of the copies of chunks in the replay window, together at most as much as it
            # has room for.
            kept_bytes = REPLAY_BYTES // 4 if large > size else REPLAY_BYTES
            self.copies: Final = ReusedMemory(size, size, kept_bytes // size)
            kept_bytes = REPLAY_BYTES - kept_bytes
            self.large_copies: Final = ReusedMemory(
                large, large, kept_bytes // large, in_huge_pages=True
            )
            self._end.fire(Event.OPENED)
            self._handle = handle
            self.receiver: Final = Receiver(self._link, self._handler(), self._break)
            self._nested.add(self._is_sending, self.receiver.is_receiving)
        except BaseException:  # Ctrl-C
            send_closing(self._link)
            self._link.close()
            raise

    def _renew_locks(self) -> None:
        # Re-entrant only to know its owner; see ``NestedCalls``.
        sending = QuickLock()
        self._sending = sending.held
        self._is_sending = sending.is_owned
        # Guards ``_end``, ``_link`` and ``error``.
        state = QuickLock()
        self._state_lock = state.held
        self._changed = Waiters()

    @property
    def address(self) -> str:
        """The server's address."""
        return self._link.address

    @property
    def _is_attached(self) -> bool:
        return self._end.state is State.ATTACHED

    def _handler(self) -> Callable[[bytes | memoryview], None]:
        """Return the handler for frames of the newest link."""
        handle, link = self._handle, self._end.link

        def handle_frame(frame: bytes | memoryview) -> None:
            handle(link, frame)  # not by ``partial``, which takes longer to call Python code

        return handle_frame

    def runs_here(self) -> bool:
        """Return whether this thread is inside of a call of this connection."""
        return (
            self._nested.while_sending()
            or self.receiver.runs_here()
            or self._resuming == threading.get_ident()
        )

    def take_received(self) -> int:
        """Return the number of session frames received, for a frame that acknowledges them."""
        return self._end.take_received()

    @property
    def acknowledgement_due(self) -> bool:
        """Whether ``acknowledge`` should be called soon."""
        end = self._end
        # ``owes_acknowledgement`` written out, because each reply asks this.
        return self._beat_due or end.received >= end.due_at

    @property
    def received(self) -> int:
        """The number of session frames received so far."""
        return self._end.received

    def note_received(self, link: int) -> bool:
        """Count a session frame. Returns ``False`` to ignore it: a later link delivers it again."""
        with self._state_lock:
            return self._end.receive(link)

    def note_acknowledged(self, received: int) -> None:
        """Discard frames that the server has received.

        Raises ``ProtocolViolation`` if it acknowledges more frames than were sent.
        """
        if self._is_resumable:
            with self._state_lock:
                self._end.acknowledge(received)
                self._changed.wake()

    # -- sending ------------------------------------------------------------------------------

    def send(
        self,
        frame: bytes,
        payload: memoryview | None = None,
        handover: Handover | None = None,
    ) -> None:
        """Send a session frame, or keep it until the connection is back.

        Blocks while the replay window is full, which gives the program backpressure. After an
        interrupt, ``handover.is_done`` is true if the frame counts as sent: then it arrives exactly
        once, otherwise never.

        Raises the session's error once it has ended. A frame longer than the server accepts ends
        the session with ``LimitExceeded``: the server would close the connection each time the
        frame is sent. ``UsageError`` if this thread is sending, and was interrupted.
        """
        check_stack_room()
        if self._is_sending():
            raise nested_use(self.address)
        size = len(frame) if payload is None else len(frame) + len(payload)
        allowed = self.welcome.limits.get("message_bytes")
        if allowed is not None and HEADER_BYTES + size > allowed:
            limit = "bytes in one message to this server (its max_message_bytes)"
            error = LimitExceeded(limit, seen=HEADER_BYTES + size, allowed=allowed)
            self.end(error)
            raise fresh(error)
        if handover is None:
            handover = Handover()
        if not (self._is_resumable or isinstance(self._link, CheckedLink)):
            self._hand_over(frame if payload is None else frame + payload, handover)
            return
        while not self._send_if_room(frame, payload, size, handover):
            # Not under the sending lock, because resuming, which makes room, needs it.
            self._changed.wait_until(self._has_room)

    def _hand_over(self, frame: bytes, handover: Handover) -> None:
        """Send a frame over a link that is not replaced: it takes the frame as a whole or not."""
        nested = self._nested
        with self._sending:
            nested.check = nested.while_sending
            try:
                if self.error is not None:
                    raise fresh(self.error)
                frames = [frame]
                try:
                    self._link.send_together(frames)
                except ConnectionLost as error:
                    self._break(self._link, error)
                finally:
                    # CPython runs no signal handler when a function in Python returns.
                    handover.is_done = not frames
                self.traffic.frames_sent += 1
                self.traffic.bytes_sent += len(frame)
            finally:
                nested.check = nested.inside

    def _has_room(self) -> bool:
        return self.error is not None or self._end.window.bytes < REPLAY_BYTES

    def _send_if_room(
        self, frame: bytes, payload: memoryview | None, size: int, handover: Handover
    ) -> bool:
        end, nested = self._end, self._nested
        with self._sending:
            nested.check = nested.while_sending
            link = self._link
            is_passed_on = False
            try:
                with self._state_lock:
                    if self.error is not None:
                        raise fresh(self.error)
                    if end.window.bytes >= REPLAY_BYTES:
                        return False
                    if self._is_resumable:
                        kept = None
                        if payload is not None:
                            # The copy is what is checked and sent: a program may change its array
                            # while another thread sends it.
                            is_large = len(payload) > self.chunk_bytes
                            copies = self.large_copies if is_large else self.copies
                            kept = copies.allocate(len(payload))
                            np.copyto(
                                np.frombuffer(kept, np.uint8), np.frombuffer(payload, np.uint8)
                            )
                            payload = kept
                        end.window.append((frame, kept), size, handover)
                    is_attached = end.state is State.ATTACHED
                    link = self._link
                traffic = self.traffic
                traffic.frames_sent += 1
                traffic.bytes_sent += size
                handover.is_done = True
                if is_attached:
                    self._pass_on(link, frame, payload)
                is_passed_on = True
            except BurnRemoteError:
                raise
            except BaseException:
                # Ctrl-C: it is unknown how much of the frame was sent. A new link sends it again
                # from the window, unless the server has it.
                if handover.is_done and not is_passed_on:
                    self._interrupted(link)
                raise
            finally:
                nested.check = nested.inside
        return True

    def _interrupted(self, link: BlockingLink) -> None:
        reason = f"the program was interrupted while it sent to {link.address}"
        self._break(link, ConnectionLost(reason))

    def acknowledge(self) -> None:
        """Send an acknowledgement frame, except inside of another frame that this thread sends."""
        if self._is_sending():
            return
        nested = self._nested
        with self._sending:
            nested.check = nested.while_sending
            try:
                self._beat_due = False
                if self._is_attached:
                    frame = encode_frame(Acknowledged(self.take_received()))
                    self._pass_on(self._link, frame, None)
            finally:
                nested.check = nested.inside

    def _pass_on(self, link: BlockingLink, frame: bytes, payload: memoryview | None) -> bool:
        try:
            if payload is None:
                link.send(frame)
            else:
                # A payload in the window is a copy, which nothing changes.
                link.send_parts(frame, payload, is_constant=self._is_resumable)
        except ConnectionLost as error:
            # The window holds every session frame: it is sent again after the resume.
            self._break(link, error)
            return False
        return True

    def _beat(self) -> None:
        """Have another thread send a frame, whose checksum reveals frames lost before it.

        Receiving threads call this after each keepalive interval. They must not send themselves.
        """
        self._beat_due = True
        self._due()

    # -- breaking and resuming ----------------------------------------------------------------

    def settle(self, timeout_seconds: float) -> None:
        """Wait until the session is connected or has ended, at most ``timeout_seconds``.

        This notices a break that the operating system has reported. Other breaks, such as a pulled
        cable, are noticed later by the keepalive pings. Only a round trip could reveal them here,
        and then a new session could not be opened either.
        """
        self.receiver.poll()
        self._changed.wait_until(self._is_settled, timeout_seconds)

    def _is_settled(self) -> bool:
        # If another thread is reading, it may not have noticed the end of the link yet.
        is_connected = self._is_attached and not self._link.has_ended()
        return self.error is not None or is_connected

    def _break(self, link: BlockingLink, error: BurnRemoteError) -> None:
        """Mark a link as broken; resume if possible. Any thread may call this repeatedly."""
        is_break = isinstance(error, ConnectionLost | GarbledBytes)
        with self._state_lock:
            if self.error is not None or self._is_leaving or link is not self._link:
                return
            if is_break and not isinstance(error, SessionLost) and self._is_resumable:
                # The text, not the error, whose traceback would keep the program's tensors alive.
                cause = str(error)
                # The first thread that takes the cause resumes.
                causes = [cause]
                was_attached = self._is_attached
                try:
                    if Action.RESUME in self._end.broke(self._end.link):
                        self._start_resuming(causes)
                    return
                except BaseException as raised:
                    is_interrupt = is_of_signal_handler(raised)
                    if is_interrupt or not isinstance(raised, RuntimeError | MemoryError):
                        # A thread whose start was interrupted may never run.
                        if was_attached and not self._is_attached:
                            self._start_resuming(causes)
                        raise
                    error = SessionLost(f"{cause}; this process has no thread to resume it")
        if type(error) is SessionLost:
            error = SessionLost(f"{self.address}: {error}; {OPEN_AGAIN}")
        self.end(error)

    def _start_resuming(self, causes: list[str]) -> None:
        threading.Thread(
            target=self._resume_in_thread,
            args=(causes,),
            name="burn-remote-reconnect",
            daemon=True,
        ).start()

    def _resume_in_thread(self, causes: list[str]) -> None:
        try:
            cause = causes.pop()
        except IndexError:  # another thread resumes
            return
        self._resuming = threading.get_ident()
        try:
            self._resume_within_lease(cause)
        except Exception as error:  # a defect: whoever waits for the session needs its end
            _logger.exception("resuming a session failed unexpectedly")
            self.end(SessionLost(f"{cause}; resuming failed with {type(error).__name__}: {error}"))
        finally:
            self._resuming = None

    def _resume_within_lease(self, cause: str) -> None:
        self._link.close()
        attempts = ResumeAttempts(
            cause, self.welcome.lease_seconds, self._end.idle_resumes, self._link.peer_host
        )
        self._pause(attempts.first_pause())
        while self.error is None:
            try:
                self._resume(attempts.begin())
                return
            except BurnRemoteError as error:
                final = attempts.final_error(error)
            if final is not None:
                self.end(final)
                return
            self._pause(attempts.next_pause())

    def _pause(self, seconds: float) -> None:
        self._changed.wait_until(lambda: self.error is not None, seconds)

    def _resume(self, timeout_seconds: float) -> None:
        with self._state_lock:
            self._end.begin_link()
            resume = Resume(self.welcome.session, self.welcome.secret, self._end.received)
        link, welcome = open_link(self._dial, self._token, timeout_seconds, resume, self._beat)
        nested = self._nested
        with self._sending:
            nested.check = nested.while_sending
            try:
                self._continue_on(link, welcome)
            finally:
                nested.check = nested.inside

    def _continue_on(self, link: BlockingLink, welcome: Welcome) -> None:
        """Continue the session on a new link, and send again what did not arrive."""
        with self._state_lock:
            is_wanted = self.error is None
            if is_wanted:
                try:
                    self._end.resumed(welcome.received)
                except SessionLost:
                    link.close()
                    raise
                self._link = link
            again = [*self._end.window.frames()]
            self._changed.wake()
        if not is_wanted:  # closed meanwhile
            send_closing(link)
            link.close()
            return
        # Receiving starts before sending, because the server may have to send before it can
        # read all frames that are sent again.
        self.receiver.use(link, self._handler())
        for frame, payload in again:
            if not self._pass_on(link, frame, payload):
                return

    # -- the end ------------------------------------------------------------------------------

    def _note_end(self) -> None:
        self._end.fire(Event.CLOSE)

    def _steps_of_end(self, error: BurnRemoteError) -> Sequence[Callable[[], object]]:
        return (
            self._changed.wake,
            self._link.close,
            functools.partial(self._lost, error),
            self.receiver.close,
            self.copies.close,
            self.large_copies.close,
        )

    def close(self) -> None:
        """Send ``Closing``, so that the server need not keep the session for its lease, and end.

        If Ctrl-C interrupts this or ``end``, a second call does what was left.
        """
        if self.error is None and (self._is_leaving or self._farewell is not None):
            # Interrupted: it is unknown how much was sent, so only a new link can carry a frame.
            self.discard()
        elif self.error is None:
            is_nested = self._is_sending()  # a finalizer must not send inside of a frame
            nested = self._nested
            with self._sending:
                nested.check = nested.while_sending  # for good, because the session ends
                if self._is_attached and not is_nested:
                    # The server closes the link when it has received this. A thread that notices
                    # before ``end`` must not resume.
                    self._is_leaving = True
                    send_closing(self._link)
            self.end(
                ClosedDevice(f"this program closed its connection to {self.address}; {OPEN_AGAIN}")
            )
        if self.error is not None:
            self._complete_end(self.error)
            self._say_farewell()

    def discard(self) -> None:
        """End the session at once, although the server may be busy and read no frames.

        The client resumes the session over a new link and sends ``Closing`` as the first frame. The
        server then skips the work that is queued. If Ctrl-C interrupts this, ``close`` does what
        was left.
        """
        with self._state_lock:
            if self.error is None and self._is_resumable:
                session, secret = self.welcome.session, self.welcome.secret
                self._farewell = Resume(session, secret, self._end.received)
        self.end(ClosedDevice(f"the device at {self.address} was closed; {OPEN_AGAIN}"))
        self._say_farewell()

    def _say_farewell(self) -> None:
        resume = self._farewell
        if resume is not None:
            with contextlib.suppress(BurnRemoteError):
                link, _ = open_link(self._dial, self._token, DISCARD_SECONDS, resume, self._beat)
                send_closing(link)
                link.close()
            self._farewell = None

    def abandon(self, error: BurnRemoteError) -> None:
        """Fail every later use; touch neither locks nor socket, which the parent still uses."""
        self.error = error
        self._ending_steps.is_complete = True
        self._end = SessionEnd(Role.CLIENT)
        self._renew_locks()
