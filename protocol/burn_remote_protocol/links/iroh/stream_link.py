"""A link over one bidirectional QUIC stream, for the tasks of one event loop.

Two tasks belong to a link. The *reader* reads what arrives, parses it and queues the frames; it
pauses while the queue is full or the memory pool has no room. The *writer* sends what ``send`` has
queued; a cancelled ``send`` therefore never leaves half a frame on the stream. The library's
functions for one direction of a stream wait for each other, so nobody else calls them while these
tasks run.

A native link is the only one of its connection, and closes it with itself. Links with Burn share a
connection, of which each has one stream.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionLost,
    GarbledBytes,
    ProtocolViolation,
)
from burn_remote_protocol.links.interface import (
    CLOSE_TIMEOUT_SECONDS,
    NORMAL_CLOSURE,
    Allocate,
    Memory,
    PlaceFrame,
    close_code,
    short_reason,
)
from burn_remote_protocol.links.iroh.framing import (
    Control,
    FrameParser,
    Kind,
    close_payload,
    frame_header,
    read_close,
)
from burn_remote_protocol.links.iroh.library import IrohError, shortened, write_all
from burn_remote_protocol.links.receive_limits import (
    ReceiveBudget,
    ThroughputWatchdog,
)

__all__ = ["StreamLink"]

# Bytes of one read. The library clears this much memory before each read, and returns what has
# arrived, rarely more than 64 KiB. Long messages are read in larger parts.
READ_BYTES: Final = 2**15
LONG_READ_BYTES: Final = 2**18

# The reader pauses while more messages, or more bytes of them, than these wait to be received.
RECEIVE_QUEUE_LENGTH: Final = 64
RECEIVE_QUEUE_BYTES: Final = 2**20

# Frames that one link takes in one iteration of the event loop, about 0.4 ms for the smallest. A
# read may have thousands of them: all at once took 23 ms.
FRAMES_AT_ONCE: Final = 64

# ``send`` waits while more bytes than this are queued. The library holds some megabytes beyond it.
WRITE_QUEUE_BYTES: Final = 2**20

# Bytes passed to the library at once, in one copy.
WRITE_BYTES: Final = 2**18

# How often a link that waits for room in the memory pool looks again.
STARVED_SECONDS: Final = 0.05

# The library's description of a close by the peer.
_CLOSED_BY_PEER: Final = re.compile(r"closed by peer: (?P<reason>.*) \(code (?P<code>\d+)\)", re.S)


class StreamLink:
    """An ``AsyncLink`` over a stream; also the inner part of ``BlockingIrohLink``."""

    def __init__(
        self,
        connection: Any,
        stream: Any,
        *,
        peer: str,
        peer_host: str,
        max_message_bytes: int,
        is_native: bool,
        early: bytes = b"",
        on_closed: Callable[[], None] | None = None,
    ) -> None:
        """Start the tasks. ``early`` are bytes that were read already.

        ``on_closed`` is called once the link has given up its stream.
        """
        # ``None`` after the release, because they keep memory and sockets of the library.
        self._connection = connection
        self._send_stream = stream.send()
        self._receive_stream = stream.recv()
        self._peer: Final = peer
        self._peer_host: Final = peer_host
        self._is_native: Final = is_native
        self._on_closed = on_closed
        self._loop: Final = asyncio.get_running_loop()
        self._parser: Final = FrameParser(max_message_bytes, has_control_frames=is_native)
        # Why the link has ended, for all later calls; and an error to raise once before that.
        self._end: str | None = None
        # Why nothing more arrives, while this end may still send.
        self._read_end: str | None = None
        self._failure: BurnRemoteError | None = None
        self._received_bytes = 0
        self._unparsed = memoryview(b"")  # bytes that were read and not taken yet
        self._sent_bytes = 0
        self._frames: Final[collections.deque[Any]] = collections.deque()
        self._frame_bytes = 0  # of ``_frames``
        self._open_frame: Callable[[bytes], Any] | None = None
        self._queue: Final[collections.deque[bytes | memoryview]] = collections.deque()
        self._queued_bytes = 0
        self._finishes = False  # the writer ends the stream after the queue
        self._pings = 0  # sent by ``probe`` so far
        self._pongs: Final[dict[bytes, asyncio.Future[None]]] = {}
        self._budget: ReceiveBudget | None = None
        self._watchdog: ThroughputWatchdog | None = None
        self._is_starved = False
        self._has_waited = False  # for room, since its throughput was last measured
        # Set while there is room in the respective queue, or something to do.
        self._may_read: Final = asyncio.Event()
        self._may_read.set()
        self._has_frames: Final = asyncio.Event()
        self._has_output: Final = asyncio.Event()
        self._may_send: Final = asyncio.Event()
        self._may_send.set()
        self._released: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._timers: Final[set[asyncio.Task[None]]] = set()
        self.on_frames: Callable[[], None] = _ignore  # frames, or the end, have arrived
        self.on_progress: Callable[[], None] = _ignore  # the write queue has become shorter
        if early:
            self._received_bytes += len(early)
            self._take(memoryview(early))
        self._reader: Final = self._loop.create_task(self._read())
        self._writer: Final = self._loop.create_task(self._write())

    def __repr__(self) -> str:
        return f"<StreamLink {self._peer}: {self._end or 'open'}>"

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def peer_host(self) -> str:
        return self._peer_host

    @property
    def end(self) -> str | None:
        """Why nothing more arrives; ``None`` while the link is open."""
        return self._end or self._read_end

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._end is not None or self._finishes

    @property
    def received_bytes(self) -> int:
        return self._received_bytes

    @property
    def sent_bytes(self) -> int:
        return self._sent_bytes

    @property
    def queued_bytes(self) -> int:
        """How many bytes wait to be sent."""
        return self._queued_bytes

    # -- sending -----------------------------------------------------------------------------

    async def send(self, frame: bytes) -> None:
        await self.send_buffers((frame,))

    async def send_parts(self, head: bytes, payload: memoryview) -> None:
        await self.send_buffers((head, payload))

    async def send_buffers(
        self, buffers: Sequence[bytes | memoryview], fragment_bytes: int | None = None
    ) -> None:
        # Queued before the wait, so that frames leave in the order of the calls.
        self.send_nowait(*buffers)
        while self._end is None and not self._may_send.is_set():
            await self._may_send.wait()
        self.raise_end()

    async def send_slices(self, buffers: Sequence[bytes | memoryview], slice_bytes: int) -> None:
        await self.send_buffers(buffers)

    def is_writable(self) -> bool:
        return self._end is None and not self._finishes and self._may_send.is_set()

    def send_nowait(self, *buffers: bytes | memoryview) -> None:
        self.raise_end()
        self._put(frame_header(sum(map(len, buffers))), *buffers)

    def send_at_once(self, frame: bytes) -> None:
        self.send_nowait(frame)  # QUIC's thread sends

    def put_raw(self, *buffers: bytes | memoryview) -> None:
        """Queue bytes that begin or continue a frame; drop them if the link has ended."""
        if self._end is None and not self._finishes:
            self._put(*buffers)

    def _put(self, *buffers: bytes | memoryview) -> None:
        self._queue.extend(filter(len, buffers))
        self._queued_bytes += sum(map(len, buffers))
        if self._queued_bytes > WRITE_QUEUE_BYTES:
            self._may_send.clear()
        self._has_output.set()

    def _put_control(self, kind: Kind, payload: bytes = b"") -> None:
        if self._is_native and not self._finishes:
            self._put(frame_header(len(payload), kind), payload)

    async def _write(self) -> None:
        try:
            while self._queue or not self._finishes:
                if not self._queue:
                    self._has_output.clear()
                    await self._has_output.wait()
                    continue
                part = self._next_part()
                size = sum(map(len, part))
                await write_all(self._send_stream, part)
                self._sent_bytes += size
                self._queued_bytes -= size
                if self._queued_bytes <= WRITE_QUEUE_BYTES // 2:
                    self._may_send.set()
                self.on_progress()
            await self._send_stream.finish()
        except IrohError:
            pass  # the reader learns the reason, after the bytes that have arrived before it

    def _next_part(self) -> list[bytes | memoryview]:
        """Remove buffers of at most ``WRITE_BYTES`` from the queue."""
        part: list[bytes | memoryview] = []
        room = WRITE_BYTES
        while self._queue and room:
            buffer = self._queue.popleft()
            if len(buffer) > room:
                view = memoryview(buffer)
                self._queue.appendleft(view[room:])
                buffer = view[:room]
            part.append(buffer)
            room -= len(buffer)
        return part

    # -- receiving ---------------------------------------------------------------------------

    async def receive(self) -> Any:
        while not self._frames:
            self.raise_failure()
            self._has_frames.clear()
            await self._has_frames.wait()
        return self.take()

    def receive_nowait(self, longest: int | None = None) -> Any:
        if not self._frames or (longest is not None and len(self._frames[0]) > longest):
            return None
        return self.take()

    def take(self) -> Any:
        """Return the next frame; there must be one."""
        frame = self._frames.popleft()
        self._frame_bytes -= len(frame)
        if not self._may_read.is_set() and len(self._frames) <= RECEIVE_QUEUE_LENGTH // 2:
            self._may_read.set()
        return frame

    @property
    def has_frames(self) -> bool:
        """Whether a frame has arrived."""
        return bool(self._frames)

    @property
    def has_failed(self) -> bool:
        """Whether ``raise_failure`` will raise a violation."""
        return self._failure is not None

    def raise_failure(self) -> None:
        """Raise the error that ended the link, if one did; a violation only once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self.raise_end()
        if self._read_end is not None:
            raise ConnectionLost(self._read_end)

    def raise_end(self) -> None:
        """Raise ``ConnectionLost`` if nothing can be sent any more."""
        if self._end is not None:
            raise ConnectionLost(self._end)
        if self._finishes:
            raise ConnectionLost(f"this program closed the connection to {self._peer}")

    def call_on_arrival(
        self, handler: Callable[[], None] | None, take: Callable[[Any], bool] | None = None
    ) -> None:
        """Ignore the handler, which is a hint: a round trip over QUIC takes much longer."""

    def open_frames(self, open_frame: Callable[[bytes], Any]) -> None:
        waiting = [*self._frames]
        self._frames.clear()
        self._frame_bytes = 0
        self._open_frame = open_frame
        for frame in waiting:
            self._add(frame)

    def limit_messages(self, max_message_bytes: int, allocate: Allocate | None = None) -> None:
        self._parser.max_message_bytes = max_message_bytes

    def place_frames(self, head_bytes: int, place: PlaceFrame) -> None:
        """Ignore the place, which is a hint: the library returns bytes in memory of its own."""

    def count_received(
        self, memory: Memory, stall_seconds: float, urgent_bytes: int | None = None
    ) -> None:
        self._budget = ReceiveBudget(memory, urgent_bytes)
        self._watchdog = ThroughputWatchdog(stall_seconds)
        self._start_timer(self._watch_throughput(self._watchdog))

    async def _read(self) -> None:
        try:
            while self._end is None:
                while not self._has_room():
                    self._may_read.clear()
                    # A pool of memory does not tell when it has room again.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(STARVED_SECONDS if self._is_starved else None):
                            await self._may_read.wait()
                self._may_read.set()
                if self._unparsed:
                    await asyncio.sleep(0)  # for other connections
                    self._take(self._unparsed)
                    continue
                missing = self._parser.missing_bytes
                size = READ_BYTES if missing < READ_BYTES else min(missing, LONG_READ_BYTES)
                data = await self._receive_stream.read(size)
                if not data and self._is_native:
                    self._finish_reading(f"{self._peer} hung up")
                    return
                if not data:
                    # A server built with Burn ends its stream after a request, and waits for the
                    # response.
                    self._read_end = f"{self._peer} hung up"
                    self._notify()
                    return
                self._received_bytes += len(data)
                self._take(memoryview(data))
        except IrohError as error:
            self._lose(error)

    def _has_room(self) -> bool:
        if len(self._frames) > RECEIVE_QUEUE_LENGTH or self._frame_bytes > RECEIVE_QUEUE_BYTES:
            return False
        if self._budget is not None:
            held = self._parser.unfinished_bytes + self._frame_bytes
            was_starved, self._is_starved = self._is_starved, not self._budget.hold(held)
            self._has_waited = self._has_waited or (was_starved and not self._is_starved)
        return not self._is_starved

    def _take(self, data: memoryview) -> None:
        """Take the next frames of some bytes; the rest stays in ``_unparsed``."""
        frames, self._unparsed = self._parser.feed_some(data, FRAMES_AT_ONCE)
        for frame in frames:
            if self._failure is not None or self._end is not None:
                return
            if isinstance(frame, Control):
                self._take_control(frame)
            elif not self._finishes:
                self._add(frame)
        if self._parser.failure is not None:
            self._unparsed = memoryview(b"")
            self._refuse(self._parser.failure)
        elif frames:
            self._notify()

    def _add(self, frame: bytes) -> None:
        try:
            opened = frame if self._open_frame is None else self._open_frame(frame)
        except GarbledBytes as error:
            self._refuse(error)
            return
        self._frames.append(opened)
        self._frame_bytes += len(opened)

    def _take_control(self, control: Control) -> None:
        if control.kind is Kind.PING:
            # A peer that does not read its pongs gets none, so they occupy no memory.
            if self._may_send.is_set():
                self._put_control(Kind.PONG, control.payload)
        elif control.kind is Kind.PONG:
            waiting = self._pongs.pop(control.payload, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
        else:
            self._finish_reading(
                f"{self._peer} closed the connection: {read_close(control.payload)}"
            )

    def _refuse(self, error: ProtocolViolation | ConnectionLost) -> None:
        """End the link because of what the peer sent, and tell the peer."""
        if self._failure is not None or self._end is not None:
            return
        self._failure = error
        self._begin_closing(close_code(error), str(error), CLOSE_TIMEOUT_SECONDS)
        self._notify()

    async def _watch_throughput(self, watchdog: ThroughputWatchdog) -> None:
        """End the link if an incomplete message arrives too slowly."""
        while self._end is None:
            watchdog.is_fast_enough(self._parser.messages, self._received_bytes)
            self._has_waited = False
            await asyncio.sleep(watchdog.stall_seconds)
            is_reading = self._may_read.is_set() or self._is_starved
            if not self._parser.unfinished_bytes or not is_reading:
                watchdog.reset()  # between messages, or this end does not read
            elif not watchdog.is_fast_enough(self._parser.messages, self._received_bytes):
                # Another message that waited for room may just have ended.
                if self._is_starved and self._has_room():
                    self._may_read.set()
                if self._has_waited and watchdog.restart_after_wait(
                    self._parser.messages, self._received_bytes
                ):
                    continue
                self._refuse(watchdog.failure(is_starved=self._is_starved))
                return

    # -- signs of life -----------------------------------------------------------------------

    def keep_alive(
        self, interval_seconds: float, on_beat: Callable[[], None] | None = None
    ) -> None:
        """Ping the other end, if it is native; QUIC itself notices within 30 s that it is dead.

        ``on_beat`` is called with each ping.
        """
        if self._is_native:
            self._start_timer(self._beat(interval_seconds, on_beat or _ignore))

    async def _beat(self, interval_seconds: float, on_beat: Callable[[], None]) -> None:
        before = -1
        while self._end is None:
            if self._received_bytes == before and self._may_read.is_set():
                self._finish_reading(
                    f"{self._peer} gave no sign of life for {interval_seconds:g} s"
                )
                return
            before = self._received_bytes
            self._put_control(Kind.PING)
            on_beat()
            await asyncio.sleep(interval_seconds)

    async def probe(self) -> None:
        self.raise_end()
        if not self._is_native:
            return
        self._pings += 1
        payload = self._pings.to_bytes(8, "big")
        waiting = self._pongs[payload] = self._loop.create_future()
        self._put_control(Kind.PING, payload)
        try:
            await waiting
        finally:
            self._pongs.pop(payload, None)
        self.raise_end()

    def _start_timer(self, coroutine: Coroutine[Any, Any, None]) -> None:
        timer = self._loop.create_task(coroutine)
        self._timers.add(timer)
        timer.add_done_callback(self._timers.discard)

    # -- the end -----------------------------------------------------------------------------

    def _lose(self, error: Exception) -> None:
        closed = _CLOSED_BY_PEER.search(self._connection.close_reason() or "")
        if closed is None:
            reason = f"the connection to {self._peer} broke: {shortened(error)}"
        elif int(closed["code"]) or closed["reason"]:
            reason = f"{self._peer} closed the connection: {closed['code']} {closed['reason']}"
        else:
            reason = f"{self._peer} hung up"
        self._finish_reading(reason)

    def _finish_reading(self, reason: str) -> None:
        """End the link, because nothing more arrives: for ``reason``, unless this end closed it."""
        if self._end is None:
            self._end = self._own_end() or reason
        self._notify()
        self._begin_release(NORMAL_CLOSURE, "")

    def _own_end(self) -> str:
        return f"this program closed the connection to {self._peer}" if self._finishes else ""

    def _notify(self) -> None:
        self._has_frames.set()
        if self._end is not None:
            for event in (self._may_send, self._may_read, self._has_output):
                event.set()
            for waiting in self._pongs.values():
                if not waiting.done():
                    waiting.set_result(None)
        self.on_frames()

    async def close(
        self,
        code: int = NORMAL_CLOSURE,
        reason: str = "",
        timeout_seconds: float = CLOSE_TIMEOUT_SECONDS,
    ) -> None:
        self._frames.clear()
        self._frame_bytes = 0
        self._begin_closing(code, reason, timeout_seconds)
        assert self._closing is not None  # it has just begun, or did before
        await asyncio.shield(self._closing)

    def _begin_closing(self, code: int, reason: str, timeout_seconds: float) -> None:
        if self._closing is None:
            if self._end is None:
                self._put_control(Kind.CLOSE, close_payload(code, reason))
                self._finishes = True
                for event in (self._has_output, self._may_read, self._has_frames):
                    event.set()
            self._closing = self._loop.create_task(self._close(code, reason, timeout_seconds))

    async def _close(self, code: int, reason: str, timeout_seconds: float) -> None:
        if self._end is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await self._drained()
        if self._end is None:
            self._end = self._own_end()
            self._notify()
        self._begin_release(code, reason)
        assert self._released is not None  # it has just begun, or did before
        await self._released

    async def _drained(self) -> None:
        """Wait until the peer has all frames."""
        if self._is_native:
            # It closes the connection when it has read the close.
            await asyncio.wait([self._reader])
        else:
            stream = self._send_stream
            await asyncio.wait([self._writer])
            with contextlib.suppress(IrohError):
                await stream.stopped()

    def _begin_release(self, code: int, reason: str) -> None:
        if self._released is None:
            self._released = self._loop.create_task(self._release(code, reason))

    async def _release(self, code: int, reason: str) -> None:
        """End the other tasks, and give up the stream."""
        is_sent = self._writer.done() and not self._writer.cancelled()
        for task in (self._reader, self._writer, *self._timers):
            task.cancel()
        await asyncio.gather(self._reader, self._writer, *self._timers, return_exceptions=True)
        self._queue.clear()
        self._queued_bytes = 0
        if self._budget is not None:
            self._budget.hold(0)
        with contextlib.suppress(IrohError):
            if self._is_native:
                self._connection.close(code, short_reason(reason).encode())
            else:
                if not is_sent:
                    await self._send_stream.reset(code)
                await self._receive_stream.stop(code)
        if self._on_closed is not None:
            self._on_closed()
        self._connection = self._send_stream = self._receive_stream = self._on_closed = None
        self.on_frames()


def _ignore() -> None:
    """Do nothing."""
