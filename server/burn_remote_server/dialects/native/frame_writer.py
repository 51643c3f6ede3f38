"""The writer of a native connection's frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from burn_remote_protocol.dialects.native import encode_frame
from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.links.checksummed_links import AnyAsyncLink
from burn_remote_protocol.loop_calls import Signal
from burn_remote_protocol.messages import Acknowledged
from burn_remote_server.execution.native_outbox import NativeOutbox
from burn_remote_server.execution.sessions import Session

__all__ = ["SENT_AT_ONCE", "FrameWriter"]

# Frames sent in one iteration of the event loop, about 0.6 ms. A resumed session may send 65,536.
SENT_AT_ONCE: Final = 64


class FrameWriter:
    """Sends the frames of an outbox, one at a time.

    The connection's reader stops receiving while too much work or too many frames are queued
    (backpressure). It then waits for ``progress``.
    """

    def __init__(
        self,
        link: AnyAsyncLink,
        outbox: NativeOutbox,
        sent: Callable[[int], None],
        session: Session | None = None,
    ) -> None:
        self._link = link
        self._outbox = outbox
        self._sent = sent
        self._session = session
        self._acknowledgement: Acknowledged | None = None
        self._stopped = False
        # The link takes no more frames; those of the outbox stay for the next link.
        self.is_broken = False
        self._is_idle = False  # ``run`` has sent everything and waits
        self._wake = Signal()
        self._progress = Signal()

    def stop(self) -> None:
        """Stop taking frames from the outbox, because another connection's writer takes over."""
        self._stopped = True

    def wake(self) -> None:
        """Check for frames to send, and let the reader check whether it may continue."""
        if not (self._is_idle and self._sent_now()):
            self._wake.set()
        self._progress.set()

    def acknowledge(self, message: Acknowledged) -> None:
        """Send an acknowledgement before the outbox's frames.

        It replaces an earlier one that was not sent, so acknowledgements do not accumulate for a
        peer that reads nothing.
        """
        self._acknowledgement = message
        self._wake.set()

    async def progress(self) -> None:
        """Wait until work has been done or a frame has been sent."""
        self._progress.clear()
        await self._progress.wait()

    async def run(self) -> None:
        """Send until the connection ends. Raises the error that ended the session."""
        while True:
            try:
                await self.flush()
            except ConnectionLost:
                self.is_broken = True
                self._progress.set()  # the reader no longer waits for room
                raise
            if self._session is not None and self._session.error is not None:
                raise self._session.error
            self._is_idle = not self._wake.is_set()
            try:
                await self._wake.wait()
            finally:
                self._is_idle = False
            self._wake.clear()

    def _sent_now(self) -> bool:
        """Send the first queued frame if it need not wait; return whether nothing is left to do.

        Switching to the task of ``run`` would make the round trip of a read 5 % longer.
        """
        session = self._session
        if self._acknowledgement is not None or self._stopped or self._wake.is_set():
            return False
        if session is not None and session.error is not None:
            return False
        if not self._link.is_writable():
            return self._outbox.is_empty
        frame = self._outbox.take()
        if frame is None:
            return True
        is_last = self._outbox.is_empty
        if isinstance(frame, bytes):
            if is_last:
                self._link.send_at_once(frame)
            else:
                self._link.send_nowait(frame)
            self._sent(len(frame))
        else:
            self._link.send_nowait(*frame)
            self._sent(len(frame[1]))
        return is_last

    async def flush(self) -> None:
        """Send all queued frames."""
        sent = 0
        while not self._stopped and (self._acknowledgement is not None or len(self._outbox)):
            sent += 1
            if sent % SENT_AT_ONCE == 0:
                # Sending does not yield if the peer reads fast enough.
                await asyncio.sleep(0)
                continue  # another connection may serve the session now
            if self._acknowledgement is not None:
                message, self._acknowledgement = self._acknowledgement, None
                await self._link.send(encode_frame(message))
                continue
            frame = self._outbox.take()
            if isinstance(frame, bytes):
                await self._link.send(frame)
                self._sent(len(frame))
            elif frame is not None:
                await self._link.send_parts(*frame)
                self._sent(len(frame[1]))
            self._progress.set()
