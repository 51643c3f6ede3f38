"""A link for threads: a ``StreamLink`` on an event loop in a thread of its own.

The library completes its calls in other threads. A Ctrl-C in the main thread, between the
completion of a read and the next line of Python, would lose bytes of the stream. So the main
thread only moves whole frames between deques, and everything else happens in the link's own thread,
which no signal interrupts. Each link has its own, so links do not wait for each other.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import contextlib
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from burn_remote_protocol.errors import ConnectionFailed, ConnectionLost
from burn_remote_protocol.links.addresses import Address
from burn_remote_protocol.links.interface import (
    CLOSE_TIMEOUT_SECONDS,
    MAX_MESSAGE_BYTES,
    NORMAL_CLOSURE,
)
from burn_remote_protocol.links.iroh.async_link import connect as connect_async
from burn_remote_protocol.links.iroh.framing import frame_header
from burn_remote_protocol.links.iroh.stream_link import WRITE_QUEUE_BYTES, StreamLink
from burn_remote_protocol.links.transport_interface import CONNECT_TIMEOUT_SECONDS
from burn_remote_protocol.snapshots import living_keys
from burn_remote_protocol.waiters import Waiters

__all__ = ["BlockingIrohLink", "LoopThread", "connect"]

T = TypeVar("T")

# How long callers wait beyond an operation's own timeout for the link's thread, which is never
# busy for long.
GRACE_SECONDS: Final = 5.0

# Frames of at least this size are copied and handed over in parts, so that a sender holds no second
# copy of a large payload.
PART_BYTES: Final = 2**18

# A sender waits while the link's thread has not taken more buffers than these.
HANDED_OVER_BUFFERS: Final = 64

# Frames, and bytes of frames, that have been moved out of the ``StreamLink``'s queue, whose reader
# pauses if nobody empties it.
ARRIVED_FRAMES: Final = 64
ARRIVED_BYTES: Final = 2**20


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self, name: str) -> None:
        self.loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop):
            self.loop.run_forever()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_seconds: float) -> T:
        """Run a coroutine on the loop; cancel it after the timeout. Raises ``TimeoutError``."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout_seconds)
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and the thread; cancel what still runs. A second call does nothing."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self.loop.stop)
        if self._thread is not threading.current_thread():
            self._thread.join(GRACE_SECONDS)


def connect(
    target: Address,
    *,
    connect_to: str | None = None,
    tls: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    close_timeout_seconds: float = CLOSE_TIMEOUT_SECONDS,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    fragment_bytes: int | None = None,
    speaks_burn: bool = False,
) -> BlockingIrohLink:
    """Open a link; the options are those of ``BlockingOptions``.

    Raises ``ConnectionFailed``.
    """
    thread = LoopThread("burn-remote-iroh")
    try:
        inner = thread.call(
            connect_async(
                target,
                tls=tls,
                headers=headers,
                timeout_seconds=timeout_seconds,
                max_message_bytes=max_message_bytes,
                speaks_burn=speaks_burn,
            ),
            timeout_seconds + GRACE_SECONDS,
        )
        return BlockingIrohLink(target, thread, inner, close_timeout_seconds)
    except TimeoutError as error:
        thread.stop()
        raise ConnectionFailed(f"the event loop for {target} did not answer") from error
    except BaseException:
        thread.stop()
        raise


