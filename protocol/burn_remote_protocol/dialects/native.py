"""Encoding and decoding of the native dialect's frames, version 1.

A frame is one binary WebSocket message: one byte for its type, then its body. The body of a chunk
or of a collective's piece is a fixed header and raw bytes; every other body is one MessagePack
value. docs/wire-native.md is the specification.

A batch holds many tasks, each a MessagePack array. If the first element is not negative, it is the
number of a signature, and the rest are tensor ids: this is the hot path, for which neither side
creates objects. A negative first element is the code of any other task.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple, cast

import msgpack
from xxhash import xxh3_64_intdigest

from burn_remote_protocol.dialects.bounded_unpacking import (
    MAX_LIST_LENGTH,
    NOT_MESSAGEPACK,
    Steps,
    not_messagepack,
    unpack_frozen,
    unpack_frozen_in_steps,
    unpack_lists,
)
from burn_remote_protocol.dialects.native_messages import (
    BATCH,
    CHUNK,
    MESSAGE_FROM_WIRE,
    MESSAGE_TO_WIRE,
    PIECE,
    REPLY,
    SECRET_KINDS,
    elements_to_wire,
)
from burn_remote_protocol.dialects.native_tasks import (
    DEFINE_GRAPH_TASK,
    DEFINE_TASK,
    DROP_TASK,
    EXECUTE_TASK,
    MAX_GRAPH_STEPS,
    MAX_GRAPHS,
    MAX_GROUPS,
    MAX_SIGNATURES,
    READ_TASK,
    SLOW_TASKS,
    LastUses,
    decode_task,
    drop_task,
    dropped_next,
    encode_task,
    follows_collective,
    read_task,
)
from burn_remote_protocol.dialects.native_values import (
    count,
)
from burn_remote_protocol.dialects.reusable_packer import reusable_pack
from burn_remote_protocol.errors import (
    BurnRemoteError,
    GarbledBytes,
    LimitExceeded,
    ProtocolViolation,
    shown,
)
from burn_remote_protocol.links.interface import PlacedFrame
from burn_remote_protocol.messages import (
    Chunk,
)
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = [
    "CHUNK_BYTES",
    "CHUNK_HEAD_BYTES",
    "DEFINE_GRAPH_TASK",
    "DEFINE_TASK",
    "DROP_TASK",
    "EXECUTE_TASK",
    "INLINE_BYTES",
    "LARGE_CHUNK_BYTES",
    "MAX_BODY_BYTES",
    "MAX_GRAPHS",
    "MAX_GRAPH_STEPS",
    "MAX_GROUPS",
    "MAX_SIGNATURES",
    "PIECE_HEAD_BYTES",
    "READ_TASK",
    "SESSION_LIMITS",
    "SLOW_TASKS",
    "UPLOAD_CHUNK_BYTES",
    "VERSION",
    "VERSIONS",
    "Batch",
    "BatchPart",
    "EncodedTask",
    "LastUses",
    "batch_in_parts",
    "batch_received",
    "chunk_head",
    "chunk_position",
    "decode_batch_in_steps",
    "decode_frame",
    "decode_task",
    "drop_task",
    "dropped_next",
    "encode_batch",
    "encode_elements",
    "encode_frame",
    "encode_task",
    "follows_collective",
    "is_batch",
    "is_chunk",
    "open_piece",
    "piece_head",
    "read_task",
]

VERSION: Final = 1
VERSIONS: Final = (1,)

# A chunk delays other traffic (0.25 ms at 2 GB/s), and its buffers should fit into the CPU cache.
# With much smaller chunks, the cost per frame (about 20 µs on both sides) would be noticeable.
CHUNK_BYTES: Final = 512 * 1024
# The chunks of an upload. A server takes up to 0.2 ms for each one besides its bytes: on 16 cores
# of a Xeon, 256 MiB arrived at 1.27 GB/s in chunks of 512 KiB and at 1.5 GB/s in these. A message
# with such a chunk is shorter than 1 MiB, the smallest limit that a server may set.
UPLOAD_CHUNK_BYTES: Final = 960 * 1024
# The chunks of a large upload over a fast connection, if the server announces that it accepts them:
# 256 MiB arrived on a GPU at 2.1 to 2.3 GB/s in these, and at 1.6 to 2.0 in those above, and took
# 114 to 123 instead of 133 to 166 ms of the server's processor time (two H200, 2026-11-28).
LARGE_CHUNK_BYTES: Final = 4 * UPLOAD_CHUNK_BYTES
# Payloads up to this size are part of a MessagePack value, which costs one copy but saves a frame.
INLINE_BYTES: Final = 16 * 1024
# Limit of every frame with a MessagePack value. A client sends a batch at 64 KiB, and a task with
# thousands of tensors takes about 250 KiB. Decoding a frame of this size holds Python's interpreter
# lock for 15 ms if it consists of lists of one element, and for 26 ms if they are nested 1,000
# deep; freeing nested lists takes 14 ms more.
MAX_BODY_BYTES: Final = 512 * 1024

# Up to this size, copying the body of a frame takes less time than creating two views.
COPIED_BYTES: Final = 2 * 1024

# Flag: the chunk's header has a checksum, the low 32 bits of the 64-bit XXH3. For 512 KiB,
# computing it takes 5 µs on the event loop of each side; CRC-32 would take 95 µs.
_HAS_CHECKSUM: Final = 1

# kind, 6 reserved bytes, sequence, offset. A checked link adds a header of 9 bytes, so the elements
# begin at byte 32 and are aligned.
_PIECE_HEAD: Final = struct.Struct(">B6xQQ")
PIECE_HEAD_BYTES: Final = _PIECE_HEAD.size

# What a server announces in ``Welcome.limits``, in addition to its settings. A server with a data
# folder announces 1 for ``files``.
SESSION_LIMITS: Final[dict[str, int]] = {
    "chunk_bytes": UPLOAD_CHUNK_BYTES,
    "signatures": MAX_SIGNATURES,
    "graphs": MAX_GRAPHS,
    "graph_steps": MAX_GRAPH_STEPS,
    "files": 0,
}

# The type of a frame with a batch, the length of its array, and ``received``.
_BATCH_HEAD_BYTES: Final = 1 + 1 + 9

_BATCH_KIND: Final = bytes((BATCH,))
_REPLY_KIND: Final = bytes((REPLY,))
_CHUNK_HEAD: Final = struct.Struct(">BBHIQQ")  # kind, flags, reserved, checksum, payload, offset
CHUNK_HEAD_BYTES: Final = _CHUNK_HEAD.size

_pack: Final = reusable_pack()


class Batch(NamedTuple):
    """Tasks in order. ``received`` is how many of the server's session frames the client has.

    ``tasks`` are unpacked but not decoded: the server uses tasks that refer to a signature by its
    number as they are, and passes all others to ``decode_task``.
    """

    received: int
    tasks: tuple[Any, ...]


# A task for a batch: its bytes; the number of a signature or graph, and the ids of its tensors; or
# a list that ``drop_task`` or ``read_task`` returned.
EncodedTask = bytes | tuple[Any, ...]


def encode_batch(received: int, tasks: Sequence[EncodedTask]) -> bytes:
    """Join tasks into one frame. Encoding many at once takes less time."""
    if bytes not in map(type, tasks):
        return _BATCH_KIND + _pack((received, tasks))
    head = _pack(received) + _list_head(len(tasks))
    parts = [_BATCH_KIND + b"\x92" + head]
    for kind, run in groupby(tasks, type):
        if kind is bytes:
            parts += cast("Iterable[bytes]", run)
        else:
            packed = [*run]
            parts.append(_pack(packed)[len(_list_head(len(packed))) :])
    return b"".join(parts)


def _list_head(length: int) -> bytes:
    """Return the bytes in which MessagePack encodes the length of a list."""
    if length < 1 << 4:
        return bytes((0x90 | length,))
    return b"\xdc" + length.to_bytes(2, "big")


# -- frames -----------------------------------------------------------------------------------


def encode_frame(message: Any) -> bytes:
    """Encode a message other than a batch or a chunk."""
    kind, to_wire = MESSAGE_TO_WIRE[type(message)]
    return bytes((kind,)) + _pack(to_wire(message))


def encode_elements(request: int, elements: bytes | memoryview) -> bytes:
    """Encode a reply with a tensor's elements; takes half the time of ``encode_frame``."""
    return _REPLY_KIND + _pack(elements_to_wire(request, elements))


