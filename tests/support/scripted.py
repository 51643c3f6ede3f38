"""A link whose other end has said everything beforehand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from burn_remote_protocol.errors import ConnectionLost

__all__ = ["ScriptedLink"]


class ScriptedLink:
    """An ``AsyncLink`` that gives its frames without ever waiting, then nothing until it is ended.

    ``sent`` has what was sent; ``on_send`` is called with each frame.
    """

    peer = "a script"

    def __init__(
        self, frames: Iterable[bytes], on_send: Callable[[bytes], object] | None = None
    ) -> None:
        self.frames = deque(frames)
        self.sent: list[bytes] = []
        self._on_send = on_send
        self._ended = False
        self._changed = asyncio.Event()
        self._has_sent = asyncio.Event()

    def say(self, frames: Iterable[bytes]) -> None:
        """Add frames."""
        self.frames.extend(frames)
        self._changed.set()

    def end(self) -> None:
        """Hang up once the frames are used up."""
        self._ended = True
        self._changed.set()

    async def wait_sent(self, count: int) -> None:
        """Wait until so many frames were sent."""
        while len(self.sent) < count:
            self._has_sent.clear()
            await self._has_sent.wait()

    async def send(self, frame: bytes) -> None:
        self.sent.append(frame)
        self._has_sent.set()
        if self._on_send is not None:
            self._on_send(frame)

    async def send_parts(self, head: bytes, payload: memoryview) -> None:
        await self.send(head + payload)

    async def receive(self) -> bytes:
        while not self.frames:
            if self._ended:
                raise ConnectionLost("the script is over")
            self._changed.clear()
            await self._changed.wait()
        return self.frames.popleft()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.end()
