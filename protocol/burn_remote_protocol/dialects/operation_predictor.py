"""Prediction of the next operation in a session of Burn 0.21.

Programs repeat sequences of operations: the operation that followed last time usually follows
again, with ids of the same lengths. One comparison verifies a predicted frame. Its ids are then
read from known offsets, in a third of the time that a search for them takes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from burn_remote_protocol.dialects.burn_operations import (
    BEFORE_ID,
    BEFORE_POSITION,
    Split,
    split_operation,
)
from burn_remote_protocol.operations.row import Operation

__all__ = ["OperationPredictor"]

# Layouts cached per session, up to 6 KiB each. When a program has more distinct operations, the
# cache is cleared.
LAYOUTS_KEPT: Final = 1024

# MessagePack's unsigned integers by first byte: the number of bytes that follow, and their
# ``struct`` format. Any other first byte is the number itself.
_READ: Final = {0xCC: (1, "B"), 0xCD: (2, "H"), 0xCE: (4, "I"), 0xCF: (8, "Q")}


class _Layout:
    """The common layout of frames that differ only in numbers of fixed lengths."""

    __slots__ = ("length", "mask", "pattern", "read", "signature")

    def __init__(self, split: Split) -> None:
        builder = _LayoutBuilder()
        *literals, last_literal = split.literals
        for literal, identifier in zip(literals, split.ids, strict=True):
            builder.literal(literal + BEFORE_ID)
            builder.number(identifier, is_read=True)
        builder.literal(last_literal + BEFORE_POSITION)
        end = _length(split.tail)
        builder.number(split.tail[:end], is_read=False)
        builder.literal(split.tail[end : end + 1])
        builder.number(split.tail[end + 1 :], is_read=False)
        self.signature: Final = split.signature
        self.length: Final = len(builder.pattern)
        # As large integers, a mask and a comparison check a whole frame.
        self.mask: Final = int.from_bytes(builder.mask, "big")
        self.pattern: Final = int.from_bytes(builder.pattern, "big")
        self.read: Final[Callable[[bytes], tuple[Any, ...]]] = struct.Struct(builder.format).unpack


class _LayoutBuilder:
    """A layout under construction: the fixed bits of a frame, and the offsets of the ids."""

    def __init__(self) -> None:
        self.mask = bytearray()
        self.pattern = bytearray()
        self.format = ">"

    def literal(self, content: bytes) -> None:
        self.mask += b"\xff" * len(content)
        self.pattern += content
        self.format += f"{len(content)}x"

    def number(self, content: bytes, *, is_read: bool) -> None:
        count, code = _READ.get(content[0], (0, ""))
        if count:
            self.literal(content[:1])
        else:
            count, code = 1, "B"
        # The highest bit of a one-byte number is 0; all other bits of numbers may vary.
        self.mask += b"\x80" if len(content) == 1 else bytes(count)
        self.pattern += bytes(count)
        self.format += code if is_read else f"{count}x"


def _length(number: bytes) -> int:
    return 1 + _READ.get(number[0], (0, ""))[0]


class OperationPredictor:
    """Decodes one session's operations, predicting each from the one before.

    ``unknown`` counts the frames that were not recognized or had a new layout. Decoding one takes
    up to 100 µs, any other about 3 µs.
    """

    def __init__(self) -> None:
        self.unknown = 0
        self._layouts: dict[tuple[Any, ...], _Layout] = {}
        self._successors: dict[_Layout | None, _Layout] = {}
        self._last: _Layout | None = None

    def recognize(self, frame: bytes) -> Operation | None:
        """Return the operation that a frame registers; ``None`` if it must be decoded in full."""
        expected = self._successors.get(self._last)
        if (
            expected is None
            or len(frame) != expected.length
            or int.from_bytes(frame, "big") & expected.mask != expected.pattern
        ):
            expected = self._search(frame)
            if expected is None:
                return None
        self._last = expected
        return Operation(expected.signature, expected.read(frame))

    def _search(self, frame: bytes) -> _Layout | None:
        split = split_operation(frame)
        if split is None:
            self.unknown += 1
            return None
        key = (split.literals, *map(len, split.ids), _length(split.tail), len(split.tail))
        layout = self._layouts.get(key)
        if layout is None:
            self.unknown += 1
            if len(self._layouts) >= LAYOUTS_KEPT:
                self._layouts.clear()
                self._successors.clear()
            layout = self._layouts[key] = _Layout(split)
        self._successors[self._last] = layout
        return layout
