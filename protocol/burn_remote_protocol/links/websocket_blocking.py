"""How does a thread exchange frames over a WebSocket, reading the socket itself?

No thread belongs to a link: the caller that waits for a frame is the one that reads the socket,
which saves the hand-over from a reader thread, 40 µs a round trip.
"""

from __future__ import annotations

import collections
import contextlib
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Final

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidState, ProtocolError
from websockets.frames import CloseCode

from burn_remote_protocol.errors import ConnectionLost, LimitExceeded, ProtocolViolation
from burn_remote_protocol.links.addresses import Address, parse_address
from burn_remote_protocol.links.channels import Channel, PlainChannel, Seen, TlsChannel
from burn_remote_protocol.links.dialing import dial, upgrade
from burn_remote_protocol.links.frames import (
    READ_BYTES,
    ControlFrame,
    FrameCutter,
    Piece,
    data_pieces,
    masking_keys,
)
from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES, NORMAL_CLOSURE

__all__ = ["BlockingWebSocket", "connect"]

# How long ``connect`` may take. Larger: a wrong address is reported later. Smaller: slow networks
# are given up on.
CONNECT_TIMEOUT_SECONDS: Final = 10.0

# How long ``close`` waits for the peer's answer, so that what was sent last is not thrown away with
# the socket. Larger: a dead peer holds up the program's exit. Smaller: a slow one is cut off.
CLOSE_TIMEOUT_SECONDS: Final = 1.0

# How long ``close`` waits for other threads to leave: they were woken, and only keep books.
LEAVE_TIMEOUT_SECONDS: Final = 1.0

_NO_PAYLOAD: Final = memoryview(b"")


def connect(
    address: str,
    route: str = "",
    *,
    tls: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    close_timeout_seconds: float = CLOSE_TIMEOUT_SECONDS,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    fragment_bytes: int | None = None,
    ping_interval_seconds: float | None = None,
) -> BlockingWebSocket:
    """Open a link to ``route`` below ``address``, as ``addresses.parse_address`` reads it.

    ``timeout_seconds`` bounds all of it, name resolution included. ``tls`` replaces the default
    context of a ``wss`` address. Messages are sent in WebSocket frames of at most
    ``fragment_bytes``. Pings are sent only where ``ping_interval_seconds`` is given, and then only
    while a thread receives or waits; a peer that does not answer by the next is lost. With
    ``close_timeout_seconds=0``, ``close`` does not wait for an answer (Burn 0.21 never gives one).

    Raises ``ConnectionFailed`` with one sentence that says what to check.
    """
    deadline = time.monotonic() + timeout_seconds
    target = parse_address(address).joined(route)
    sock = dial(target, tls, deadline)
    try:
        protocol, early = upgrade(sock, target, headers or {}, deadline)
        channel = TlsChannel(sock) if isinstance(sock, ssl.SSLSocket) else PlainChannel(sock)
    except BaseException:
        sock.close()
        raise
    return BlockingWebSocket(
        target,
        channel,
        protocol,
        FrameCutter(max_message_bytes, early),
        fragment_bytes=fragment_bytes,
        close_timeout_seconds=close_timeout_seconds,
        ping_interval_seconds=ping_interval_seconds,
    )


