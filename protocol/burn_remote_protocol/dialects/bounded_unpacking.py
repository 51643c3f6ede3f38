"""Bounded unpacking of MessagePack from a peer."""

from __future__ import annotations

import re
from typing import Any, Final

import msgpack

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation

__all__ = [
    "MAX_LIST_LENGTH",
    "MAX_VALUE_BYTES",
    "unpack_around_buffer",
    "unpack_frozen",
    "unpack_lists",
]

# The unpacker allocates a list as soon as it reads the length in its header. Lists nest at most
# 1,024 deep, so a hostile frame can make it allocate at most 8 bytes × this × 1,024 = 32 MiB. The
# limit also applies to the tasks of a batch and the tensors of a concatenation.
MAX_LIST_LENGTH: Final = 4096

# Unpacking a value of this size (empty maps) holds the interpreter lock for up to 20 ms. A task
# with thousands of tensors takes about 250 KiB.
MAX_VALUE_BYTES: Final = 512 * 1024

_BUFFER_32: Final = 0xC6  # MessagePack's type for a byte buffer with a 32-bit length
_EMPTY_BUFFER: Final = b"\xc4\x00"


def unpack_frozen(body: bytes | memoryview) -> Any:
    """Unpack lists as tuples and maps as tuples of pairs, which are hashable and immutable.

    Raises ``ProtocolViolation`` for anything but one MessagePack value.
    """
    return _unpack(body, use_list=False, object_pairs_hook=tuple)


def unpack_around_buffer(body: bytes, before: re.Pattern[bytes]) -> tuple[Any, memoryview | None]:
    """Unpack a value that may contain a large byte buffer directly after a match of ``before``.

    Returns the value with an empty buffer in that place, and the buffer as a view of ``body``. The
    buffer is ``None`` if the value is small; the value is then complete. Raises
    ``ProtocolViolation`` like ``unpack_frozen``, and ``LimitExceeded`` if the rest exceeds
    ``MAX_VALUE_BYTES``.
    """
    if len(body) <= MAX_VALUE_BYTES:
        return unpack_frozen(body), None
    seen = len(body)
    match = before.match(body)
    if match is not None and body[match.end()] == _BUFFER_32:
        start = match.end() + 5
        end = start + int.from_bytes(body[start - 4 : start], "big")
        if end <= len(body):
            seen -= end - start
            if seen <= MAX_VALUE_BYTES:
                around = body[: match.end()] + _EMPTY_BUFFER + body[end:]
                return unpack_frozen(around), memoryview(body)[start:end]
    raise LimitExceeded(
        "bytes of a message without the elements of a tensor", seen=seen, allowed=MAX_VALUE_BYTES
    )


def unpack_lists(body: bytes | memoryview) -> Any:
    """Unpack to lists and dictionaries. Raises ``ProtocolViolation`` like ``unpack_frozen``."""
    return _unpack(body, use_list=True, strict_map_key=False)


def _unpack(body: bytes | memoryview, **how: Any) -> Any:
    try:
        return msgpack.unpackb(
            body, max_array_len=MAX_LIST_LENGTH, max_map_len=MAX_LIST_LENGTH, **how
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        text = str(error) or type(error).__name__
        raise ProtocolViolation(f"not MessagePack: {text}") from None
