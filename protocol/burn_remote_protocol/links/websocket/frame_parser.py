"""An incremental parser for incoming WebSocket frames that does not copy large payloads.

Binary messages are assembled here, as RFC 6455, section 5, defines them. Control frames are only
separated from the stream; ``websockets`` interprets them.

How it works: the reader appends raw bytes to ``received``. ``take`` moves them to the buffer, or to
the payload in progress, and returns the next whole message. A message that is completely in the
buffer is sliced out of it. The payload of a longer one is collected in parts. ``bytes_to_read``
tells the reader to fetch the rest of the payload in one read, so the parts are joined at most once.

A server collects the payload of a long masked frame in a ``GrowingBuffer``, or in memory of the
receiver (``PlacedBuffer``). ``room`` is the place of its next bytes, which the reader may store
there itself: ``add`` removes their mask in place. A client has no such buffer: a signal could
interrupt it while the buffer grows.

A ``KeyboardInterrupt`` can be raised at any call and in any loop. The whole state of the parser is
therefore one immutable ``_State``, which each step replaces with a single store.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.links.interface import Allocate, PlaceFrame
from burn_remote_protocol.links.websocket.dropped_buffer import DroppedBuffer
from burn_remote_protocol.links.websocket.frames import (
    BINARY,
    CONTINUATION,
    CONTROL_BIT,
    FINAL_BIT,
    LENGTH_16,
    MASK_BIT,
    MAX_OPCODE,
    OPCODE_BITS,
    RESERVED_BITS,
    TEXT,
    apply_mask,
)
from burn_remote_protocol.links.websocket.growing_buffer import GROWING_BYTES, GrowingBuffer
from burn_remote_protocol.links.websocket.placed_buffer import PlacedBuffer

__all__ = ["READ_BYTES", "FrameParser"]

# How many bytes to read while the length of the next frame is unknown. Each read of a small frame
# allocates this much, and a burst of small frames needs one read per this many bytes. If more than
# this is missing from a payload, the rest is read into separate memory.
READ_BYTES: Final = 64 * 2**10

# More fragments than a message can have.
NO_LIMIT: Final = 2**62

_ALONE_MIN_BYTES: Final = 4  # a header with a 16-bit length
_MASKED_HEADER_16_BYTES: Final = 8  # the same with a masking key
_HEADER_64_BYTES: Final = 10  # an unmasked header with a 64-bit length


# The buffer of a long masked payload.
_Buffer = GrowingBuffer | PlacedBuffer | DroppedBuffer

# A linked list of payload parts, last part first: ``(earlier parts, part)`` or ``()``.
_Parts = tuple[Any, ...]


class _State(NamedTuple):
    """The parser's position in the stream."""

    received: list[bytes]  # raw bytes not yet parsed; the reader appends to this list
    buffer: bytes = b""
    position: int = 0  # everything in ``buffer`` before this has been parsed
    # The payload so far of a message that is received in parts; ``None`` if there is none. Adding a
    # part to a linked list takes constant time, however many parts a slow peer sends. Small parts
    # are joined as they arrive, such that each byte is copied at most 16 times.
    parts: _Parts | None = None
    size: int = 0  # length of that message, counting the current frame in full
    missing: int = 0  # bytes of the current frame that are not in ``parts`` yet
    open: bool = False  # the message continues in another frame
    bulk: bool = False  # the previous data frame was large
    key: bytes = b""  # masking key for the next byte of the current frame, if it is masked

    def complete(self) -> bool:
        """Whether ``parts`` hold a whole message."""
        return self.parts is not None and not self.missing and not self.open

    def buffer_in_progress(self) -> _Buffer | None:
        """Return the buffer of a masked payload that is incomplete; ``None`` if it has none."""
        last = self.parts[1] if self.parts and self.missing else None
        return last if isinstance(last, _Buffer) else None

    def with_part(
        self, part: bytes | memoryview, begin: Callable[[bytes, int], _Buffer], **changes: Any
    ) -> _State:
        """Return the state after one more part of a payload; ``begin`` returns its buffer."""
        parts: _Parts = self.parts or ()
        key: bytes = changes.pop("key", self.key)
        if key:
            part = apply_mask(part, key)
            turn = len(part) % 4
            key = key[turn:] + key[:turn]
        if parts and isinstance(parts[1], _Buffer):
            parts[1].extend(part)
        elif key and (
            changes.get("missing", 0) > READ_BYTES or self.size - self.missing >= GROWING_BYTES
        ):
            first, size = b"".join((*_in_order(parts), part)), changes.get("size", self.size)
            parts = ((), begin(first, size))
        elif part:  # joining an empty part to a large one would copy the large one
            part = bytes(part)
            while parts and len(parts[1]) <= len(part) < READ_BYTES:
                parts, last = parts
                part = last + part
            parts = (parts, part)
        return self._replace(parts=parts, key=key, **changes)


