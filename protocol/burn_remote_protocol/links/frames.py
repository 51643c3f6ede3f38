"""How are messages cut into WebSocket frames and back, in as few copies as can be?

The client's side of RFC 6455, section 5, for binary messages: a large payload is neither copied
when it is sent (but for the masking, which the RFC demands) nor when it is received. Control frames
are only cut out; their meaning is left to ``websockets``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation

try:
    from websockets.speedups import apply_mask
except ImportError:  # no compiled wheel for this platform
    from websockets.utils import apply_mask

__all__ = ["READ_BYTES", "ControlFrame", "FrameCutter", "Piece", "data_pieces", "masking_keys"]

# How much to read when the length of what comes is not known. Larger: each read of a small frame
# allocates more. Smaller: more reads for a burst of small frames. Payloads that still lack this
# much are read straight into their own memory.
READ_BYTES: Final = 64 * 2**10

# Payloads are masked in blocks just before they are sent. Larger: the masked copy leaves the second
# level cache before the kernel reads it. Smaller: more system calls.
MASK_BLOCK_BYTES: Final = 256 * 2**10

# Up to this size a frame is sent as one piece with its header: copying it costs less than a
# second system call.
JOINED_BYTES: Final = 16 * 2**10

_CONTINUATION: Final = 0x00
_TEXT: Final = 0x01
_BINARY: Final = 0x02
_FINAL: Final = 0x80
_RESERVED: Final = 0x70
_OPCODE: Final = 0x0F
_CONTROL: Final = 0x08
_MASKED: Final = 0x80
_LENGTH_16: Final = 126
_LENGTH_64: Final = 127
_LAST_OPCODE: Final = 0x0A
_HEADER_64_BYTES: Final = 10


class Piece:
    """Some bytes on their way out, and how many of them the operating system took.

    They are masked when their turn comes. ``taken`` has one number per system call, appended by the
    C call that made it: a ``KeyboardInterrupt`` can't come between the call and its count.
    """

    __slots__ = ("_data", "_key", "more", "taken")

    def __init__(self, data: bytes | memoryview, key: bytes | None = None, *, more: bool = False):
        self._data = data
        self._key = key
        self.more = more
        self.taken: list[int] = []

    def left(self) -> bytes | memoryview:
        """Return what still has to be sent."""
        if self._key is not None:
            self.keep()
        taken = self.taken
        return memoryview(self._data)[sum(taken) :] if taken else self._data

    def done(self) -> bool:
        """Tell whether the operating system took all of it."""
        return sum(self.taken) == len(self._data)

    def keep(self) -> None:
        """Mask now, so that the caller's memory is no longer needed."""
        if self._key is not None:
            self._data = apply_mask(self._data, self._key)
            self._key = None


def data_pieces(
    head: bytes, payload: memoryview, keys: Iterator[bytes], fragment_bytes: int | None
) -> list[Piece]:
    """Return one binary message in pieces, to be sent in order.

    ``keys`` yields masking keys of 4 random bytes, one for each WebSocket frame.
    """
    total = len(head) + len(payload)
    if total <= JOINED_BYTES and (fragment_bytes is None or total <= fragment_bytes):
        key = next(keys)
        body = b"".join((head, payload)) if payload else head
        header = _header(_FINAL | _BINARY, total, key)
        return [Piece(header + apply_mask(body, key))]
    pieces: list[Piece] = []
    parts = [memoryview(head), payload]
    opcode = _BINARY
    while True:
        size = total if fragment_bytes is None else min(total, fragment_bytes)
        total -= size
        key = next(keys)
        header = _header(opcode if total else opcode | _FINAL, size, key)
        pieces.append(Piece(header, more=True))
        pieces += _masked(parts, size, key)
        opcode = _CONTINUATION
        if not total:
            return pieces


def _masked(parts: list[memoryview], size: int, key: bytes) -> Iterator[Piece]:
    """Take ``size`` bytes off the front of ``parts``, in blocks."""
    while size:
        block = parts[0][: min(size, MASK_BLOCK_BYTES)]
        parts[0] = parts[0][len(block) :]
        if not parts[0]:
            parts.pop(0)
        if block:
            size -= len(block)
            yield Piece(block, key, more=size > 0)
            turn = len(block) % 4
            key = key[turn:] + key[:turn]


def _header(first: int, length: int, key: bytes) -> bytes:
    if length < _LENGTH_16:
        return bytes((first, _MASKED | length)) + key
    if length < 2**16:
        return bytes((first, _MASKED | _LENGTH_16)) + length.to_bytes(2, "big") + key
    return bytes((first, _MASKED | _LENGTH_64)) + length.to_bytes(8, "big") + key


def masking_keys() -> Iterator[bytes]:
    """Yield unpredictable masking keys, drawn 256 at a time: one system call each costs 0.5 µs."""
    while True:
        drawn = os.urandom(1024)
        for start in range(0, len(drawn), 4):
            yield drawn[start : start + 4]


class ControlFrame(bytes):
    """A whole control frame as it came, header included."""

    __slots__ = ()