class BlockingWebSocket:
    """A ``BlockingLink`` over a WebSocket; made by ``connect``."""

    def __init__(
        self,
        address: Address,
        channel: Channel,
        protocol: ClientProtocol,
        cutter: FrameCutter,
        *,
        fragment_bytes: int | None,
        close_timeout_seconds: float,
        ping_interval_seconds: float | None,
    ) -> None:
        self._address = str(address)
        self._channel = channel
        self._cutter = cutter
        self._fragment_bytes = fragment_bytes
        self._close_timeout_seconds = close_timeout_seconds
        self._pings = None if ping_interval_seconds is None else _Pings(ping_interval_seconds)
        self._keys = masking_keys()

        self._protocol = protocol  # answers control frames; used by receivers and ``close``
        self._protocol_lock = threading.Lock()

        # What the operating system has not taken yet: the frame that is being sent, or what an
        # interrupt left of it. Control frames that came up meanwhile wait in ``_control``: a
        # receiver must not wait for a sender, or neither side might ever read again.
        self._unsent: collections.deque[Piece] = collections.deque()
        self._control: collections.deque[Piece] = collections.deque()
        self._send_lock = threading.Lock()
        self._receive_lock = threading.Lock()
        self._watch_lock = threading.Lock()
        self._close_lock = threading.Lock()

        self._end: str | None = None  # why nothing can be sent any more
        self._stopped = False  # nothing more can be received either, but what is in ``_cutter``
        self._released = False

    def __repr__(self) -> str:
        return f"<BlockingWebSocket {self._address}: {self._end or 'open'}>"

    @property
    def address(self) -> str:
        return self._address

    @property
    def closed(self) -> bool:
        return self._end is not None

    def send(self, frame: bytes) -> None:
        self.send_parts(frame, _NO_PAYLOAD)

    def send_parts(self, head: bytes, payload: memoryview) -> None:
        with self._send_lock:
            if self._end is not None:
                raise ConnectionLost(self._end)
            try:
                self._flush()
                self._unsent.extend(data_pieces(head, payload, self._keys, self._fragment_bytes))
                self._flush()
            except OSError as error:
                # What the peer said before it left may still be there to receive.
                self._end = self._end or self._broken(error)
                raise ConnectionLost(self._end) from error
            except BaseException:
                # The rest goes out before the next frame, when the caller's memory may be gone.
                for piece in self._unsent:
                    piece.keep()
                raise
        if self._control:
            self._send_control()

    def receive(self, timeout_seconds: float | None = None) -> bytes | None:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._receive_lock:
            while True:
                try:
                    found = self._cutter.take()
                except ProtocolViolation as error:
                    self._refuse(error)
                    raise
                if found is None:
                    if not self._read(deadline):
                        return None
                elif isinstance(found, ControlFrame):
                    self._handle_control(found)
                else:
                    return found

    def wait_readable(self, timeout_seconds: float | None = None) -> bool:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._watch_lock:
            while not self._stopped and not self._cutter.ready():
                match self._channel.watch(self._time_to_wait(deadline)):
                    case Seen.READABLE:
                        return True
                    case Seen.NOTHING if self._ping_if_due():
                        continue
                return False
        return True

    def interrupt(self) -> None:
        self._channel.wake()

    def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        with self._close_lock:
            if self._released:
                return
            deadline = time.monotonic() + self._close_timeout_seconds
            if self._end is None:
                self._end = f"this program closed the connection to {self._address}"
                self._send_close(code, reason)
            self._stopped = True
            self._drain(deadline)
            self._channel.shut_down()
            self._channel.wake()
            with contextlib.ExitStack() as stack:
                # Threads inside a call hold the descriptor: it must not become another file's.
                for lock in (self._receive_lock, self._watch_lock, self._send_lock):
                    if lock.acquire(timeout=LEAVE_TIMEOUT_SECONDS):
                        stack.callback(lock.release)
                self._channel.close()
                self._released = True

    def _flush(self, timeout_seconds: float | None = None) -> None:
        """Hand over what is unsent. The send lock is held."""
        while self._unsent:
            piece = self._unsent[0]
            if not piece.done() and not self._channel.write(piece, timeout_seconds):
                return
            if piece.done():
                self._unsent.popleft()

    def _send_control(self, timeout_seconds: float = 0) -> None:
        """Send the control frames that wait, unless a sender is busy, which does it afterwards."""
        while self._control and self._send_lock.acquire(timeout=timeout_seconds):
            try:
                while self._control:
                    self._unsent.append(self._control.popleft())
                self._flush(timeout_seconds)
            except OSError as error:
                self._end = self._end or self._broken(error)
            finally:
                self._send_lock.release()

    def _read(self, deadline: float | None) -> bool:
        """Read once; ``False`` when the time is over. The receive lock is held."""
        if self._stopped:
            raise ConnectionLost(self._end)
        if self._control or self._unsent:
            self._send_control()
        arrived = self._cutter.arrived
        try:
            timeout_seconds = self._time_to_wait(deadline)
            if not self._channel.read(arrived, self._cutter.wanted(), timeout_seconds):
                return self._ping_if_due()
        except OSError as error:
            raise self._stop(self._broken(error)) from error
        if not arrived[-1]:
            raise self._stop(f"{self._address} hung up")
        return True

    def _handle_control(self, frame: ControlFrame) -> None:
        with self._protocol_lock:
            self._protocol.receive_data(frame)
            self._protocol.events_received()
            answers = self._protocol.data_to_send()
        self._control.extend(map(Piece, answers))
        self._send_control()
        if self._protocol.parser_exc is not None:
            raise self._stop(f"{self._address} broke the protocol: {self._protocol.parser_exc}")
        if self._protocol.close_rcvd is not None:
            raise self._stop(f"{self._address} closed the connection: {self._protocol.close_rcvd}")
        if self._pings is not None:
            self._pings.answered()

    def _stop(self, reason: str) -> ConnectionLost:
        """End both directions. What the peer said is a better reason than a failed send."""
        if not self._stopped:
            self._end = reason
            self._stopped = True
            self._channel.shut_down()
            self._channel.wake()
        return ConnectionLost(self._end)

    def _refuse(self, error: ProtocolViolation) -> None:
        """Tell the peer why; ``close`` gives it the time to read that."""
        too_big = isinstance(error, LimitExceeded)
        self._end = f"the connection to {self._address} was given up: {error}"
        self._send_close(
            CloseCode.MESSAGE_TOO_BIG if too_big else CloseCode.PROTOCOL_ERROR, str(error)
        )
        self._stopped = True
        self._channel.wake()

    def _send_close(self, code: int, reason: str) -> None:
        with self._protocol_lock, contextlib.suppress(InvalidState, ProtocolError):
            self._protocol.send_close(code, _short(reason))
            self._control.extend(map(Piece, self._protocol.data_to_send()))
        self._send_control(self._close_timeout_seconds)
        self._channel.finish_writing()

    def _drain(self, deadline: float) -> None:
        """Read to the end, in what is left of the time: closing over unread bytes would reset the
        connection, and the peer might never see what was sent last."""
        if not self._receive_lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return
        try:
            rest: list[bytes] = []
            while not rest or rest.pop():
                if not self._channel.read(rest, READ_BYTES, deadline - time.monotonic()):
                    return
        except OSError:
            pass  # the peer is gone, which was the goal
        finally:
            self._receive_lock.release()

    def _time_to_wait(self, deadline: float | None) -> float | None:
        due = None if self._pings is None else self._pings.due
        times = [moment for moment in (deadline, due) if moment is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _ping_if_due(self) -> bool:
        if self._pings is None or time.monotonic() < self._pings.due:
            return False
        if self._pings.waiting:
            raise self._stop(
                f"{self._address} did not answer a ping in {self._pings.interval_seconds:g} s"
            )
        self._pings.sent()
        with self._protocol_lock, contextlib.suppress(InvalidState):
            self._protocol.send_ping(b"")
            self._control.extend(map(Piece, self._protocol.data_to_send()))
        self._send_control()
        return True

    def _broken(self, error: OSError) -> str:
        return f"the connection to {self._address} broke: {error.strerror or error}"


class _Pings:
    """When to send the next ping, and whether the last one was answered."""

    def __init__(self, interval_seconds: float) -> None:
        self.interval_seconds = interval_seconds
        self.waiting = False
        self.due = time.monotonic() + interval_seconds

    def sent(self) -> None:
        self.waiting = True
        self.due = time.monotonic() + self.interval_seconds

    def answered(self) -> None:
        self.waiting = False


def _short(reason: str) -> str:
    """Cut a reason to what a close frame can hold, 123 bytes, at a character."""
    return reason.encode()[:123].decode(errors="ignore")