class FrameParser:
    """Splits a byte stream into binary messages and control frames. Performs no I/O.

    ``masked`` says that the peer is a client, whose frames must be masked. Read about
    ``bytes_to_read()`` bytes, append them to ``received``, and call ``take`` until it returns
    ``None``.
    """

    def __init__(
        self, max_message_bytes: int, already_read: bytes = b"", *, masked: bool = False
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self.allocate: Allocate | None = None  # memory for a server's long messages
        self._place: PlaceFrame | None = None
        self._head_bytes = 0  # that ``_place`` needs
        self._mask_bit: Final = MASK_BIT if masked else 0
        # The longest header of a data frame, and the head of the message.
        self._header_bytes = _HEADER_64_BYTES + (4 if masked else 0)
        self._state = _State([], already_read)
        # Whole control frames, headers included, for the caller to respond to.
        self.control: collections.deque[bytes] = collections.deque()
        self.fragments_taken = 0  # by the last ``take``
        self._drops = False

    def drop_messages(self) -> None:
        """Keep nothing of messages from now on, nor of the one that is arriving.

        ``take`` returns messages without bytes. Control frames are taken as before.
        """
        self._drops = True
        state = self._state
        if state.parts is not None:
            dropped = DroppedBuffer(state.size - state.missing)
            self._state = state._replace(parts=((), dropped))

    def place_frames(self, head_bytes: int, place: PlaceFrame) -> None:
        """Store the rest of long frames where ``place`` says; see ``AsyncLink.place_frames``."""
        self._header_bytes += head_bytes - self._head_bytes
        self._head_bytes, self._place = head_bytes, place

    @property
    def received(self) -> list[bytes]:
        """The list to which the reader appends."""
        return self._state.received

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of what was received."""
        state = self._state
        return state.parts is None and state.position == len(state.buffer) and not state.received

    @property
    def is_within_message(self) -> bool:
        """Whether a message or a header has arrived incompletely."""
        state = self._state
        return bool(state.missing or state.open or state.position < len(state.buffer))

    @property
    def is_within_long_frame(self) -> bool:
        """Whether a frame with a 64-bit length, or a message in parts, has arrived incompletely."""
        state = self._state
        rest = state.buffer[state.position : state.position + 2]
        return state.parts is not None or (len(rest) == 2 and rest[1] & ~MASK_BIT > LENGTH_16)

    @property
    def held_bytes(self) -> int:
        """The memory of bytes that have arrived: of an incomplete message, and unparsed ones.

        Bytes that were placed directly in the receiver's memory, or dropped, are not included.
        """
        state = self._state
        unparsed = len(state.buffer) + sum(map(len, state.received))
        if state.parts is None or (
            state.parts and isinstance(state.parts[1], PlacedBuffer | DroppedBuffer)
        ):
            return unparsed
        return unparsed + state.size - state.missing

    def bytes_to_read(self) -> int:
        """Return how many bytes to read next.

        If the result is above ``READ_BYTES``, it is the rest of a payload, so the read may wait for
        all of it.
        """
        state = self._state
        if state.missing > READ_BYTES:
            return state.missing
        if state.bulk and not state.missing:
            # Read only the next header, so that its payload can be read into memory of its own.
            # Payload bytes read with the header would have to be joined to the rest, which copies
            # the whole payload.
            return max(1, self._header_bytes - (len(state.buffer) - state.position))
        return READ_BYTES

    @property
    def expects_bulk(self) -> bool:
        """Whether to read only the header of the next frame, because the last one was large.

        Not true if more than a header has arrived, such as the beginning of a control frame.
        """
        state = self._state
        return (
            state.bulk
            and not state.missing
            and not state.received
            and len(state.buffer) - state.position < self._header_bytes
        )

    @property
    def has_room(self) -> bool:
        """Whether ``room`` may be called.

        A long payload is in progress, and no received bytes wait to be joined to it.
        """
        state = self._state
        return state.buffer_in_progress() is not None and not state.received

    def room(self, most_bytes: int) -> memoryview:
        """Return memory for the next bytes of a long payload, valid until the next ``room``."""
        state = self._state
        buffer = state.buffer_in_progress()
        assert buffer is not None  # the caller looked at ``has_room``
        return buffer.room(min(most_bytes, state.missing))

    def add(self, count: int) -> None:
        """Parse the ``count`` bytes that the caller has stored in the last ``room``."""
        state = self._state
        buffer = state.buffer_in_progress()
        assert buffer is not None  # ``room`` has returned a part of it
        buffer.add(count, state.key)
        turn = count % 4
        key = state.key[turn:] + state.key[:turn]
        self._state = state._replace(missing=state.missing - count, key=key)

    def ready(self) -> bool:
        """Whether ``take`` can make progress, or raise, without another read."""
        state = self._state
        if state.received:
            return True
        if state.parts is None:
            if state.position == len(state.buffer):
                return False
        elif state.complete():
            return True
        if state.missing or state.position == len(state.buffer):
            return False
        try:
            found = self._parse_header(state.buffer, state.position)
        except ProtocolViolation:
            return True
        return found is not None and found[2] + found[1] <= len(state.buffer)

    def take(self, most_fragments: int = NO_LIMIT) -> bytes | None:
        """Return the next message; ``None`` if more must be read or ``control`` has a frame.

        Also returns ``None`` after ``most_fragments`` fragments of messages; ``fragments_taken``
        says how many it took. Raises ``LimitExceeded`` from the header alone, and
        ``ProtocolViolation``.
        """
        self.fragments_taken = 0
        state = self._state
        if state.parts is None and state.position == len(state.buffer):
            received = state.received
            if not received:
                return None
            if len(received) == 1:
                message = self.take_alone(received[0])
                if message is not None:
                    # No interrupt can occur before the caller has stored the message: CPython
                    # raises one only at a call or a jump backwards.
                    if state.buffer or state.bulk:
                        self._state = _State([])
                    else:
                        del received[0]
                    return message
        if state.received:
            self._merge()
        return self._take_next(most_fragments)

    def take_alone(self, chunk: bytes) -> bytes | None:
        """Return the message if ``chunk`` is exactly one, in one fragment of less than 64 KiB.

        Changes nothing. Call it only if nothing is left of what was received before. This is the
        common case, and takes a third of the time of merging the bytes and then parsing them.
        """
        size = len(chunk)
        if size < _ALONE_MIN_BYTES or chunk[0] != FINAL_BIT | BINARY:
            return None
        mask_bit = self._mask_bit
        # ``length`` is above ``LENGTH_16`` for a longer header, and if the mask bit is wrong.
        length = chunk[1] ^ mask_bit
        start = 6 if mask_bit else 2
        if length == LENGTH_16:
            length = chunk[2] << 8 | chunk[3]
            start += 2
        elif length > LENGTH_16:
            return None
        if start + length != size or length > self.max_message_bytes:
            return None
        if mask_bit:
            return apply_mask(chunk[start:], chunk[start - 4 : start])
        return chunk[start:]

    def take_whole(self, most: int) -> list[bytes]:
        """Return the next messages, at most ``most``; ``take`` returns those that follow.

        These are messages of one fragment of less than 64 KiB, whose bytes are all there. Several
        messages of a client often arrive together, and ``take`` needs three times as long for each.
        """
        state = self._state
        if state.parts is not None:
            return []
        if state.received:
            self._merge()
            state = self._state
        buffer, position = state.buffer, state.position
        mask_bit, largest = self._mask_bit, self.max_message_bytes
        last = (
            len(buffer) - _MASKED_HEADER_16_BYTES
        )  # leaves a shorter frame at the end to ``take``
        key_bytes = 4 if mask_bit else 0
        messages: list[bytes] = []
        while position <= last and len(messages) < most:
            if buffer[position] != FINAL_BIT | BINARY:
                break
            length = buffer[position + 1] ^ mask_bit
            start = position + 2 + key_bytes
            if length == LENGTH_16:
                length = buffer[position + 2] << 8 | buffer[position + 3]
                start += 2
            elif length > LENGTH_16:  # a longer header, or a wrong mask bit
                break
            end = start + length
            if end > len(buffer) or length > largest:
                break
            message = buffer[start:end]
            if mask_bit:
                message = apply_mask(message, buffer[start - 4 : start])
            messages.append(message)
            position = end
        if messages:
            # Without this, an idle connection would keep a parsed buffer of up to 256 KiB.
            is_done = position == len(buffer)
            # As in ``take``, no interrupt can occur before the caller has stored the messages.
            self._state = (
                _State(state.received) if is_done else _State(state.received, buffer, position)
            )
        return messages

    def _take_next(self, most_fragments: int) -> bytes | None:
        while not self._state.missing and self.fragments_taken < most_fragments:
            state = self._state
            if state.complete():
                message = _joined(state.parts or ())
                self._state = state._replace(parts=None, size=0)
                return message
            found = self._parse_header(state.buffer, state.position)
            if found is None:
                return None
            first, length, start = found
            end = start + length
            if first & CONTROL_BIT:
                _check_control(first, length)
                if end <= len(state.buffer):
                    self.control.append(state.buffer[state.position : end])
                    self._state = state._replace(position=end)
                return None
            self._check_data(state, first, length)
            if first == FINAL_BIT | BINARY and end <= len(state.buffer):
                if self._mask_bit:
                    masked = memoryview(state.buffer)[start:end]
                    message = apply_mask(masked, state.buffer[start - 4 : start])
                else:
                    message = state.buffer[start:end]
                is_last = end == len(state.buffer)
                # As in ``take``, no interrupt can occur before the caller has stored the message.
                self._state = (
                    _State(state.received) if is_last else _State(state.received, state.buffer, end)
                )
                return message
            if length > READ_BYTES and len(state.buffer) < start + self._head_bytes:
                return None  # ``_place`` needs more of it
            self._begin(state, first, length, start)
            self.fragments_taken += 1
        return None

    def put_back(self, message: bytes) -> None:
        """Undo the last ``take``."""
        self._state = self._state._replace(parts=((), message), size=len(message), key=b"")

    def take_unparsed(self) -> bytes:
        """Remove and return the received bytes after the last message that was taken.

        Call it only between messages.
        """
        state = self._state
        if state.parts is not None or state.missing:
            raise AssertionError("a message is being received")
        self._state = _State([])
        return state.buffer[state.position :] + b"".join(state.received)

    def discard(self) -> None:
        """Drop everything that was not taken."""
        self._state = _State([])

    def _begin(self, state: _State, first: int, length: int, start: int) -> None:
        """Begin a data frame that is incomplete, or that is one fragment of a message."""
        if self._drops and state.parts is None:
            state = state._replace(parts=((), DroppedBuffer(0)))
        missing = max(0, start + length - len(state.buffer))
        is_whole = bool(first & FINAL_BIT) and state.parts is None
        self._state = state.with_part(
            memoryview(state.buffer)[start : start + length],
            self._begin_placed if is_whole and self._place is not None else self._begin_growing,
            key=state.buffer[start - 4 : start] if self._mask_bit else b"",
            buffer=b"" if missing else state.buffer,
            position=0 if missing else start + length,
            size=state.size + length,
            missing=missing,
            open=not first & FINAL_BIT,
            bulk=length > READ_BYTES,
        )

    def _begin_growing(self, first: bytes, size: int) -> _Buffer:
        """Return the buffer of a payload of ``size`` bytes that begins with ``first``."""
        return GrowingBuffer(first, size, self.allocate)

    def _begin_placed(self, first: bytes, size: int) -> _Buffer:
        """Return the same for a frame that is a whole message, in memory of the receiver."""
        head_bytes = self._head_bytes
        placement = None
        if self._place is not None and len(first) >= head_bytes:
            placement = self._place(first[:head_bytes], size - head_bytes)
        if placement is None:
            return self._begin_growing(first, size)
        return PlacedBuffer(first[:head_bytes], first[head_bytes:], placement)

    def _merge(self) -> None:
        """Move received bytes to the payload in progress, and the rest to the buffer."""
        state = self._state
        chunk = state.received[0] if len(state.received) == 1 else b"".join(state.received)
        if not state.missing:
            rest = state.buffer[state.position :]
            # Not by ``_replace``, which costs 1 µs: many small frames pass through here.
            self._state = _State(
                [], rest + chunk if rest else chunk, 0,
                state.parts, state.size, 0, state.open, state.bulk,
            )  # fmt: skip
        elif len(chunk) <= state.missing:
            self._state = state.with_part(
                chunk, self._begin_growing, received=[], missing=state.missing - len(chunk)
            )
        else:
            self._state = state.with_part(
                memoryview(chunk)[: state.missing],
                self._begin_growing,
                received=[],
                buffer=chunk,
                position=state.missing,
                missing=0,
            )

    def _check_data(self, state: _State, first: int, length: int) -> None:
        opcode = first & OPCODE_BITS
        if opcode == TEXT:
            raise ProtocolViolation("the peer sent a text message; this protocol is binary")
        if opcode not in (BINARY, CONTINUATION) or first & RESERVED_BITS:
            raise _bad_first_byte(first)
        if state.open != (opcode == CONTINUATION):
            raise ProtocolViolation("the fragments of a WebSocket message are out of order")
        if state.size + length > self.max_message_bytes:
            raise LimitExceeded(
                "bytes in one message", seen=state.size + length, allowed=self.max_message_bytes
            )

    def _parse_header(self, buffer: bytes, position: int) -> tuple[int, int, int] | None:
        """Return the first byte, the payload's length and the payload's position."""
        available = len(buffer) - position
        if available < 2:
            return None
        length = buffer[position + 1] ^ self._mask_bit
        if length & MASK_BIT:
            raise ProtocolViolation("a client's frames must be masked, a server's must not")
        extra = 0 if length < LENGTH_16 else 2 if length == LENGTH_16 else 8
        start = position + 2 + extra + (4 if self._mask_bit else 0)
        if len(buffer) < start:
            return None
        if extra:
            length = int.from_bytes(buffer[position + 2 : position + 2 + extra], "big")
        return buffer[position], length, start


def _joined(parts: _Parts) -> bytes:
    """Return the payload that ``parts`` make; a single part is not copied.

    If it is long and masked, it is a ``memoryview``, or a ``PlacedFrame``. Receivers only slice,
    unpack and copy it.
    """
    listed = _in_order(parts)
    if len(listed) != 1:
        return b"".join(listed)
    (whole,) = listed
    return cast("bytes", whole.view()) if isinstance(whole, _Buffer) else whole


def _in_order(parts: _Parts) -> list[Any]:
    listed: list[Any] = []
    while parts:
        parts, part = parts
        listed.append(part)
    listed.reverse()
    return listed


def _check_control(first: int, length: int) -> None:
    if first & OPCODE_BITS > MAX_OPCODE or first & RESERVED_BITS or not first & FINAL_BIT:
        raise _bad_first_byte(first)
    if length >= LENGTH_16:
        raise ProtocolViolation(
            f"a WebSocket control frame has {length:,} bytes; at most {LENGTH_16 - 1} are allowed"
        )


def _bad_first_byte(first: int) -> ProtocolViolation:
    return ProtocolViolation(
        f"a WebSocket frame begins with 0x{first:02x}: an unknown opcode, a reserved bit, or a "
        "fragmented control frame"
    )