def _checksum(data: memoryview) -> int:
    return xxh3_64_intdigest(data) & 0xFFFFFFFF


def chunk_head(payload: int, offset: int, checked: memoryview | None = None) -> bytes:
    """Return the header of a chunk; the raw bytes follow it in the same frame.

    ``checked`` is the raw bytes if the header must contain their checksum, otherwise ``None``.
    """
    if checked is None:
        return _CHUNK_HEAD.pack(CHUNK, 0, 0, 0, payload, offset)
    return _CHUNK_HEAD.pack(CHUNK, _HAS_CHECKSUM, 0, _checksum(checked), payload, offset)


def chunk_position(head: bytes) -> tuple[int, int] | None:
    """Return the payload and the offset in the header of a chunk; ``None`` for another frame."""
    if len(head) < CHUNK_HEAD_BYTES or head[0] != CHUNK:
        return None
    _, _, _, _, payload, offset = _CHUNK_HEAD.unpack_from(head)
    return payload, offset


def piece_head(sequence: int, offset: int) -> bytes:
    """Return the header of a piece of a collective; the elements follow it in the same frame.

    ``offset`` is the number of bytes of this collective that the link has carried before.
    """
    return _PIECE_HEAD.pack(PIECE, sequence, offset)


def open_piece(head: bytes) -> tuple[int, int] | None:
    """Return the sequence number and the offset of a piece; ``None`` for another frame."""
    if len(head) != PIECE_HEAD_BYTES or head[0] != PIECE:
        return None
    _, sequence, offset = _PIECE_HEAD.unpack(head)
    return sequence, offset


