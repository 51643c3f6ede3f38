"""Encoding of the messages that a client sends to a server of Burn 0.22.

A frame is an array of messages. A client of this project uses one stream, because Burn keeps the
order of tasks within a stream only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgpack

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import Unsupported
from burn_remote_protocol.links.addresses import IROH, parse_address
from burn_remote_protocol.messages import (
    Drop,
    Expose,
    Fetch,
    QueryDType,
    Read,
    Seed,
    Sync,
    Task,
    Upload,
)
from burn_remote_protocol.operations.encoding import encode_tensor_data
from burn_remote_protocol.operations.vocabularies import Vocabulary
from burn_remote_protocol.operations.wire_values import dtype_to_wire
from burn_remote_protocol.tensors import TensorSpec, TensorStatus

__all__ = ["OPERATION_HEAD", "encode_close", "encode_drop", "encode_task", "joined"]

_pack: Final[Callable[[Any], bytes]] = msgpack.packb

STREAM: Final = [0]
CAPABILITY_BYTES: Final = 32

# Limits of one frame. Burn's own server accepts frames of up to 1 GiB. With smaller frames, it can
# execute the first messages before the last ones have arrived.
MAX_JOINED_BYTES: Final = 2**18
MAX_JOINED_MESSAGES: Final = 4096

# The bytes of a message that registers an operation, before the operation.
OPERATION_HEAD: Final = b"\x81\xa4Task\x81\xb1RegisterOperation\x92" + _pack(STREAM)

_DROP_HEAD: Final = OPERATION_HEAD + b"\x81\xa4Drop\x94\x91"
_DROP_REST: Final = b"\x91\x90\xa9ReadWrite" + _pack(F32.wire)


def encode_drop(tensor: int) -> bytes:
    """Return the message that frees a tensor; the server ignores the shape and dtype in it."""
    return _DROP_HEAD + _pack(tensor) + _DROP_REST


def encode_close(session: int) -> bytes:
    """Return the message that ends a session."""
    return _pack({"Close": [session]})


def encode_task(tasks: Sequence[Task], server: str) -> bytes:
    """Return the message of one task, or of a read or expose together with the ``Drop`` after it.

    ``server`` is the address of the server itself: an expose must have it, but no server uses it.
    """
    first = tasks[0]
    last = len(tasks) == 2 and isinstance(tasks[1], Drop)
    status = TensorStatus.READ_WRITE if last else TensorStatus.READ_ONLY
    return _pack({"Task": _ENCODE_TASK[type(first)](first, status, server)})


def joined(messages: Sequence[bytes]) -> Iterator[bytes]:
    """Yield frames that hold the messages in order."""
    start = size = 0
    for place, message in enumerate(messages):
        if place > start and (
            size + len(message) > MAX_JOINED_BYTES or place - start == MAX_JOINED_MESSAGES
        ):
            yield _frame(messages[start:place])
            start, size = place, 0
        size += len(message)
    if start < len(messages):
        yield _frame(messages[start:])


def _frame(messages: Sequence[bytes]) -> bytes:
    count = len(messages)
    head = bytes([0x90 + count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
    return b"".join([head, *messages])


def _tensor(tensor: int, spec: TensorSpec, status: TensorStatus) -> list[Any]:
    dtype = dtype_to_wire(spec.dtype, Vocabulary.BURN_0_22)
    return [[tensor], [list(spec.shape)], status.value, dtype]


def _data(task: Upload) -> list[Any]:
    content, dims, _ = encode_tensor_data(task.data)
    return [content, dims, dtype_to_wire(task.data.dtype, Vocabulary.BURN_0_22)]


def _capability(transfer: bytes | int) -> list[int]:
    """Return a capability; servers exchange its first 8 bytes, little-endian."""
    assert isinstance(transfer, int)
    return [*transfer.to_bytes(8, "little"), *bytes(CAPABILITY_BYTES - 8)]


def _peer(address: str) -> dict[str, Any]:
    parsed = parse_address(address)
    if parsed.scheme == IROH:
        raise Unsupported(
            f"this client cannot move tensors between servers built with Burn over Iroh, such as "
            f"{parsed}; read the tensor and upload it"
        )
    if parsed.path:
        raise Unsupported(
            f"a Burn 0.22 server cannot fetch from {parsed}: its addresses have no path, and so no "
            "token and no number of a device"
        )
    return {"WebSocket": [parsed.scheme, parsed.host, parsed.port]}


_ENCODE_TASK: Final[dict[type[Any], Callable[[Any, TensorStatus, str], Any]]] = {
    Upload: lambda task, *_: {"RegisterTensor": [STREAM, [task.tensor], _data(task)]},
    Fetch: lambda task, *_: {
        "RegisterTensorRemote": [
            STREAM,
            [_capability(task.transfer), _peer(task.address)],
            [task.tensor],
        ]
    },
    Expose: lambda task, status, server: {
        "ExposeTensorRemote": [
            STREAM,
            _tensor(task.tensor, task.spec, status),
            task.count,
            _capability(task.transfer),
            _peer(server),
        ]
    },
    Read: lambda task, status, _: {
        "ReadTensor": [task.request, STREAM, _tensor(task.tensor, task.spec, status)]
    },
    Seed: lambda task, *_: {"Seed": task.seed},
    QueryDType: lambda task, *_: {
        "DTypeUsage": [task.request, dtype_to_wire(task.dtype, Vocabulary.BURN_0_22)]
    },
    Sync: lambda task, *_: {"SyncBackend": [task.request, STREAM]},
}
