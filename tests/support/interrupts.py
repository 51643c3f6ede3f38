"""Interrupts at chosen places of our code, because Ctrl-C may come anywhere."""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import itertools
import linecache
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, Final

__all__ = [
    "CallAt",
    "InterruptAfterCall",
    "InterruptAt",
    "MemoryErrorAfterCall",
    "NewPlace",
    "Walk",
]

# A walk ends after so many runs in a row without a new place. In one run, another thread may do
# the work that this thread does in others.
RUNS_WITHOUT_A_NEW_PLACE: Final = 4

# After these instructions, CPython runs the handlers of signals that have arrived.
CHECKING = ("CALL", "RESUME")
CHECKING_JUMP = "JUMP_BACKWARD"


class NewPlace:
    """Chooses the first place of a run that no earlier run of the walk has chosen."""

    def __init__(self, chosen: set[tuple[CodeType, int, int]]) -> None:
        self._chosen = chosen
        self._visits: Counter[tuple[CodeType, int]] = Counter()
        self.is_found = False

    def __call__(self, code: CodeType, position: int) -> bool:
        """Return whether to interrupt here."""
        self._visits[code, position] += 1
        place = (code, position, self._visits[code, position])
        self.is_found = place not in self._chosen
        self._chosen.add(place)
        return self.is_found


class Walk:
    """Choices of places for one run after another, until the runs reach no other place.

    In the n-th visit, a position of the code is another place than in the first. ::

        walk = Walk()
        for place in walk:
            interrupt = InterruptAt(place, codes)
            with interrupt.watching():
                ...  # what is interrupted
        walk.check(*functions)
    """

    def __init__(self) -> None:
        self._chosen: set[tuple[CodeType, int, int]] = set()

    def __iter__(self) -> Iterator[NewPlace]:
        runs_without = 0
        while runs_without < RUNS_WITHOUT_A_NEW_PLACE:
            place = NewPlace(self._chosen)
            yield place
            runs_without = 0 if place.is_found else runs_without + 1

    @property
    def count(self) -> int:
        """The number of places where runs were interrupted."""
        return len(self._chosen)

    def check(self, *functions: Any) -> None:
        """Assert that each of these functions was interrupted."""
        interrupted = {code for code, _, _ in self._chosen}
        missed = [one.__qualname__ for one in functions if one.__code__ not in interrupted]
        assert not missed, f"{self.count} places, none in {', '.join(missed)}"


class _Nth:
    """Chooses the n-th place of a run."""

    def __init__(self, place: int) -> None:
        self._left = place

    def __call__(self, code: CodeType, position: int) -> bool:
        self._left -= 1
        return self._left < 0


class InterruptAt:
    """Raises an exception when this thread reaches a line of the given code.

    The line is the n-th, or the first that ``line`` chooses.

    Counts the lines of the functions in ``codes``, except those at which CPython runs no signal
    handler: ``try``, the end of ``with`` blocks (between the last call and that of ``__exit__``),
    and ``return`` of a variable directly after a ``+=`` without a call.
    """

    def __init__(
        self,
        line: int | NewPlace,
        codes: frozenset[CodeType],
        raises: type[BaseException] = KeyboardInterrupt,
    ) -> None:
        self._chooses = _Nth(line) if isinstance(line, int) else line
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
            self._visit(frame, frame.f_lineno)
        return self._count

    def _visit(self, frame: FrameType, position: int) -> None:
        if self._chooses(frame.f_code, position):
            self.has_come = True
            self.place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
            self._come()

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
    """Raises an exception at a place where CPython runs signal handlers.

    These places are the starts of functions and loops and, above all, the moment after a call of a
    function in C: a lock may be taken then, and its variable not assigned. CPython runs no handler
    when a function in Python returns.
    """

    def __init__(
        self,
        place: int | NewPlace,
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
            self._visit(frame, frame.f_lasti)
        return self._count

    def _forget_frames(self) -> None:
        super()._forget_frames()
        self._callers.clear()

    def _is_checked(self, frame: FrameType) -> bool:
        """Return whether the instruction that was executed last runs signal handlers."""
        return frame.f_lasti in _places_after_checks(frame.f_code)


class MemoryErrorAfterCall(InterruptAfterCall):
    """Raises ``MemoryError`` as a call does that cannot allocate memory, not as a signal handler.

    Only a signal handler or a trace function has the interrupted frame as an argument.
    """

    def __init__(self, place: int | NewPlace, codes: frozenset[CodeType]) -> None:
        super().__init__(place, codes, MemoryError)
        self._has_raised = False

    def _count(self, frame: FrameType, event: str, argument: Any) -> Any:
        with contextlib.suppress(MemoryError):
            super()._count(frame, event, argument)
        del frame
        if self.has_come and not self._has_raised:
            self._has_raised = True
            raise MemoryError
        return self._count


class CallAt(InterruptAfterCall):
    """Calls a function, as a signal's handler, at a place where CPython runs handlers."""

    def __init__(
        self, place: int | NewPlace, codes: frozenset[CodeType], function: Callable[[], object]
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
