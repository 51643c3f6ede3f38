"""The lines of the user's program that issued the last operations."""

from __future__ import annotations

import sys
from types import CodeType
from typing import Final

__all__ = ["Locations"]

# Tensors whose line is remembered, a power of two. Larger: more memory per session (about 100 bytes
# each). Smaller: an error that is read long after it happened no longer names its line.
RING_LENGTH: Final = 16_384

_ROOT: Final = __name__.partition(".")[0]
# Names compare faster than their beginnings, and this runs for each operation.
_PACKAGES: Final = frozenset(
    {
        _ROOT,
        *(
            f"{_ROOT}.{part}"
            for part in (
                "arguments",
                "devices",
                "diagnostics",
                "dispatch",
                "functions",
                "nn",
                "runner",
                "sessions",
                "sessions.burn",
                "sessions.native",
            )
        ),
    }
)


class Locations:
    """Remember the code position that created each of the last tensors; lines are looked up late.

    Entries are replaced whole, so threads need no lock; a lost entry costs a line in a message.
    """

    def __init__(self) -> None:
        self._ring: list[tuple[int, CodeType, int] | None] = [None] * RING_LENGTH

    def note(self, tensor: int) -> None:
        """Remember the caller outside this package as the one who made ``tensor``."""
        # The caller is a method of a session, and its caller a method of the innermost runner.
        frame = sys._getframe(3)
        while frame.f_globals.get("__package__") in _PACKAGES and frame.f_back is not None:
            frame = frame.f_back
        self._ring[tensor % RING_LENGTH] = (tensor, frame.f_code, frame.f_lasti)

    def find(self, tensor: int | None) -> str:
        """Return ``file:line`` of whoever made ``tensor``, or nothing when that is forgotten."""
        if tensor is None:
            return ""
        entry = self._ring[tensor % RING_LENGTH]
        if entry is None or entry[0] != tensor:
            return ""
        _, code, instruction = entry
        for start, end, line in code.co_lines():
            if start <= instruction < end and line is not None:
                return f"{code.co_filename}:{line}"
        return f"{code.co_filename}:{code.co_firstlineno}"
