"""How do bytes get in and out of a connected socket, from several threads, with and without TLS?

Both channels keep a promise beyond those of a socket: what a blocked system call did is stored by
the C call that made it. A ``KeyboardInterrupt`` often comes exactly when such a call returns with
part of its work done, and Python raises it before the next line of ours could store a result.
"""

from __future__ import annotations

import contextlib
import enum
import os
import select
import socket
import ssl
import struct
import threading
import time
from typing import Final, Protocol

from burn_remote_protocol.links.websocket.frame_parser import READ_BYTES
from burn_remote_protocol.links.websocket.frame_writer import Piece

__all__ = ["Channel", "PlainChannel", "Seen", "TlsChannel"]

# Absent on some systems, which do without: a header travels in a packet of its own, a large payload
# is read in several calls.
_MORE: Final[int] = getattr(socket, "MSG_MORE", 0)
_DONT_WAIT: Final[int] = getattr(socket, "MSG_DONTWAIT", 0)
_WHOLE: Final[int] = getattr(socket, "MSG_WAITALL", 0)


# The most to ask for where a read returns what is there. Larger: most of the memory is given back
# again. Smaller: more calls.
TIMED_READ_BYTES: Final = 2**20

# OpenSSL returns no more than this at once, whatever it is asked for.
TLS_RECORD_BYTES: Final = 2**14


class Seen(enum.Enum):
    """Why ``Channel.watch`` returned."""

    READABLE = enum.auto()
    WOKEN = enum.auto()
    NOTHING = enum.auto()


class Channel(Protocol):
    """A connected stream of bytes. One thread may read, one write and one watch, all at once."""

    def read(self, arrived: list[bytes], size: int, timeout_seconds: float | None) -> bool:
        """Wait for up to ``size`` bytes and append them; ``b""`` is the end of the stream.

        More than ``READ_BYTES`` may only be asked for when they are known to come. ``False``: the
        time is over, or ``bound_silence``'s. Raises ``OSError``.
        """
        ...

    def bound_silence(self, seconds: float) -> None:
        """Have a ``read`` without a time return ``False`` when nothing comes for so long."""
        ...

    def watch(self, timeout_seconds: float | None) -> Seen:
        """Wait until ``read`` has something, ``wake`` is called, or the time is over."""
        ...

    def wake(self) -> None:
        """Make ``watch`` return, now or the next time."""
        ...

    def write(self, piece: Piece, timeout_seconds: float | None = None) -> bool:
        """Write some of a piece. ``False``: the time is over. Raises ``OSError``."""
        ...

    def finish_writing(self) -> None:
        """Let the peer see the end of the stream after what was written."""
        ...

    def shut_down(self) -> None:
        """Make all calls in other threads return; later ones fail."""
        ...

    def close(self) -> None:
        """Release the socket. No other thread may be inside a call."""
        ...


class _Bell:
    """Wakes a thread that waits for a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._heard, self._rung = os.pipe()
        os.set_blocking(self._heard, False)
        os.set_blocking(self._rung, False)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._poll.register(self._heard, select.POLLIN)
        # Or a late ring could write into a file that got the descriptor next.
        self._lock = threading.Lock()

    def ring(self) -> None:
        # A full pipe has been rung already; a closed one has nobody waiting.
        with self._lock, contextlib.suppress(OSError):
            os.write(self._rung, b"\0")

    def watch(self, timeout_seconds: float | None) -> Seen:
        found = [descriptor for descriptor, _ in self._poll.poll(_milliseconds(timeout_seconds))]
        if self._heard in found:
            with contextlib.suppress(OSError):
                os.read(self._heard, 4096)
            return Seen.WOKEN
        return Seen.READABLE if found else Seen.NOTHING

    def close(self) -> None:
        with self._lock:
            os.close(self._heard)
            os.close(self._rung)
            self._heard = self._rung = -1


class PlainChannel:
    """A TCP connection without TLS. Takes over ``sock``."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        self._socket = sock
        self._bell = _Bell(sock)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def read(self, arrived: list[bytes], size: int, timeout_seconds: float | None) -> bool:
        if timeout_seconds is None:
            # One call for a whole large payload: its bytes object is filled in place.
            flags = _WHOLE if size > READ_BYTES else 0
        elif self._poll.poll(_milliseconds(timeout_seconds)):
            size = min(size, TIMED_READ_BYTES)
            flags = 0
        else:
            return False
        try:
            arrived.extend(map(self._socket.recv, (size,), (flags,)))
        except BlockingIOError:
            return False
        return True

    def bound_silence(self, seconds: float) -> None:
        # The system keeps the time: a poll before each read would cost a round trip 1 µs.
        whole, part = divmod(seconds, 1)
        bound = struct.pack("ll", int(whole), int(part * 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)

    def watch(self, timeout_seconds: float | None) -> Seen:
        return self._bell.watch(timeout_seconds)

    def wake(self) -> None:
        self._bell.ring()

    def write(self, piece: Piece, timeout_seconds: float | None = None) -> bool:
        flags = _MORE if piece.more else 0
        if timeout_seconds is not None:
            if not _ready_for(self._socket, select.POLLOUT, timeout_seconds):
                return False
            flags |= _DONT_WAIT
        try:
            piece.taken.extend(map(self._socket.send, (piece.left(),), (flags,)))
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
        self._bell.close()


class TlsChannel:
    """A TLS connection. Takes over ``sock``, whose handshake is done.

    OpenSSL allows one call at a time on a connection, so no call may block: each is made under a
    lock, and waiting happens outside. As no call blocks, an interrupt between a call and its list
    would have to hit a few microseconds.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.settimeout(0)
        self._socket = sock
        self._lock = threading.Lock()
        self._bell = _Bell(sock)
        self._silence_seconds: float | None = None

    def read(self, arrived: list[bytes], size: int, timeout_seconds: float | None) -> bool:
        if timeout_seconds is None:
            timeout_seconds = self._silence_seconds
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            try:
                with self._lock:
                    arrived.append(self._socket.recv(min(size, TLS_RECORD_BYTES)))
                return True
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            if not _ready_for(self._socket, event, _until(deadline)):
                return False

    def bound_silence(self, seconds: float) -> None:
        self._silence_seconds = seconds

    def watch(self, timeout_seconds: float | None) -> Seen:
        # What OpenSSL has decrypted already does not show on the socket.
        with self._lock:
            if self._socket.pending():
                return Seen.READABLE
        return self._bell.watch(timeout_seconds)

    def wake(self) -> None:
        self._bell.ring()

    def write(self, piece: Piece, timeout_seconds: float | None = None) -> bool:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            try:
                with self._lock:
                    piece.taken.append(self._socket.send(piece.left()))
                return True
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            except ssl.SSLWantReadError:
                event = select.POLLIN
            if not _ready_for(self._socket, event, _until(deadline)):
                return False

    def finish_writing(self) -> None:
        """Do nothing: TLS connections are not half-closed; the close frame tells the end."""

    def shut_down(self) -> None:
        # SSLSocket.shutdown would drop the TLS state that other threads are using.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
        self._bell.close()


def _ready_for(sock: socket.socket, event: int, timeout_seconds: float | None) -> bool:
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(_milliseconds(timeout_seconds)))


def _until(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()


def _milliseconds(timeout_seconds: float | None) -> float | None:
    return None if timeout_seconds is None else max(0.0, timeout_seconds * 1000)
