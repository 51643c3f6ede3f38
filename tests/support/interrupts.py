"""An interrupt at a chosen place of our code, because Ctrl-C may come anywhere."""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import itertools
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

__all__ = ["CallAt", "InterruptAfterCall", "InterruptAt"]

# After these instructions, CPython runs the handlers of signals that have arrived.
CHECKING = ("CALL", "RESUME")
CHECKING_JUMP = "JUMP_BACKWARD"


class InterruptAt:
    """Raises an exception when this thread reaches the n-th line of the given code.

    Counts the lines of the functions in ``codes``, except those at which CPython runs no signal
    handler: ``try``, the end of ``with`` blocks (between the last call and that of ``__exit__``),
    and ``return`` of a variable directly after a ``+=`` without a call.
    """

    def __init__(
        self,
        line: int,
        codes: frozenset[CodeType],
        raises: type[BaseException] = KeyboardInterrupt,
    ) -> None:
        self.lines_left = line
        self.has_come = False
        # Whether the exception left the watched calls.
        self.has_left = False
        self._raises = raises
        self.place = ""
        self._codes = codes
        self._entered: set[tuple[FrameType, int]] = set()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Count lines inside the context; swallow the interrupt.

        No garbage is collected meanwhile: finalizers of other tests' objects could run the code.
        """
        before = sys.gettrace()
        # Python 3.12 reports instructions only if a frame asked for them before ``settrace``.
        sys._getframe().f_trace_opcodes = True
        gc.disable()
        sys.settrace(self._trace)
        try:
            yield
        except self._raises:
            self.has_left = True
        finally:
            sys.settrace(before)
            gc.enable()
            self._forget_frames()

    def _forget_frames(self) -> None:
        """Release the frames: they refer to this object, and such cycles keep their tensors."""
        self._entered.clear()

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
                self._come()
        return self._count

    def _come(self) -> None:
        raise self._raises

    def _cannot_be_interrupted(self, frame: FrameType) -> bool:
        """Return whether CPython runs no signal handler directly before the line."""
        before, line = (
            linecache.getline(frame.f_code.co_filename, number).strip()
            for number in (frame.f_lineno - 1, frame.f_lineno)
        )
        if re.fullmatch(r"return \w+", line) and re.fullmatch(r"[\w.]+ \+= [\w.]+", before):
            return True
        if not line.startswith("with "):
            return line == "try:"
        key = (frame, frame.f_lineno)
        is_end = key in self._entered
        self._entered.add(key)
        return is_end


class InterruptAfterCall(InterruptAt):
    """Raises an exception at the n-th place where CPython runs signal handlers.

    These are the starts of functions and loops and, above all, the moment after a call of a
    function in C: a lock may be taken then, and its variable not assigned. CPython runs no handler
    when a function in Python returns.
    """

    def __init__(
        self,
        place: int,
        codes: frozenset[CodeType],
        raises: type[BaseException] = KeyboardInterrupt,
    ) -> None:
        super().__init__(place, codes, raises)
        # Frames whose present call runs a function in Python.
        self._callers: set[FrameType | None] = set()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._callers.add(frame.f_back)
        return super()._trace(frame, event, argument)

    def _count(self, frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        if event != "opcode" or self.has_come:
            return self._count
        has_called_python = frame in self._callers
        self._callers.discard(frame)
        if self._is_checked(frame) and not has_called_python:
            self.lines_left -= 1
            if self.lines_left < 0:
                self.has_come = True
                self.place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                self._come()
        return self._count

    def _forget_frames(self) -> None:
        super()._forget_frames()
        self._callers.clear()

    def _is_checked(self, frame: FrameType) -> bool:
        """Return whether the instruction that was executed last runs signal handlers."""
        return frame.f_lasti in _places_after_checks(frame.f_code)


class CallAt(InterruptAfterCall):
    """Calls a function, as a signal's handler, at the n-th place where CPython runs handlers."""

    def __init__(
        self, place: int, codes: frozenset[CodeType], function: Callable[[], object]
    ) -> None:
        super().__init__(place, codes)
        self._function = function

    def _come(self) -> None:
        self._function()


def _is_behind_await(instruction: dis.Instruction) -> bool:
    """Whether a ``RESUME`` runs no signal handlers: at ``yield from`` and ``await``."""
    return instruction.opname == "RESUME" and (instruction.arg or 0) >= 2


@functools.cache
def _places_after_checks(code: CodeType) -> frozenset[int]:
    """Return the offsets of the instructions that follow one that runs signal handlers."""
    instructions = [*dis.get_instructions(code)]
    after_calls = {
        after.offset
        for before, after in itertools.pairwise(instructions)
        if before.opname.startswith(CHECKING) and not _is_behind_await(before)
    }
    # The instruction after a jump in the code is not the next one to be executed.
    after_jumps = {jump.argval for jump in instructions if jump.opname == CHECKING_JUMP}
    return frozenset(after_calls | after_jumps)
