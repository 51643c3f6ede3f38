"""The interfaces of links.

A link carries *frames*: byte strings that arrive whole, once and in order. ``BlockingLink`` serves
threads (the client), ``AsyncLink`` an event loop (servers and their peers). ``tests/support`` has
the conformance tests that every implementation must pass.

Errors:

- ``ConnectionLost``: the link has ended, no matter which end closed it. The text has the peer's
  close code and reason, if it sent any. Every later call raises it again.
- ``ProtocolViolation`` from ``receive``: the peer sent something that a link cannot carry, such as
  a text message or malformed framing. The link has ended.
- ``LimitExceeded`` from ``receive``: a message has more than ``max_message_bytes``. The link has
  ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from burn_remote_protocol.errors import ConnectionLost, LimitExceeded

__all__ = [
    "CLOSE_TIMEOUT_SECONDS",
    "MAX_MESSAGE_BYTES",
    "MESSAGE_TOO_BIG",
    "NORMAL_CLOSURE",
    "POLICY_VIOLATION",
    "PROTOCOL_ERROR",
    "SEND_SLICE_SECONDS",
    "AsyncLink",
    "BlockingLink",
    "BulkAsyncLink",
    "BulkLink",
    "BulkSource",
    "FrameSender",
    "LendingAsyncLink",
    "LentReceiver",
    "Memory",
    "Place",
    "PlaceFrame",
    "PlacedFrame",
    "Placement",
    "close_code",
    "short_reason",
]

# The default size limit of a received message. A faulty peer can make this end allocate that much.
# Burn 0.21 sends a tensor as one message, and its server has the same limit.
MAX_MESSAGE_BYTES: Final = 64 * 2**20

# How long ``close`` waits for the peer's confirmation, so that the last frames sent are not lost. A
# dead peer delays the end of the program or of the server by this much.
CLOSE_TIMEOUT_SECONDS: Final = 1.0

# How often a thread that sends checks whether it should go on.
SEND_SLICE_SECONDS: Final = 0.1

# Close codes of RFC 6455, section 7.4.1.
NORMAL_CLOSURE: Final = 1000
PROTOCOL_ERROR: Final = 1002
POLICY_VIOLATION: Final = 1008
MESSAGE_TOO_BIG: Final = 1009


def short_reason(reason: str) -> str:
    """Truncate a reason to the 123 bytes that a close frame can hold, between characters."""
    return reason.encode()[:123].decode(errors="ignore")


def close_code(error: Exception) -> int:
    """Return the code with which an end closes a link because of what the peer sent."""
    if isinstance(error, LimitExceeded):
        return MESSAGE_TOO_BIG
    return POLICY_VIOLATION if isinstance(error, ConnectionLost) else PROTOCOL_ERROR


class BlockingLink(Protocol):
    """One end of a connection, used by threads.

    Any number of threads may send; frames never interleave. The caller makes sure that at most one
    thread receives at a time; another may be in ``wait_readable`` meanwhile. Whoever opened a link
    closes it, even after ``ConnectionLost``.
    """

    @property
    def address(self) -> str:
        """The other end, for error messages: ``"ws://gpu-box:3000"``."""
        ...

    @property
    def peer_host(self) -> str:
        """The numeric IP address of the other end; empty if the link has none."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the link is known to have ended; it may have ended unnoticed."""
        ...

    @property
    def detects_corruption(self) -> bool:
        """Whether corrupted bytes end the link (TLS) or cannot occur (within a process)."""
        ...

    def send(self, frame: bytes) -> None:
        """Send one frame; return once the operating system has accepted it (backpressure).

        After a ``KeyboardInterrupt`` the link still works: the rest of the frame is sent before the
        next one. Raises ``ConnectionLost``.
        """
        ...

    def send_parts(self, head: bytes, payload: memoryview, *, is_constant: bool = False) -> None:
        """Send ``head`` and ``payload`` as one frame, without joining them first.

        ``payload`` is one-dimensional, contiguous and of bytes; it may change once this returns.
        ``is_constant``: it never changes, and the caller has a copy to send again. Then this may
        return before the operating system has accepted the frame, but after it has accepted all
        earlier ones. If that fails, the link ends. Raises ``ConnectionLost``.
        """
        ...

    def send_together(self, frames: list[bytes]) -> None:
        """Send several frames like ``send``, with few system calls. Raises ``ConnectionLost``.

        Removes them from the list at the moment from which they are sent even if the call is
        interrupted. So after Ctrl-C or a ``MemoryError``, the list has those that are not sent.
        """
        ...

    def receive(self, timeout_seconds: float | None = None) -> bytes | memoryview | None:
        """Return the next frame, or ``None`` if none is complete within the timeout.

        A timeout of 0 does not wait. A ``KeyboardInterrupt`` while waiting loses nothing: the next
        call continues. Frames that arrived before the link ended are returned before the error is
        raised. Raises ``ConnectionLost``, ``ProtocolViolation``.
        """
        ...

    def wait_readable(self, timeout_seconds: float | None = None) -> bool:
        """Wait until ``receive`` may find a frame or the end of the link.

        Consumes nothing. Return ``False`` after the timeout or an ``interrupt``.
        """
        ...

    def has_buffered(self) -> bool:
        """Whether the link itself holds bytes, which may be a frame, or is known to have ended.

        A thread that is already inside ``wait_readable`` does not notice such bytes. Does not look
        at the socket. Only the thread that receives may call it.
        """
        ...

    def has_ended(self) -> bool:
        """Whether the other end has stopped sending; ``False`` if the system cannot detect it.

        Frames that it sent before can still be received. Any thread may call this.
        """
        ...

    def keep_alive(self, interval_seconds: float, beat: Callable[[], None] | None = None) -> None:
        """Ping the other end each interval, while a thread receives or waits.

        ``beat`` is called with each ping, by that thread; it must not send. If the other end is
        silent for two intervals, the link ends with ``ConnectionLost``. Any whole message counts as
        a sign of life, and so does at least 1 KiB of an incomplete one.
        """
        ...

    def interrupt(self) -> None:
        """Make the current ``wait_readable`` return, or the next one if no thread is in it."""
        ...

    def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        """Notify the other end and end the link, within a bounded time. Never raises.

        Threads inside another method leave it with ``ConnectionLost``. A second call does nothing.
        """
        ...


