"""Links between two ends inside one process, bounded like sockets, and a transport for them.

They show that the link interfaces do not depend on WebSockets, and replace the network in tests.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from burn_remote_protocol.errors import ConnectionFailed, ConnectionLost, LimitExceeded
from burn_remote_protocol.links.addresses import Address
from burn_remote_protocol.links.interface import (
    MAX_MESSAGE_BYTES,
    MESSAGE_TOO_BIG,
    NORMAL_CLOSURE,
    AsyncLink,
    BlockingLink,
    PlaceFrame,
)
from burn_remote_protocol.links.transport_interface import Handle, Listener, Request
from support.waiting import PATIENCE_SECONDS

__all__ = [
    "AsyncMemoryLink",
    "MemoryFarEnd",
    "MemoryLink",
    "MemoryTransport",
    "async_memory_pair",
    "memory_pair",
]

# Bytes that one direction holds before its sender waits. An empty direction accepts a frame of any
# size.
CAPACITY_BYTES: Final = 2**20

# The same bound for small frames.
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
    """One direction: frames in transit, and the reason that each side sees once it has ended.

    Guarded by the condition that its two links share.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._frames: collections.deque[bytes] = collections.deque()
        self._held_bytes = 0
        self.total_bytes = 0
        self.sender_end: str | None = None
        self.receiver_end: str | None = None

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def next_length(self) -> int:
        """The length of the next frame, of at least one."""
        return len(self._frames[0])

    def has_room(self, size: int) -> bool:
        return not self._frames or (
            len(self._frames) < CAPACITY_FRAMES and self._held_bytes + size <= self._capacity_bytes
        )

    def put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._held_bytes += len(frame)
        self.total_bytes += len(frame)

    def take(self) -> bytes:
        frame = self._frames.popleft()
        self._held_bytes -= len(frame)
        return frame

    def drop(self) -> None:
        self._frames.clear()
        self._held_bytes = 0


class _End:
    """The shared state of both kinds of link, guarded by their condition."""

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
        # Frames sent before this still arrive; frames not yet received are dropped.
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

    # Nothing between the two ends can change bytes, so checksums are unnecessary.
    detects_corruption = True

    @property
    def address(self) -> str:
        return "memory"

    @property
    def peer_host(self) -> str:
        return ""

    def send(self, frame: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._may_send(len(frame)))
            self._put(frame)
            self._changed.notify_all()

    def send_parts(self, head: bytes, payload: memoryview, *, is_constant: bool = False) -> None:
        # A copy: the payload's memory may change once this returns.
        self.send(b"".join((head, payload)))

    def send_together(self, frames: list[bytes]) -> None:
        for frame in frames:
            self.send(frame)
        del frames[:]

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

    def has_buffered(self) -> bool:
        with self._changed:
            return self._may_receive()

    def has_ended(self) -> bool:
        return self._incoming.receiver_end is not None

    def keep_alive(self, interval_seconds: float, beat: Callable[[], None] | None = None) -> None:
        """Do nothing: neither end can vanish without the other."""

    def interrupt(self) -> None:
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        with self._changed:
            self._hang_up(code, reason)
            self._changed.notify_all()


class MemoryFarEnd:
    """The other end, whose ``receive`` waits at most as long as a test does."""

    def __init__(self, link: BlockingLink) -> None:
        self.send = link.send
        self.send_parts = link.send_parts
        self.close = link.close
        self.vanish = link.close
        self._link = link

    def receive(self) -> bytes | memoryview | None:
        return self._link.receive(PATIENCE_SECONDS)


