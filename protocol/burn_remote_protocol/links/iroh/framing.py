"""Frames on a QUIC stream: a header of eight bytes, then the payload. Performs no I/O.

The header is the payload's length, unsigned and little-endian, as in Burn 0.22. Between native ends
its last byte, which no length reaches, is the kind of the frame: pings, and the code and the reason
of a close, travel between the frames of the session. With Burn there is only one kind.

A length allocates nothing: memory grows with the bytes that arrive.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.links.interface import short_reason

__all__ = [
    "HEADER_BYTES",
    "Control",
    "FrameParser",
    "Kind",
    "close_payload",
    "frame_header",
    "read_close",
]

HEADER_BYTES: Final = 8
_KIND_BIT: Final = 56
_LENGTH_BITS: Final = (1 << _KIND_BIT) - 1

# As in a WebSocket.
MAX_CONTROL_BYTES: Final = 125

# Bytes are collected in parts of at least this size, which are joined at the end: a part for each
# read would let a peer that sends single bytes occupy 100 times their number, and one part for all
# would be copied each time it grows.
PART_BYTES: Final = 2**18


class Kind(enum.IntEnum):
    """The kind of a frame between native ends."""

    MESSAGE = 0
    PING = 1
    PONG = 2
    CLOSE = 3


@dataclass(frozen=True, slots=True)
class Control:
    """A frame that is not a message."""

    kind: Kind
    payload: bytes


def frame_header(size: int, kind: Kind = Kind.MESSAGE) -> bytes:
    """Return the header of a frame with a payload of ``size`` bytes."""
    return (kind << _KIND_BIT | size).to_bytes(HEADER_BYTES, "little")


def close_payload(code: int, reason: str) -> bytes:
    """Return the payload of a close."""
    return code.to_bytes(2, "big") + short_reason(reason).encode()


def read_close(payload: bytes) -> str:
    """Return the code and the reason of a close, for a message."""
    if len(payload) < 2:
        return "without a code"
    return f"{int.from_bytes(payload[:2], 'big')} {payload[2:].decode(errors='replace')}".rstrip()


class FrameParser:
    """Finds the frames in the bytes of a stream."""

    def __init__(self, max_message_bytes: int, *, has_control_frames: bool) -> None:
        self.max_message_bytes = max_message_bytes
        self.messages = 0  # completed so far
        # Why the stream cannot be read any further.
        self.failure: ProtocolViolation | None = None
        self._has_control_frames: Final = has_control_frames
        self._header = b""  # the first bytes of an incomplete header
        self._kind = Kind.MESSAGE
        self._missing = 0  # bytes of the payload in progress
        self._parts: list[bytearray] | None = None  # of the payload in progress
        self._arrived = 0  # bytes in ``_parts``

    @property
    def unfinished_bytes(self) -> int:
        """How many bytes of an incomplete frame have arrived."""
        return self._arrived + len(self._header)

    @property
    def missing_bytes(self) -> int:
        """How many bytes the payload in progress lacks, according to the peer; 0 between frames."""
        return self._missing

    def feed(self, data: bytes) -> list[bytes | Control]:
        """Return the frames that these bytes complete. Afterwards, look at ``failure``."""
        return self.feed_some(memoryview(data), len(data))[0]

    def feed_some(self, view: memoryview, most: int) -> tuple[list[bytes | Control], memoryview]:
        """Return the first ``most`` frames that these bytes complete, and the bytes after them.

        Afterwards, look at ``failure``.
        """
        frames: list[bytes | Control] = []
        while view and self.failure is None and len(frames) < most:
            view = self._take_header(view) if self._parts is None else self._take_payload(view)
            if self._is_complete:
                frames.append(self._completed())
        return frames, view

    @property
    def _is_complete(self) -> bool:
        return self._parts is not None and not self._missing and self.failure is None

    def _take_header(self, view: memoryview) -> memoryview:
        wanted = HEADER_BYTES - len(self._header)
        self._header += view[:wanted]
        if len(self._header) == HEADER_BYTES:
            self._begin(int.from_bytes(self._header, "little"))
            self._header = b""
        return view[wanted:]

    def _begin(self, header: int) -> None:
        size, kind = header, 0
        if self._has_control_frames:
            size, kind = header & _LENGTH_BITS, header >> _KIND_BIT
            if kind > max(Kind):
                self.failure = ProtocolViolation(f"unknown kind of frame {kind}")
                return
        self._kind = Kind(kind)
        allowed = MAX_CONTROL_BYTES if kind else self.max_message_bytes
        if size > allowed:
            self.failure = LimitExceeded("bytes in a message", seen=size, allowed=allowed)
            return
        self._parts, self._missing, self._arrived = [], size, 0

    def _take_payload(self, view: memoryview) -> memoryview:
        assert self._parts is not None  # the caller looked
        part = view[: self._missing]
        if self._parts and len(self._parts[-1]) < PART_BYTES:
            self._parts[-1] += part
        else:
            self._parts.append(bytearray(part))
        self._missing -= len(part)
        self._arrived += len(part)
        return view[len(part) :]

    def _completed(self) -> bytes | Control:
        assert self._parts is not None  # the caller looked
        payload = b"".join(self._parts)  # also of a single part, because frames are immutable
        self._parts, self._arrived = None, 0
        if self._kind is not Kind.MESSAGE:
            return Control(self._kind, payload)
        self.messages += 1
        return payload