class _Place(NamedTuple):
    """Where a cutter is. Replaced as a whole, in one store: an interrupt can't come halfway."""

    arrived: list[bytes]  # read and not yet looked at; whoever reads appends here
    buffer: bytes = b""
    position: int = 0  # everything in ``buffer`` before this is done with
    parts: tuple[bytes, ...] | None = None  # payload so far of the message being received
    size: int = 0  # its length, the current frame counted in full
    missing: int = 0  # how much of the current frame is not in ``parts``
    open: bool = False  # more frames of this message follow
    bulk: bool = False  # the last frame of data was large

    def with_part(self, part: bytes) -> tuple[bytes, ...]:
        # No empty parts: joining one to a large one would copy that.
        return (*(self.parts or ()), part) if part else self.parts or ()


class FrameCutter:
    """Cuts what a server sends into binary messages and control frames. Performs no I/O.

    Read about ``wanted()`` bytes and append them to ``arrived``; then ``take`` until ``None``.
    """

    def __init__(self, max_message_bytes: int, already_read: bytes = b"") -> None:
        self._max_message_bytes: Final = max_message_bytes
        self._place = _Place([], already_read)

    @property
    def arrived(self) -> list[bytes]:
        """The list to which what was read is appended, in one C call for the reason above."""
        return self._place.arrived

    def wanted(self) -> int:
        """Return how many bytes to read next. More than ``READ_BYTES`` are known to come."""
        place = self._place
        if place.missing > READ_BYTES:
            return place.missing
        if place.bulk and not place.missing:
            # Read the next header alone, so that its payload can be read straight into its own
            # memory: joining what came with the header to the rest would copy 1 MiB.
            return max(1, _HEADER_64_BYTES - (len(place.buffer) - place.position))
        return READ_BYTES

    def ready(self) -> bool:
        """Tell whether ``take`` would find something without more being read."""
        place = self._place
        if place.arrived:
            return True
        if place.missing:
            return False
        found = _parse_header(place.buffer, place.position)
        return found is not None and found[2] + found[1] <= len(place.buffer)

    def take(self) -> bytes | ControlFrame | None:
        """Return the next message or control frame, ``None`` when more must be read.

        Raises ``LimitExceeded`` from the header alone, and ``ProtocolViolation``.
        """
        if self._place.arrived:
            self._merge()
        while True:
            place = self._place
            if place.missing:
                return None
            if place.parts is not None and not place.open:
                self._place = place._replace(parts=None, size=0)
                return place.parts[0] if len(place.parts) == 1 else b"".join(place.parts)
            found = _parse_header(place.buffer, place.position)
            if found is None:
                return None
            first, length, start = found
            end = start + length
            complete = end <= len(place.buffer)
            if first & _CONTROL:
                _check_control(first, length)
                if not complete:
                    return None
                self._place = place._replace(position=end)
                return ControlFrame(place.buffer[place.position : end])
            self._check_data(place, first, length)
            if complete and first == _FINAL | _BINARY:
                self._place = place._replace(position=end, bulk=False)
                return place.buffer[start:end]
            self._place = place._replace(
                buffer=place.buffer if complete else b"",
                position=end if complete else 0,
                parts=place.with_part(place.buffer[start:end]),
                size=place.size + length,
                missing=0 if complete else end - len(place.buffer),
                open=not first & _FINAL,
                bulk=length > READ_BYTES,
            )

    def _merge(self) -> None:
        """Move what arrived to where it belongs: the payload in progress, then the buffer."""
        place = self._place
        chunk = place.arrived[0] if len(place.arrived) == 1 else b"".join(place.arrived)
        if not place.missing:
            rest = place.buffer[place.position :]
            self._place = place._replace(
                arrived=[], buffer=rest + chunk if rest else chunk, position=0
            )
            return
        fits = len(chunk) <= place.missing
        self._place = place._replace(
            arrived=[],
            buffer=b"" if fits else chunk,
            position=0 if fits else place.missing,
            parts=place.with_part(chunk if fits else chunk[: place.missing]),
            missing=place.missing - len(chunk) if fits else 0,
        )

    def _check_data(self, place: _Place, first: int, length: int) -> None:
        opcode = first & _OPCODE
        if opcode == _TEXT:
            raise ProtocolViolation("the peer sent a text message; this protocol is binary")
        if opcode not in (_BINARY, _CONTINUATION) or first & _RESERVED:
            raise ProtocolViolation(f"a WebSocket frame begins with 0x{first:02x}")
        if place.open != (opcode == _CONTINUATION):
            raise ProtocolViolation("the fragments of a WebSocket message are out of order")
        if place.size + length > self._max_message_bytes:
            raise LimitExceeded(
                "bytes in one message", seen=place.size + length, allowed=self._max_message_bytes
            )


def _check_control(first: int, length: int) -> None:
    if first & _OPCODE > _LAST_OPCODE or first & _RESERVED or not first & _FINAL:
        raise ProtocolViolation(f"a WebSocket frame begins with 0x{first:02x}")
    if length >= _LENGTH_16:
        raise ProtocolViolation(f"a WebSocket control frame has {length:,} bytes")


def _parse_header(buffer: bytes, position: int) -> tuple[int, int, int] | None:
    """Return the first byte, the payload's length and where the payload begins."""
    available = len(buffer) - position
    if available < 2:
        return None
    length = buffer[position + 1]
    if length < _LENGTH_16:
        return buffer[position], length, position + 2
    if length & _MASKED:
        raise ProtocolViolation("a server's WebSocket frame is masked")
    start = position + (4 if length == _LENGTH_16 else _HEADER_64_BYTES)
    if len(buffer) < start:
        return None
    return buffer[position], int.from_bytes(buffer[position + 2 : start], "big"), start