class BlockingIrohLink:
    """A ``BlockingLink`` over a QUIC stream; made by ``connect``."""

    # QUIC encrypts and authenticates each packet.
    detects_corruption: Final = True

    def __init__(
        self, target: Address, thread: LoopThread, inner: StreamLink, close_timeout_seconds: float
    ) -> None:
        self._address: Final = str(target)
        self._thread: Final = thread
        self._inner: Final = inner
        self._close_timeout_seconds: Final = close_timeout_seconds
        self._changed: Final = Waiters()
        # Buffers for the link's thread to send.
        self._outgoing: Final[collections.deque[tuple[bytes, ...]]] = collections.deque()
        self._sending: Final = threading.Lock()
        self._arrived: Final[collections.deque[bytes]] = collections.deque()
        self._arrived_bytes = 0  # appended to ``_arrived`` so far, by the link's thread
        self._taken_bytes = 0  # taken from it so far, by the thread that receives
        self._is_over = False  # all frames have been moved, and no other will arrive
        self._interrupted = False
        self._closed = False
        self._close_lock: Final = threading.Lock()
        self._beat: Callable[[], None] | None = None
        self._beats = 0  # calls of ``_beat`` that are due
        thread.call(self._begin(), GRACE_SECONDS)
        _open_links[self] = None

    def __repr__(self) -> str:
        return f"<BlockingIrohLink {self._address}: {self._inner.end or 'open'}>"

    @property
    def address(self) -> str:
        return self._address

    @property
    def peer_host(self) -> str:
        return ""  # a node is reached at changing addresses

    @property
    def closed(self) -> bool:
        return self._closed or self._inner.is_closed

    # -- sending -----------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        with self._sending:
            self._hand_over([(frame_header(len(frame)), frame)])
            self._wait_for_room()

    def send_parts(self, head: bytes, payload: memoryview, *, is_constant: bool = False) -> None:
        with self._sending:
            header = frame_header(len(head) + len(payload))
            at = min(len(payload), PART_BYTES)
            self._raise_if_ended()
            try:
                self._hand_over([(header, head, bytes(payload[:at]))])
                while at < len(payload):
                    self._wait_for_room()
                    end = min(len(payload), at + PART_BYTES)
                    self._hand_over([(bytes(payload[at:end]),)])
                    at = end
            finally:
                # After Ctrl-C: the frame has begun, so the rest must follow.
                if at < len(payload):
                    self._outgoing.append((bytes(payload[at:]),))
                    self._wake()
            self._wait_for_room()

    def send_together(self, frames: list[bytes]) -> None:
        self._raise_if_ended()
        with self._sending:
            taken: list[tuple[bytes, ...]] = [(frame_header(len(frame)), frame) for frame in frames]
            try:
                frames.clear()
            finally:
                if not frames:
                    self._hand_over(taken)
            self._wait_for_room()

    def _hand_over(self, frames: list[tuple[bytes, ...]]) -> None:
        self._raise_if_ended()
        try:
            self._outgoing.extend(frames)
        finally:  # also if Ctrl-C comes directly after it
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended with the link
            self._thread.loop.call_soon_threadsafe(self._forward)

    def _wait_for_room(self) -> None:
        self._changed.wait_until(self._has_room)
        self._raise_if_ended()

    def _has_room(self) -> bool:
        return self.closed or (
            len(self._outgoing) <= HANDED_OVER_BUFFERS
            and self._inner.queued_bytes <= WRITE_QUEUE_BYTES
        )

    def _raise_if_ended(self) -> None:
        if self._closed:
            raise ConnectionLost(f"this program closed the connection to {self._address}")
        self._inner.raise_end()

    # -- receiving ---------------------------------------------------------------------------

    def receive(self, timeout_seconds: float | None = None) -> bytes | memoryview | None:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            has_news = self._wait(self._has_arrived_or_beats, deadline)
            self._call_beats()
            # Read before the queue: frames that arrived before the end must be returned first.
            is_over = self._closed or self._is_over
            try:
                frame = self._arrived.popleft()
            except IndexError:  # or another thread took it
                frame = None
            if frame is None:
                if is_over:
                    self._raise_failure()
                if not has_news:
                    return None
                continue
            self._taken_bytes += len(frame)
            if self._inner.has_frames:
                self._wake()
            return frame

    def wait_readable(self, timeout_seconds: float | None = None) -> bool:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            found = self._wait(lambda: self._interrupted or self._has_arrived_or_beats(), deadline)
            self._call_beats()
            if self._has_arrived():
                return True
            if self._interrupted:
                self._interrupted = False
                return False
            if not found:
                return False

    def _wait(self, is_true: Callable[[], bool], deadline: float | None) -> bool:
        left = None if deadline is None else deadline - time.monotonic()
        return self._changed.wait_until(is_true, left)

    def has_buffered(self) -> bool:
        return self._has_arrived()

    def has_ended(self) -> bool:
        return self.closed

    def _has_arrived(self) -> bool:
        return bool(self._arrived) or self._is_over or self._closed

    def _has_arrived_or_beats(self) -> bool:
        return self._beats > 0 or self._has_arrived()

    def _call_beats(self) -> None:
        if self._beats:
            self._beats = 0
            if self._beat is not None:
                self._beat()

    def _raise_failure(self) -> None:
        if self._closed:
            self._raise_if_ended()
        self._inner.raise_failure()

    # -- life --------------------------------------------------------------------------------

    def keep_alive(self, interval_seconds: float, beat: Callable[[], None] | None = None) -> None:
        self._beat = beat

        async def begin() -> None:
            self._inner.keep_alive(interval_seconds, self._note_beat)

        self._thread.call(begin(), GRACE_SECONDS)

    def interrupt(self) -> None:
        self._interrupted = True
        self._changed.wake()

    def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
            self._changed.wake()
            with contextlib.suppress(TimeoutError, RuntimeError):
                self._thread.call(
                    self._close(code, reason), self._close_timeout_seconds + GRACE_SECONDS
                )
            self._thread.stop()

    # -- in the link's thread ----------------------------------------------------------------

    async def _begin(self) -> None:
        self._inner.on_frames = self._move_arrived
        self._inner.on_progress = self._changed.wake
        self._move_arrived()

    def _forward(self) -> None:
        """Pass on what threads have handed over, and move what has arrived."""
        while self._outgoing:
            self._inner.put_raw(*self._outgoing.popleft())
        self._move_arrived()
        self._changed.wake()

    def _move_arrived(self) -> None:
        inner = self._inner
        while (
            inner.has_frames
            and len(self._arrived) <= ARRIVED_FRAMES
            and self._arrived_bytes - self._taken_bytes <= ARRIVED_BYTES
        ):
            frame = inner.take()
            self._arrived_bytes += len(frame)
            self._arrived.append(frame)
        if not inner.has_frames and (inner.end is not None or inner.has_failed):
            self._is_over = True
        self._changed.wake()

    def _note_beat(self) -> None:
        self._beats = 1
        self._changed.wake()

    async def _close(self, code: int, reason: str) -> None:
        self._forward()
        await self._inner.close(code, reason, self._close_timeout_seconds)


# A program may end without closing its links. Frames that were sent have to leave, and
# the library's threads must not call Python after the interpreter's end.
_open_links: Final[weakref.WeakKeyDictionary[BlockingIrohLink, None]] = weakref.WeakKeyDictionary()


@atexit.register
def _close_all() -> None:
    for link in living_keys(_open_links):
        link.close()
