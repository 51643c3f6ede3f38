"""Recognition of frames of Burn 0.22 by their bytes.

A client repeats names, shapes and dtypes in each operation. So most frames of a program differ from
an earlier one only in the ids of tensors. The bytes between those are the key of a cache of decoded
signatures: a frame that is found there needs no decoding.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgpack

from burn_remote_protocol.dialects.burn_0_22 import decode_messages
from burn_remote_protocol.errors import BurnRemoteError
from burn_remote_protocol.operations.row import Operation, Signature

__all__ = ["LONGEST_RECOGNIZED_BYTES", "recognize_operations"]

# Frames kept by their bytes, up to 8 KiB each with their keys. Further ones are decoded in full.
FRAMES_KEPT: Final = 2048

# Longer frames are decoded in full: uploads, whose elements must not be searched, and graphs. A
# frame of four operations has 300 to 600 bytes.
LONGEST_RECOGNIZED_BYTES: Final = 4096

_UNSIGNED: Final = rb"(?:[\x00-\x7f]|\xcc.|\xcd..|\xce.{4}|\xcf.{8})"
# A tensor is an array of four elements. The first is an array that holds the id, the second an
# array that holds the shape.
_TENSOR: Final = re.compile(
    rb"(?<=\x94\x91)(" + _UNSIGNED + rb")(?=\x91[\x90-\x9f\xdc])", re.DOTALL
)

# Ids that no client uses. They replace the ids of a frame to verify where it has them.
_UNUSED: Final = 2**64 - 2**32

# For each known frame the signatures of its operations, each with the end of its ids.
_Known = tuple[tuple[Signature, int], ...]
_KNOWN: Final[dict[tuple[bytes, ...], _Known | None]] = {}


def recognize_operations(frame: bytes | memoryview) -> list[Operation] | None:
    """Return the operations of a frame that holds nothing else; ``None`` to decode it in full.

    Never raises: malformed frames are not recognized.
    """
    # The link delivers only long messages as views.
    if len(frame) > LONGEST_RECOGNIZED_BYTES or type(frame) is not bytes:
        return None
    pieces = _TENSOR.split(frame)
    key = tuple(pieces[::2])
    try:
        known = _KNOWN[key]
    except KeyError:
        known = _learn(key)
    if known is None:
        return None
    ids = [
        number[0] if len(number) == 1 else int.from_bytes(number[1:], "big")
        for number in pieces[1::2]
    ]
    if len(known) == 1:
        return [Operation(known[0][0], tuple(ids))]
    operations, start = [], 0
    for signature, end in known:
        operations.append(Operation(signature, tuple(ids[start:end])))
        start = end
    return operations


def _learn(key: tuple[bytes, ...]) -> _Known | None:
    """Cache what the frames with a key have in common; ``None`` if they must be decoded in full.

    Bytes that look like the beginning of a tensor could be part of another value. The frame is
    therefore decoded once with other ids at the positions found. If the result has exactly those
    ids, the positions are correct.
    """
    known = _checked(key)
    if len(_KNOWN) >= FRAMES_KEPT:
        _KNOWN.clear()
    _KNOWN[key] = known
    return known


def _checked(key: tuple[bytes, ...]) -> _Known | None:
    unused = [_UNUSED + place for place in range(len(key) - 1)]
    parts: list[Any] = [key[0]]
    for number, literal in zip(unused, key[1:], strict=True):
        parts += [msgpack.packb(number), literal]
    try:
        messages = decode_messages(b"".join(parts))
    except BurnRemoteError:
        return None
    found: list[int] = []
    known = []
    for message in messages:
        if not isinstance(message, Operation):
            return None
        found += message.tensors
        known.append((message.signature, len(found)))
    return tuple(known) if known and found == unused else None
