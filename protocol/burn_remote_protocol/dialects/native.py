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
from zlib import crc32

import msgpack

from burn_remote_protocol.dialects.messagepack import (
    MAX_LIST_LENGTH,
    unpack_frozen,
    unpack_lists,
)
from burn_remote_protocol.dtypes import DType
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
from burn_remote_protocol.ids import MAX_ID, TRANSFER_ID_BYTES, is_secret
from burn_remote_protocol.messages import (
    Acknowledged,
    BeginUpload,
    Chunk,
    Cleanup,
    Closing,
    Define,
    Drop,
    Execute,
    Expose,
    Failed,
    Fetch,
    FetchRequest,
    Hello,
    QueryDType,
    Read,
    Refused,
    Reply,
    Resume,
    Seed,
    Sync,
    Task,
    Upload,
    Welcome,
)
from burn_remote_protocol.operations.encoding import (
    decode_operation,
    decode_tensor_data,
    encode_operation,
    encode_tensor_data,
)
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.tensors import TensorSpec, checked_shape

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
# Signatures that a session may have numbered. Larger: an idle session may hold more memory on the
# server (about 2 KiB each). Smaller: programs with many different operations send them in full.
MAX_SIGNATURES: Final = 4096
MAX_BATCH_TASKS: Final = MAX_LIST_LENGTH
# A frame other than a chunk: a client sends a batch at 64 KiB, and a task of thousands of tensors
# has some 250 KiB. Larger: decoding one takes longer, and the event loop with it (4 MiB: 40 ms).
MAX_BODY_BYTES: Final = 4 * 1024 * 1024

_HELLO, _BATCH, _CHUNK, _WELCOME, _REFUSED, _REPLY, _ACKNOWLEDGED, _FAILED, _CLOSING, _FETCH = (
    range(1, 11)
)

# The flag of a chunk whose header has a checksum: CRC-32 as zlib computes it.
_HAS_CHECKSUM: Final = 1

_CHUNK_HEAD: Final = struct.Struct(">BBHIQQ")  # kind, flags, reserved, checksum, payload, offset

_pack: Final[Callable[[Any], bytes]] = msgpack.packb


class Batch(NamedTuple):
    """Tasks in order. ``received`` is how many of the server's session frames the client has.

    ``tasks`` are undecoded: invocations are used as they are, others go through ``decode_task``.
    """

    received: int
    tasks: tuple[Any, ...]


# -- tasks ------------------------------------------------------------------------------------

_DEFINE, _EXECUTE, _DROP, _UPLOAD, _BEGIN_UPLOAD, _READ, _SYNC, _SEED = range(-1, -9, -1)
_QUERY_DTYPE, _CLEANUP, _EXPOSE, _FETCH_TASK = range(-9, -13, -1)

# Codes of tasks after which others of the batch may wait for another server, or that take long.
SLOW_TASKS: Final = frozenset({_CLEANUP, _FETCH_TASK})


def _spec_to_wire(spec: TensorSpec) -> list[Any]:
    return [list(spec.shape), spec.dtype.wire]


def _spec_from_wire(wire: Any) -> TensorSpec:
    dims, dtype = wire
    return TensorSpec(checked_shape(dims), DType.from_wire(dtype))


def _count(value: Any, maximum: int = MAX_ID) -> int:
    if type(value) is not int or not 0 <= value <= maximum:
        raise ProtocolViolation(f"expected an integer from 0 to {maximum}, not {shown(value)}")
    return value


def _task_transfer(value: Any) -> bytes | int:
    """Read a transfer id; a number is for servers that speak Burn 0.21."""
    if type(value) is int and is_secret(value):
        return _count(value)
    return _transfer(value)


def _transfer(value: Any) -> bytes:
    if type(value) is not bytes or len(value) != TRANSFER_ID_BYTES:
        raise ProtocolViolation(f"a transfer id is {TRANSFER_ID_BYTES} bytes, not {shown(value)}")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 86_400:
        raise ProtocolViolation(f"expected seconds from 0 to 86,400, not {shown(value)}")
    return float(value)


def _define_from_wire(number: Any, operation: Any) -> Define:
    return Define(_count(number, MAX_SIGNATURES - 1), decode_operation(operation).signature)


