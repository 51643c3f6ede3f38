"""Encoding and decoding of the tasks of Burn 0.21's remote backend.

A frame is one MessagePack value as Rust's ``rmp_serde::to_vec`` writes it, in one binary WebSocket
message; docs/wire-burn-0.21.md is the specification. A client has two sockets: tasks go out on
``/request``, one per frame, and responses arrive on ``/response`` (``burn_0_21_responses``). The
first frame of each is ``Init``.

A position and a stream identify a request; ``request_id`` combines them into one integer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from burn_remote_protocol.dialects.bounded_unpacking import (
    Steps,
    completed,
    unpack_around_buffer,
    unpack_frozen,
    unpacked_bytes,
)
from burn_remote_protocol.dialects.burn_0_21_recognition import recognize_operation
from burn_remote_protocol.dtypes import F32, DType
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ProtocolViolation,
    shown,
)
from burn_remote_protocol.messages import (
    Drop,
    Execute,
    Expose,
    Fetch,
    QueryDType,
    Read,
    Seed,
    Sync,
    Task,
    Upload,
)
from burn_remote_protocol.operations.encoding import (
    decode_operation,
    decode_tensor_data,
    encode_operation,
    encode_tensor_data,
)
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.operations.vocabularies import Vocabulary, check_dtype
from burn_remote_protocol.operations.wire_values import (
    decode_tensor,
    is_unsigned,
    sequence,
    unexpected,
    variant,
)
from burn_remote_protocol.tensors import TensorData, TensorSpec, TensorStatus

__all__ = [
    "EXPIRES_SECONDS",
    "Close",
    "decode_identity",
    "decode_init",
    "decode_tasks",
    "decode_tasks_in_steps",
    "drop_frame",
    "encode_close",
    "encode_identity",
    "encode_init",
    "encode_tasks",
    "request_id",
    "task_bytes",
]

# Burn sets no expiry for an exposed tensor; the server's limit applies.
EXPIRES_SECONDS: Final = 86_400.0

_MAX_COUNT: Final = 2**32 - 1
_MAX_ADDRESS_CHARACTERS: Final = 1024

_pack: Final[Callable[[Any], bytes]] = msgpack.packb


class Close(NamedTuple):
    """The client ends its session."""

    session: int


def request_id(position: int, stream: int) -> int:
    """Return a request's id: 64 bits of stream, then 64 bits of position."""
    return stream << 64 | position


def encode_identity(request: int) -> bytes:
    """Write a request id as ``[position, [stream]]``."""
    return b"\x92" + _pack(request & (2**64 - 1)) + b"\x91" + _pack(request >> 64)


def decode_identity(wire: Any) -> int:
    """Read a request id. Raises ``ProtocolViolation``."""
    position, stream = sequence(wire, 2, "a position and a stream")
    (stream,) = sequence(stream, 1, "a stream")
    if not is_unsigned(position) or not is_unsigned(stream):
        raise unexpected("a position and a stream, unsigned 64-bit integers", wire)
    return request_id(position, stream)


# -- first and last frames --------------------------------------------------------------------


def encode_init(session: int) -> bytes:
    """Return the first frame of either socket."""
    return _pack({"Init": [session]})


def encode_close(session: int) -> bytes:
    """Return the last frame on ``/request``. A client may omit it."""
    return _pack({"Close": [session]})


def decode_init(frame: bytes) -> int:
    """Return the session that a socket belongs to. Raises ``ProtocolViolation``."""
    name, body = variant(unpack_frozen(frame), "Init")
    if name != "Init":
        raise unexpected("Init, which opens a socket", name)
    return _unsigned_in_array(body, "the id of a session")


def _unsigned_in_array(wire: Any, what: str) -> int:
    (value,) = sequence(wire, 1, what)
    return _unsigned(value, what)


def _unsigned(value: Any, what: str) -> int:
    if not is_unsigned(value):
        raise unexpected(f"{what}, an unsigned 64-bit integer", value)
    return int(value)


# -- tasks ------------------------------------------------------------------------------------