def is_batch(frame: bytes | memoryview) -> bool:
    """Whether a frame that is not empty has the type of a batch; its body is not checked."""
    return frame[0] == BATCH


def is_chunk(frame: bytes | memoryview) -> bool:
    """Whether a frame that is not empty has the type of a chunk; its body is not checked."""
    return frame[0] == CHUNK


def decode_frame(frame: bytes | memoryview) -> Any:
    """Decode a frame into its message, ``Batch`` or ``Chunk``.

    Raises ``ProtocolViolation`` for anything else. The memory that this takes is proportional to
    the frame's length, whatever lengths the frame claims for its lists.
    """
    if not frame:
        raise ProtocolViolation("an empty frame")
    kind = frame[0]
    if len(frame) > MAX_BODY_BYTES and kind != CHUNK:
        raise LimitExceeded("bytes of a frame", seen=len(frame), allowed=MAX_BODY_BYTES)
    if kind == BATCH:
        return _batch(unpack_frozen(_body(frame)))
    if kind == CHUNK:
        return _decode_chunk(frame)
    decode = MESSAGE_FROM_WIRE.get(kind)
    if decode is None:
        raise ProtocolViolation(f"unknown kind of frame {kind}; this side speaks {VERSIONS}")
    wire = unpack_lists(_body(frame))
    if type(wire) is not list:
        raise ProtocolViolation(f"the body of frame kind {kind} is an array")
    try:
        return decode(*wire)
    except BurnRemoteError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        pass_on_of_signal_handler(error)
        seen = "(contents withheld)" if kind in SECRET_KINDS else shown(wire)
        raise ProtocolViolation(f"malformed body of frame kind {kind}: {seen}") from None


def _body(frame: bytes | memoryview) -> bytes | memoryview:
    return frame[1:] if len(frame) <= COPIED_BYTES else memoryview(frame)[1:]


def decode_batch_in_steps(frame: bytes | memoryview) -> Steps[Batch]:
    """Decode a frame of a batch like ``decode_frame``, in short steps.

    Raises ``ProtocolViolation``.
    """
    if len(frame) > MAX_BODY_BYTES:
        raise LimitExceeded("bytes of a frame", seen=len(frame), allowed=MAX_BODY_BYTES)
    return _batch((yield from unpack_frozen_in_steps(_body(frame))))


def batch_received(frame: bytes | memoryview) -> int:
    """Return ``received`` of the batch in a frame, without decoding its tasks.

    Raises ``ProtocolViolation``.
    """
    return _opened(_body(frame[:_BATCH_HEAD_BYTES]))[1]


