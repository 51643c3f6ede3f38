"""A link over a WebSocket for threads.

A link has no thread of its own: the caller that waits for a frame reads the socket itself. Handing
each frame over from a reader thread would add 40 µs to a round trip.

Outgoing frames go through ``FrameWriter`` to ``SocketStream.write``, incoming ones through
``SocketStream.read`` to ``FrameParser``. ``websockets``' Sans-I/O ``ClientProtocol`` interprets
control frames and decides what to respond.

With a spare core, a ``BackgroundSender`` masks and sends large payloads that never change, while
the caller prepares the next one.

Locks: ``FrameWriter.lock`` is held while a message is written, ``_receive_lock`` while one is
read, ``_protocol_lock`` for one step of ``ClientProtocol``. No lock is held while waiting for the
lock of the other direction, so a blocked sender never blocks the receiver.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidState, ProtocolError

from burn_remote_protocol.errors import ConnectionLost, ProtocolViolation
from burn_remote_protocol.links.addresses import Address
from burn_remote_protocol.links.interface import (
    CLOSE_TIMEOUT_SECONDS,
    MAX_MESSAGE_BYTES,
    NORMAL_CLOSURE,
    close_code,
    short_reason,
)
from burn_remote_protocol.links.transport_interface import CONNECT_TIMEOUT_SECONDS
from burn_remote_protocol.links.websocket.background_sender import (
    BackgroundSender,
    has_spare_core,
)
from burn_remote_protocol.links.websocket.bulk_reader import BulkReader
from burn_remote_protocol.links.websocket.dialing import dial, upgrade
from burn_remote_protocol.links.websocket.frame_parser import READ_BYTES, FrameParser
from burn_remote_protocol.links.websocket.frame_writer import FrameWriter
from burn_remote_protocol.links.websocket.keepalive import KeepaliveTimer, TimerEvent
from burn_remote_protocol.links.websocket.socket_streams import (
    PlainStream,
    SocketStream,
    TlsStream,
    WatchResult,
)
from burn_remote_protocol.links.websocket.timed_locks import call_holding
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = ["BlockingWebSocket", "connect"]

# How long ``close`` waits for other threads to leave this link. It wakes them first, so they leave
# at once.
LEAVE_TIMEOUT_SECONDS: Final = 1.0
# A payload of at least this size is masked and sent by another thread, if it never changes.
# Handing over a smaller one takes longer than sending it.
BACKGROUND_BYTES: Final = 256 * 2**10
_NO_PAYLOAD: Final = memoryview(b"")


def connect(
    target: Address,
    *,
    connect_to: str | None = None,
    tls: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    close_timeout_seconds: float = CLOSE_TIMEOUT_SECONDS,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    fragment_bytes: int | None = None,
    speaks_burn: bool = False,
) -> BlockingWebSocket:
    """Open a link; the options are those of ``BlockingOptions``.

    Burn 0.21 never confirms a close, so its links need no ``close_timeout_seconds``. Raises
    ``ConnectionFailed`` with one sentence that says what to check.
    """
    deadline = time.monotonic() + timeout_seconds
    sock = dial(target, tls, deadline, timeout_seconds, connect_to)
    try:
        protocol, early = upgrade(sock, target, headers or {}, deadline, timeout_seconds)
        stream = TlsStream(sock) if isinstance(sock, ssl.SSLSocket) else PlainStream(sock)
    except BaseException:
        sock.close()
        raise
    return BlockingWebSocket(
        target,
        stream,
        protocol,
        FrameParser(max_message_bytes, early),
        fragment_bytes=fragment_bytes,
        close_timeout_seconds=close_timeout_seconds,
        peer_host=_peer_host(sock),
    )


def _peer_host(sock: socket.socket) -> str:
    """Return the numeric address of a socket's other end; empty if it has closed the connection."""
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return ""