def _text(value: Any, maximum: int = 1024) -> str:
    if type(value) is not str or len(value) > maximum:
        raise ProtocolViolation(f"expected a text of at most {maximum} characters: {shown(value)}")
    return value


def _number_tensors(task: Define) -> Operation:
    signature = task.signature
    return Operation(signature, (0,) * (len(signature.input_uses) + signature.output_count))


_ENCODE_TASK: Final[dict[type[Any], Callable[[Any], list[Any]]]] = {
    Define: lambda t: [_DEFINE, t.number, encode_operation(_number_tensors(t))],
    Execute: lambda t: [_EXECUTE, encode_operation(t.operation)],
    Drop: lambda t: [_DROP, list(t.tensors)],
    Upload: lambda t: [_UPLOAD, t.tensor, encode_tensor_data(t.data)],
    BeginUpload: lambda t: [_BEGIN_UPLOAD, t.tensor, _spec_to_wire(t.spec), t.byte_count],
    Read: lambda t: [_READ, t.request, t.tensor, _spec_to_wire(t.spec)],
    Sync: lambda t: [_SYNC, t.request],
    Seed: lambda t: [_SEED, t.seed],
    QueryDType: lambda t: [_QUERY_DTYPE, t.request, t.dtype.wire],
    Cleanup: lambda t: [_CLEANUP],
    Expose: lambda t: [
        _EXPOSE, t.tensor, _spec_to_wire(t.spec), t.count, t.transfer, t.expires_seconds
    ],
    Fetch: lambda t: [
        _FETCH_TASK, t.transfer, t.address, t.tensor, _spec_to_wire(t.spec)
    ],
}  # fmt: skip

_DECODE_TASK: Final[dict[int, Callable[..., Task]]] = {
    _DEFINE: _define_from_wire,
    _EXECUTE: lambda operation: Execute(decode_operation(operation)),
    _DROP: lambda tensors: Drop(tuple(_count(tensor) for tensor in tensors)),
    _UPLOAD: lambda tensor, data: Upload(_count(tensor), decode_tensor_data(data)),
    _BEGIN_UPLOAD: lambda tensor, spec, byte_count: BeginUpload(
        _count(tensor), _spec_from_wire(spec), _count(byte_count)
    ),
    _READ: lambda request, tensor, spec: Read(
        _count(request), _count(tensor), _spec_from_wire(spec)
    ),
    _SYNC: lambda request: Sync(_count(request)),
    _SEED: lambda seed: Seed(_count(seed)),
    _QUERY_DTYPE: lambda request, dtype: QueryDType(_count(request), DType.from_wire(dtype)),
    _CLEANUP: lambda: Cleanup(),
    _EXPOSE: lambda tensor, spec, count, transfer, expires: Expose(
        _count(tensor),
        _spec_from_wire(spec),
        _count(count),
        _task_transfer(transfer),
        _seconds(expires),
    ),
    _FETCH_TASK: lambda transfer, address, tensor, spec: Fetch(
        _task_transfer(transfer), _text(address), _count(tensor), _spec_from_wire(spec)
    ),
}


def encode_task(task: Task) -> bytes:
    """Return a task as it stands inside a batch."""
    return _pack(_ENCODE_TASK[type(task)](task))


def decode_task(wire: Any) -> Task:
    """Return the task that an undecoded element of a batch holds.

    Raises ``ProtocolViolation`` for anything that is no task.
    """
    try:
        return _DECODE_TASK[wire[0]](*wire[1:])
    except BurnRemoteError:
        raise
    except (KeyError, TypeError, ValueError, IndexError):
        raise ProtocolViolation(f"not a task: {shown(wire)}") from None


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
    return Resume(_count(session), _secret(secret), _count(received))


def _hello_from_wire(versions: Any, token: Any, resume: Any, client: Any, settings: Any) -> Hello:
    if not 1 <= len(versions) <= 64:
        raise ProtocolViolation("Hello names between 1 and 64 versions")
    if not isinstance(settings, dict):
        raise ProtocolViolation("Hello's settings are a map")
    return Hello(
        tuple(_count(version, 65_535) for version in versions),
        None if token is None else _text(token),
        _resume_from_wire(resume),
        _text(client),
        settings,
    )