def decode_tasks(
    frame: bytes, recognize: Callable[[bytes], Operation | None] = recognize_operation
) -> tuple[Task | Operation | Close, ...]:
    """Decode a frame on ``/request`` into its tasks.

    ``recognize`` returns the operation in a frame whose signature is cached, and ``None`` for any
    other frame. If a read or an expose is a tensor's last use, a ``Drop`` follows it. Raises
    ``ProtocolViolation``.
    """
    operation = recognize(frame)
    if operation is not None:
        return (operation,)
    return completed(decode_tasks_in_steps(frame))


def decode_tasks_in_steps(frame: bytes) -> Steps[tuple[Task | Operation | Close, ...]]:
    """Decode a frame on ``/request`` that is no known operation, in short steps.

    Raises ``ProtocolViolation``.
    """
    value, elements = yield from unpack_around_buffer(frame, _BEFORE_ELEMENTS)
    kind, body = variant(value, "a task")
    if kind == "Close":
        return (Close(_unsigned_in_array(body, "the id of a session")),)
    if kind != "Compute":
        raise unexpected("a task (Compute, Close)", kind)
    task, identity = sequence(body, 2, "a task with its position and stream")
    request = decode_identity(identity)
    if task == "SyncBackend":
        return (Sync(request),)
    name, value = variant(task, "a task")
    decode = _DECODE_TASK.get(name)
    if decode is None:
        raise unexpected(f"a task ({', '.join(_DECODE_TASK)}, SyncBackend)", name)
    try:
        return decode(value if elements is None else _with_elements(value, elements), request)
    except BurnRemoteError:
        raise
    except (TypeError, ValueError):
        raise ProtocolViolation(f"not a body of {name}: {shown(value)}") from None


def task_bytes(frame: bytes) -> int:
    """Return a bound for the memory that decoding and executing a frame's task takes."""
    match = _BEFORE_ELEMENTS.match(frame)
    length = None if match is None else _BUFFERS.get(frame[match.end()])
    if match is None or length is None:
        return unpacked_bytes(frame)
    start = match.end() + 1 + length
    end = start + int.from_bytes(frame[match.end() + 1 : start], "big")
    around = unpacked_bytes(frame[:start]) + unpacked_bytes(frame[end:])
    return around + len(frame)  # the elements may be copied


# MessagePack's types of byte buffers: the bytes of their lengths.
_BUFFERS: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}

# The start of an upload, up to its elements.
_BEFORE_ELEMENTS: Final = re.compile(
    rb"\x81\xa7Compute\x92\x81\xaeRegisterTensor\x92\x91"
    rb"(?:[\x00-\x7f]|\xcc.|\xcd..|\xce.{4}|\xcf.{8})\x93",
    re.DOTALL,
)


def _with_elements(upload: Any, elements: memoryview) -> Any:
    """Return the body of an upload with its elements in their place."""
    identifier, (_, dims, dtype) = upload
    return identifier, (elements, dims, dtype)


def encode_tasks(tasks: Sequence[Task], request: int) -> bytes:
    """Return the frame of one task, or of a read or expose together with the ``Drop`` after it."""
    first = tasks[0]
    last = len(tasks) == 2 and isinstance(tasks[1], Drop)
    status = TensorStatus.READ_WRITE if last else TensorStatus.READ_ONLY
    task = _ENCODE_TASK[type(first)](first, status)
    return b"\x81\xa7Compute\x92" + _pack(task) + encode_identity(request)


def drop_frame(tensor: int, tail: bytes) -> bytes:
    """Return the frame that frees a tensor; ``tail`` is from ``encode_identity``.

    The format requires a shape and a dtype, but the server ignores them.
    """
    return _DROP_HEAD + _pack(tensor) + _DROP_REST + tail


_DROP_HEAD: Final = b"\x81\xa7Compute\x92\x81\xb1RegisterOperation\x81\xa4Drop\x94\x91"
_DROP_REST: Final = b"\x91\x90\xa9ReadWrite" + _pack(F32.wire)


def _read_from_wire(wire: Any, request: int) -> tuple[Task, ...]:
    tensor, use = decode_tensor(wire)
    return _with_drop(Read(request, tensor, use.spec), tensor, use.status)