class BatchPart(NamedTuple):
    """Consecutive tasks of a batch, not decoded."""

    length: int
    packed: memoryview

    def decode(self) -> tuple[Any, ...]:
        """Return the tasks as they are in a ``Batch``. Raises ``ProtocolViolation``."""
        head = b"\xdd" + self.length.to_bytes(4, "big")
        tasks: tuple[Any, ...] = unpack_frozen(b"".join((head, self.packed)))
        return tasks


def batch_in_parts(frame: bytes | memoryview, most_bytes: int) -> Iterator[BatchPart]:
    """Divide a batch into parts of at most ``most_bytes`` bytes, or of one longer task.

    Raises ``ProtocolViolation`` before the first part, unless the frame has the outline of a batch.
    """
    if len(frame) > MAX_BODY_BYTES:
        raise LimitExceeded("bytes of a frame", seen=len(frame), allowed=MAX_BODY_BYTES)
    body = memoryview(frame)[1:]
    ends = _ends_of_tasks(body)
    first = 0
    for place in range(1, len(ends)):
        if place + 1 == len(ends) or ends[place + 1] - ends[first] > most_bytes:
            yield BatchPart(place - first, body[ends[first] : ends[place]])
            first = place


def _ends_of_tasks(body: memoryview) -> list[int]:
    """Return where the first task of a batch begins, and where each task ends."""
    unpacker, _ = _opened(body)
    try:
        length = unpacker.read_array_header()
        if length > MAX_LIST_LENGTH:
            raise ValueError(f"{length} exceeds max_array_len({MAX_LIST_LENGTH})")
        ends = [unpacker.tell()]
        for _ in range(length):
            unpacker.skip()
            ends.append(unpacker.tell())
    except NOT_MESSAGEPACK as error:
        pass_on_of_signal_handler(error)
        raise not_messagepack(error) from None
    if ends[-1] != len(body):
        raise ProtocolViolation("not MessagePack: bytes follow the value")
    return ends


def _opened(body: bytes | memoryview) -> tuple[msgpack.Unpacker, int]:
    """Return an unpacker that has read the beginning of a batch, and its ``received``."""
    size = len(body) or 1
    unpacker = msgpack.Unpacker(max_buffer_size=size, read_size=size)
    try:
        unpacker.feed(body)
        length = unpacker.read_array_header()
        received = unpacker.unpack()
    except NOT_MESSAGEPACK as error:
        pass_on_of_signal_handler(error)
        raise not_messagepack(error) from None
    if length != 2:
        raise ProtocolViolation(f"malformed batch: an array of {length}")
    return unpacker, count(received)


def _batch(wire: Any) -> Batch:
    try:
        received, tasks = wire
    except (TypeError, ValueError) as error:
        pass_on_of_signal_handler(error)
        raise ProtocolViolation(f"malformed batch: {shown(wire)}") from None
    if type(wire) is not tuple or type(tasks) is not tuple:
        raise ProtocolViolation(f"a batch holds a list of tasks, not {shown(tasks)}")
    if type(received) is not int or received < 0:
        count(received)  # raises
    return tuple.__new__(Batch, (received, tasks))  # without the constructor, which is slower


def _decode_chunk(frame: bytes | memoryview) -> Chunk:
    if len(frame) < _CHUNK_HEAD.size:
        raise ProtocolViolation(
            f"a chunk starts with a header of {_CHUNK_HEAD.size} bytes; this one has {len(frame)}"
        )
    _, flags, reserved, checksum, payload, offset = _CHUNK_HEAD.unpack_from(frame)
    is_placed = type(frame) is PlacedFrame
    data = frame.rest if type(frame) is PlacedFrame else memoryview(frame)[_CHUNK_HEAD.size :]
    if flags & ~_HAS_CHECKSUM or reserved or (checksum and not flags):
        raise ProtocolViolation("unknown flags of a chunk; version 1 defines only the checksum")
    if flags and _checksum(data) != checksum:
        raise GarbledBytes(
            f"garbled chunk at byte {offset:,} of payload {payload}: its checksum does not match"
        )
    return Chunk(payload, offset, data, is_placed)
