"""Layouts of messages of Burn that differ only in numbers of fixed lengths.

One comparison checks whether a message has a layout. Its numbers are then read from known places.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Layout", "LayoutBuilder", "number_length"]

# MessagePack's unsigned integers by first byte: the number of bytes that follow, and their
# ``struct`` format. Any other first byte is the number itself.
_READ: Final = {0xCC: (1, "B"), 0xCD: (2, "H"), 0xCE: (4, "I"), 0xCF: (8, "Q")}


def number_length(number: bytes) -> int:
    """Return the length of the unsigned integer at the start of some bytes."""
    return 1 + _READ.get(number[0], (0, ""))[0]


class Layout:
    """The fixed bits of a message, and the places of its numbers.

    A message of ``length`` bytes has the layout if, as a large integer, it equals ``pattern`` after
    ``mask`` was applied. ``read(message)`` then returns its numbers.
    """

    __slots__ = ("format", "length", "mask", "pattern", "read")

    def __init__(self, built: LayoutBuilder) -> None:
        self.format: Final = built.format
        self.length: Final = len(built.pattern)
        self.mask: Final = int.from_bytes(built.mask, "big")
        self.pattern: Final = int.from_bytes(built.pattern, "big")
        self.read: Final[Callable[[bytes | memoryview], tuple[Any, ...]]] = struct.Struct(
            built.format
        ).unpack


class LayoutBuilder:
    """A layout under construction."""

    def __init__(self) -> None:
        self.mask = bytearray()
        self.pattern = bytearray()
        self.format = ">"

    def literal(self, content: bytes) -> None:
        """Add bytes that are the same in all messages."""
        self.mask += b"\xff" * len(content)
        self.pattern += content
        self.format += f"{len(content)}x"

    def number(self, content: bytes, *, is_read: bool = True) -> None:
        """Add a number that has the same length in all messages.

        ``is_read``: whether ``Layout.read`` returns it.
        """
        count, code = _READ.get(content[0], (0, ""))
        if count:
            self.literal(content[:1])
        else:
            count, code = 1, "B"
        # The highest bit of a one-byte number is 0; all other bits of numbers may vary.
        self.mask += b"\x80" if len(content) == 1 else bytes(count)
        self.pattern += bytes(count)
        self.format += code if is_read else f"{count}x"

    def layout(self, other: Layout) -> None:
        """Add the literals and numbers of another layout."""
        self.mask += other.mask.to_bytes(other.length, "big")
        self.pattern += other.pattern.to_bytes(other.length, "big")
        self.format += other.format.removeprefix(">")
