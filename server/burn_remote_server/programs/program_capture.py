"""Capture of a graph's program: a device launches the kernels of many instructions as one.

A segment of the program is captured after two ordinary runs with the same fixed numbers
(``Program.fixed``), once its kernels no longer change. From then on, a call launches the captured
run, on copies of its inputs. If that is impossible, for example because an input has another
layout, the instructions run one by one, as in the first calls. An instruction that cannot be
captured, because it waits for the device, divides its segment in two.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from burn_remote_protocol.errors import BurnRemoteError, QuotaExceeded
from burn_remote_protocol.operations.row import Signature
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.interface import BackendSession, CapturedRun, NotCaptured
from burn_remote_server.fusion.counts import FusionCounts
from burn_remote_server.programs.instructions import (
    NUMBERED,
    Instruction,
    Segment,
    StepFailed,
    segments_of,
)
from burn_remote_server.telemetry.logs import get_logger
from burn_remote_server.tensors.allocations import hold_while_alive

__all__ = ["Captures", "Program", "ProgramCapture", "number_key"]

logger = get_logger(__name__)

# Ordinary runs before a capture. The first compiles kernels and fills caches; the second shows
# that the call is repeated.
RUNS_BEFORE_CAPTURE: Final = 2
# Most captures of one segment whose layouts or fixed numbers keep changing, and most instructions
# at which a program is divided. A capture takes some milliseconds.
MAX_CAPTURES: Final = 8
MAX_DIVISIONS: Final = 16
# Runs after which a segment is captured again, if its capture did not fit into memory, or was
# released so that tensors fit.
RUNS_WITHOUT_MEMORY: Final = 1024


class Captures:
    """The captured runs of one session and their memory, which counts in the session's quota.

    When the quota is exhausted, all captured runs are released, so that tensors fit.
    """

    def __init__(self, session: BackendSession, quota: Quota, counts: FusionCounts) -> None:
        self._session: Final = session
        self._quota: Final = quota
        self.counts: Final = counts
        self._runs: Final[weakref.WeakSet[CapturedRun]] = weakref.WeakSet()
        self._counted: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
        self._is_capturing = False
        self.may_capture: Final[Callable[[Signature], bool]] = session.may_capture
        quota.reclaim = self.release

    def capture(
        self,
        run: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
        inputs: Sequence[Any],
        constants: Sequence[Any],
    ) -> CapturedRun:
        """Capture ``run(inputs, constants)``.

        Raises the errors of ``run``, ``NotCaptured``, ``MemoryError`` and ``QuotaExceeded``.
        """
        self._is_capturing = True
        try:
            captured = self._session.capture(run, inputs, constants)
            try:
                for block, size in captured.blocks:
                    if block not in self._counted:
                        hold_while_alive(self._quota, block, size)
                        self._counted.add(block)
            except QuotaExceeded:
                captured.release()
                raise
        finally:
            self._is_capturing = False
        self._runs.add(captured)
        self.counts.captures += 1
        return captured

    def release(self) -> bool:
        """Release all captured runs; return whether there were any."""
        if self._is_capturing or not self._runs:
            return False
        for captured in [*self._runs]:
            captured.release()
            self.counts.captures_released += 1
        self._runs.clear()
        return True


class Program(NamedTuple):
    """A program, and the facts about it that its capture needs.

    ``capturable`` has the places of the instructions that may be captured, and ``kept`` the
    registers of the outputs. A call has numbers, which are counted from 0. ``numbers`` says for
    each register of a constant which number it contains, and ``fixed`` says for each instruction
    on which numbers its kernel depends.
    """

    instructions: Sequence[Instruction]
    capturable: Collection[int]
    kept: Collection[int]
    numbers: Mapping[int, int]
    fixed: Mapping[int, tuple[int, ...]]
    # run(registers, instructions, place of the first one, numbers): raises ``StepFailed``.
    run: Callable[[list[Any], Sequence[Instruction], int, tuple[Any, ...]], None]
    # write_numbers(registers, numbers): writes the constants of a call; raises ``StepFailed``.
    write_numbers: Callable[[list[Any], tuple[Any, ...]], None]
    # prepared(place of the step, numbers): the object that keeps the memory of its kernel alive.
    prepared: Callable[[int, tuple[Any, ...]], Any]
    # Whether the kernels of the instructions will not change any more.
    are_kernels_final: Callable[[], bool]


class _State:
    """A segment, and its captured run if there is one."""

    def __init__(self, segment: Segment, program: Program) -> None:
        self.segment: Final = segment
        self.constants: Final = tuple(each for each in segment.inputs if each in program.numbers)
        self.inputs: Final = tuple(each for each in segment.inputs if each not in program.numbers)
        self.positions: Final = [program.numbers[each] for each in self.constants]
        places = range(segment.start, segment.start + len(segment.program))
        self.fixed_positions: Final = [
            position for place in places for position in program.fixed.get(place, ())
        ]
        self.captured: CapturedRun | None = None
        # The fixed numbers for which the segment is captured or was run last.
        self.fixed: tuple[Any, ...] = ()
        self.keeps: list[Any] = []
        self.runs_left = RUNS_BEFORE_CAPTURE
        self.captures_left = MAX_CAPTURES if segment.is_capturable else 0


class ProgramCapture:
    """Runs a program, and captures segments of it. Only the session's thread calls it."""

    def __init__(self, program: Program, captures: Captures) -> None:
        self._program: Final = program
        self._captures: Final = captures
        self._capturable: Final = {*program.capturable}
        self._divisions_left = MAX_DIVISIONS
        self._are_kernels_final = False
        self._states = self._divided()

    @property
    def is_useful(self) -> bool:
        """Whether a segment may be captured."""
        return any(state.segment.is_capturable for state in self._states)

    def run(self, registers: list[Any], numbers: tuple[Any, ...]) -> None:
        """Run the program on the registers at its start. Raises ``StepFailed``."""
        is_written = not self._program.numbers
        for state in self._states:
            segment = state.segment
            results = None
            if state.captures_left or state.captured is not None:
                results = self._launched(state, registers, numbers)
            if results is None:
                if not is_written:
                    self._program.write_numbers(registers, numbers)
                    is_written = True
                self._program.run(registers, segment.program, segment.start, numbers)
                continue
            for register in segment.cleared:
                registers[register] = None
            for register, result in zip(segment.outputs, results, strict=True):
                registers[register] = result

    def _divided(self) -> list[_State]:
        program = self._program
        found = segments_of(program.instructions, self._capturable, program.kept)
        return [_State(segment, program) for segment in found]

    def _launched(
        self, state: _State, registers: list[Any], numbers: tuple[Any, ...]
    ) -> list[Any] | None:
        """Launch the captured run, or capture it now; ``None`` if the instructions must run."""
        fixed = number_key(tuple([numbers[position] for position in state.fixed_positions]))
        captured = state.captured
        if captured is None:
            if fixed != state.fixed:
                state.fixed, state.runs_left = fixed, RUNS_BEFORE_CAPTURE
            if state.runs_left or not self._have_kernels_become_final():
                state.runs_left = max(0, state.runs_left - 1)
                return None
            captured = self._captured(state, registers, numbers)
            if captured is None:
                return None
        elif fixed != state.fixed:
            self._forget(state)
            return None
        inputs = [registers[register] for register in state.inputs]
        values = [numbers[position] for position in state.positions]
        try:
            results = captured.launch(inputs, values)
        except MemoryError:  # the instructions run instead, and free memory if they need it
            results = None
        except Exception:  # an error of the device: the instructions report it
            logger.warning("captured run failed", exc_info=True)
            results = None
        if results is None:
            self._forget(state)
            return None
        self._captures.counts.replays += 1
        return results

    def _have_kernels_become_final(self) -> bool:
        self._are_kernels_final = self._are_kernels_final or self._program.are_kernels_final()
        return self._are_kernels_final

    def _forget(self, state: _State) -> None:
        """Discard the captured run; the instructions run until they are captured again."""
        self._captures.counts.replay_fallbacks += 1
        captured, state.captured = state.captured, None
        was_released = captured is not None and captured.is_released
        state.runs_left = RUNS_WITHOUT_MEMORY if was_released else RUNS_BEFORE_CAPTURE
        if captured is not None:
            captured.release()

    def _captured(
        self, state: _State, registers: list[Any], numbers: tuple[Any, ...]
    ) -> CapturedRun | None:
        """Capture a segment; return ``None`` if that fails."""
        program, segment = self._program, state.segment
        if state.constants:
            program.write_numbers(registers, numbers)

        count, taken = len(registers), (*state.inputs, *state.constants)

        def run(inputs: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
            r: list[Any] = [None] * count
            for register, value in zip(taken, (*inputs, *constants), strict=True):
                r[register] = value
            program.run(r, segment.program, segment.start, numbers)
            return [r[register] for register in segment.outputs]

        state.captures_left -= 1
        state.keeps = [
            program.prepared(each[1], numbers) for each in segment.program if each[0] == NUMBERED
        ]
        inputs = [registers[register] for register in state.inputs]
        constants = [registers[register] for register in state.constants]
        try:
            state.captured = self._captures.capture(run, inputs, constants)
        except StepFailed as failed:
            if isinstance(failed.cause, MemoryError | QuotaExceeded):
                state.runs_left = RUNS_WITHOUT_MEMORY
            else:
                self._divide(failed.index)
        except (MemoryError, QuotaExceeded):
            state.runs_left = RUNS_WITHOUT_MEMORY
        except (NotCaptured, BurnRemoteError) as error:
            logger.info("run not captured", reason=str(error))
            self._captures.counts.captures_refused += 1
            state.captures_left = 0
        return state.captured

    def _divide(self, index: int) -> None:
        """Exclude an instruction from capture, from the next call on."""
        self._captures.counts.captures_refused += 1
        self._divisions_left -= 1
        if self._divisions_left:
            self._capturable.discard(index)
        else:
            self._capturable.clear()
        known = {state.segment: state for state in self._states}
        self._states = [known.get(state.segment, state) for state in self._divided()]


def number_key(numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a key that distinguishes 0.0 from -0.0, and 1 from 1.0 and True."""
    return (*numbers, *map(repr, numbers))
