"""Byte streams over a connected socket, with and without TLS, for use by several threads.

Both streams are made so that a ``KeyboardInterrupt`` loses no bytes. With ``socket.recv``, it can:
the interrupt often arrives while a system call is blocked, the call returns a partial result, and
Python raises before the next line can store it. In a ``PlainStream``, the C function that makes the
system call also stores the result; ``TlsStream`` says what remains for TLS.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import io
import os
import select
import socket
import ssl
import struct
import threading
import time
from typing import Final, Protocol

from burn_remote_protocol.links.websocket.busy_polling import ThreadPolling
from burn_remote_protocol.links.websocket.frame_parser import READ_BYTES
from burn_remote_protocol.links.websocket.frame_writer import OutgoingBuffer

__all__ = ["PlainStream", "SocketStream", "TlsStream", "WatchResult"]

# Flags that some platforms lack. Without MSG_MORE, a header is sent in a separate packet; without
# MSG_WAITALL, a large payload is read in several calls.
_MORE: Final[int] = getattr(socket, "MSG_MORE", 0)
_DONT_WAIT: Final[int] = getattr(socket, "MSG_DONTWAIT", 0)
_WHOLE: Final[int] = getattr(socket, "MSG_WAITALL", 0)
# An event of ``poll`` that only Linux has: the other end has stopped sending. Bytes that it sent
# before may still be unread.
_PEER_ENDED: Final[int] = getattr(select, "POLLRDHUP", 0)

# The most bytes to request in a read that may return fewer; most of a larger buffer would stay
# unused.
TIMED_READ_BYTES: Final = 2**20

# OpenSSL returns at most this much per call.
TLS_RECORD_BYTES: Final = 2**14


class WatchResult(enum.Enum):
    """The reason why ``SocketStream.watch`` returned."""

    READABLE = enum.auto()
    WOKEN = enum.auto()
    TIMED_OUT = enum.auto()


class SocketStream(Protocol):
    """A connected byte stream. One thread may read, one write and one watch at the same time."""

    def read(self, received: list[bytes], size: int, timeout_seconds: float | None) -> bool:
        """Wait for up to ``size`` bytes and append them; ``b""`` marks the end of the stream.

        Request more than ``READ_BYTES`` only if they are certain to follow. Return ``False`` after
        ``timeout_seconds``, or after ``bound_silence``'s time. Raises ``OSError``.
        """
        ...

    def read_into(self, buffer: memoryview, *, whole: bool) -> int | None:
        """Wait for bytes and store them; return how many, 0 at the end of the stream.

        ``whole``: wait for all of ``buffer``, if the system can. Returns ``None`` after
        ``bound_silence``'s time. Raises ``OSError``.
        """
        ...

    def bound_silence(self, seconds: float) -> None:
        """Make a ``read`` without a timeout return ``False`` after ``seconds`` without bytes."""
        ...

    def watch(self, timeout_seconds: float | None) -> WatchResult:
        """Wait until the stream is readable, another thread calls ``wake``, or time is up."""
        ...

    def has_buffered(self) -> bool:
        """Whether bytes were taken from the socket that no ``read`` has returned yet."""
        ...

    def wake(self) -> None:
        """Make the current ``watch`` return, or the next one."""
        ...

    def has_ended(self) -> bool:
        """Whether the other end has stopped sending; ``False`` if the system cannot detect it."""
        ...

    def write(self, buffer: OutgoingBuffer, timeout_seconds: float | None = None) -> bool:
        """Write some bytes of a buffer; return ``False`` after the timeout. Raises ``OSError``."""
        ...

    def finish_writing(self) -> None:
        """Send the end of the stream after all written bytes."""
        ...

    def shut_down(self) -> None:
        """Make all calls in other threads return and later ones fail."""
        ...

    def close(self) -> None:
        """Release the socket. No other thread may be inside a method."""
        ...


class _Waker:
    """Waits for a socket to become readable, and lets another thread end the wait.

    A self-pipe: ``wake`` writes a byte into it, and ``watch`` polls it together with the socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._read_end, write_end = os.pipe()
        # Files rather than descriptors, because a file can be closed again after Ctrl-C.
        self._reader = io.FileIO(self._read_end, "r")
        self._writer = io.FileIO(write_end, "w")
        os.set_blocking(self._read_end, False)
        os.set_blocking(write_end, False)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._poll.register(self._read_end, select.POLLIN)
        # Without the lock, a late ``wake`` could write into a file that reuses the descriptor.
        self._lock = threading.Lock()

    def wake(self) -> None:
        # A full pipe already wakes the waiting thread, and no thread waits for a closed one.
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._writer.write(b"\0")

    def watch(self, timeout_seconds: float | None) -> WatchResult:
        found = [descriptor for descriptor, _ in self._poll.poll(_milliseconds(timeout_seconds))]
        if self._read_end in found:
            with contextlib.suppress(OSError, ValueError):
                self._reader.read(4096)
            return WatchResult.WOKEN
        return WatchResult.READABLE if found else WatchResult.TIMED_OUT

    def close(self) -> None:
        with self._lock:
            self._reader.close()
            self._writer.close()