def _welcome_from_wire(
    version: Any, session: Any, secret: Any, lease: Any, device: Any, limits: Any, *rest: Any
) -> Welcome:
    peer_address, received = rest
    return Welcome(
        _count(version), _count(session), _secret(secret), _seconds(lease), dict(device),
        {_text(name): _count(limit) for name, limit in limits.items()},
        _text(peer_address), _count(received),
    )  # fmt: skip


# How a reply's value is marked.
_VALUE, _ERROR, _DATA, _FOLLOWS = range(4)


def _reply_to_wire(reply: Reply) -> list[Any]:
    value = reply.value
    if isinstance(value, BurnRemoteError):
        return [reply.request, _ERROR, error_to_wire(value)]
    if isinstance(value, TensorSpec):
        return [reply.request, _FOLLOWS, _spec_to_wire(value)]
    if value is None or isinstance(value, int):
        return [reply.request, _VALUE, value]
    return [reply.request, _DATA, value]


def _elements(wire: Any) -> bytes:
    if type(wire) is not bytes:
        raise ProtocolViolation(f"elements are bytes, not {shown(wire)}")
    return wire


def _reply_value(wire: Any) -> int | None:
    return None if wire is None else _count(wire)


_REPLY_VALUE: Final[dict[int, Callable[[Any], Any]]] = {
    _VALUE: _reply_value,
    _ERROR: error_from_wire,
    _DATA: _elements,
    _FOLLOWS: _spec_from_wire,
}


def _reply_from_wire(request: Any, mark: Any, value: Any) -> Reply:
    return Reply(_count(request), _REPLY_VALUE[mark](value))


def _failed_from_wire(tensors: Any, error: Any) -> Failed:
    failure = error_from_wire(error)
    if not isinstance(failure, OperationFailed):
        raise ProtocolViolation(f"an operation cannot fail with {failure.code!r}")
    return Failed(tuple(_count(tensor) for tensor in tensors), failure)


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
}  # fmt: skip

_DECODE_FRAME: Final[dict[int, Callable[..., Any]]] = {
    _HELLO: _hello_from_wire,
    _WELCOME: _welcome_from_wire,
    _REFUSED: lambda *error: Refused(error_from_wire(error)),
    _REPLY: _reply_from_wire,
    _ACKNOWLEDGED: lambda received: Acknowledged(_count(received)),
    _FAILED: _failed_from_wire,
    _CLOSING: lambda *error: Closing(error_from_wire(error)),
    _FETCH: lambda request, transfer, offset: FetchRequest(
        _count(request), _transfer(transfer), _count(offset)
    ),
}


def encode_frame(message: Any) -> bytes:
    """Return the frame of a message other than a batch or a chunk."""
    kind, to_wire = _ENCODE_FRAME[type(message)]
    return bytes((kind,)) + _pack(to_wire(message))


def chunk_head(payload: int, offset: int, checked: memoryview | None = None) -> bytes:
    """Return the header of a chunk; the raw bytes follow it in the same frame.

    ``checked`` are those bytes where the header shall have their checksum.
    """
    if checked is None:
        return _CHUNK_HEAD.pack(_CHUNK, 0, 0, 0, payload, offset)
    return _CHUNK_HEAD.pack(_CHUNK, _HAS_CHECKSUM, 0, crc32(checked), payload, offset)


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
    return Batch(_count(received), tasks)


def _decode_chunk(frame: bytes) -> Chunk:
    if len(frame) < _CHUNK_HEAD.size:
        raise ProtocolViolation(f"a chunk has a header of {_CHUNK_HEAD.size} bytes")
    _, flags, reserved, checksum, payload, offset = _CHUNK_HEAD.unpack_from(frame)
    data = memoryview(frame)[_CHUNK_HEAD.size :]
    if flags & ~_HAS_CHECKSUM or reserved or (checksum and not flags):
        raise ProtocolViolation("version 1 knows no flag of a chunk but that of its checksum")
    if flags and crc32(data) != checksum:
        raise GarbledBytes(f"bytes {offset:,} and on of payload {payload} were garbled")
    return Chunk(payload, offset, data)
