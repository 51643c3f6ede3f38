"""Sends a native connection's frames, one at a time, and lets its reader wait for room."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from burn_remote_protocol.dialects.native import encode_frame
from burn_remote_protocol.links.checked import AnyAsyncLink
from burn_remote_server.execution.outbox import NativeOutbox
from burn_remote_server.execution.sessions import Session

__all__ = ["FrameWriter"]


class FrameWriter:
    """Send what an outbox holds, one frame at a time, and let the reader wait for room."""

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
        self._said: deque[bytes] = deque()
        self._stopped = False
        self._wake = asyncio.Event()
        self._progress = asyncio.Event()

    def stop(self) -> None:
        """Take nothing more from the outbox: another connection's writer does."""
        self._stopped = True

    def wake(self) -> None:
        """Check again whether there is something to send, or room."""
        self._wake.set()
        self._progress.set()

    def say(self, message: object) -> None:
        """Send a message that does not belong to the session's frames."""
        self._said.append(encode_frame(message))
        self._wake.set()

    async def progress(self) -> None:
        """Wait until something has been done or sent."""
        self._progress.clear()
        await self._progress.wait()

    async def run(self) -> None:
        """Send for as long as the connection lives. Raises what ended the session."""
        while True:
            await self.flush()
            if self._session is not None and self._session.error is not None:
                raise self._session.error
            await self._wake.wait()
            self._wake.clear()

    async def flush(self) -> None:
        """Send everything that waits."""
        while not self._stopped and (self._said or len(self._outbox)):
            if self._said:
                await self._link.send(self._said.popleft())
                continue
            frame = self._outbox.take()
            if isinstance(frame, bytes):
                await self._link.send(frame)
                self._sent(len(frame))
            elif frame is not None:
                await self._link.send_parts(*frame)
                self._sent(len(frame[1]))
            self._progress.set()