class AsyncMemoryLink(_End):
    """An ``AsyncLink`` to another task."""

    def __init__(
        self, changed: asyncio.Condition, outgoing: _Pipe, incoming: _Pipe, max_message_bytes: int
    ) -> None:
        super().__init__(outgoing, incoming, max_message_bytes)
        self._changed = changed
        self._open_frame: Callable[[bytes], bytes] = bytes
        self._handler: Callable[[], None] | None = None
        self.place: PlaceFrame | None = None

    @property
    def peer(self) -> str:
        return "memory"

    @property
    def peer_host(self) -> str:
        return ""

    @property
    def received_bytes(self) -> int:
        return self._incoming.total_bytes

    @property
    def sent_bytes(self) -> int:
        return self._outgoing.total_bytes

    async def send(self, frame: bytes) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._may_send(len(frame)))
            self._put(frame)
            self._changed.notify_all()

    async def send_parts(self, head: bytes, payload: memoryview) -> None:
        await self.send(b"".join((head, payload)))

    # Waking the receiver takes the condition's lock, for which a sender may have to wait.
    def is_writable(self) -> bool:
        return False

    def send_nowait(self, *buffers: bytes | memoryview) -> None:
        raise AssertionError("not writable")

    def send_at_once(self, frame: bytes) -> None:
        raise AssertionError("not writable")

    async def send_buffers(
        self, buffers: Sequence[bytes | memoryview], fragment_bytes: int | None = None
    ) -> None:
        await self.send(b"".join(buffers))

    async def send_slices(self, buffers: Sequence[bytes | memoryview], slice_bytes: int) -> None:
        await self.send_buffers(buffers)

    async def receive(self) -> bytes:
        async with self._changed:
            while True:
                is_waiting = not self._may_receive()
                await self._changed.wait_for(self._may_receive)
                try:
                    if is_waiting and self._handler is not None and len(self._incoming):
                        self._handler()
                        if self._incoming.receiver_end is None and not len(self._incoming):
                            continue
                    return self._open_frame(self._take())
                finally:
                    self._changed.notify_all()

    def open_frames(self, open_frame: Callable[[bytes], bytes]) -> None:
        self._open_frame = open_frame

    def receive_nowait(self, longest: int | None = None) -> bytes | None:
        # No other task runs meanwhile, so the condition's lock is not needed. A sender that waits
        # for room is woken by the next ``receive``.
        if not len(self._incoming) or (
            longest is not None and self._incoming.next_length > longest
        ):
            return None
        return self._open_frame(self._take())

    def call_on_arrival(self, handler: Callable[[], None] | None, take: object = None) -> None:
        self._handler = handler  # ``take`` is a hint, which these links ignore

    def place_frames(self, head_bytes: int, place: PlaceFrame) -> None:
        self.place = place  # a hint, which only tests use

    def count_received(
        self, memory: object, stall_seconds: float, urgent_bytes: int | None = None
    ) -> None:
        """Do nothing: what arrives is in memory already."""

    def limit_messages(self, max_message_bytes: int, allocate: object = None) -> None:
        self._max_message_bytes = max_message_bytes

    def keep_alive(self, interval_seconds: float) -> None:
        """Do nothing: neither end can vanish without the other."""

    async def probe(self) -> None:
        if self.closed:
            raise ConnectionLost(self._outgoing.sender_end)

    async def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        async with self._changed:
            self._hang_up(code, reason)
            self._changed.notify_all()


class MemoryTransport:
    """A ``Transport`` whose listeners have numbers for ports, in this process and event loop."""

    def __init__(self) -> None:
        self._listeners: dict[int, tuple[Handle, set[asyncio.Task[None]]]] = {}

    def connect(self, target: Address, **options: Any) -> BlockingLink:
        raise ConnectionFailed(f"nothing in this process serves threads at {target}")

    async def connect_async(self, target: Address, **options: Any) -> AsyncLink:
        if target.port not in self._listeners:
            raise ConnectionFailed(f"nothing listens at {target}")
        handle, tasks = self._listeners[target.port]
        near, far = async_memory_pair(**options)

        async def serve() -> None:
            await handle(far, Request(target.path + target.route, {}))

        tasks.add(asyncio.ensure_future(serve()))
        return near

    def listen(
        self, host: str, port: int, handle: Handle, **options: Any
    ) -> AbstractAsyncContextManager[Listener]:
        return self._listen(port or len(self._listeners) + 1, handle)

    @contextlib.asynccontextmanager
    async def _listen(self, port: int, handle: Handle) -> AsyncIterator[Listener]:
        tasks: set[asyncio.Task[None]] = set()
        self._listeners[port] = handle, tasks
        try:
            yield MemoryListener(self._listeners, port)
        finally:
            self._listeners.pop(port, None)
            await asyncio.gather(*tasks)


class MemoryListener:
    """A ``Listener`` of a ``MemoryTransport``."""

    def __init__(self, listeners: dict[int, Any], port: int) -> None:
        self._listeners = listeners
        self._port = port

    @property
    def port(self) -> int:
        return self._port

    def stop_accepting(self) -> None:
        self._listeners.pop(self._port, None)
