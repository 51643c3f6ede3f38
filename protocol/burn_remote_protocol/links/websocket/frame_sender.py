"""Sending the frames of an event loop's connection from a thread.

Over TCP, the thread writes to the socket itself, so that bulk data neither pass through the event
loop nor wait for it. Over TLS, the thread queues frames; the event loop encrypts and sends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.links.interface import SEND_SLICE_SECONDS, AsyncLink
from burn_remote_protocol.links.websocket.frames import BINARY, FINAL_BIT, frame_header

__all__ = ["LoopSender", "SocketSender"]

_EMPTY: Final = memoryview(b"")

# Frames that may be queued: the event loop encrypts one and finds the next in the queue, without
# waiting for the thread. Their memory does not count as scratch memory.
QUEUED_FRAMES: Final = 2

# The most buffers that one call of ``sendmsg`` takes: by POSIX at least 16; Linux allows 1,024.
# Windows has neither ``sysconf`` nor ``sendmsg``.
MAX_BUFFERS: Final = max(os.sysconf("SC_IOV_MAX"), 16) if hasattr(os, "sysconf") else 16


class SocketSender:
    """Writes a server's frames to a TCP socket. One thread sends."""

    def __init__(self, descriptor: int, peer: str, check: Callable[[], None]) -> None:
        """Use a copy of the event loop's socket; the loop must not write to it any more."""
        self._socket: Final = socket.socket(fileno=os.dup(descriptor))
        # Both copies share their flags, and the event loop needs a socket that does not block.
        self._socket.setblocking(False)
        self._poll: Final = select.poll()
        self._poll.register(self._socket, select.POLLOUT)
        self._peer: Final = peer
        self._check: Final = check
        # What the system has not accepted of the frames that were begun.
        self._unsent: Final[list[bytes | memoryview]] = []

    def send(self, frame: bytes) -> None:
        self.send_parts(frame, _EMPTY)

    def send_parts(self, head: bytes, payload: memoryview) -> None:
        self.finish()
        if not self.begin([(head, payload)]):
            self.finish()

    @property
    def accepts(self) -> bool:
        return not self._unsent

    def begin(self, frames: Sequence[tuple[bytes, memoryview]]) -> bool:
        unsent = self._unsent
        for head, payload in frames:
            size = len(payload)
            unsent.append(frame_header(FINAL_BIT | BINARY, len(head) + size) + head)
            if size:
                unsent.append(payload)
        return self._write()

    def finish(self) -> None:
        while self._unsent and not self._write():
            if not self._poll.poll(SEND_SLICE_SECONDS * 1000):
                self._check()

    def _write(self) -> bool:
        """Write until all is sent or the system accepts no more; return whether all is sent."""
        unsent = self._unsent
        while unsent:
            try:
                count = self._socket.sendmsg(unsent[:MAX_BUFFERS])
            except BlockingIOError:
                return False
            except OSError as error:
                reason = error.strerror or error
                raise ConnectionLost(f"the connection to {self._peer} broke: {reason}") from error
            while unsent and count >= len(unsent[0]):
                count -= len(unsent.pop(0))
            if count:
                unsent[0] = memoryview(unsent[0])[count:]
        return True

    def close(self) -> None:
        self._unsent.clear()  # it refers to memory of tensors
        # The end of the stream follows what was sent. The event loop still reads: if it closed a
        # socket with unread bytes, the peer could lose the last frames.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._socket.close()


class LoopSender:
    """Has an event loop send the frames. One thread sends."""

    def __init__(
        self, link: AsyncLink, loop: asyncio.AbstractEventLoop, check: Callable[[], None]
    ) -> None:
        self._link: Final = link
        self._loop: Final = loop
        self._check: Final = check
        self._changed: Final = threading.Condition()
        # Frames that were not passed to the link yet. Guarded by ``_changed``, as all below.
        self._unsent: Final[deque[tuple[bytes, memoryview]]] = deque()
        self._is_sending = False
        self._is_closing = False
        self._error: ConnectionLost | None = None

    def send(self, frame: bytes) -> None:
        self._put(frame, _EMPTY)
        self._await(0)  # this frame may be the last one before another thread closes the connection

    def send_parts(self, head: bytes, payload: memoryview) -> None:
        self._await(QUEUED_FRAMES - 1)
        self._put(head, payload)

    @property
    def accepts(self) -> bool:
        return not self._unsent

    def begin(self, frames: Sequence[tuple[bytes, memoryview]]) -> bool:
        for head, payload in frames:
            self._put(head, payload)
        return True

    def finish(self) -> None:
        """Do nothing: the event loop sends all frames, and the next one reports a failure."""

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            with contextlib.suppress(ConnectionLost):
                self._start()

    def _put(self, head: bytes, payload: memoryview) -> None:
        with self._changed:
            self._unsent.append((head, payload))
            self._start()

    def _start(self) -> None:
        """Have the event loop send what is queued. Raises ``ConnectionLost``."""
        if self._error is not None:
            raise ConnectionLost(str(self._error))
        if self._is_sending:
            return
        self._is_sending = True
        sending = self._send_queued()
        try:
            asyncio.run_coroutine_threadsafe(sending, self._loop)
        except RuntimeError:  # the loop has closed
            sending.close()
            self._error = ConnectionLost("the server has stopped")
            raise self._error from None

    def _await(self, frames: int) -> None:
        """Wait until at most so many frames are queued. Raises ``ConnectionLost``."""
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: len(self._unsent) <= frames or self._error is not None,
                    SEND_SLICE_SECONDS,
                )
                if self._error is not None:
                    raise ConnectionLost(str(self._error))
                if len(self._unsent) <= frames:
                    return
            self._check()

    async def _send_queued(self) -> None:
        """Send the queued frames, then end the link if the sender was closed."""
        error = ConnectionLost("the server has stopped")  # if this is cancelled
        is_done = False
        try:
            while not is_done:
                with self._changed:
                    frame = self._unsent[0] if self._unsent else None
                    if frame is None:
                        self._is_sending, is_done = False, True
                        break
                await self._link.send_parts(*frame)
                with self._changed:
                    self._unsent.popleft()
                    self._changed.notify_all()
            if self._is_closing:
                await self._link.close()
        except ConnectionLost as lost:
            error = lost
        finally:
            if not is_done:
                with self._changed:
                    self._error = error
                    self._unsent.clear()
                    self._changed.notify_all()
