"""Bounded unpacking of MessagePack from a peer."""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator
from typing import Any, Final, TypeAlias, TypeVar

import msgpack

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.frozen_map import FrozenMap
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = [
    "MAX_LIST_LENGTH",
    "MAX_UNPACKED_BYTES_PER_BYTE",
    "MAX_VALUE_BYTES",
    "NOT_MESSAGEPACK",
    "STEP_BYTES",
    "Steps",
    "completed",
    "not_messagepack",
    "unpack_around_buffer",
    "unpack_frozen",
    "unpack_frozen_in_steps",
    "unpack_lists",
    "unpacked_bytes",
]

T = TypeVar("T")

# A computation that yields between short steps and returns its result.
Steps: TypeAlias = Generator[None, None, T]

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

# A task with thousands of tensors takes about 250 KiB.
MAX_VALUE_BYTES: Final = 512 * 1024

# Bytes of a value that are unpacked at once: 0.5 ms for nested lists, without garbage collections.
# Without steps, a value of 512 KiB took 50 ms with them and occupied the event loop.
STEP_BYTES: Final = 16 * 1024

# Memory of unpacked values in CPython. Each byte may be a reference in a tuple, or a character.
# Besides, each byte of these kinds may begin an object. Bytes inside of numbers and texts look like
# beginnings too, so the sum is a bound, about twice the memory of a program's tasks.
_REFERENCE_BYTES: Final = 8
_NUMBER_BYTES: Final = 32
_LIST_BYTES: Final = 48
_MAP_BYTES: Final = 112  # with its first pair
# Strings, buffers and extensions; a string may be a key, which is in a pair of its own.
_TEXT_BYTES: Final = 96
_BEGUN_BYTES: Final = {
    **dict.fromkeys((0xCA, 0xCB, *range(0xCC, 0xD4), *range(0xE0, 0x100)), _NUMBER_BYTES),
    **dict.fromkeys((*range(0x90, 0xA0), 0xDC, 0xDD), _LIST_BYTES),
    **dict.fromkeys((*range(0x80, 0x90), 0xDE, 0xDF), _MAP_BYTES),
    **dict.fromkeys((*range(0xA0, 0xC0), *range(0xC4, 0xCA), *range(0xD4, 0xDC)), _TEXT_BYTES),
}
# The memory that each byte may begin, as a table for ``bytes.translate``.
_BEGUN: Final = bytes([_BEGUN_BYTES.get(byte, 0) for byte in range(256)])

# The lower half of an Adler-32 checksum that starts at 0 is the sum of the bytes modulo 65,521. It
# is the fastest sum of bytes in the standard library. So many bytes of ``_BEGUN`` have a smaller
# sum.
_SUMMED_AT_ONCE: Final = 65_520 // _MAP_BYTES

MAX_UNPACKED_BYTES_PER_BYTE: Final = _REFERENCE_BYTES + _MAP_BYTES

_BUFFER_32: Final = 0xC6  # MessagePack's type for a byte buffer with a 32-bit length
_EMPTY_BUFFER: Final = b"\xc4\x00"

# Looked up once: every small frame passes through these functions.
_unpackb: Final = msgpack.unpackb

# What the unpacker raises for anything but MessagePack.
NOT_MESSAGEPACK: Final = (ValueError, TypeError, RecursionError, msgpack.UnpackException)


def unpack_frozen(body: bytes | memoryview) -> Any:
    """Unpack lists as tuples and maps as ``FrozenMap``, which are hashable and immutable.

    Raises ``ProtocolViolation`` for anything but one MessagePack value.
    """
    size = len(body)
    if size > STEP_BYTES:  # other threads can run between the steps
        return completed(unpack_frozen_in_steps(body))
    try:
        if size > UNCHECKED_BYTES:
            _check_completeness(body)
        most = size if size < MAX_LIST_LENGTH else MAX_LIST_LENGTH
        return _unpackb(
            body,
            max_array_len=most,
            max_map_len=most,
            use_list=False,
            object_pairs_hook=FrozenMap,
        )
    except NOT_MESSAGEPACK as error:
        pass_on_of_signal_handler(error)
        raise not_messagepack(error) from None


