"""How do two ends in one process exchange frames, with the bounds that a socket has?"""

from __future__ import annotations

import asyncio
import collections
import threading
from collections.abc import Callable
from typing import Final

from burn_remote_protocol.errors import ConnectionLost, LimitExceeded
from burn_remote_protocol.links.interface import (
    MAX_MESSAGE_BYTES,
    MESSAGE_TOO_BIG,
    NORMAL_CLOSURE,
)

__all__ = ["AsyncMemoryLink", "MemoryLink", "async_memory_pair", "memory_pair"]

# What one direction holds before its sender waits; one frame always fits, however large. Larger:
# more memory while the receiver is slow. Smaller: sender and receiver take turns.
CAPACITY_BYTES: Final = 2**20

# The same for frames without much in them.
CAPACITY_FRAMES: Final = 1024


def memory_pair(
    *, max_message_bytes: int = MAX_MESSAGE_BYTES, capacity_bytes: int = CAPACITY_BYTES
) -> tuple[MemoryLink, MemoryLink]:
    """Return the two ends of a connection between threads."""
    forth, back = _Pipe(capacity_bytes), _Pipe(capacity_bytes)
    changed = threading.Condition()
    return (
        MemoryLink(changed, forth, back, max_message_bytes),
        MemoryLink(changed, back, forth, max_message_bytes),
    )


def async_memory_pair(
    *, max_message_bytes: int = MAX_MESSAGE_BYTES, capacity_bytes: int = CAPACITY_BYTES
) -> tuple[AsyncMemoryLink, AsyncMemoryLink]:
    """Return the two ends of a connection between tasks of one event loop."""
    forth, back = _Pipe(capacity_bytes), _Pipe(capacity_bytes)
    changed = asyncio.Condition()
    return (
        AsyncMemoryLink(changed, forth, back, max_message_bytes),
        AsyncMemoryLink(changed, back, forth, max_message_bytes),
    )


class _Pipe:
    """One direction: frames on their way, and what either side is told once it has ended.

    Guarded by the condition that its two links share.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._frames: collections.deque[bytes] = collections.deque()
        self._held_bytes = 0
        self.sender_end: str | None = None
        self.receiver_end: str | None = None

    def __len__(self) -> int:
        return len(self._frames)

    def has_room(self, size: int) -> bool:
        return not self._frames or (
            len(self._frames) < CAPACITY_FRAMES and self._held_bytes + size <= self._capacity_bytes
        )

    def put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._held_bytes += len(frame)

    def take(self) -> bytes:
        frame = self._frames.popleft()
        self._held_bytes -= len(frame)
        return frame

    def drop(self) -> None:
        self._frames.clear()
        self._held_bytes = 0


class _End:
    """What both kinds of link decide alike, under their condition."""

    def __init__(self, outgoing: _Pipe, incoming: _Pipe, max_message_bytes: int) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._max_message_bytes = max_message_bytes

    @property
    def closed(self) -> bool:
        return self._outgoing.sender_end is not None

    def _may_send(self, size: int) -> bool:
        return self.closed or self._outgoing.has_room(size)

    def _put(self, frame: bytes) -> None:
        if self._outgoing.sender_end is not None:
            raise ConnectionLost(self._outgoing.sender_end)
        self._outgoing.put(frame)

    def _may_receive(self) -> bool:
        return len(self._incoming) > 0 or self._incoming.receiver_end is not None

    def _take(self) -> bytes:
        if not len(self._incoming):
            raise ConnectionLost(self._incoming.receiver_end)
        frame = self._incoming.take()
        if len(frame) > self._max_message_bytes:
            error = LimitExceeded(
                "bytes in one message", seen=len(frame), allowed=self._max_message_bytes
            )
            self._hang_up(MESSAGE_TOO_BIG, str(error))
            raise error
        return frame

    def _hang_up(self, code: int, reason: str) -> None:
        if self.closed:
            return
        said = f"{code} {reason}".rstrip()
        here = f"this program closed the connection: {said}"
        there = f"the other end closed the connection: {said}"
        self._outgoing.sender_end = self._incoming.receiver_end = here
        self._outgoing.receiver_end = self._incoming.sender_end = there
        # What was sent before still arrives; what was not received is gone.
        self._incoming.drop()


class MemoryLink(_End):
    """A ``BlockingLink`` to another thread."""

    def __init__(
        self,
        changed: threading.Condition,
        outgoing: _Pipe,
        incoming: _Pipe,
        max_message_bytes: int,
    ) -> None:
        super().__init__(outgoing, incoming, max_message_bytes)
        self._changed = changed
        self._interrupted = False

    # Nothing between the two ends can change a byte.
    detects_corruption = True

    @property
    def address(self) -> str:
        return "memory"

    def send(self, frame: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._may_send(len(frame)))
            self._put(frame)
            self._changed.notify_all()

    def send_parts(self, head: bytes, payload: memoryview) -> None:
        # Joined: the receiver must not see what the sender writes there later.
        self.send(b"".join((head, payload)))

    def receive(self, timeout_seconds: float | None = None) -> bytes | None:
        with self._changed:
            if not self._changed.wait_for(self._may_receive, timeout_seconds):
                return None
            try:
                return self._take()
            finally:
                self._changed.notify_all()

    def wait_readable(self, timeout_seconds: float | None = None) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: self._interrupted or self._may_receive(), timeout_seconds
            )
            interrupted, self._interrupted = self._interrupted, False
            return not interrupted and self._may_receive()

    def keep_alive(self, interval_seconds: float, beat: Callable[[], None] | None = None) -> None:
        """Do nothing: both ends live and die together."""

    def interrupt(self) -> None:
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        with self._changed:
            self._hang_up(code, reason)
            self._changed.notify_all()


class AsyncMemoryLink(_End):
    """An ``AsyncLink`` to another task."""

    def __init__(
        self, changed: asyncio.Condition, outgoing: _Pipe, incoming: _Pipe, max_message_bytes: int
    ) -> None:
        super().__init__(outgoing, incoming, max_message_bytes)
        self._changed = changed

    @property
    def peer(self) -> str:
        return "memory"

    async def send(self, frame: bytes) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._may_send(len(frame)))
            self._put(frame)
            self._changed.notify_all()

    async def send_parts(self, head: bytes, payload: memoryview) -> None:
        await self.send(b"".join((head, payload)))

    async def receive(self) -> bytes:
        async with self._changed:
            await self._changed.wait_for(self._may_receive)
            try:
                return self._take()
            finally:
                self._changed.notify_all()

    async def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        async with self._changed:
            self._hang_up(code, reason)
            self._changed.notify_all()
