"""How is a stream of WebSocket frames cut into messages, without copying what is large?

RFC 6455, section 5, for binary messages. Control frames are only cut out: their meaning is left to
``websockets``.
"""

from __future__ import annotations

import collections
from typing import Any, Final, NamedTuple

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.links.websocket.masking import apply_mask

__all__ = ["READ_BYTES", "FrameCutter"]

# How much to read when the length of what comes is not known. Larger: each read of a small frame
# allocates more. Smaller: more reads for a burst of small frames. Payloads that lack more than this
# are read straight into their own memory.
READ_BYTES: Final = 64 * 2**10

_CONTINUATION: Final = 0x00
_TEXT: Final = 0x01
_BINARY: Final = 0x02
_FINAL: Final = 0x80
_RESERVED: Final = 0x70
_OPCODE: Final = 0x0F
_CONTROL: Final = 0x08
_MASKED: Final = 0x80
_LENGTH_16: Final = 126
_LAST_OPCODE: Final = 0x0A
_HEADER_64_BYTES: Final = 10


_Parts = tuple[Any, ...]


class _Place(NamedTuple):
    """Where a cutter is. Replaced as a whole, in one store: an interrupt can't come halfway."""

    arrived: list[bytes]  # read and not yet looked at; whoever reads appends here
    buffer: bytes = b""
    position: int = 0  # everything in ``buffer`` before this is done with
    # Payload so far of the message being received: (what came before, the last part). Adding to it
    # costs the same however many parts a slow peer sends; small ones are put together on the way,
    # each byte at most 16 times.
    parts: _Parts | None = None
    size: int = 0  # its length, the current frame counted in full
    missing: int = 0  # how much of the current frame is not in ``parts``
    open: bool = False  # more frames of this message follow
    bulk: bool = False  # the last frame of data was large
    key: bytes = b""  # what the next byte of the current frame is masked with, if it is

    def whole(self) -> bool:
        """Tell whether ``parts`` are a message."""
        return self.parts is not None and not self.missing and not self.open

    def with_part(self, part: bytes | memoryview, **changes: Any) -> _Place:
        """Return the place after one more part of a payload."""
        parts: _Parts = self.parts or ()
        key: bytes = changes.pop("key", self.key)
        if key:
            part = apply_mask(part, key)
            turn = len(part) % 4
            key = key[turn:] + key[:turn]
        if part:  # not an empty one: joining it to a large one would copy that
            part = bytes(part)
            while parts and len(parts[1]) <= len(part) < READ_BYTES:
                parts, last = parts
                part = last + part
            parts = (parts, part)
        return self._replace(parts=parts, key=key, **changes)