def unpack_frozen_in_steps(body: bytes | memoryview) -> Steps[Any]:
    """Unpack like ``unpack_frozen``; yield after each ``STEP_BYTES``.

    The steps are bounded although a short list may contain nearly all bytes of the value.
    """
    if len(body) <= STEP_BYTES:
        return unpack_frozen(body)
    body = memoryview(body)
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
        for place in range(0, len(body), STEP_BYTES):
            unpacker.feed(body[place : place + STEP_BYTES])
            try:
                value = unpacker.unpack()
            except msgpack.OutOfData:  # the next call continues where this one ended
                yield
                continue
            if unpacker.tell() != len(body):
                raise ValueError("bytes follow the value")
            return value
        raise ValueError("an incomplete value")
    except NOT_MESSAGEPACK as error:
        pass_on_of_signal_handler(error)
        raise not_messagepack(error) from None


def unpacked_bytes(body: bytes | memoryview) -> int:
    """Return a bound for the memory of what ``unpack_frozen`` returns for a body.

    Takes a twentieth of the time of unpacking.
    """
    packed = bytes(body)  # a copy only of a view
    begun = packed.translate(_BEGUN)
    total = _REFERENCE_BYTES * len(packed)
    for start in range(0, len(packed), _SUMMED_AT_ONCE):
        total += zlib.adler32(begun[start : start + _SUMMED_AT_ONCE], 0) & 0xFFFF
    return total


def completed(steps: Steps[T]) -> T:
    """Run steps without pauses; return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: T = ended.value
            return result


def unpack_around_buffer(
    body: bytes | memoryview, before: re.Pattern[bytes]
) -> Steps[tuple[Any, memoryview | None]]:
    """Unpack a value that may contain a large buffer after a match of ``before``, in steps.

    Returns the value with an empty buffer in that place, and the buffer as a view of ``body``. The
    buffer is ``None`` if the value is small; the value is then complete. Raises
    ``ProtocolViolation`` like ``unpack_frozen``, and ``LimitExceeded`` if the rest exceeds
    ``MAX_VALUE_BYTES``.
    """
    if len(body) <= MAX_VALUE_BYTES:
        return (yield from unpack_frozen_in_steps(body)), None
    seen = len(body)
    match = before.match(body)
    if match is not None and body[match.end()] == _BUFFER_32:
        start = match.end() + 5
        end = start + int.from_bytes(body[start - 4 : start], "big")
        if end <= len(body):
            seen -= end - start
            if seen <= MAX_VALUE_BYTES:
                around = b"".join((body[: match.end()], _EMPTY_BUFFER, body[end:]))
                value = yield from unpack_frozen_in_steps(around)
                return value, memoryview(body)[start:end]
    raise LimitExceeded(
        "bytes of a message without the elements of a tensor", seen=seen, allowed=MAX_VALUE_BYTES
    )


def unpack_lists(body: bytes | memoryview) -> Any:
    """Unpack to lists and dictionaries. Raises ``ProtocolViolation`` like ``unpack_frozen``."""
    size = len(body)
    if UNCHECKED_BYTES < size <= UNPACKED_TWICE_BYTES:
        # Replies with elements have short lists. Anything else is unpacked again, with the check.
        try:
            return _unpackb(
                body,
                max_array_len=SHORT_LIST_LENGTH,
                max_map_len=SHORT_LIST_LENGTH,
                strict_map_key=False,
            )
        except NOT_MESSAGEPACK as error:
            pass_on_of_signal_handler(error)
    try:
        if size > UNCHECKED_BYTES:
            _check_completeness(body)
        most = min(MAX_LIST_LENGTH, size)
        return _unpackb(body, max_array_len=most, max_map_len=most, strict_map_key=False)
    except NOT_MESSAGEPACK as error:
        pass_on_of_signal_handler(error)
        raise not_messagepack(error) from None


def not_messagepack(error: Exception) -> ProtocolViolation:
    """Return the error for one of ``NOT_MESSAGEPACK``."""
    return ProtocolViolation(f"not MessagePack: {str(error) or type(error).__name__}")


def _check_completeness(body: bytes | memoryview) -> None:
    """Raise ``ValueError`` or ``msgpack.UnpackException`` for an incomplete body."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(body), read_size=len(body))
    unpacker.feed(body)
    unpacker.skip()
