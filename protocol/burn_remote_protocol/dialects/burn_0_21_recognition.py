"""Operations of Burn as bytes: recognition of those of Burn 0.21, and templates for both releases.

Burn sends one operation per frame and repeats names, shapes and dtypes each time. Most frames of a
program therefore differ from an earlier frame only in the tensor ids and in the position at the
end. The bytes between those numbers are the cache key of a decoded signature. For sending, the same
bytes are a template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from burn_remote_protocol.dialects.bounded_unpacking import unpack_frozen
from burn_remote_protocol.errors import ProtocolViolation
from burn_remote_protocol.operations.encoding import decode_operation, encode_operation
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.operations.vocabularies import Vocabulary
from burn_remote_protocol.operations.wire_values import variant

__all__ = [
    "BEFORE_ID",
    "BEFORE_POSITION",
    "OperationTemplate",
    "Split",
    "recognize_operation",
    "split_operation",
]

# Signatures cached by their bytes, up to 1 KiB each. When programs have more distinct operations,
# the cache is cleared.
FRAMES_KEPT: Final = 4096
# The longest cache key. Enough for operations on several tensors of high rank.
KEY_BYTES_KEPT: Final = 1024

BEFORE_ID: Final = b"\x94\x91"
BEFORE_POSITION: Final = b"\x92"
_UNSIGNED: Final = rb"(?:[\x00-\x7f]|\xcc.|\xcd..|\xce.{4}|\xcf.{8})"
# A tensor is an array of four elements. The first is an array that holds the id, the second an
# array that holds the shape. The frame ends with the position and the stream of the task.
_VARIABLE: Final = re.compile(
    rb"\x94\x91("
    + _UNSIGNED
    + rb")(?=\x91[\x90-\x9f\xdc])|\x92("
    + _UNSIGNED
    + rb"\x91"
    + _UNSIGNED
    + rb")\Z",
    re.DOTALL,
)

# Ids that no client uses. They replace the tensor ids to verify where a frame has its ids.
_UNUSED: Final = 2**64 - 2**32

_KNOWN: Final[dict[tuple[bytes, ...], Signature]] = {}


def recognize_operation(frame: bytes) -> Operation | None:
    """Return the operation that a frame registers; ``None`` if it must be decoded in full.

    Never raises: malformed frames are not recognized.
    """
    found = split_operation(frame)
    if found is None:
        return None
    return Operation(
        found.signature,
        tuple(
            [
                number[0] if len(number) == 1 else int.from_bytes(number[1:], "big")
                for number in found.ids
            ]
        ),
    )


class Split(NamedTuple):
    """A frame that registers an operation, split at the numbers that vary.

    Each id follows its literal and ``BEFORE_ID``. After the last literal come ``BEFORE_POSITION``
    and ``tail``: the position, a byte, and the stream.
    """

    signature: Signature
    literals: tuple[bytes, ...]
    ids: list[bytes]
    tail: bytes


def split_operation(frame: bytes) -> Split | None:
    """Split a frame that registers an operation; ``None`` if it must be decoded in full."""
    if len(frame) > 2 * KEY_BYTES_KEPT:
        return None  # an upload, whose elements must not be searched
    # ``_VARIABLE`` has two groups, of which one matches. So ``split`` returns, for each tensor, a
    # literal, its id and ``None``; then a literal, ``None``, and the position and stream; then
    # nothing, because the second group matches only at the end.
    pieces = _VARIABLE.split(frame)
    key = tuple(pieces[::3])
    signature = _KNOWN.get(key) or _learn(key, pieces)
    return None if signature is None else Split(signature, key[:-1], pieces[1:-3:3], pieces[-2])


def _learn(key: tuple[bytes, ...], pieces: list[Any]) -> Signature | None:
    """Cache the signature of a frame under the bytes between its variable numbers.

    Bytes that look like the beginning of a tensor could be part of another value. The frame is
    therefore decoded once with other ids at the positions found. If the result has exactly those
    ids, the positions are correct.
    """
    if pieces[-1] or sum(map(len, key)) > KEY_BYTES_KEPT:
        return None
    count = len(key) - 2
    try:
        kind, body = variant(unpack_frozen(_with_unused_ids(key)), "a frame")
        content, (position, (stream,)) = body
        task, wire = variant(content, "a task")
        if (kind, task) != ("Compute", "RegisterOperation"):
            return None
        signature, tensors = decode_operation(wire, Vocabulary.BURN_0_21)
    except (ProtocolViolation, TypeError, ValueError):
        return None
    unused = [*tensors, position, stream]
    if unused != [_UNUSED + index for index in range(count + 2)]:
        return None
    if len(_KNOWN) >= FRAMES_KEPT:
        _KNOWN.clear()
    _KNOWN[key] = signature
    return signature


def _with_unused_ids(key: tuple[bytes, ...]) -> bytes:
    *literals, last_literal, _ = key
    parts = []
    for index, literal in enumerate(literals):
        parts += [literal, BEFORE_ID, msgpack.packb(_UNUSED + index)]
    position, stream = (_UNUSED + len(literals), _UNUSED + len(literals) + 1)
    parts += [last_literal, msgpack.packb([position, [stream]])]
    return b"".join(parts)


class _Use(NamedTuple):
    """The bytes after a tensor's id, for its last use and for any other use."""

    kept: bytes
    last: bytes


# The bytes of a frame before the operation that it registers.
_HEAD: Final = b"\x81\xa7Compute\x92\x81\xb1RegisterOperation"


class OperationTemplate:
    """The message of an operation without its tensor ids; ``head`` is before the operation."""

    __slots__ = ("_head", "_uses")

    def __init__(
        self,
        signature: Signature,
        vocabulary: Vocabulary = Vocabulary.BURN_0_21,
        head: bytes = _HEAD,
    ) -> None:
        count = len(signature.input_uses) + signature.output_count
        tensors = tuple(range(_UNUSED, _UNUSED + count))
        operation = encode_operation(Operation(signature, tensors), vocabulary)
        rest: bytes = head + msgpack.packb(operation)
        literals = []
        for tensor in tensors:
            literal, rest = rest.split(msgpack.packb(tensor), 1)
            literals.append(literal)
        literals.append(rest)
        self._head: Final = literals[0]
        self._uses: Final = tuple(
            _Use(literal, literal.replace(b"\xa8ReadOnly", b"\xa9ReadWrite", 1))
            for literal in literals[1:]
        )

    def write(
        self,
        tensors: Sequence[int],
        last: Sequence[int],
        tail: bytes,
        pack: Callable[[int], bytes],
    ) -> bytes:
        """Return the frame for ``tensors``; it is the last use of those at the indices ``last``.

        ``tail`` is the position and stream, as ``encode_identity`` writes them.
        """
        parts = [self._head]
        for index, (tensor, use) in enumerate(zip(tensors, self._uses, strict=True)):
            parts.append(pack(tensor))
            parts.append(use.last if index in last else use.kept)
        parts.append(tail)
        return b"".join(parts)
