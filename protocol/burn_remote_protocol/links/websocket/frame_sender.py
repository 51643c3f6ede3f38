"""Sending the frames of an event loop's connection from a thread.

Over TCP, the thread writes to the socket itself, so that bulk data neither pass through the event
loop nor wait for it. Over TLS, the event loop encrypts, and the thread waits for it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import select
import socket
from collections.abc import Callable
from typing import Final

from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.links.interface import SEND_SLICE_SECONDS, AsyncLink
from burn_remote_protocol.links.websocket.frames import BINARY, FINAL_BIT, frame_header

__all__ = ["LoopSender", "SocketSender"]

_EMPTY: Final = memoryview(b"")


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

    def send(self, frame: bytes) -> None:
        self.send_parts(frame, _EMPTY)

    def send_parts(self, head: bytes, payload: memoryview) -> None:
        size = len(payload)
        head = frame_header(FINAL_BIT | BINARY, len(head) + size) + head
        unsent = [memoryview(head), payload]
        while unsent:
            try:
                count = self._socket.sendmsg(unsent)
            except BlockingIOError:
                if not self._poll.poll(SEND_SLICE_SECONDS * 1000):
                    self._check()
                continue
            except OSError as error:
                reason = error.strerror or error
                raise ConnectionLost(f"the connection to {self._peer} broke: {reason}") from error
            while unsent and count >= len(unsent[0]):
                count -= len(unsent.pop(0))
            if count:
                unsent[0] = unsent[0][count:]

    def close(self) -> None:
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

    def send(self, frame: bytes) -> None:
        self.send_parts(frame, _EMPTY)

    def send_parts(self, head: bytes, payload: memoryview) -> None:
        # A copy: the transport may refer to the bytes after this has returned.
        sending = self._link.send_parts(head, memoryview(bytes(payload)))
        try:
            sent = asyncio.run_coroutine_threadsafe(sending, self._loop)
        except RuntimeError:  # the loop has closed
            sending.close()
            raise ConnectionLost("the server has stopped") from None
        while True:
            try:
                return sent.result(SEND_SLICE_SECONDS)
            except concurrent.futures.CancelledError:
                raise ConnectionLost("the server has stopped") from None
            except TimeoutError:
                if sent.done():
                    continue
                try:
                    self._check()
                except BaseException:
                    sent.cancel()
                    raise

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._link.close()))
