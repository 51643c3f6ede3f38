"""The lines of the user's program that issued the last operations."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Final

from burn_remote.runner.operation_graph import CodePosition, Graph
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = [
    "PACKAGES",
    "RING_LENGTH",
    "Locations",
    "caller",
    "caller_and_depth",
    "line_of",
    "pass_over",
]

# Tensors whose line is recorded, a power of two; each costs about 100 bytes per session. An error
# of an older tensor does not name its line.
RING_LENGTH: Final = 16_384

_ROOT: Final = __name__.partition(".")[0]
# The packages whose frames are not the program's. Comparing whole names is faster than comparing
# prefixes, and this runs for each operation.
PACKAGES: Final[set[str]] = {
    _ROOT,
    *(
        f"{_ROOT}.{part}"
        for part in (
            "arguments",
            "autodiff",
            "devices",
            "diagnostics",
            "dispatch",
            "distributed",
            "functions",
            "gradient_rules",
            "graphs",
            "nn",
            "optimizers",
            "runner",
            "sessions",
            "sessions.burn",
            "sessions.native",
            "tensor_files",
            "torch",
            "torch.aten",
            "torch.compiling",
        )
    ),
}


def pass_over(packages: Iterable[str]) -> None:
    """Treat frames of further packages as this package's, such as those of PyTorch."""
    PACKAGES.update(packages)


def _frame_at(depth: int) -> FrameType:
    """Return the frame ``depth`` above the caller; if there is none, the innermost one.

    A thread that C code started with a method of a tensor has fewer frames than usual.
    """
    try:
        return sys._getframe(depth + 1)
    except ValueError as error:
        pass_on_of_signal_handler(error)
        return sys._getframe()


def caller(depth: int) -> CodePosition:
    """Return the position of the innermost caller outside this package.

    ``depth`` is the number of frames that are known to be inside it.
    """
    frame = _frame_at(depth)
    while frame.f_globals.get("__package__") in PACKAGES and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def caller_and_depth(depth: int) -> tuple[CodeType, int, int]:
    """Return the position of the innermost caller outside this package, and its depth.

    ``depth`` is the number of frames that are known to be inside it, counted like the result: from
    this function on.
    """
    frame = _frame_at(depth)
    while frame.f_globals.get("__package__") in PACKAGES and frame.f_back is not None:
        frame = frame.f_back
        depth += 1
    return frame.f_code, frame.f_lasti, depth


class Locations:
    """The code positions that created the most recent tensors; lines are computed on request.

    Entries are replaced whole, so threads need no lock. A lost entry only costs an error its line.
    """

    def __init__(self) -> None:
        # ``NativeSession.execute`` writes entries too: a call would take a tenth of an operation.
        self.ring: list[tuple[int, CodeType, int] | tuple[int, Graph] | None]
        self.ring = [None] * RING_LENGTH

    def note(self, tensor: int, depth: int = 1) -> None:
        """Record the caller outside this package as the creator of ``tensor``.

        ``depth`` is the number of frames that are known to be inside it, including this one.
        """
        # Python creates an object for each frame that is looked at, which takes 0.1 µs.
        frame = _frame_at(depth)
        while frame.f_globals.get("__package__") in PACKAGES and frame.f_back is not None:
            frame = frame.f_back
        self.ring[tensor % RING_LENGTH] = (tensor, frame.f_code, frame.f_lasti)

    def note_at(self, tensor: int, code: CodeType, instruction: int) -> None:
        """Record a known position as the creator of ``tensor``."""
        self.ring[tensor % RING_LENGTH] = (tensor, code, instruction)

    def position(self, tensor: int) -> CodePosition | None:
        """Return the position that created ``tensor``; ``None`` if not recorded, or for a graph."""
        entry = self.ring[tensor % RING_LENGTH]
        return entry[1:] if entry is not None and len(entry) == 3 and entry[0] == tensor else None

    def note_graph(self, tensor: int, graph: Graph) -> None:
        """Record a graph as the creator of ``tensor``, its first output."""
        self.ring[tensor % RING_LENGTH] = (tensor, graph)

    def find(self, tensor: int | None, step: int | None = None) -> str:
        """Return ``file:line`` of the creator of ``tensor``, or ``""`` if it is not recorded.

        ``step`` is the position of the operation if a graph is the creator.
        """
        if tensor is None:
            return ""
        entry = self.ring[tensor % RING_LENGTH]
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
