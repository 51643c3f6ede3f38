"""A link whose other end is a list of frames."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from burn_remote_protocol.errors import ConnectionLost
from support.waiting import PATIENCE_SECONDS

__all__ = ["ScriptedLink"]


class ScriptedLink:
    """An ``AsyncLink`` that receives scripted frames at once, and then nothing until ``end``.

    ``sent`` holds the sent frames; ``on_send`` is called with each of them.
    """

    def __init__(
        self, frames: Iterable[bytes], on_send: Callable[[bytes], object] | None = None
    ) -> None:
        self.frames = deque(frames)
        self.sent: list[bytes] = []
        self._on_send = on_send
        self._ended = False
        self._open_frame: Callable[[bytes], bytes] = bytes
        self._changed = asyncio.Event()
        self._has_sent = asyncio.Event()
        self._may_send = asyncio.Event()
        self._may_send.set()
        self._is_held = asyncio.Event()
        self.peer = "a script"
        self.peer_host = "127.0.0.1"
        self.received_bytes = 0
        self.sent_bytes = 0
        self.closed_with = (0, "")

    def say(self, frames: Iterable[bytes]) -> None:
        """Add frames."""
        self.frames.extend(frames)
        self._changed.set()

    def end(self) -> None:
        """Close the connection after the last frame."""
        self._ended = True
        self._changed.set()

    async def wait_sent(self, count: int) -> None:
        """Wait until ``count`` frames were sent. Raises ``TimeoutError``."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.sent) < count:
                self._has_sent.clear()
                await self._has_sent.wait()

    def hold(self) -> None:
        """Block senders, as a peer that does not read."""
        self._may_send.clear()

    def let_go(self) -> None:
        """Let senders continue."""
        self._may_send.set()

    async def wait_held(self) -> None:
        """Wait until a sender is blocked. Raises ``TimeoutError``."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._is_held.wait()

    def place_frames(self, head_bytes: int, place: object) -> None:
        """Do nothing: a place is a hint."""

    def count_received(
        self, memory: object, stall_seconds: float, urgent_bytes: int | None = None
    ) -> None:
        """Do nothing: what arrives is in memory already."""

    def limit_messages(self, max_message_bytes: int, allocate: object = None) -> None:
        """Do nothing: a script may have messages of any size."""

    def receive_nowait(self, longest: int | None = None) -> bytes | None:
        if not self.frames or (longest is not None and len(self.frames[0]) > longest):
            return None
        return self.frames.popleft()

    def call_on_arrival(self, handler: object, take: object = None) -> None:
        """Do nothing: a task takes every frame."""

    def keep_alive(self, interval_seconds: float) -> None:
        """Do nothing: a script cannot vanish."""

    async def probe(self) -> None:
        """Return at once: a script is always alive."""

    async def send(self, frame: bytes) -> None:
        if not self._may_send.is_set():
            self._is_held.set()
            await self._may_send.wait()
        self.send_nowait(frame)

    def is_writable(self) -> bool:
        return self._may_send.is_set()

    def send_nowait(self, *buffers: bytes | memoryview) -> None:
        frame = b"".join(buffers)
        self.sent.append(frame)
        self._has_sent.set()
        if self._on_send is not None:
            self._on_send(frame)

    def send_at_once(self, frame: bytes) -> None:
        self.send_nowait(frame)

    async def send_parts(self, head: bytes, payload: memoryview) -> None:
        await self.send_buffers((head, payload))

    async def send_buffers(
        self, buffers: Sequence[bytes | memoryview], fragment_bytes: int | None = None
    ) -> None:
        await self.send(b"".join(buffers))

    async def send_slices(self, buffers: Sequence[bytes | memoryview], slice_bytes: int) -> None:
        await self.send_buffers(buffers)

    async def receive(self) -> bytes:
        while not self.frames:
            if self._ended:
                raise ConnectionLost("the script is over")
            self._changed.clear()
            await self._changed.wait()
        return self._open_frame(self.frames.popleft())

    def open_frames(self, open_frame: Callable[[bytes], bytes]) -> None:
        self._open_frame = open_frame

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.closed_with = (code, reason)
        self.end()
