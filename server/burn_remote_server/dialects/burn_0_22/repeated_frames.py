"""Programs for frames that a client repeats: each message with its plan, found in advance.

The layout of a frame determines its operations, their order and which of the frame's numbers they
use. So the first frame of a layout is executed message by message, and its plans are kept. A later
frame with this layout needs no search for plans, no estimates of single operations and no objects
for messages, and consecutive operations and drops run in one loop. Only operations that may be
fused with operations of other frames still run as messages.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, Final, NamedTuple

from burn_remote_protocol.dialects.burn_0_22_recognition import (
    FrameLayout,
    FrameParts,
    KnownFrame,
    Part,
)
from burn_remote_protocol.messages import Read
from burn_remote_server.execution.costs import READ_COST, TASK_COST
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.programs.operation_sequences import (
    OperationSequence,
    SequenceStep,
    can_contain,
    drop_step,
    operation_step,
)
from burn_remote_server.programs.plans import Plan

__all__ = ["FrameProgram", "FramePrograms", "Make", "Step"]

# Programs kept per session, and the sum of the lengths of their frames. A program takes up to five
# times the length of its frame: 1.6 KB for four additions. It keeps its frame's layout alive, even
# after the recognizer has discarded it; a layout takes up to six times the length of its frame. At
# either limit, all programs are discarded.
PROGRAMS_KEPT: Final = 1024
PROGRAM_FRAME_BYTES_KEPT: Final = 512 * 1024

# Returns the tasks of a message, made from its numbers.
Make = Callable[[tuple[int, ...]], tuple[Any, ...]]


class Step(NamedTuple):
    """One message of a program; its numbers are ``numbers[start:stop]`` of the frame.

    The message is an operation with ``plan``, or the tasks that ``make`` returns. If both are
    ``None``, it frees the tensors of its numbers.
    ``is_simple``: ``Interpreter.invoke_simple`` runs the operation.
    """

    plan: Plan | None
    is_simple: bool
    make: Make | None
    start: int
    stop: int


class FrameProgram(NamedTuple):
    """The steps of a frame, each with its place, and an estimate of their cost.

    ``parts`` has the same steps: each is a sequence and the number of its steps, or no sequence
    and the number of steps that run one by one.
    ``opens_windows``: an operation may be fused with operations after it, so the messages must run
    one by one. ``joins_windows``: an operation may be fused with operations of earlier frames.
    """

    steps: tuple[tuple[int, Step], ...]
    parts: tuple[tuple[OperationSequence | None, int], ...]
    cost: int
    opens_windows: bool
    joins_windows: bool


class FramePrograms:
    """The programs of one session's frames."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter: Final = interpreter
        self._programs: Final[dict[FrameLayout | FrameParts, FrameProgram]] = {}
        self._frame_bytes = 0

    def program(self, frame: KnownFrame) -> FrameProgram | None:
        """Return the program of a frame; ``None`` while an operation has no plan."""
        if self._interpreter.tensors.lost is not None:
            return None  # plans that only a program keeps still assume that the device works
        found = self._programs.get(frame.layout)
        if found is None:
            found = self._made(frame)
            if found is not None:
                size = frame.layout.length
                self._frame_bytes += size
                is_full = self._frame_bytes > PROGRAM_FRAME_BYTES_KEPT
                if is_full or len(self._programs) >= PROGRAMS_KEPT:
                    self._programs.clear()
                    self._frame_bytes = size
                self._programs[frame.layout] = found
        return found

    def _made(self, frame: KnownFrame) -> FrameProgram | None:
        steps: list[tuple[int, Step]] = []
        cost = 0
        opens_windows = joins_windows = False
        for place, part in enumerate(frame.layout.parts):
            cost += TASK_COST
            if part.signature is None:
                message = frame[place]
                cost += READ_COST * message.spec.size if type(message) is Read else 0
                steps.append((place, Step(None, False, part.make, part.start, part.stop)))
            elif part.signature.row.family == "Drop":
                steps.append((place, Step(None, False, None, part.start, part.stop)))
            elif part.signature.row.family != "Init":
                plan = self._interpreter.plans.known_plan(part.signature)
                if plan is None:
                    return None
                opens_windows = opens_windows or plan.is_fusible
                joins_windows = joins_windows or plan.joins_windows
                cost += plan.cost
                steps.append((place, _operation(plan, part)))
        return FrameProgram(tuple(steps), _parts(steps), cost, opens_windows, joins_windows)


def _operation(plan: Plan, part: Part) -> Step:
    is_simple = plan.seen is not None and not plan.is_large
    return Step(plan, is_simple, None, part.start, part.stop)


def _parts(steps: list[tuple[int, Step]]) -> tuple[tuple[OperationSequence | None, int], ...]:
    parts: list[tuple[OperationSequence | None, int]] = []
    for _, group in groupby(map(_sequence_step, steps), lambda step: step is not None):
        found = [*group]
        sequence = [step for step in found if step is not None]
        # A single step takes less time alone.
        parts.append((OperationSequence.of(sequence) if len(sequence) > 1 else None, len(found)))
    return tuple(parts)


def _sequence_step(numbered: tuple[int, Step]) -> SequenceStep | None:
    """Return a step for a sequence; ``None`` if it must run alone."""
    place, step = numbered
    if step.plan is not None:
        return operation_step(place, step.plan, step.start) if can_contain(step.plan) else None
    return drop_step(place, step.start, step.stop) if step.make is None else None
