"""The lines of the user's program that issued the last operations."""

from __future__ import annotations

import sys
from types import CodeType
from typing import Final

from burn_remote.runner.graphs import CodePosition, Graph

__all__ = ["Locations", "caller", "line_of"]

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
                "graphs",
                "nn",
                "runner",
                "sessions",
                "sessions.burn",
                "sessions.native",
            )
        ),
    }
)


def caller(depth: int) -> CodePosition:
    """Return the position of the innermost caller outside this package.

    ``depth`` is the number of frames that are known to be inside it.
    """
    frame = sys._getframe(depth)
    while frame.f_globals.get("__package__") in _PACKAGES and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


class Locations:
    """The code positions that created the most recent tensors; lines are computed on request.

    Entries are replaced whole, so threads need no lock. A lost entry only costs an error its line.
    """

    def __init__(self) -> None:
        self._ring: list[tuple[int, CodeType, int] | tuple[int, Graph] | None]
        self._ring = [None] * RING_LENGTH

    def note(self, tensor: int) -> None:
        """Record the caller outside this package as the creator of ``tensor``."""
        # The caller is a method of a session, and its caller a method of the innermost runner.
        frame = sys._getframe(3)
        while frame.f_globals.get("__package__") in _PACKAGES and frame.f_back is not None:
            frame = frame.f_back
        self._ring[tensor % RING_LENGTH] = (tensor, frame.f_code, frame.f_lasti)

    def note_graph(self, tensor: int, graph: Graph) -> None:
        """Record a graph as the creator of ``tensor``, its first output."""
        self._ring[tensor % RING_LENGTH] = (tensor, graph)

    def find(self, tensor: int | None, step: int | None = None) -> str:
        """Return ``file:line`` of the creator of ``tensor``, or ``""`` if it is not recorded.

        ``step`` is the position of the operation if a graph is the creator.
        """
        if tensor is None:
            return ""
        entry = self._ring[tensor % RING_LENGTH]
        if entry is None or entry[0] != tensor:
            return ""
        position: CodePosition | None
        if len(entry) == 2:
            steps = entry[1].steps
            known = step is not None and 0 <= step < len(steps)
            position = steps[step].issued_at if known and step is not None else None
        else:
            position = entry[1:]
        return "" if position is None else line_of(*position)


def line_of(code: CodeType, instruction: int) -> str:
    """Return ``file:line`` of an instruction."""
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return f"{code.co_filename}:{line}"
    return f"{code.co_filename}:{code.co_firstlineno}"