class PlainStream:
    """A TCP connection without TLS. Takes ownership of ``sock``."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        self._socket = sock
        self._waker = _Waker(sock)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._polling = ThreadPolling()

    def read(self, received: list[bytes], size: int, timeout_seconds: float | None) -> bool:
        if timeout_seconds is None:
            polling = self._polling
            if size > READ_BYTES:
                # One call reads a whole large payload and fills its bytes object in place.
                flags = _WHOLE
            else:
                flags = 0
                if polling.pause:
                    polling.pause -= 1
                else:
                    polling.wait(self._poll.poll)
        elif self._poll.poll(_milliseconds(timeout_seconds)):
            size = min(size, TIMED_READ_BYTES)
            flags = 0
        else:
            return False
        try:
            received.extend(map(self._socket.recv, (size,), (flags,)))
        except BlockingIOError:
            return False
        return True

    def read_into(self, buffer: memoryview, *, whole: bool) -> int | None:
        try:
            return self._socket.recv_into(buffer, 0, _WHOLE if whole else 0)
        except BlockingIOError:
            return None

    def bound_silence(self, seconds: float) -> None:
        # The kernel applies the timeout: a poll before each read would add 1 µs to a round trip.
        whole, part = divmod(seconds, 1)
        bound = struct.pack("ll", int(whole), int(part * 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)

    def watch(self, timeout_seconds: float | None) -> WatchResult:
        return self._waker.watch(timeout_seconds)

    def has_buffered(self) -> bool:
        return False

    def wake(self) -> None:
        self._waker.wake()

    def has_ended(self) -> bool:
        return bool(_PEER_ENDED) and _ready_for(self._socket, _PEER_ENDED, 0)

    def write(self, buffer: OutgoingBuffer, timeout_seconds: float | None = None) -> bool:
        flags = _MORE if buffer.more else 0
        if timeout_seconds is not None:
            if not _ready_for(self._socket, select.POLLOUT, timeout_seconds):
                return False
            flags |= _DONT_WAIT
        try:
            buffer.accepted.extend(map(self._socket.send, (buffer.unsent(),), (flags,)))
        except BlockingIOError:
            return False
        return True

    def finish_writing(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
        self._waker.close()


class TlsStream:
    """A TLS connection. Takes ownership of ``sock``, whose handshake is complete.

    OpenSSL allows one call at a time per connection. Calls are made under a lock and never block;
    threads wait outside of the lock. An interrupt can lose the result of a call only in the few
    microseconds between that call and the append that stores it.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.settimeout(0)
        self._socket = sock
        self._lock = threading.Lock()
        self._waker = _Waker(sock)
        self._silence_seconds: float | None = None

    def read(self, received: list[bytes], size: int, timeout_seconds: float | None) -> bool:
        if timeout_seconds is None:
            timeout_seconds = self._silence_seconds
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            try:
                with self._lock:
                    received.append(self._socket.recv(min(size, TLS_RECORD_BYTES)))
                return True
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            if not _ready_for(self._socket, event, _until(deadline)):
                return False

    def read_into(self, buffer: memoryview, *, whole: bool) -> int | None:
        at, size = 0, len(buffer)
        while True:
            try:
                with self._lock:
                    # Each call returns at most one record, which holds up to 16 KiB. ``recv_into``
                    # would call ``read`` too.
                    while at < size:
                        count: int = self._socket.read(size - at, buffer[at:])  # type: ignore[assignment]
                        at += count
                        if not (count and whole):
                            break
                return at
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            if at and not whole:
                return at
            if not _ready_for(self._socket, event, self._silence_seconds):
                return at or None

    def bound_silence(self, seconds: float) -> None:
        self._silence_seconds = seconds

    def watch(self, timeout_seconds: float | None) -> WatchResult:
        if self.has_buffered():
            return WatchResult.READABLE
        return self._waker.watch(timeout_seconds)

    def has_buffered(self) -> bool:
        # The socket does not become readable for bytes that OpenSSL has already decrypted.
        with self._lock:
            return self._socket.pending() > 0

    def wake(self) -> None:
        self._waker.wake()

    def has_ended(self) -> bool:
        return bool(_PEER_ENDED) and _ready_for(self._socket, _PEER_ENDED, 0)

    def write(self, buffer: OutgoingBuffer, timeout_seconds: float | None = None) -> bool:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            try:
                with self._lock:
                    buffer.accepted.append(self._socket.send(buffer.unsent()))
                return True
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            except ssl.SSLWantReadError:
                event = select.POLLIN
            if not _ready_for(self._socket, event, _until(deadline)):
                return False

    def finish_writing(self) -> None:
        """Do nothing: TLS connections are not half-closed; the close frame marks the end."""

    def shut_down(self) -> None:
        # SSLSocket.shutdown would discard the TLS state that other threads are using.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
        self._waker.close()


def _ready_for(sock: socket.socket, event: int, timeout_seconds: float | None) -> bool:
    poll = select.poll()
    try:
        poll.register(sock, event)
    except ValueError:  # another thread has closed the socket meanwhile
        raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
    return bool(poll.poll(_milliseconds(timeout_seconds)))


def _until(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()


def _milliseconds(timeout_seconds: float | None) -> float | None:
    return None if timeout_seconds is None else max(0.0, timeout_seconds * 1000)
