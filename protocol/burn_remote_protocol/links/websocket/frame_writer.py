"""How is a message framed and masked on its way out, without copying what is large?

The client's side of RFC 6455, section 5, for binary messages. The masking is demanded there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final

from burn_remote_protocol.links.websocket.masking import apply_mask

__all__ = ["Piece", "data_pieces", "joined_pieces", "plain_header"]

# Payloads are masked in blocks just before they are sent. Larger: the masked copy leaves the second
# level cache before the kernel reads it. Smaller: more system calls.
MASK_BLOCK_BYTES: Final = 256 * 2**10

# Up to this size a frame is sent as one piece with its header: copying it costs less than a
# second system call.
JOINED_BYTES: Final = 64 * 2**10

# Masking keys drawn at once. Larger: nothing gained. Smaller: more system calls, 0.5 µs each.
DRAWN_KEYS: Final = 256

_CONTINUATION: Final = 0x00
_BINARY: Final = 0x02
_FINAL: Final = 0x80
_MASKED: Final = 0x80
_LENGTH_16: Final = 126
_LENGTH_64: Final = 127
LENGTH_16_LIMIT: Final = 2**16

_NOTHING: Final = memoryview(b"")


class Piece:
    """Some bytes on their way out, and how many of them the operating system took.

    They are masked when their turn comes. ``taken`` has one number per system call, appended by the
    C call that made it: a ``KeyboardInterrupt`` can't come between the call and its count.
    """

    __slots__ = ("_data", "_key", "more", "taken")

    def __init__(self, data: bytes | memoryview, key: bytes | None = None, *, more: bool = False):
        self._data = data
        self._key = key
        self.more = more
        self.taken: list[int] = []

    def left(self) -> bytes | memoryview:
        """Return what still has to be sent."""
        if self._key is not None:
            self.keep()
        taken = self.taken
        return memoryview(self._data)[sum(taken) :] if taken else self._data

    def done(self) -> bool:
        """Tell whether the operating system took all of it."""
        return sum(self.taken) == len(self._data)

    def keep(self) -> None:
        """Mask now, so that the caller's memory is no longer needed."""
        if self._key is not None:
            self._data = apply_mask(self._data, self._key)
            self._key = None


def data_pieces(
    head: bytes, payload: memoryview, keys: list[bytes], fragment_bytes: int | None
) -> list[Piece]:
    """Return one binary message in pieces, to be sent in order.

    ``keys`` holds unpredictable masking keys, one for each WebSocket frame; more are drawn when it
    is empty.
    """
    total = len(head) + len(payload)
    if total <= JOINED_BYTES and (fragment_bytes is None or total <= fragment_bytes):
        key = _next_key(keys)
        body = b"".join((head, payload)) if payload else head
        header = _header(_FINAL | _BINARY, total, _MASKED) + key
        return [Piece(header + apply_mask(body, key))]
    pieces: list[Piece] = []
    parts = [memoryview(head), payload]
    opcode = _BINARY
    while True:
        size = total if fragment_bytes is None else min(total, fragment_bytes)
        total -= size
        key = _next_key(keys)
        header = _header(opcode if total else opcode | _FINAL, size, _MASKED) + key
        pieces.append(Piece(header, more=True))
        pieces += _masked(parts, size, key)
        opcode = _CONTINUATION
        if not total:
            return pieces


def joined_pieces(
    frames: Iterable[bytes], keys: list[bytes], fragment_bytes: int | None
) -> list[Piece]:
    """Return several binary messages in pieces; small ones are put together, for one system call.

    ``keys`` as for ``data_pieces``.
    """
    pieces: list[Piece] = []
    joined: list[bytes] = []
    size = 0
    for frame in frames:
        length = len(frame)
        if length >= LENGTH_16_LIMIT:
            if joined:
                pieces.append(Piece(b"".join(joined)))
                joined, size = [], 0
            pieces += data_pieces(frame, _NOTHING, keys, fragment_bytes)
            continue
        key = keys.pop() if keys else _next_key(keys)
        joined += (_header(_FINAL | _BINARY, length, _MASKED), key, apply_mask(frame, key))
        size += length
        if size >= JOINED_BYTES:
            pieces.append(Piece(b"".join(joined)))
            joined, size = [], 0
    if joined:
        pieces.append(Piece(b"".join(joined)))
    return pieces


def _masked(parts: list[memoryview], size: int, key: bytes) -> Iterator[Piece]:
    """Take ``size`` bytes off the front of ``parts``, in blocks."""
    while size:
        block = parts[0][: min(size, MASK_BLOCK_BYTES)]
        parts[0] = parts[0][len(block) :]
        if not parts[0]:
            parts.pop(0)
        if block:
            size -= len(block)
            yield Piece(block, key, more=size > 0)
            turn = len(block) % 4
            key = key[turn:] + key[:turn]


def plain_header(length: int) -> bytes:
    """Return the header of a whole binary message from a server, which masks nothing."""
    return _header(_FINAL | _BINARY, length)


def _header(first: int, length: int, mask_bit: int = 0) -> bytes:
    if length < _LENGTH_16:
        return bytes((first, mask_bit | length))
    if length < LENGTH_16_LIMIT:
        return bytes((first, mask_bit | _LENGTH_16)) + length.to_bytes(2, "big")
    return bytes((first, mask_bit | _LENGTH_64)) + length.to_bytes(8, "big")


def _next_key(keys: list[bytes]) -> bytes:
    # A list, for an interrupt would end a generator.
    if not keys:
        drawn = os.urandom(4 * DRAWN_KEYS)
        keys.extend(drawn[start : start + 4] for start in range(0, len(drawn), 4))
    return keys.pop()