# place(head, size): where to store the rest of a message that begins with ``head``. Its length must
# be ``size``, otherwise the message is refused.
Place = Callable[[bytes, int], memoryview]


class BulkSource(Protocol):
    """The receiving end of a link that carries bulk data. At most one thread uses it."""

    def receive(
        self, head_bytes: int, place: Place, check: Callable[[], None]
    ) -> tuple[bytes, memoryview]:
        """Return the next message: its first ``head_bytes``, and the rest, stored in ``place``.

        A shorter message is returned as the head. ``check`` is called each time that nothing has
        arrived for a while; if it raises, the link ends with its error. Raises ``ConnectionLost``,
        ``ProtocolViolation``.
        """
        ...

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until ``receive`` may find a message or the end; ``False`` after a ``wake``."""
        ...

    def wake(self) -> None:
        """Make the current ``wait`` return, or the next one. Any thread may call it."""
        ...

    def has_ended(self) -> bool:
        """Whether the other end has stopped sending; ``False`` if the system cannot detect it.

        Messages that it sent before can still be received.
        """
        ...


class BulkLink(BlockingLink, Protocol):
    """A ``BlockingLink`` that can receive large messages into memory of the caller."""

    def bulk_reader(self, silence_seconds: float) -> BulkSource:
        """Return the link's only receiver from now on; the link's ``receive`` must not be called.

        The receiver calls ``check`` each time that nothing has arrived for ``silence_seconds``.
        """
        ...


class LentReceiver(Protocol):
    """Receives and sends small frames in one thread, in place of an event loop."""

    def receive(self, timeout_seconds: float) -> list[bytes]:
        """Return the frames that have arrived; wait for the first one.

        Returns none if none arrives in time, or if the event loop must continue. Never raises.
        """
        ...

    def send(self, frame: bytes) -> bool:
        """Send a small frame without waiting; return whether the link has taken it.

        Nothing else may send meanwhile. Never raises.
        """
        ...

    def give_back(self, unread: Sequence[bytes] = ()) -> None:
        """Let the event loop receive again, ``unread`` first; call nothing else afterwards."""
        ...


class FrameSender(Protocol):
    """Sends the frames of an ``AsyncLink`` from a thread."""

    def send(self, frame: bytes) -> None:
        """Send one frame; return once it is accepted. Raises ``ConnectionLost``."""
        ...

    def send_parts(self, head: bytes, payload: memoryview) -> None:
        """Send one frame in two parts; this may return before they are sent.

        ``payload`` must not change any more. If sending fails later, the next call reports it.
        Raises ``ConnectionLost``.
        """
        ...

    @property
    def accepts(self) -> bool:
        """Whether no earlier frame waits to be sent, so that ``begin`` may be called."""
        ...

    def begin(self, frames: Sequence[tuple[bytes, memoryview]]) -> bool:
        """Send frames in two parts, as far as that needs no wait; return whether that is all.

        ``finish`` and later frames send the rest first, so the payloads must not change until then.
        Raises ``ConnectionLost``; so does the next call.
        """
        ...

    def finish(self) -> None:
        """Wait until what ``begin`` left is sent. Raises ``ConnectionLost``."""
        ...

    def close(self) -> None:
        """End the sending once all earlier frames are sent; the link may end with it."""
        ...


# Returns writable memory of the given number of bytes. The system provides a page of it only when
# the page is written.
Allocate = Callable[[int], memoryview]


class Placement(NamedTuple):
    """Memory of the receiver for the rest of a frame.

    ``is_valid`` is called before each read: once it returns ``False``, nothing more is stored
    there, and the frame's contents are undefined.
    """

    memory: memoryview
    is_valid: Callable[[], bool]


# place(head, size): where to store the ``size`` bytes of a frame that follow ``head``; ``None`` to
# receive a frame as usual. The head is not verified.
PlaceFrame = Callable[[bytes, int], Placement | None]


class PlacedFrame(bytes):
    """The head of a frame whose other bytes, ``rest``, are in memory of the receiver.

    ``len`` counts the head alone: the link holds no more of the frame.
    """

    rest: memoryview

    @classmethod
    def of(cls, head: bytes, rest: memoryview) -> PlacedFrame:
        """Return the frame ``head + rest``."""
        frame = cls(head)
        frame.rest = rest
        return frame


class Memory(Protocol):
    """A pool of bytes that several links share. Thread-safe."""

    def take(self, size: int) -> bool:
        """Reserve bytes; return ``False`` if the pool has fewer left."""
        ...

    def take_urgent(self, size: int) -> bool:
        """Reserve bytes, also somewhat beyond the limit; ``False`` if the pool has fewer left.

        The caller releases them by ``give_back_urgent``.
        """
        ...

    def add(self, size: int) -> None:
        """Count bytes that are already allocated, even beyond the limit."""
        ...

    def add_urgent(self, size: int) -> None:
        """Count urgent bytes that are already allocated, even beyond the limit."""
        ...

    def give_back(self, size: int) -> None:
        """Release reserved bytes."""
        ...

    def give_back_urgent(self, size: int) -> None:
        """Release urgent bytes."""
        ...


class AsyncLink(Protocol):
    """One end of a connection, used by the tasks of one event loop.

    Any number of tasks may send; frames never interleave. At most one task receives at a time.
    """

    @property
    def peer(self) -> str:
        """The other end, for logs: ``"192.0.2.7:51034"``."""
        ...

    @property
    def peer_host(self) -> str:
        """The other end's public key, if it has proved one, else its address without its port.

        ``""`` if it has neither.
        """
        ...

    @property
    def received_bytes(self) -> int:
        """How many bytes have arrived, including those of an incomplete message."""
        ...

    @property
    def sent_bytes(self) -> int:
        """About how many bytes of frames the other end, or the system for it, has taken."""
        ...

    async def send(self, frame: bytes) -> None:
        """Send one frame; wait while the peer is slow to take it. Raises ``ConnectionLost``."""
        ...

    async def send_parts(self, head: bytes, payload: memoryview) -> None:
        """Send ``head`` and ``payload`` as one frame, without joining them first.

        ``payload`` is one-dimensional, contiguous and of bytes. It must not change afterwards: the
        link may refer to it until the peer has received it. Raises ``ConnectionLost``.
        """
        ...

    def is_writable(self) -> bool:
        """Whether ``send_nowait`` may be called: the link is open and the peer is not slow."""
        ...

    def send_nowait(self, *buffers: bytes | memoryview) -> None:
        """Send one frame made of buffers without waiting, under the rules of ``send_parts``.

        Call it only while the link ``is_writable``.
        """
        ...

    def send_at_once(self, frame: bytes) -> None:
        """Send one small frame like ``send_nowait``, if possible before this returns.

        For a frame that no other follows now: each takes a system call.
        """
        ...

    async def send_buffers(
        self, buffers: Sequence[bytes | memoryview], fragment_bytes: int | None = None
    ) -> None:
        """Send one frame made of any number of buffers, under the rules of ``send_parts``.

        ``fragment_bytes`` is the largest fragment to send, for transports that can split a message.
        """
        ...

    async def send_slices(self, buffers: Sequence[bytes | memoryview], slice_bytes: int) -> None:
        """Send one frame like ``send_buffers``, undivided; other tasks run after each slice.

        For a slow peer, this end keeps a copy of at most two slices. Nothing else may be sent
        meanwhile. If the call is cancelled, the link ends, because the frame is incomplete.
        """
        ...

    async def receive(self) -> bytes:
        """Return the next frame. Cancelling it loses nothing.

        Raises ``ConnectionLost``, ``ProtocolViolation``.
        """
        ...

    def receive_nowait(self, longest: int | None = None) -> bytes | None:
        """Return the next frame if it has already arrived and has at most ``longest`` bytes."""
        ...

    def call_on_arrival(
        self, handler: Callable[[], None] | None, take: Callable[[Any], bool] | None = None
    ) -> None:
        """Call ``handler`` when frames arrive while a task waits in ``receive``.

        It takes frames by ``receive_nowait``, which saves waking the task, and must not take long.
        The task wakes up only for frames that the handler leaves, and if the handler raises: then
        ``receive`` raises the same. ``take(frame)`` is called first for a small frame that arrives
        alone, which saves queueing it. It returns whether it took the frame; if it raises, it has
        taken it. Both are hints: a link may ignore them.
        """
        ...

    def open_frames(self, open_frame: Callable[[bytes], Any]) -> None:
        """Let ``receive`` return, from now on, the results of ``open_frame`` in place of frames.

        ``open_frame`` is called for each frame that was not received yet, in order, and as soon as
        the frame has arrived: its bytes are then still in the processor's cache. If it raises
        ``GarbledBytes``, the frame is dropped, and ``receive`` raises the error after the frames
        before it.
        """
        ...

    def limit_messages(self, max_message_bytes: int, allocate: Allocate | None = None) -> None:
        """Set another size limit for messages that arrive from now on.

        ``allocate`` provides memory for long messages; it need not be used.
        """
        ...

    def place_frames(self, head_bytes: int, place: PlaceFrame) -> None:
        """Store the rest of long frames where ``place`` says; they arrive as ``PlacedFrame``.

        ``place`` is called with the first ``head_bytes`` of a frame if all frames before it have
        been received. This is a hint: a link may ignore it.
        """
        ...

    def count_received(
        self, memory: Memory, stall_seconds: float, urgent_bytes: int | None = None
    ) -> None:
        """Count the bytes of incoming messages against ``memory`` from now on.

        While ``memory`` has no room for them, the link does not read. Messages of up to
        ``urgent_bytes`` together, by default 1 MiB, also use the room beyond its limit. If a
        message arrives too slowly over ``stall_seconds``, the link ends.
        """
        ...

    def keep_alive(self, interval_seconds: float) -> None:
        """Ping the other end each interval; end the link if it is silent for two intervals."""
        ...

    async def probe(self) -> None:
        """Wait until the other end has responded to a ping. Raises ``ConnectionLost``."""
        ...

    async def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        """Notify the other end and end the link, within a bounded time. Never raises."""
        ...


class LendingAsyncLink(AsyncLink, Protocol):
    """An ``AsyncLink`` from which a thread can receive for a while."""

    def lend_receiver(self) -> LentReceiver | None:
        """Let a thread receive in place of the task that waits in ``receive``.

        Returns ``None`` if this is not possible now.
        """
        ...


class BulkAsyncLink(AsyncLink, Protocol):
    """An ``AsyncLink`` whose frames a thread can send."""

    async def frame_sender(self, check: Callable[[], None]) -> FrameSender:
        """Return a sender for one thread; this link must send nothing itself any more.

        ``check`` is called about every ``SEND_SLICE_SECONDS`` while the peer accepts nothing; if it
        raises, the sender's call ends with its error.
        """
        ...