class BlockingWebSocket:
    """A ``BlockingLink`` over a WebSocket; made by ``connect``."""

    def __init__(
        self,
        address: Address,
        stream: SocketStream,
        protocol: ClientProtocol,
        parser: FrameParser,
        *,
        fragment_bytes: int | None,
        close_timeout_seconds: float,
        peer_host: str,
    ) -> None:
        self._address = str(address)
        self._peer_host = peer_host
        self._stream = stream
        self._is_encrypted = isinstance(stream, TlsStream)
        self._parser = parser
        self._writer = FrameWriter(stream.write, fragment_bytes)
        self._background = BackgroundSender(self._send_queued) if has_spare_core() else None
        self._close_timeout_seconds = close_timeout_seconds
        self._keepalive = KeepaliveTimer(None)
        self._beat: Callable[[], None] | None = None
        self._protocol = protocol  # control frames; used by receivers and ``close``
        self._protocol_lock = threading.Lock()
        self._receive_lock = threading.RLock()
        self._watch_lock = threading.RLock()
        self._close_lock = threading.Lock()
        # The link's states: open; then ``_end`` is set and nothing can be sent; then ``_stopped``,
        # and only frames already in ``_parser`` can be received; then the socket is released.
        self._end: str | None = None  # why nothing can be sent any more
        self._stopped = False
        self._released = False

    def __repr__(self) -> str:
        return f"<BlockingWebSocket {self._address}: {self._end or 'open'}>"

    @property
    def address(self) -> str:
        return self._address

    @property
    def peer_host(self) -> str:
        return self._peer_host

    @property
    def closed(self) -> bool:
        return self._end is not None

    @property
    def detects_corruption(self) -> bool:
        return self._is_encrypted

    def send(self, frame: bytes) -> None:
        # ``_send`` written out: each round trip sends one frame.
        writer = self._writer
        try:
            with writer.lock:
                if self._end is not None:
                    raise ConnectionLost(self._end)
                writer.send(frame, _NO_PAYLOAD)
            if writer.unsent or writer.control:
                self._post()
        except ConnectionLost:
            raise
        except OSError as error:
            self._fail_to_send(error)

    def send_parts(self, head: bytes, payload: memoryview, *, is_constant: bool = False) -> None:
        background = self._background
        if not is_constant or background is None or len(payload) < BACKGROUND_BYTES:
            self._send(self._writer.send, head, payload)
            return
        self._send(self._writer.queue, head, payload, is_queued=True)
        if not background.wake():
            self._send(self._writer.flush)

    def _send_queued(self) -> None:
        """Send queued messages, in the thread of the ``BackgroundSender``."""
        try:
            self._send(self._writer.flush)
        except ConnectionLost:
            pass  # the next call reports it
        except MemoryError:
            self._stop(f"no memory for a message to {self._address}")

    def send_together(self, frames: list[bytes]) -> None:
        """Send several frames like ``send``, with few system calls; take them from the list."""
        self._send(self._writer.send_together, frames)

    def _send(self, send: Callable[..., None], *arguments: Any, is_queued: bool = False) -> None:
        writer = self._writer
        try:
            with writer.lock:
                if self._end is not None:
                    raise ConnectionLost(self._end)
                send(*arguments)
            if not is_queued and (writer.unsent or writer.control):
                self._post()
        except ConnectionLost:
            raise
        except OSError as error:
            self._fail_to_send(error)

    def _fail_to_send(self, error: OSError) -> NoReturn:
        pass_on_of_signal_handler(error)
        # Frames that the peer sent before it left may still be received.
        self._end = self._end or self._broken(error)
        raise ConnectionLost(self._end) from error

    def receive(self, timeout_seconds: float | None = None) -> bytes | None:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        message = None
        parser = self._parser
        try:
            with self._receive_lock:
                while True:
                    message = parser.take()
                    if message is not None:
                        self._keepalive.record_message()
                        return message
                    if parser.control:
                        if not parser.is_within_message:
                            self._keepalive.record_message()
                        self._handle_control(parser.control.popleft())
                    elif not self._read(deadline):
                        return None
        except ProtocolViolation as error:
            self._refuse(error)
            raise
        except BaseException:
            if message is not None:  # interrupted while returning
                self._parser.put_back(message)
            raise

    def wait_readable(self, timeout_seconds: float | None = None) -> bool:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._watch_lock:
            while not self._stopped and not self._parser.ready():
                match self._stream.watch(self._keepalive.seconds_until(deadline)):
                    case WatchResult.READABLE:
                        return True
                    case WatchResult.TIMED_OUT if self._ping_if_due():
                        continue
                return False
        return True

    def has_buffered(self) -> bool:
        if self._stopped or self._parser.ready():
            return True
        # Only OpenSSL takes bytes from the socket that nobody has read.
        return self._is_encrypted and self._stream.has_buffered()

    def has_ended(self) -> bool:
        return self.closed or self._stream.has_ended()

    def keep_alive(self, interval_seconds: float, beat: Callable[[], None] | None = None) -> None:
        """Ping while a thread receives or waits; end the link if the peer stays silent."""
        self._keepalive = KeepaliveTimer(interval_seconds)
        self._beat = beat
        self._stream.bound_silence(interval_seconds)

    def bulk_reader(self, silence_seconds: float) -> BulkReader:
        """Return the reader that receives from now on; see ``BulkLink``."""
        self._stream.bound_silence(silence_seconds)
        return BulkReader(self._stream, self._parser.take_unparsed(), self._address)

    def interrupt(self) -> None:
        self._stream.wake()

    def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        with self._close_lock:
            if self._released:
                return
            deadline = time.monotonic() + self._close_timeout_seconds
            if self._background is not None:
                self._background.stop()
            if self._end is None:
                self._end = f"this program closed the connection to {self._address}"
                self._send_close(code, reason)
            self._stopped = True
            left_seconds = max(0.0, deadline - time.monotonic())
            call_holding(self._receive_lock, left_seconds, self._drain, deadline)
            self._stream.shut_down()
            self._stream.wake()
            self._release_socket(self._receive_lock, self._watch_lock, self._writer.lock)

    def _release_socket(self, *locks: threading.RLock) -> bool:
        """Close the socket once no other thread holds one of ``locks``, or after the timeout.

        Threads inside a call use the descriptor: it must not be reused for another file.
        """
        if not locks:
            self._stream.close()
            self._released = True
            return True
        if not call_holding(locks[0], LEAVE_TIMEOUT_SECONDS, self._release_socket, *locks[1:]):
            self._release_socket(*locks[1:])
        return True

    def _read(self, deadline: float | None) -> bool:
        """Read once; return ``False`` after the deadline. The caller holds the receive lock."""
        if self._stopped:
            raise ConnectionLost(self._end)
        writer = self._writer
        if writer.unsent or writer.control:
            self._post()
        received = self._parser.received
        try:
            timeout_seconds = None if deadline is None else self._keepalive.seconds_until(deadline)
            if not self._stream.read(received, self._parser.bytes_to_read(), timeout_seconds):
                return self._ping_if_due() or deadline is None
        except OSError as error:
            pass_on_of_signal_handler(error)
            raise self._stop(self._broken(error)) from error
        if not received[-1]:
            raise self._stop(f"{self._address} hung up")
        self._keepalive.record_part(len(received[-1]))
        return True

    def _handle_control(self, frame: bytes) -> None:
        self._advance(self._protocol.receive_data, frame)
        if self._protocol.parser_exc is not None:
            raise self._stop(f"{self._address} broke the protocol: {self._protocol.parser_exc}")
        if self._protocol.close_rcvd is not None:
            lost = self._stop(f"{self._address} closed the connection: {self._protocol.close_rcvd}")
            lost.close_reason = self._protocol.close_rcvd.reason
            raise lost

    def _advance(self, step: Callable[..., None], *arguments: Any, wait: float = 0) -> None:
        """Take one step of the protocol's state machine and send the frames it produces."""
        with self._protocol_lock:
            # Raised if the connection is already closing, or if the close code must not be sent.
            with contextlib.suppress(InvalidState, ProtocolError):
                step(*arguments)
            self._protocol.events_received()
            frames = self._protocol.data_to_send()
        self._post(filter(None, frames), wait)

    def _post(self, frames: Iterable[bytes] = (), timeout_seconds: float = 0) -> None:
        """Send control frames without waiting for a busy sender. Never raises ``OSError``."""
        try:
            self._writer.send_control(frames, timeout_seconds)
        except OSError as error:
            pass_on_of_signal_handler(error)
            self._end = self._end or self._broken(error)

    def _stop(self, reason: str) -> ConnectionLost:
        """End both directions. The peer's reason replaces that of a failed send."""
        if not self._stopped:
            self._end = reason
            self._stopped = True
            self._stream.shut_down()
            self._stream.wake()
        return ConnectionLost(self._end)

    def _refuse(self, error: ProtocolViolation) -> None:
        """End the link and tell the peer why; ``close`` gives it time to read the reason."""
        self._end = f"the connection to {self._address} was ended: {error}"
        self._send_close(close_code(error), str(error))
        self._stopped = True
        self._parser.discard()
        self._stream.wake()

    def _send_close(self, code: int, reason: str) -> None:
        self._advance(
            self._protocol.send_close, code, short_reason(reason), wait=self._close_timeout_seconds
        )
        self._stream.finish_writing()

    def _drain(self, deadline: float) -> bool:
        """Read to the end of the stream or until the deadline; return whether the end was reached.

        Closing a socket with unread bytes resets the connection, and the peer could lose the last
        frames sent to it. The caller holds the receive lock.
        """
        rest: list[bytes] = []
        # An error means that the peer is gone, so that it reads nothing more.
        with contextlib.suppress(OSError):
            while not rest or rest.pop():
                if not self._stream.read(rest, READ_BYTES, deadline - time.monotonic()):
                    return False
        return True

    def _ping_if_due(self) -> bool:
        match self._keepalive.next_event():
            case TimerEvent.NOTHING:
                return False
            case TimerEvent.PING:
                self._advance(self._protocol.send_ping, b"")
                if self._beat is not None:
                    self._beat()
            case TimerEvent.NO_RESPONSE:
                seconds = self._keepalive.interval_seconds
                self._stop(f"{self._address} did not answer a ping in {seconds:g} s")
        return True

    def _broken(self, error: OSError) -> str:
        return f"the connection to {self._address} broke: {error.strerror or error}"
