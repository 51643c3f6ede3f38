"""Encoding and decoding of the responses of Burn 0.22's servers to clients.

A response is ``[content, request]`` in a frame of its own. Responses come in any order. Elements
are not copied: an encoded frame is a list of buffers, sent as one message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgpack

from burn_remote_protocol.dialects.bounded_unpacking import unpack_frozen
from burn_remote_protocol.dialects.burn_0_21_responses import BurnReply, data_pieces, decode_result
from burn_remote_protocol.dialects.burn_0_22 import VERSION
from burn_remote_protocol.dtypes import BOOL, F32, I32, DType
from burn_remote_protocol.errors import BurnRemoteError
from burn_remote_protocol.frozen_map import FrozenMap
from burn_remote_protocol.operations.vocabularies import Vocabulary
from burn_remote_protocol.operations.wire_values import is_unsigned, sequence, unexpected, variant
from burn_remote_protocol.tensors import TensorData

__all__ = [
    "IncompatibleProtocol",
    "NoSuchDevice",
    "Refusal",
    "SessionInfo",
    "Unauthorized",
    "decode_opening",
    "decode_reply",
    "encode_info",
    "encode_profile",
    "encode_refusal",
    "encode_reply",
]

_pack: Final[Callable[[Any], bytes]] = msgpack.packb

# The default of Burn's CPU devices: no scales are stored, and results are not quantized again.
DEFAULT_QUANTIZATION: Final = [["Q8F", "Native", "Symmetric", None, None], "Inhibit"]


class SessionInfo(NamedTuple):
    """The response to an ``Init`` that the server accepts.

    A program creates its tensors in the three dtypes unless it names others.
    """

    device_count: int
    float_dtype: DType = F32
    int_dtype: DType = I32
    bool_dtype: DType = BOOL
    version: int = VERSION


class Unauthorized(NamedTuple):
    """The client presented no token that the server knows."""


class NoSuchDevice(NamedTuple):
    """The server has fewer devices than the client's ``device_index`` needs."""

    device_count: int


class IncompatibleProtocol(NamedTuple):
    """The client speaks another version of the protocol than the server."""

    server_version: int = VERSION


Refusal = Unauthorized | NoSuchDevice | IncompatibleProtocol


def encode_info(info: SessionInfo) -> bytes:
    """Return the response that opens a session."""
    settings = [
        info.float_dtype.name,
        info.int_dtype.name,
        info.bool_dtype.store,
        DEFAULT_QUANTIZATION,
    ]
    return _pack([{"Init": [info.version, settings, info.device_count, None]}, 0])


def encode_refusal(refusal: Refusal) -> bytes:
    """Return the response that refuses a session."""
    name = type(refusal).__name__
    return _pack([{"InitRefused": {name: [*refusal]} if refusal else name}, 0])


def decode_opening(frame: bytes | memoryview) -> SessionInfo | Refusal:
    """Decode the first response of a server. Raises ``ProtocolViolation``."""
    content, _ = sequence(unpack_frozen(frame), 2, "a response to Init")
    name, body = variant(content, "a response to Init")
    if name == "Init":
        version, settings, count, _ = sequence(body, 4, "Init")
        floats, integers, bools, _ = sequence(settings, 4, "the settings of a device")
        names = (DType.from_wire(wire) for wire in (floats, integers, FrozenMap([("Bool", bools)])))
        if not is_unsigned(version) or not is_unsigned(count):
            raise unexpected("a version and a number of devices", body)
        return SessionInfo(count, next(names), next(names), next(names), version)
    if name != "InitRefused":
        raise unexpected("a response to Init (Init, InitRefused)", name)
    if body == "Unauthorized":
        return Unauthorized()
    reason, values = variant(body, "a refusal")
    (number,) = sequence(values, 1, "a refusal")
    known = {"NoSuchDevice": NoSuchDevice, "IncompatibleProtocol": IncompatibleProtocol}
    if reason not in known or not is_unsigned(number):
        raise unexpected(f"a refusal (Unauthorized, {', '.join(known)})", body)
    refusal: Refusal = known[reason](number)
    return refusal


def encode_reply(reply: BurnReply, *, is_sync: bool = False) -> list[bytes | memoryview]:
    """Encode a reply as a list of buffers, without copying elements.

    ``is_sync`` marks an error as the reply to a sync, not to a read.
    """
    value = reply.value
    end = _pack(reply.request)
    if isinstance(value, TensorData):
        pieces = data_pieces(value, end, Vocabulary.BURN_0_22)
        return [b"\x92\x81\xaaReadTensor\x81\xa2Ok", *pieces]
    if isinstance(value, BurnRemoteError):
        name = "SyncBackend" if is_sync else "ReadTensor"
        return [b"\x92" + _pack({name: {"Err": {"Generic": [str(value)]}}}) + end]
    content = {"SyncBackend": {"Ok": None}} if value is None else {"DTypeUsage": value}
    return [b"\x92" + _pack(content) + end]


def encode_profile(request: int, answer: str) -> bytes:
    """Return the reply to a profile's start or end: the client measures by itself."""
    return _pack([{answer: {"Ok": None}}, request])


def decode_reply(frame: bytes | memoryview) -> BurnReply:
    """Decode a reply to a request of a session. Raises ``ProtocolViolation``."""
    content, request = sequence(unpack_frozen(frame), 2, "a reply with its request")
    if not is_unsigned(request):
        raise unexpected("a request, an unsigned 64-bit integer", request)
    return BurnReply(request, decode_result(content))
