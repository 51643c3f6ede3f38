"""How does a thread exchange frames over a WebSocket, reading the socket itself?

No thread belongs to a link: the caller that waits for a frame is the one that reads the socket,
which saves the hand-over from a reader thread, 40 µs a round trip.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidState, ProtocolError

from burn_remote_protocol.errors import ConnectionLost, LimitExceeded, ProtocolViolation
from burn_remote_protocol.links.addresses import Address, parse_address
from burn_remote_protocol.links.interface import (
    MAX_MESSAGE_BYTES,
    MESSAGE_TOO_BIG,
    NORMAL_CLOSURE,
    PROTOCOL_ERROR,
    short_reason,
)
from burn_remote_protocol.links.websocket.dialing import dial, upgrade
from burn_remote_protocol.links.websocket.frame_parser import READ_BYTES, FrameCutter
from burn_remote_protocol.links.websocket.keepalive import Due, Pings
from burn_remote_protocol.links.websocket.sending import Sender
from burn_remote_protocol.links.websocket.socket_streams import (
    Channel,
    PlainChannel,
    Seen,
    TlsChannel,
)

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
) -> BlockingWebSocket:
    """Open a link to ``route`` below ``address``, as ``addresses.parse_address`` reads it.

    ``timeout_seconds`` bounds all of it, name resolution included. ``tls`` replaces the default
    context of a ``wss`` address. Messages are sent in WebSocket frames of at most
    ``fragment_bytes``. ``close`` waits for an answer at most ``close_timeout_seconds`` (Burn 0.21
    never gives one). Raises ``ConnectionFailed`` with one sentence that says what to check.
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
    ) -> None:
        self._address = str(address)
        self._channel = channel
        self._cutter = cutter
        self._sender = Sender(channel, fragment_bytes)
        self._close_timeout_seconds = close_timeout_seconds
        self._pings = Pings(None)
        self._beat: Callable[[], None] | None = None
        self._protocol = protocol  # answers control frames; used by receivers and ``close``
        self._protocol_lock = threading.Lock()
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

    @property
    def detects_corruption(self) -> bool:
        return isinstance(self._channel, TlsChannel)

    def send(self, frame: bytes) -> None:
        self.send_parts(frame, _NO_PAYLOAD)

    def send_parts(self, head: bytes, payload: memoryview) -> None:
        self._send(lambda: self._sender.send(head, payload))

    def send_together(self, frames: Sequence[bytes]) -> None:
        """Send several frames as ``send`` sends one, in as few system calls as may be."""
        self._send(lambda: self._sender.send_together(frames))

    def _send(self, send: Callable[[], None]) -> None:
        try:
            with self._sender.lock:
                if self._end is not None:
                    raise ConnectionLost(self._end)
                send()
            self._post()
        except ConnectionLost:
            raise
        except OSError as error:
            # What the peer said before it left may still be there to receive.
            self._end = self._end or self._broken(error)
            raise ConnectionLost(self._end) from error

    def receive(self, timeout_seconds: float | None = None) -> bytes | None:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        message = None
        try:
            with self._receive_lock:
                while True:
                    message = self._cutter.take()
                    if message is not None:
                        self._pings.answered()
                        return message
                    if self._cutter.control:
                        if not self._cutter.is_within_message:
                            self._pings.answered()
                        self._handle_control(self._cutter.control.popleft())
                    elif not self._read(deadline):
                        return None
        except ProtocolViolation as error:
            self._refuse(error)
            raise
        except BaseException:
            if message is not None:  # interrupted on the way out
                self._cutter.put_back(message)
            raise

    def wait_readable(self, timeout_seconds: float | None = None) -> bool:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._watch_lock:
            while not self._stopped and not self._cutter.ready():
                match self._channel.watch(self._pings.seconds_until(deadline)):
                    case Seen.READABLE:
                        return True
                    case Seen.NOTHING if self._ping_if_due():
                        continue
                return False
        return True

    def keep_alive(self, interval_seconds: float, beat: Callable[[], None] | None = None) -> None:
        """Ping from now on, while a thread receives or waits; give up a peer that stays silent."""
        self._pings = Pings(interval_seconds)
        self._beat = beat
        self._channel.bound_silence(interval_seconds)

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
                for lock in (self._receive_lock, self._watch_lock, self._sender.lock):
                    if lock.acquire(timeout=LEAVE_TIMEOUT_SECONDS):
                        stack.callback(lock.release)
                self._channel.close()
                self._released = True

    def _read(self, deadline: float | None) -> bool:
        """Read once; ``False`` when the time is over. The receive lock is held."""
        if self._stopped:
            raise ConnectionLost(self._end)
        self._post()
        arrived = self._cutter.arrived
        try:
            timeout_seconds = None if deadline is None else self._pings.seconds_until(deadline)
            if not self._channel.read(arrived, self._cutter.wanted(), timeout_seconds):
                return self._ping_if_due() or deadline is None
        except OSError as error:
            raise self._stop(self._broken(error)) from error
        if not arrived[-1]:
            raise self._stop(f"{self._address} hung up")
        self._pings.arrived(len(arrived[-1]))
        return True

    def _handle_control(self, frame: bytes) -> None:
        self._advance(self._protocol.receive_data, frame)
        if self._protocol.parser_exc is not None:
            raise self._stop(f"{self._address} broke the protocol: {self._protocol.parser_exc}")
        if self._protocol.close_rcvd is not None:
            raise self._stop(f"{self._address} closed the connection: {self._protocol.close_rcvd}")

    def _advance(self, step: Callable[..., None], *arguments: Any, wait: float = 0) -> None:
        """Take one step of the protocol's state machine, and send what it has to say."""
        with self._protocol_lock:
            # It is closing already, or the code is none that may be sent: nothing to say.
            with contextlib.suppress(InvalidState, ProtocolError):
                step(*arguments)
            self._protocol.events_received()
            frames = self._protocol.data_to_send()
        self._post(filter(None, frames), wait)

    def _post(self, frames: Iterable[bytes] = (), timeout_seconds: float = 0) -> None:
        """Send control frames without waiting for a busy sender. Never raises ``OSError``."""
        try:
            self._sender.send_control(frames, timeout_seconds)
        except OSError as error:
            self._end = self._end or self._broken(error)

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
        self._send_close(MESSAGE_TOO_BIG if too_big else PROTOCOL_ERROR, str(error))
        self._stopped = True
        self._cutter.discard()
        self._channel.wake()

    def _send_close(self, code: int, reason: str) -> None:
        self._advance(
            self._protocol.send_close, code, short_reason(reason), wait=self._close_timeout_seconds
        )
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

    def _ping_if_due(self) -> bool:
        match self._pings.due_now():
            case Due.NOTHING:
                return False
            case Due.PING:
                self._advance(self._protocol.send_ping, b"")
                if self._beat is not None:
                    self._beat()
            case Due.ANSWER:
                seconds = self._pings.interval_seconds
                self._stop(f"{self._address} did not answer a ping in {seconds:g} s")
        return True

    def _broken(self, error: OSError) -> str:
        return f"the connection to {self._address} broke: {error.strerror or error}"