class FrameCutter:
    """Cuts what a peer sends into binary messages and control frames. Performs no I/O.

    ``masked``: the peer is a client, whose frames must be masked. Read about ``wanted()`` bytes and
    append them to ``arrived``; then ``take`` until ``None``.
    """

    def __init__(
        self, max_message_bytes: int, already_read: bytes = b"", *, masked: bool = False
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self._mask_bit: Final = _MASKED if masked else 0
        self._place = _Place([], already_read)
        # Whole control frames as they came, headers included, for the caller to answer.
        self.control: collections.deque[bytes] = collections.deque()

    @property
    def arrived(self) -> list[bytes]:
        """The list to which what was read is appended."""
        return self._place.arrived

    @property
    def is_within_message(self) -> bool:
        """Whether a part of a message, or of a header, has arrived."""
        place = self._place
        return bool(place.missing or place.open or place.position < len(place.buffer))

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
        if place.arrived or place.whole():
            return True
        if place.missing:
            return False
        found = self._parse_header(place.buffer, place.position)
        return found is not None and found[2] + found[1] <= len(place.buffer)

    def take(self) -> bytes | None:
        """Return the next message; ``None`` when more must be read or ``control`` has come.

        Raises ``LimitExceeded`` from the header alone, and ``ProtocolViolation``.
        """
        if self._place.arrived:
            self._merge()
        while not self._place.missing:
            place = self._place
            if place.whole():
                message = _joined(place.parts or ())
                self._place = place._replace(parts=None, size=0)
                return message
            found = self._parse_header(place.buffer, place.position)
            if found is None:
                return None
            first, length, start = found
            end = start + length
            if first & _CONTROL:
                _check_control(first, length)
                if end <= len(place.buffer):
                    self.control.append(place.buffer[place.position : end])
                    self._place = place._replace(position=end)
                return None
            self._check_data(place, first, length)
            if first == _FINAL | _BINARY and end <= len(place.buffer):
                if self._mask_bit:
                    masked = memoryview(place.buffer)[start:end]
                    message = apply_mask(masked, place.buffer[start - 4 : start])
                else:
                    message = place.buffer[start:end]
                # Nothing between this store and the caller's can be interrupted: no call is made.
                self._place = _Place(place.arrived, place.buffer, end)
                return message
            self._begin(place, first, length, start)
        return None

    def put_back(self, message: bytes) -> None:
        """Undo the last ``take``."""
        self._place = self._place._replace(parts=((), message), size=len(message), key=b"")

    def discard(self) -> None:
        """Forget everything that was not taken."""
        self._place = _Place([])

    def _begin(self, place: _Place, first: int, length: int, start: int) -> None:
        """Begin a frame of data that is not whole, or not the whole message."""
        missing = max(0, start + length - len(place.buffer))
        self._place = place.with_part(
            memoryview(place.buffer)[start : start + length],
            key=place.buffer[start - 4 : start] if self._mask_bit else b"",
            buffer=b"" if missing else place.buffer,
            position=0 if missing else start + length,
            size=place.size + length,
            missing=missing,
            open=not first & _FINAL,
            bulk=length > READ_BYTES,
        )

    def _merge(self) -> None:
        """Move what arrived to where it belongs: the payload in progress, then the buffer."""
        place = self._place
        chunk = place.arrived[0] if len(place.arrived) == 1 else b"".join(place.arrived)
        if not place.missing:
            rest = place.buffer[place.position :]
            # In full: this is on the path of every small frame, and _replace costs 1 µs.
            self._place = _Place(
                [], rest + chunk if rest else chunk, 0,
                place.parts, place.size, 0, place.open, place.bulk,
            )  # fmt: skip
        elif len(chunk) <= place.missing:
            self._place = place.with_part(chunk, arrived=[], missing=place.missing - len(chunk))
        else:
            self._place = place.with_part(
                memoryview(chunk)[: place.missing],
                arrived=[],
                buffer=chunk,
                position=place.missing,
                missing=0,
            )

    def _check_data(self, place: _Place, first: int, length: int) -> None:
        opcode = first & _OPCODE
        if opcode == _TEXT:
            raise ProtocolViolation("the peer sent a text message; this protocol is binary")
        if opcode not in (_BINARY, _CONTINUATION) or first & _RESERVED:
            raise ProtocolViolation(f"a WebSocket frame begins with 0x{first:02x}")
        if place.open != (opcode == _CONTINUATION):
            raise ProtocolViolation("the fragments of a WebSocket message are out of order")
        if place.size + length > self.max_message_bytes:
            raise LimitExceeded(
                "bytes in one message", seen=place.size + length, allowed=self.max_message_bytes
            )

    def _parse_header(self, buffer: bytes, position: int) -> tuple[int, int, int] | None:
        """Return the first byte, the payload's length and where the payload begins."""
        available = len(buffer) - position
        if available < 2:
            return None
        length = buffer[position + 1] ^ self._mask_bit
        if length & _MASKED:
            raise ProtocolViolation("a client's frames must be masked, a server's must not")
        extra = 0 if length < _LENGTH_16 else 2 if length == _LENGTH_16 else 8
        start = position + 2 + extra + (4 if self._mask_bit else 0)
        if len(buffer) < start:
            return None
        if extra:
            length = int.from_bytes(buffer[position + 2 : position + 2 + extra], "big")
        return buffer[position], length, start


def _joined(parts: _Parts) -> bytes:
    """Return the payload that ``parts`` make, without a copy if it is one."""
    pieces: list[bytes] = []
    while parts:
        parts, piece = parts
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(reversed(pieces))


def _check_control(first: int, length: int) -> None:
    if first & _OPCODE > _LAST_OPCODE or first & _RESERVED or not first & _FINAL:
        raise ProtocolViolation(f"a WebSocket frame begins with 0x{first:02x}")
    if length >= _LENGTH_16:
        raise ProtocolViolation(f"a WebSocket control frame has {length:,} bytes")
