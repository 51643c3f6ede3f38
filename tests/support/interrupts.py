"""An interrupt at a chosen line of our code, because Ctrl-C may come at any line."""

from __future__ import annotations

import contextlib
import gc
import linecache
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

__all__ = ["InterruptAt"]


class InterruptAt:
    """Raises ``KeyboardInterrupt`` when this thread reaches the n-th line of the given code.

    Counts the lines of the functions in ``codes``, except ``try`` and the end of ``with`` blocks:
    CPython runs no signal handler at ``try``, nor between the last call of a block and the call of
    ``__exit__``.
    """

    def __init__(self, line: int, codes: frozenset[CodeType]) -> None:
        self.lines_left = line
        self.has_come = False
        self.place = ""
        self._codes = codes
        self._entered: set[tuple[FrameType, int]] = set()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Count lines inside the context; swallow the interrupt.

        No garbage is collected meanwhile: finalizers of other tests' objects could run the code.
        """
        before = sys.gettrace()
        gc.disable()
        sys.settrace(self._trace)
        try:
            yield
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
            gc.enable()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code not in self._codes:
            return None
        return self._count

    def _count(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and not self.has_come and not self._cannot_be_interrupted(frame):
            self.lines_left -= 1
            if self.lines_left < 0:
                self.has_come = True
                self.place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._count

    def _cannot_be_interrupted(self, frame: FrameType) -> bool:
        """Return whether the line is ``try``, or a ``with`` statement that was entered before."""
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if not line.startswith("with "):
            return line == "try:"
        key = (frame, frame.f_lineno)
        is_end = key in self._entered
        self._entered.add(key)
        return is_end
