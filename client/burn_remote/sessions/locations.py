"""The lines of the user's program that issued the last operations."""

from __future__ import annotations

import sys
from types import CodeType
from typing import Final

__all__ = ["Locations"]

# Tensors whose line is recorded, a power of two; each costs about 100 bytes per session. An error
# of an older tensor does not name its line.
RING_LENGTH: Final = 16_384

_ROOT: Final = __name__.partition(".")[0]
# Comparing whole names is faster than comparing prefixes, and this runs for each operation.
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
    """The code positions that created the most recent tensors; lines are computed on request.

    Entries are replaced whole, so threads need no lock. A lost entry only costs an error its line.
    """

    def __init__(self) -> None:
        self._ring: list[tuple[int, CodeType, int] | None] = [None] * RING_LENGTH

    def note(self, tensor: int) -> None:
        """Record the caller outside this package as the creator of ``tensor``."""
        # The caller is a method of a session, and its caller a method of the innermost runner.
        frame = sys._getframe(3)
        while frame.f_globals.get("__package__") in _PACKAGES and frame.f_back is not None:
            frame = frame.f_back
        self._ring[tensor % RING_LENGTH] = (tensor, frame.f_code, frame.f_lasti)

    def find(self, tensor: int | None) -> str:
        """Return ``file:line`` of the creator of ``tensor``, or ``""`` if it is not recorded."""
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
