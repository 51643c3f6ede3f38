"""Which bytes carry the messages of the native dialect, version 1?

A frame is one binary WebSocket message: one byte that says what it is, then its body. The body of
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

from burn_remote_protocol.dialects.messagepack import (
    MAX_LIST_LENGTH,
    unpack_frozen,
    unpack_lists,
)
from burn_remote_protocol.dialects.native_tasks import (
    MAX_SIGNATURES,
    SLOW_TASKS,
    decode_task,
    dropped_next,
    encode_task,
)
from burn_remote_protocol.dialects.native_values import (
    count,
    memory_handle,
    seconds,
    spec_from_wire,
    spec_to_wire,
    text,
    transfer_id,
)
from burn_remote_protocol.errors import (
    BurnRemoteError,
    GarbledBytes,
    LimitExceeded,
    OperationFailed,
    ProtocolViolation,
    error_from_wire,
    error_to_wire,
    shown,
)
from burn_remote_protocol.messages import (
    Acknowledged,
    Chunk,
    Closing,
    Failed,
    FetchRequest,
    Hello,
    Lent,
    Refused,
    Reply,
    Resume,
    Welcome,
)
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "CHUNK_BYTES",
    "INLINE_BYTES",
    "MAX_BATCH_TASKS",
    "MAX_BODY_BYTES",
    "MAX_SIGNATURES",
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

# Larger: one chunk delays other traffic longer (1 MiB is about 0.5 ms at 2 GB/s) and its buffers
# fall out of the processor's cache. Smaller: the cost per frame, some 20 µs on both sides, shows.
CHUNK_BYTES: Final = 512 * 1024
# Payloads up to this ride inside MessagePack. Larger: they are copied once more. Smaller: a small
# upload costs a frame of its own.
INLINE_BYTES: Final = 16 * 1024
MAX_BATCH_TASKS: Final = MAX_LIST_LENGTH
# A frame other than a chunk: a client sends a batch at 64 KiB, and a task of thousands of tensors
# has some 250 KiB. Larger: decoding one takes longer, and the event loop with it (4 MiB: 40 ms).
MAX_BODY_BYTES: Final = 4 * 1024 * 1024

(
    _HELLO, _BATCH, _CHUNK, _WELCOME, _REFUSED, _REPLY, _ACKNOWLEDGED, _FAILED, _CLOSING, _FETCH,
    _LENT,
) = range(1, 12)  # fmt: skip

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


def _resume_to_wire(resume: Resume | None) -> list[Any] | None:
    if resume is None:
        return None
    return [resume.session, resume.secret, resume.received]


def _secret(value: Any) -> bytes:
    if type(value) is not bytes or len(value) > 64:
        raise ProtocolViolation(f"a session's secret is at most 64 bytes, not {shown(value)}")
    return value


def _resume_from_wire(wire: Any) -> Resume | None:
    if wire is None:
        return None
    session, secret, received = wire
    return Resume(count(session), _secret(secret), count(received))


def _hello_from_wire(versions: Any, token: Any, resume: Any, client: Any, settings: Any) -> Hello:
    if not 1 <= len(versions) <= 64:
        raise ProtocolViolation("Hello names between 1 and 64 versions")
    if not isinstance(settings, dict):
        raise ProtocolViolation("Hello's settings are a map")
    return Hello(
        tuple(count(version, 65_535) for version in versions),
        None if token is None else text(token),
        _resume_from_wire(resume),
        text(client),
        settings,
    )


def _welcome_from_wire(
    version: Any, session: Any, secret: Any, lease: Any, device: Any, limits: Any, *rest: Any
) -> Welcome:
    peer_address, received = rest
    return Welcome(
        count(version), count(session), _secret(secret), seconds(lease), dict(device),
        {text(name): count(limit) for name, limit in limits.items()},
        text(peer_address), count(received),
    )  # fmt: skip


# How a reply's value is marked.
_VALUE, _ERROR, _DATA, _FOLLOWS = range(4)


def _reply_to_wire(reply: Reply) -> list[Any]:
    value = reply.value
    if isinstance(value, BurnRemoteError):
        return [reply.request, _ERROR, error_to_wire(value)]
    if isinstance(value, TensorSpec):
        return [reply.request, _FOLLOWS, spec_to_wire(value)]
    if value is None or isinstance(value, int):
        return [reply.request, _VALUE, value]
    return [reply.request, _DATA, value]


def _elements(wire: Any) -> bytes:
    if type(wire) is not bytes:
        raise ProtocolViolation(f"elements are bytes, not {shown(wire)}")
    return wire


def _reply_value(wire: Any) -> int | None:
    return None if wire is None else count(wire)


_REPLY_VALUE: Final[dict[int, Callable[[Any], Any]]] = {
    _VALUE: _reply_value,
    _ERROR: error_from_wire,
    _DATA: _elements,
    _FOLLOWS: spec_from_wire,
}


def _reply_from_wire(request: Any, mark: Any, value: Any) -> Reply:
    return Reply(count(request), _REPLY_VALUE[mark](value))


def _failed_from_wire(tensors: Any, error: Any) -> Failed:
    failure = error_from_wire(error)
    if not isinstance(failure, OperationFailed):
        raise ProtocolViolation(f"an operation cannot fail with {failure.code!r}")
    return Failed(tuple(count(tensor) for tensor in tensors), failure)


_ENCODE_FRAME: Final[dict[type[Any], tuple[int, Callable[[Any], Any]]]] = {
    Hello: (
        _HELLO,
        lambda m: [
            list(m.versions), m.token, _resume_to_wire(m.resume), m.client, dict(m.settings)
        ],
    ),
    Welcome: (
        _WELCOME,
        lambda m: [
            m.version, m.session, m.secret, m.lease_seconds, dict(m.device), dict(m.limits),
            m.peer_address, m.received,
        ],
    ),
    Refused: (_REFUSED, lambda m: error_to_wire(m.error)),
    Reply: (_REPLY, _reply_to_wire),
    Acknowledged: (_ACKNOWLEDGED, lambda m: [m.received]),
    Failed: (_FAILED, lambda m: [list(m.tensors), error_to_wire(m.error)]),
    Closing: (_CLOSING, lambda m: error_to_wire(m.error)),
    FetchRequest: (_FETCH, lambda m: [m.request, m.transfer, m.offset]),
    Lent: (_LENT, lambda m: [m.request, m.handle]),
}  # fmt: skip

_DECODE_FRAME: Final[dict[int, Callable[..., Any]]] = {
    _HELLO: _hello_from_wire,
    _WELCOME: _welcome_from_wire,
    _REFUSED: lambda *error: Refused(error_from_wire(error)),
    _REPLY: _reply_from_wire,
    _ACKNOWLEDGED: lambda received: Acknowledged(count(received)),
    _FAILED: _failed_from_wire,
    _CLOSING: lambda *error: Closing(error_from_wire(error)),
    _FETCH: lambda request, transfer, offset: FetchRequest(
        count(request), transfer_id(transfer), count(offset)
    ),
    _LENT: lambda request, handle: Lent(count(request), memory_handle(handle)),
}


def encode_frame(message: Any) -> bytes:
    """Return the frame of a message other than a batch or a chunk."""
    kind, to_wire = _ENCODE_FRAME[type(message)]
    return bytes((kind,)) + _pack(to_wire(message))


def _checksum(data: memoryview) -> int:
    return xxh3_64_intdigest(data) & 0xFFFFFFFF


def chunk_head(payload: int, offset: int, checked: memoryview | None = None) -> bytes:
    """Return the header of a chunk; the raw bytes follow it in the same frame.

    ``checked`` are those bytes where the header shall have their checksum.
    """
    if checked is None:
        return _CHUNK_HEAD.pack(_CHUNK, 0, 0, 0, payload, offset)
    return _CHUNK_HEAD.pack(_CHUNK, _HAS_CHECKSUM, 0, _checksum(checked), payload, offset)


def decode_frame(frame: bytes) -> Any:
    """Return the message, ``Batch`` or ``Chunk`` that a frame holds.

    Raises ``ProtocolViolation`` for anything else. Allocates no more than the frame's own size.
    """
    if not frame:
        raise ProtocolViolation("an empty frame")
    kind = frame[0]
    if len(frame) > MAX_BODY_BYTES and kind != _CHUNK:
        raise LimitExceeded("bytes of a frame", seen=len(frame), allowed=MAX_BODY_BYTES)
    if kind == _BATCH:
        return _decode_batch(frame)
    if kind == _CHUNK:
        return _decode_chunk(frame)
    decode = _DECODE_FRAME.get(kind)
    if decode is None:
        raise ProtocolViolation(f"unknown kind of frame {kind}; this side speaks {VERSIONS}")
    wire = unpack_lists(memoryview(frame)[1:])
    try:
        return decode(*wire)
    except BurnRemoteError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ProtocolViolation(f"not a body of frame kind {kind}: {shown(wire)}") from None


def _decode_batch(frame: bytes) -> Batch:
    wire = unpack_frozen(memoryview(frame)[1:])
    try:
        received, tasks = wire
    except (TypeError, ValueError):
        raise ProtocolViolation(f"not a batch: {shown(wire)}") from None
    if type(tasks) is not tuple:
        raise ProtocolViolation(f"a batch holds a list of tasks, not {shown(tasks)}")
    return Batch(count(received), tasks)


def _decode_chunk(frame: bytes) -> Chunk:
    if len(frame) < _CHUNK_HEAD.size:
        raise ProtocolViolation(f"a chunk has a header of {_CHUNK_HEAD.size} bytes")
    _, flags, reserved, checksum, payload, offset = _CHUNK_HEAD.unpack_from(frame)
    data = memoryview(frame)[_CHUNK_HEAD.size :]
    if flags & ~_HAS_CHECKSUM or reserved or (checksum and not flags):
        raise ProtocolViolation("version 1 knows no flag of a chunk but that of its checksum")
    if flags and _checksum(data) != checksum:
        raise GarbledBytes(f"bytes {offset:,} and on of payload {payload} were garbled")
    return Chunk(payload, offset, data)
