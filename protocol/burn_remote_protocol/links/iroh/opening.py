"""The first frames of a stream: for which route it is, and whether the server accepts it.

A native client sends a *request*, MessagePack ``[1, path, {name: value}]``, and gets
``[status, phrase]`` with a status of HTTP, 101 if the link is open. A client of Burn 0.22 sends
``[1, "Session" | "TensorTransfer"]`` and gets no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgpack

from burn_remote_protocol.errors import ProtocolViolation
from burn_remote_protocol.links.iroh.framing import HEADER_BYTES, frame_header
from burn_remote_protocol.links.transport_interface import Request, Response

__all__ = [
    "ACCEPTED",
    "MAX_OPENING_BYTES",
    "burn_header",
    "read_burn_header",
    "read_opening",
    "read_reply",
    "read_request",
    "reply",
    "request",
]

VERSION: Final = 1
ACCEPTED: Final = 101

# A path has a token of at most 512 characters, each of which percent-encoding may triple.
MAX_OPENING_BYTES: Final = 8192
MAX_PHRASE_CHARACTERS: Final = 500
MAX_HEADERS: Final = 16

# The routes of Burn's streams, in place of the HTTP paths of its WebSockets.
_BURN_ROUTES: Final = {"Session": "/session", "TensorTransfer": "/tensor"}
_BURN_KINDS: Final = {route: kind for kind, route in _BURN_ROUTES.items()}


async def read_opening(stream: Any) -> bytes:
    """Return the first frame of a stream. Raises ``ProtocolViolation``, ``IrohError``."""
    size = int.from_bytes(await stream.read_exact(HEADER_BYTES), "little")
    if size > MAX_OPENING_BYTES:
        raise ProtocolViolation(
            f"a stream begins with a frame of {size:,} bytes; {MAX_OPENING_BYTES:,} are allowed"
        )
    return bytes(await stream.read_exact(size)) if size else b""


def request(path: str, headers: Mapping[str, str]) -> bytes:
    """Return the first frame of a native client, with its header."""
    return _frame([VERSION, path, dict(headers)])


def read_request(frame: bytes) -> Request:
    """Return the request of a native client. Raises ``ProtocolViolation``."""
    match _unpacked(frame):
        case [1, str(path), dict(headers)] if len(headers) <= MAX_HEADERS:
            for name, value in headers.items():
                if not (isinstance(name, str) and isinstance(value, str)):
                    break
            else:
                return Request(path, {name.title(): value for name, value in headers.items()})
    raise ProtocolViolation("the first frame of a stream is not a request")


def reply(response: Response | None) -> bytes:
    """Return the server's answer, with its header; ``None`` accepts the link."""
    if response is None:
        return _frame([ACCEPTED, ""])
    return _frame([response.status, response.phrase[:MAX_PHRASE_CHARACTERS]])


def read_reply(frame: bytes) -> tuple[int, str]:
    """Return the status and the phrase of a server's answer. Raises ``ProtocolViolation``."""
    match _unpacked(frame):
        case [int(status), str(phrase)]:
            return status, phrase[:MAX_PHRASE_CHARACTERS]
    raise ProtocolViolation("the server's first frame is not an answer")


def burn_header(route: str) -> bytes:
    """Return the first frame of a client of Burn 0.22, with its header."""
    return _frame([VERSION, _BURN_KINDS[route]])


def read_burn_header(frame: bytes) -> Request:
    """Return the request that the header of one of Burn's streams means.

    Raises ``ProtocolViolation``.
    """
    match _unpacked(frame):
        case [1, str(kind)] if kind in _BURN_ROUTES:
            return Request(_BURN_ROUTES[kind], {})
    raise ProtocolViolation("the first frame of a stream is not a header of Burn's")


def _frame(value: object) -> bytes:
    packed: bytes = msgpack.packb(value)
    return frame_header(len(packed)) + packed


def _unpacked(frame: bytes) -> object:
    try:
        return msgpack.unpackb(frame)
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolViolation(f"the first frame of a stream cannot be read: {error}") from error
