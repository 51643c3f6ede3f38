"""Links whose frames carry a checksum, for transports that do not detect corrupted bytes.

TCP's checksum misses one corrupted segment in some ten thousand, and does not cover corruption
inside proxies and network cards. TLS detects corruption; a plain WebSocket does not. So each frame
is sent with a header:

====== ===== ==================================================================================
offset bytes meaning
====== ===== ==================================================================================
0      1     254, which marks a checked frame and differs from Hello's 1 in every bit
1      8     XXH3 (64 bits) of the frame that follows, or XXH64 if it has 241 bytes to 16 KiB,
             big-endian; the seed is the number of frames that this end sent before over this link
9      …     the frame
====== ===== ==================================================================================

Because of the seed, the receiver also detects frames that were lost, repeated or reordered. (A
flipped bit in a WebSocket header can lose a frame by turning it into a pong.)

After an end has sent or received one checked frame, it refuses frames without a checksum, so a
flipped bit cannot turn the checksums off. A wrong checksum ends the link with ``GarbledBytes``, and
so does invalid WebSocket framing. The session resumes over a new link, which sends the lost frames
again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from xxhash import xxh3_64, xxh3_64_digest, xxh64, xxh64_digest

from burn_remote_protocol.errors import GarbledBytes, ProtocolViolation, UsageError
from burn_remote_protocol.links.interface import (
    NORMAL_CLOSURE,
    AsyncLink,
    BlockingLink,
    BulkAsyncLink,
    BulkLink,
    BulkSource,
    FrameSender,
    Place,
    PlacedFrame,
    PlaceFrame,
)

__all__ = [
    "HEADER_BYTES",
    "AnyAsyncLink",
    "CheckedAsyncLink",
    "CheckedLink",
    "CheckedSender",
    "CheckedSource",
    "Checks",
    "UncheckedFrame",
    "bulk_link",
    "frame_sender",
    "is_checked",
]

_MARK: Final = b"\xfe"
HEADER_BYTES: Final = 9
# Up to this size, copying a frame takes less time than the 1 µs by which a memoryview slows its
# decoding.
COPIED_BYTES: Final = 16 * 1024


# The sizes of the frames whose checksum is XXH64. For smaller ones, XXH3 needs no vector
# instructions, and for larger ones it is faster. In between, both take the same time, but a
# processor that runs XXH3's multiplications of 512 bits lowers its clock for everything that
# follows: on a Xeon, round trips with replies of 1 KiB took 8 % longer.
MEDIUM_MIN_BYTES: Final = 241
MEDIUM_MAX_BYTES: Final = 16 * 1024


def _is_medium(size: int) -> bool:
    """Whether the checksum of a frame of this size is XXH64."""
    return MEDIUM_MIN_BYTES <= size <= MEDIUM_MAX_BYTES


def _digest_parts(head: bytes, rest: memoryview, seed: int) -> bytes:
    """Return the checksum of the frame ``head + rest``, without joining them."""
    digest = (xxh64 if _is_medium(len(head) + len(rest)) else xxh3_64)(head, seed)
    digest.update(rest)
    return digest.digest()


def is_checked(frame: bytes | memoryview) -> bool:
    """Whether this frame has a checksum."""
    return frame[:1] == _MARK


class UncheckedFrame(GarbledBytes):
    """A frame without a checksum arrived over a link whose frames have one."""

    def __init__(self, frame: bytes | memoryview) -> None:
        super().__init__("a frame without a checksum arrived over a link whose frames have one")
        self.frame: Final = frame


class Checks:
    """The numbers of the frames that one end of a link has sent and received."""

    __slots__ = ("_received", "_sent")

    def __init__(self) -> None:
        self._sent = 0
        self._received = 0

    def seal(self, frame: bytes) -> bytes:
        """Return a frame with its header. Each frame must be sent in the order of the calls."""
        # Both this method and ``open`` inline ``_is_medium``, because every small frame passes
        # through them.
        is_medium = MEDIUM_MIN_BYTES <= len(frame) <= MEDIUM_MAX_BYTES
        digest = (xxh64_digest if is_medium else xxh3_64_digest)(frame, self._sent)
        self._sent += 1
        return _MARK + digest + frame

    def seal_parts(self, head: bytes, payload: memoryview) -> bytes:
        """Return the header of the frame ``head + payload``, followed by ``head``."""
        digest = _digest_parts(head, payload, self._sent)
        self._sent += 1
        return _MARK + digest + head

    def open_parts(self, sealed: bytes, rest: memoryview) -> bytes:
        """Return the first part, without its header, of a frame that arrived in two parts.

        Raises ``GarbledBytes``.
        """
        head = sealed[HEADER_BYTES:]
        if sealed[:HEADER_BYTES] != _MARK + _digest_parts(head, rest, self._received):
            raise GarbledBytes(f"frame {self._received:,} does not match its checksum")
        self._received += 1
        return head

    def open(self, sealed: bytes | memoryview) -> bytes | memoryview:
        """Return the frame inside. Raises ``GarbledBytes``."""
        if type(sealed) is PlacedFrame:
            return PlacedFrame.of(self.open_parts(sealed, sealed.rest), sealed.rest)
        size = len(sealed) - HEADER_BYTES
        frame: bytes | memoryview = (
            sealed[HEADER_BYTES:]
            if size <= COPIED_BYTES - HEADER_BYTES
            else memoryview(sealed)[HEADER_BYTES:]
        )
        is_medium = MEDIUM_MIN_BYTES <= size <= MEDIUM_MAX_BYTES
        digest = (xxh64_digest if is_medium else xxh3_64_digest)(frame, self._received)
        if sealed[:HEADER_BYTES] != _MARK + digest:
            if len(sealed) < HEADER_BYTES or sealed[:1] != _MARK:
                raise UncheckedFrame(sealed)
            raise GarbledBytes(
                f"frame {self._received:,} of {len(frame):,} bytes does not match its checksum"
            )
        self._received += 1
        return frame


def _garbled(error: ProtocolViolation) -> GarbledBytes:
    return GarbledBytes(f"the WebSocket framing is broken: {error}")


class CheckedLink:
    """A ``BlockingLink`` with checksums.

    ``receive`` raises ``GarbledBytes`` where other links raise ``ProtocolViolation``. After a
    ``KeyboardInterrupt`` during a send, close the link: the interrupted frame may have been
    numbered but not sent, and the other end would then refuse the next one.
    """

    detects_corruption: Final = True

    def __init__(self, link: BlockingLink) -> None:
        self._link: Final = link
        self._checks: Final = Checks()
        # Frames are sent in the order of their numbers.
        self._sending: Final = threading.Lock()

    @property
    def address(self) -> str:
        return self._link.address

    @property
    def peer_host(self) -> str:
        return self._link.peer_host

    @property
    def closed(self) -> bool:
        return self._link.closed

    def send(self, frame: bytes) -> None:
        with self._sending:
            self._link.send(self._checks.seal(frame))

    def send_parts(self, head: bytes, payload: memoryview, *, is_constant: bool = False) -> None:
        with self._sending:
            sealed = self._checks.seal_parts(head, payload)
            self._link.send_parts(sealed, payload, is_constant=is_constant)

    def send_together(self, frames: list[bytes]) -> None:
        with self._sending:
            self._link.send_together([self._checks.seal(frame) for frame in frames])
            del frames[:]

    def receive(self, timeout_seconds: float | None = None) -> bytes | memoryview | None:
        """Return the next frame, as ``BlockingLink.receive``. Raises ``GarbledBytes``."""
        try:
            sealed = self._link.receive(timeout_seconds)
        except ProtocolViolation as error:
            raise _garbled(error) from error
        return None if sealed is None else self._checks.open(sealed)

    def wait_readable(self, timeout_seconds: float | None = None) -> bool:
        return self._link.wait_readable(timeout_seconds)

    def has_buffered(self) -> bool:
        return self._link.has_buffered()

    def has_ended(self) -> bool:
        return self._link.has_ended()

    def keep_alive(self, interval_seconds: float, beat: Callable[[], None] | None = None) -> None:
        self._link.keep_alive(interval_seconds, beat)

    def bulk_reader(self, silence_seconds: float) -> CheckedSource:
        """Return the link's only receiver from now on, as ``BulkLink.bulk_reader``.

        Raises ``UsageError`` if the link's transport has none.
        """
        return CheckedSource(bulk_link(self._link).bulk_reader(silence_seconds), self._checks)

    def interrupt(self) -> None:
        self._link.interrupt()

    def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        self._link.close(code, reason)


class CheckedAsyncLink:
    """An ``AsyncLink`` with checksums."""

    def __init__(self, link: AsyncLink) -> None:
        self._link: Final = link
        self._checks: Final = Checks()
        self._opens_frames = False

    @property
    def peer(self) -> str:
        return self._link.peer

    @property
    def received_bytes(self) -> int:
        return self._link.received_bytes

    async def send(self, frame: bytes) -> None:
        # No ``await`` comes between numbering a frame and writing it, so the frames stay in order.
        await self._link.send(self._checks.seal(frame))

    async def send_parts(self, head: bytes, payload: memoryview) -> None:
        await self._link.send_parts(self._checks.seal_parts(head, payload), payload)

    def is_writable(self) -> bool:
        return self._link.is_writable()

    def send_nowait(self, head: bytes, payload: memoryview | None = None) -> None:
        if payload is None:
            self._link.send_nowait(self._checks.seal(head))
        else:
            self._link.send_nowait(self._checks.seal_parts(head, payload), payload)

    def send_at_once(self, frame: bytes) -> None:
        self._link.send_at_once(self._checks.seal(frame))

    async def receive(self) -> bytes | memoryview:
        """Return the next frame, as ``AsyncLink.receive``. Raises ``GarbledBytes``."""
        try:
            if not self._opens_frames:
                # Not in the constructor: the caller passes the frames before this call to ``open``.
                self._opens_frames = True
                self._link.open_frames(self._checks.open)
            return await self._link.receive()
        except GarbledBytes:
            raise
        except ProtocolViolation as error:
            raise _garbled(error) from error

    def receive_nowait(self, longest: int | None = None) -> bytes | memoryview | None:
        """Return the next frame if it has arrived and has at most ``longest`` bytes."""
        return self._link.receive_nowait(longest) if self._opens_frames else None

    def call_on_arrival(
        self, handler: Callable[[], None] | None, take: Callable[[Any], bool] | None = None
    ) -> None:
        """Call ``handler`` or ``take`` when frames arrive, as ``AsyncLink.call_on_arrival``.

        Call this after the first ``receive``: frames before it are not opened. Neither may raise
        ``ProtocolViolation``, which ``receive`` would take for a garbled frame.
        """
        self._link.call_on_arrival(handler, take if self._opens_frames else None)

    def place_frames(self, head_bytes: int, place: PlaceFrame) -> None:
        """Store the rest of long frames where ``place`` says, as ``AsyncLink.place_frames``.

        Call this after the first ``receive``: frames before it are not opened.
        """
        if self._opens_frames:
            self._link.place_frames(
                HEADER_BYTES + head_bytes, lambda head, size: place(head[HEADER_BYTES:], size)
            )

    async def frame_sender(self, check: Callable[[], None]) -> FrameSender:
        """Return a sender for one thread, as ``AsyncLink.frame_sender``."""
        return CheckedSender(await frame_sender(self._link, check), self._checks)

    def open(self, sealed: bytes) -> bytes | memoryview:
        """Check a frame that was received before this link was created. Raises ``GarbledBytes``."""
        return self._checks.open(sealed)

    async def probe(self) -> None:
        await self._link.probe()

    async def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        await self._link.close(code, reason)


class CheckedSender:
    """A ``FrameSender`` with checksums."""

    def __init__(self, sender: FrameSender, checks: Checks) -> None:
        self._sender: Final = sender
        self._checks: Final = checks

    def send(self, frame: bytes) -> None:
        self._sender.send(self._checks.seal(frame))

    def send_parts(self, head: bytes, payload: memoryview) -> None:
        self._sender.send_parts(self._checks.seal_parts(head, payload), payload)

    @property
    def accepts(self) -> bool:
        return self._sender.accepts

    def begin(self, frames: Sequence[tuple[bytes, memoryview]]) -> bool:
        seal = self._checks.seal_parts
        return self._sender.begin([(seal(head, payload), payload) for head, payload in frames])

    def finish(self) -> None:
        self._sender.finish()

    def close(self) -> None:
        self._sender.close()


class CheckedSource:
    """A ``BulkSource`` with checksums."""

    def __init__(self, source: BulkSource, checks: Checks) -> None:
        self._source: Final = source
        self._checks: Final = checks

    def receive(
        self, head_bytes: int, place: Place, check: Callable[[], None]
    ) -> tuple[bytes, memoryview]:
        """Return the next message, as ``BulkSource.receive``. Raises ``GarbledBytes``."""
        try:
            sealed, rest = self._source.receive(
                HEADER_BYTES + head_bytes,
                lambda head, size: place(head[HEADER_BYTES:], size),
                check,
            )
        except ProtocolViolation as error:
            raise _garbled(error) from error
        return self._checks.open_parts(sealed, rest), rest

    def wait(self, timeout_seconds: float) -> bool:
        return self._source.wait(timeout_seconds)

    def wake(self) -> None:
        self._source.wake()

    def has_ended(self) -> bool:
        return self._source.has_ended()


def bulk_link(link: object) -> BulkLink:
    """Return a link that can receive bulk data. Raises ``UsageError`` for any other."""
    if not hasattr(link, "bulk_reader"):
        raise UsageError(f"the transport of {link!r} carries no bulk data")
    return cast("BulkLink", link)


async def frame_sender(link: object, check: Callable[[], None]) -> FrameSender:
    """Return a sender for one thread, as ``BulkAsyncLink.frame_sender``.

    Raises ``UsageError`` if the link's transport has none.
    """
    if not hasattr(link, "frame_sender"):
        raise UsageError(f"the transport of {link!r} carries no bulk data")
    return await cast("BulkAsyncLink", link).frame_sender(check)


AnyAsyncLink = AsyncLink | CheckedAsyncLink