def _expose_from_wire(wire: Any, request: int) -> tuple[Task, ...]:
    described, count, transfer = sequence(wire, 3, "a tensor, a count and a transfer id")
    tensor, use = decode_tensor(described)
    if type(count) is not int or not 0 <= count <= _MAX_COUNT:
        raise unexpected("a count, an unsigned 32-bit integer", count)
    transfer = _unsigned(transfer, "a transfer id")
    expose = Expose(tensor, use.spec, count, transfer, EXPIRES_SECONDS)
    return _with_drop(expose, tensor, use.status)


def _with_drop(task: Task, tensor: int, status: TensorStatus) -> tuple[Task, ...]:
    return (task, Drop((tensor,))) if status is TensorStatus.READ_WRITE else (task,)


def _upload_from_wire(wire: Any, request: int) -> tuple[Task, ...]:
    identifier, data = sequence(wire, 2, "an id and the data of a tensor")
    tensor = _unsigned_in_array(identifier, "the id of a tensor")
    upload = Upload(tensor, decode_tensor_data(data))
    check_dtype(upload.data.dtype, Vocabulary.BURN_0_21)
    return (upload,)


def _fetch_from_wire(wire: Any, request: int) -> tuple[Task, ...]:
    remote, identifier = sequence(wire, 2, "an exposed tensor and an id")
    transfer, address = sequence(remote, 2, "a transfer id and an address")
    (address,) = sequence(address, 1, "an address")
    if type(address) is not str or len(address) > _MAX_ADDRESS_CHARACTERS:
        raise unexpected(f"an address of at most {_MAX_ADDRESS_CHARACTERS} characters", address)
    tensor = _unsigned_in_array(identifier, "the id of a tensor")
    return (Fetch(_unsigned(transfer, "a transfer id"), address, tensor, None),)


def _dtype_from_wire(wire: Any) -> DType:
    return check_dtype(DType.from_wire(wire), Vocabulary.BURN_0_21)


_DECODE_TASK: Final[dict[str, Callable[[Any, int], tuple[Task | Operation, ...]]]] = {
    "RegisterOperation": lambda wire, request: (decode_operation(wire, Vocabulary.BURN_0_21),),
    "RegisterTensor": _upload_from_wire,
    "RegisterTensorRemote": _fetch_from_wire,
    "ExposeTensorRemote": _expose_from_wire,
    "ReadTensor": _read_from_wire,
    "Seed": lambda wire, request: (Seed(_unsigned(wire, "a seed")),),
    "DTypeUsage": lambda wire, request: (QueryDType(request, _dtype_from_wire(wire)),),
}


def _tensor_to_wire(tensor: int, spec: TensorSpec, status: TensorStatus) -> list[Any]:
    return [[tensor], [list(spec.shape)], status.value, _dtype_to_wire(spec.dtype)]


def _dtype_to_wire(dtype: DType) -> Any:
    return check_dtype(dtype, Vocabulary.BURN_0_21).wire


def _data_to_wire(data: TensorData) -> list[Any]:
    check_dtype(data.dtype, Vocabulary.BURN_0_21)
    return encode_tensor_data(data)


_ENCODE_TASK: Final[dict[type[Any], Callable[[Any, TensorStatus], Any]]] = {
    Execute: lambda t, _: {
        "RegisterOperation": encode_operation(t.operation, Vocabulary.BURN_0_21)
    },
    Upload: lambda t, _: {"RegisterTensor": [[t.tensor], _data_to_wire(t.data)]},
    Fetch: lambda t, _: {"RegisterTensorRemote": [[t.transfer, [t.address]], [t.tensor]]},
    Expose: lambda t, status: {
        "ExposeTensorRemote": [_tensor_to_wire(t.tensor, t.spec, status), t.count, t.transfer]
    },
    Read: lambda t, status: {"ReadTensor": _tensor_to_wire(t.tensor, t.spec, status)},
    Seed: lambda t, _: {"Seed": t.seed},
    QueryDType: lambda t, _: {"DTypeUsage": _dtype_to_wire(t.dtype)},
    Sync: lambda t, _: "SyncBackend",
}
