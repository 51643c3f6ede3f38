"""Encoding and decoding of Burn 0.21's responses, from a server to clients and to other servers.

Elements are not copied: an encoded frame is a list of buffers, sent as one message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgpack

from burn_remote_protocol.dialects.bounded_unpacking import (
    Steps,
    completed,
    unpack_around_buffer,
    unpack_frozen,
)
from burn_remote_protocol.dialects.burn_0_21 import decode_identity, encode_identity
from burn_remote_protocol.errors import (
    BurnRemoteError,
    LimitExceeded,
    OperationFailed,
    shown,
)
from burn_remote_protocol.operations.encoding import decode_tensor_data
from burn_remote_protocol.operations.vocabularies import Vocabulary
from burn_remote_protocol.operations.wire_values import (
    dtype_to_wire,
    is_unsigned,
    sequence,
    unexpected,
    variant,
)
from burn_remote_protocol.tensors import TensorData

__all__ = [
    "BurnReply",
    "data_pieces",
    "decode_data",
    "decode_data_in_steps",
    "decode_data_request",
    "decode_reply",
    "decode_result",
    "encode_data",
    "encode_data_request",
    "encode_reply",
]

_pack: Final[Callable[[Any], bytes]] = msgpack.packb

# The largest length of a byte buffer in MessagePack.
MAX_ELEMENT_BYTES: Final = 2**32 - 1


class BurnReply(NamedTuple):
    """The reply to a read (data), a sync (``None``) or a dtype query (bits)."""

    request: int
    value: TensorData | BurnRemoteError | int | None


# -- replies ----------------------------------------------------------------------------------


def encode_reply(reply: BurnReply, *, is_sync: bool = False) -> list[bytes | memoryview]:
    """Encode a reply as a list of buffers, without copying elements.

    ``is_sync`` marks an error as the reply to a sync, not to a read.
    """
    value = reply.value
    identity = encode_identity(reply.request)
    if isinstance(value, TensorData):
        return [b"\x92\x81\xaaReadTensor\x81\xa2Ok", *data_pieces(value, identity)]
    if isinstance(value, BurnRemoteError):
        name = "SyncBackend" if is_sync else "ReadTensor"
        return [b"\x92" + _pack({name: {"Err": {"Generic": [str(value)]}}}) + identity]
    content = {"SyncBackend": {"Ok": None}} if value is None else {"DTypeUsage": value}
    return [b"\x92" + _pack(content) + identity]


def decode_reply(frame: bytes | memoryview) -> BurnReply:
    """Decode a frame of ``/response``. Raises ``ProtocolViolation``."""
    content, identity = sequence(unpack_frozen(frame), 2, "a reply with its position and stream")
    return BurnReply(decode_identity(identity), decode_result(content))


def decode_result(content: Any) -> TensorData | OperationFailed | int | None:
    """Return what an unpacked reply contains, in both releases. Raises ``ProtocolViolation``."""
    name, body = variant(content, "a reply")
    if name == "DTypeUsage":
        return _unsigned(body, "a dtype's usage")
    if name not in ("ReadTensor", "SyncBackend"):
        raise unexpected("a reply (ReadTensor, SyncBackend, DTypeUsage)", name)
    outcome, value = variant(body, "Ok or Err")
    if outcome == "Err":
        _, reason = variant(value, "an error")
        text = reason[0] if type(reason) is tuple and reason else reason
        return OperationFailed(text if type(text) is str else shown(reason))
    if outcome != "Ok" or (name == "SyncBackend" and value is not None):
        raise unexpected("Ok or Err", body)
    return decode_tensor_data(value) if name == "ReadTensor" else None


def data_pieces(
    data: TensorData, end: bytes, vocabulary: Vocabulary = Vocabulary.BURN_0_21
) -> list[bytes | memoryview]:
    """Return ``[bytes, [dims], dtype]`` followed by ``end``, as a list of buffers."""
    elements = memoryview(data.bytes)
    rest = _pack(list(data.shape)) + _pack(dtype_to_wire(data.dtype, vocabulary)) + end
    return [b"\x93" + _buffer_header(len(elements)), elements, rest]


def _buffer_header(length: int) -> bytes:
    if length < 2**8:
        return b"\xc4" + length.to_bytes(1, "big")
    if length < 2**16:
        return b"\xc5" + length.to_bytes(2, "big")
    if length < 2**32:
        return b"\xc6" + length.to_bytes(4, "big")
    raise LimitExceeded(
        "bytes of a tensor in a message of Burn", seen=length, allowed=MAX_ELEMENT_BYTES
    )


# -- between servers --------------------------------------------------------------------------


def encode_data_request(transfer: int) -> bytes:
    """Return the frame that requests an exposed tensor."""
    return _pack({"TensorRequest": transfer})


def decode_data_request(frame: bytes) -> int:
    """Return the transfer id that a peer requests. Raises ``ProtocolViolation``."""
    name, transfer = variant(unpack_frozen(frame), "TensorRequest")
    if name != "TensorRequest":
        raise unexpected("TensorRequest", name)
    return _unsigned(transfer, "a transfer id")


def encode_data(data: TensorData) -> list[bytes | memoryview]:
    """Encode the frame that carries a tensor to a peer, as a list of buffers."""
    return [b"\x81\xa6Tensor", *data_pieces(data, b"")]


# The start of a tensor, up to its elements.
_BEFORE_ELEMENTS: Final = re.compile(rb"\x81\xa6Tensor\x93")


def decode_data(frame: bytes) -> TensorData:
    """Return the tensor that a peer sends. Raises ``ProtocolViolation``."""
    return completed(decode_data_in_steps(frame))


def decode_data_in_steps(frame: bytes) -> Steps[TensorData]:
    """Return the tensor that a peer sends, in short steps. Raises ``ProtocolViolation``."""
    value, elements = yield from unpack_around_buffer(frame, _BEFORE_ELEMENTS)
    name, data = variant(value, "Tensor")
    if name != "Tensor":
        raise unexpected("Tensor", name)
    return decode_tensor_data(data if elements is None else (elements, *data[1:]))


def _unsigned(value: Any, what: str) -> int:
    if not is_unsigned(value):
        raise unexpected(f"{what}, an unsigned 64-bit integer", value)
    return int(value)
