"""Bounded unpacking of MessagePack from a peer."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any, Final

import msgpack

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.frozen_map import FrozenMap

__all__ = [
    "MAX_LIST_LENGTH",
    "MAX_VALUE_BYTES",
    "unpack_around_buffer",
    "unpack_frozen",
    "unpack_frozen_pair",
    "unpack_lists",
]

# The most elements of any list in a message, such as the tasks of a batch or the tensors of a
# concatenation.
MAX_LIST_LENGTH: Final = 4096

# The unpacker allocates a list as soon as it reads the length in its header. Lists nest at most
# 1,024 deep, so without a check, 3 KB of headers allocated 32 MiB in 30 ms. Longer bodies are
# therefore parsed without objects first, which takes about a tenth of the time: in a complete body,
# no list is longer than the body.
UNCHECKED_BYTES: Final = 512

# Lists up to this length need no check: nested 1,024 deep, they take 512 KiB. The check initializes
# an ``Unpacker`` of 40 KiB, about the size of a processor's L1 cache.
SHORT_LIST_LENGTH: Final = 64
# Bodies up to this size may be unpacked twice: first without a check, in case all lists are short.
# Every reply with elements is shorter, because more than 16 KiB of elements are sent as chunks.
UNPACKED_TWICE_BYTES: Final = 32 * 1024

# Unpacking a value of this size (empty maps) holds the interpreter lock for up to 20 ms. A task
# with thousands of tensors takes about 250 KiB.
MAX_VALUE_BYTES: Final = 512 * 1024

_BUFFER_32: Final = 0xC6  # MessagePack's type for a byte buffer with a 32-bit length
_EMPTY_BUFFER: Final = b"\xc4\x00"

_NOT_MESSAGEPACK: Final = (ValueError, TypeError, RecursionError, msgpack.UnpackException)


def unpack_frozen(body: bytes | memoryview) -> Any:
    """Unpack lists as tuples and maps as ``FrozenMap``, which are hashable and immutable.

    Raises ``ProtocolViolation`` for anything but one MessagePack value.
    """
    return _unpack(body, use_list=False, object_pairs_hook=FrozenMap)


def unpack_frozen_pair(body: memoryview, items: list[Any]) -> Generator[None, None, Any]:
    """Unpack a pair of a value and a list like ``unpack_frozen``; yield after each item.

    Returns the value and adds the items of the list to ``items``. Raises ``ProtocolViolation`` for
    anything but such a pair.
    """
    try:
        _check_completeness(body)
        yield
        most = min(MAX_LIST_LENGTH, len(body))
        unpacker = msgpack.Unpacker(
            max_buffer_size=len(body),
            read_size=len(body),
            max_array_len=most,
            max_map_len=most,
            use_list=False,
            object_pairs_hook=FrozenMap,
        )
        unpacker.feed(body)
        if unpacker.read_array_header() != 2:
            raise ValueError("a pair is expected")
        value = unpacker.unpack()
        length = unpacker.read_array_header()
        if length > most:
            raise ValueError(f"{length} exceeds the most items of a list, {most}")
        for _ in range(length):
            items.append(unpacker.unpack())
            yield
        if unpacker.tell() != len(body):
            raise ValueError("bytes follow the value")
    except _NOT_MESSAGEPACK as error:
        text = str(error) or type(error).__name__
        raise ProtocolViolation(f"not MessagePack, or not a pair with a list: {text}") from None
    return value


def unpack_around_buffer(
    body: bytes | memoryview, before: re.Pattern[bytes]
) -> tuple[Any, memoryview | None]:
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
                around = b"".join((body[: match.end()], _EMPTY_BUFFER, body[end:]))
                return unpack_frozen(around), memoryview(body)[start:end]
    raise LimitExceeded(
        "bytes of a message without the elements of a tensor", seen=seen, allowed=MAX_VALUE_BYTES
    )


def unpack_lists(body: bytes | memoryview) -> Any:
    """Unpack to lists and dictionaries. Raises ``ProtocolViolation`` like ``unpack_frozen``."""
    if UNCHECKED_BYTES < len(body) <= UNPACKED_TWICE_BYTES:
        # Replies with elements have short lists. Anything else is unpacked again, with the check.
        try:
            return msgpack.unpackb(
                body,
                max_array_len=SHORT_LIST_LENGTH,
                max_map_len=SHORT_LIST_LENGTH,
                strict_map_key=False,
            )
        except _NOT_MESSAGEPACK:
            pass
    return _unpack(body, use_list=True, strict_map_key=False)


def _unpack(body: bytes | memoryview, **how: Any) -> Any:
    try:
        if len(body) > UNCHECKED_BYTES:
            _check_completeness(body)
        most = min(MAX_LIST_LENGTH, len(body))
        return msgpack.unpackb(body, max_array_len=most, max_map_len=most, **how)
    except _NOT_MESSAGEPACK as error:
        text = str(error) or type(error).__name__
        raise ProtocolViolation(f"not MessagePack: {text}") from None


def _check_completeness(body: bytes | memoryview) -> None:
    """Raise ``ValueError`` or ``msgpack.UnpackException`` for an incomplete body."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(body), read_size=len(body))
    unpacker.feed(body)
    unpacker.skip()
