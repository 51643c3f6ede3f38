"""The bytes of the native dialect's frames, version 1.

A frame is one binary WebSocket message: one byte for its type, then its body. The body of
a chunk is a fixed header and raw bytes; every other body is one MessagePack value.
docs/wire-native.md is the specification.

A batch holds many tasks, each a MessagePack array. A non-negative first element is the number of a
signature and the rest are tensor ids: that is the hot path, which neither side turns into objects.
A negative first element is the code of any other task.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgpack
from xxhash import xxh3_64_intdigest

from burn_remote_protocol.dialects.bounded_unpacking import (
    MAX_LIST_LENGTH,
    unpack_frozen,
    unpack_lists,
)
from burn_remote_protocol.dialects.native_messages import (
    BATCH,
    CHUNK,
    MESSAGE_FROM_WIRE,
    MESSAGE_TO_WIRE,
    SECRET_KINDS,
)
from burn_remote_protocol.dialects.native_tasks import (
    DEFINE_TASK,
    DROP_TASK,
    MAX_SIGNATURES,
    READ_TASK,
    SLOW_TASKS,
    decode_task,
    dropped_next,
    encode_task,
)
from burn_remote_protocol.dialects.native_values import (
    count,
)
from burn_remote_protocol.errors import (
    BurnRemoteError,
    GarbledBytes,
    LimitExceeded,
    ProtocolViolation,
    shown,
)
from burn_remote_protocol.messages import (
    Chunk,
)

__all__ = [
    "CHUNK_BYTES",
    "DEFINE_TASK",
    "DROP_TASK",
    "INLINE_BYTES",
    "MAX_BATCH_TASKS",
    "MAX_BODY_BYTES",
    "MAX_SIGNATURES",
    "READ_TASK",
    "SLOW_TASKS",
    "VERSION",
    "VERSIONS",
    "Batch",
    "chunk_head",
    "decode_frame",
    "decode_task",
    "dropped_next",
    "encode_batch",
    "encode_frame",
    "encode_task",
]

VERSION: Final = 1
VERSIONS: Final = (1,)

# A chunk delays other traffic (0.25 ms at 2 GB/s), and its buffers should fit into the cache.
# Much smaller chunks would make the cost per frame, some 20 µs on both sides, noticeable.
CHUNK_BYTES: Final = 512 * 1024
# Payloads up to this size are part of a MessagePack value, which costs a copy but saves a frame.
INLINE_BYTES: Final = 16 * 1024
MAX_BATCH_TASKS: Final = MAX_LIST_LENGTH
# A frame other than a chunk. A client sends a batch at 64 KiB, and a task of thousands of tensors
# has some 250 KiB. Decoding holds Python's interpreter lock, for 17 ms with the worst frame of this
# size (lists of one element).
MAX_BODY_BYTES: Final = 512 * 1024

# The flag of a chunk whose header has a checksum: the low half of XXH3, 64 bits. CRC-32 takes 95 µs
# for 512 KiB on the event loops of both sides, this 5.
_HAS_CHECKSUM: Final = 1

_CHUNK_HEAD: Final = struct.Struct(">BBHIQQ")  # kind, flags, reserved, checksum, payload, offset

_pack: Final[Callable[[Any], bytes]] = msgpack.packb


class Batch(NamedTuple):
    """Tasks in order. ``received`` is how many of the server's session frames the client has.

    ``tasks`` are undecoded: invocations are used as they are, others go through ``decode_task``.
    """

    received: int
    tasks: tuple[Any, ...]


def encode_batch(received: int, tasks: Sequence[bytes]) -> bytes:
    """Join encoded tasks to one frame."""
    head = b"\x02\x92" + _pack(received) + b"\xdd" + len(tasks).to_bytes(4, "big")
    return head + b"".join(tasks)


# -- frames -----------------------------------------------------------------------------------


def encode_frame(message: Any) -> bytes:
    """Return the frame of a message other than a batch or a chunk."""
    kind, to_wire = MESSAGE_TO_WIRE[type(message)]
    return bytes((kind,)) + _pack(to_wire(message))


def _checksum(data: memoryview) -> int:
    return xxh3_64_intdigest(data) & 0xFFFFFFFF


def chunk_head(payload: int, offset: int, checked: memoryview | None = None) -> bytes:
    """Return the header of a chunk; the raw bytes follow it in the same frame.

    ``checked`` are those bytes where the header shall have their checksum.
    """
    if checked is None:
        return _CHUNK_HEAD.pack(CHUNK, 0, 0, 0, payload, offset)
    return _CHUNK_HEAD.pack(CHUNK, _HAS_CHECKSUM, 0, _checksum(checked), payload, offset)


def decode_frame(frame: bytes | memoryview) -> Any:
    """Return the message, ``Batch`` or ``Chunk`` that a frame holds.

    Raises ``ProtocolViolation`` for anything else. Allocates no more than the frame's own size.
    """
    if not frame:
        raise ProtocolViolation("an empty frame")
    kind = frame[0]
    if len(frame) > MAX_BODY_BYTES and kind != CHUNK:
        raise LimitExceeded("bytes of a frame", seen=len(frame), allowed=MAX_BODY_BYTES)
    if kind == BATCH:
        return _decode_batch(frame)
    if kind == CHUNK:
        return _decode_chunk(frame)
    decode = MESSAGE_FROM_WIRE.get(kind)
    if decode is None:
        raise ProtocolViolation(f"unknown kind of frame {kind}; this side speaks {VERSIONS}")
    wire = unpack_lists(memoryview(frame)[1:])
    try:
        return decode(*wire)
    except BurnRemoteError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        seen = "its body is not repeated here" if kind in SECRET_KINDS else shown(wire)
        raise ProtocolViolation(f"not a body of frame kind {kind}: {seen}") from None


def _decode_batch(frame: bytes | memoryview) -> Batch:
    wire = unpack_frozen(memoryview(frame)[1:])
    try:
        received, tasks = wire
    except (TypeError, ValueError):
        raise ProtocolViolation(f"not a batch: {shown(wire)}") from None
    if type(tasks) is not tuple:
        raise ProtocolViolation(f"a batch holds a list of tasks, not {shown(tasks)}")
    return Batch(count(received), tasks)


def _decode_chunk(frame: bytes | memoryview) -> Chunk:
    if len(frame) < _CHUNK_HEAD.size:
        raise ProtocolViolation(f"a chunk has a header of {_CHUNK_HEAD.size} bytes")
    _, flags, reserved, checksum, payload, offset = _CHUNK_HEAD.unpack_from(frame)
    data = memoryview(frame)[_CHUNK_HEAD.size :]
    if flags & ~_HAS_CHECKSUM or reserved or (checksum and not flags):
        raise ProtocolViolation("version 1 knows no flag of a chunk but that of its checksum")
    if flags and _checksum(data) != checksum:
        raise GarbledBytes(f"bytes {offset:,} and on of payload {payload} were garbled")
    return Chunk(payload, offset, data)
