"""Instructions of a graph's program, their failures, and the segments of a program.

An instruction is a tuple ``(form, k, i, j, target)`` of integers and tuples of integers. ``k`` is
the place of its kernel (for ``NUMBERED``, the place of its step). ``i``, ``j`` and ``target`` are
registers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from burn_remote_protocol.errors import OperationFailed

__all__ = [
    "CHECK",
    "CHECKED_FIRST",
    "CHECKED_MANY",
    "CHECKED_SECOND",
    "FAILED",
    "FREE",
    "FUSED",
    "INTO_FIRST",
    "INTO_ONLY",
    "INTO_SECOND",
    "MANY_INPUTS",
    "MANY_OUTPUTS",
    "MAY_REUSE",
    "NO_INPUT",
    "NUMBERED",
    "ONE_INPUT",
    "REUSING",
    "TWO_INPUTS",
    "UNPACKED",
    "Instruction",
    "Segment",
    "StepFailed",
    "reads",
    "segments_of",
    "writes",
]

Instruction = tuple[Any, ...]

# How the loop runs an instruction. The ``INTO_`` forms write the result into an operand; the
# ``CHECKED_`` forms do so only if this operand is in C order. ``CHECKED_MANY`` is ``MANY_INPUTS``,
# but if a register in ``j[0]`` is in another order, the kernel after ``k`` is called with the first
# ``j[1]`` operands. ``UNPACKED`` has several results, all of which are used.
(
    NO_INPUT, ONE_INPUT, TWO_INPUTS, INTO_ONLY, INTO_FIRST, INTO_SECOND, MANY_INPUTS,
    MANY_OUTPUTS, REUSING, FUSED, NUMBERED, FREE, CHECK, FAILED, CHECKED_FIRST, CHECKED_SECOND,
    CHECKED_MANY, UNPACKED,
) = range(18)  # fmt: skip

# The forms in which ``j`` has the registers whose memory the results may take.
MAY_REUSE: Final = frozenset({REUSING, FUSED, NUMBERED})

_NO_OPERANDS: Final = frozenset({NO_INPUT, FREE, CHECK, FAILED})
_ONE_OPERAND: Final = frozenset({ONE_INPUT, INTO_ONLY})
_TWO_OPERANDS: Final = frozenset(
    {TWO_INPUTS, INTO_FIRST, INTO_SECOND, CHECKED_FIRST, CHECKED_SECOND}
)
_NO_RESULT: Final = frozenset({FREE, CHECK, FAILED})


def reads(instruction: Instruction) -> tuple[int, ...]:
    """Return the registers that an instruction reads."""
    form, _, i, j, _ = instruction
    if form in _NO_OPERANDS:
        return ()
    if form in _ONE_OPERAND:
        return (i,)
    return (i, j) if form in _TWO_OPERANDS else tuple(i)


def writes(instruction: Instruction) -> tuple[int, ...]:
    """Return the registers that get the results of an instruction."""
    form, *_, target = instruction
    if form in _NO_RESULT:
        return ()
    return (target,) if type(target) is int else tuple(target)


class StepFailed(Exception):
    """The step at ``place`` raised ``cause``; ``registers`` has the values before this step.

    If ``cause`` is ``None``, ``place`` is the first of several steps that ran as one. None of them
    has a result yet, and any of them may fail when it runs alone. ``index`` is the place of the
    instruction. ``lost`` has the registers whose values were overwritten before these steps failed,
    and the failure of each.
    """

    def __init__(
        self, place: int, index: int, registers: list[Any], cause: Exception | None
    ) -> None:
        super().__init__(place)
        self.place = place
        self.index = index
        self.registers = registers
        self.cause = cause
        self.lost: dict[int, OperationFailed] = {}


class Segment(NamedTuple):
    """Consecutive instructions of a program, from the place ``start`` on.

    ``inputs`` are the registers whose values it reads, ``outputs`` are those whose new values are
    used after it, and ``cleared`` are all other registers that it changes. ``is_capturable``: a
    device may capture it.
    """

    start: int
    program: tuple[Instruction, ...]
    is_capturable: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    cleared: tuple[int, ...]


def segments_of(
    program: Sequence[Instruction], capturable: Collection[int], kept: Collection[int]
) -> list[Segment]:
    """Divide a program into segments that can be captured and segments that cannot.

    ``capturable`` has the places of the instructions that can be captured, and ``kept`` the
    registers that are used after the program. A segment that launches a single kernel is not
    capturable, because it would gain nothing.
    """
    places: list[tuple[list[int], bool]] = []
    for is_capturable, group in groupby(range(len(program)), capturable.__contains__):
        found = [*group]
        launches = sum(program[place][0] not in _NO_OPERANDS for place in found)
        if is_capturable and launches > 1:
            places.append((found, True))
        elif places and not places[-1][1]:
            places[-1][0].extend(found)
        else:
            places.append((found, False))
    segments: list[Segment] = []
    used = {*kept}
    for found, is_capturable in reversed(places):
        part = tuple(program[place] for place in found)
        used_after = frozenset(used)
        taken: set[int] = set()
        changed: set[int] = set()
        for each in part:
            taken.update(set(reads(each)) - changed)
            changed.update(each[4] if each[0] == FREE else writes(each))
        outputs = changed & used_after
        segments.append(
            Segment(
                found[0],
                part,
                is_capturable,
                tuple(sorted(taken)),
                tuple(sorted(outputs)),
                tuple(sorted((changed | taken) - used_after)),
            )
        )
        used = (used - changed) | taken
    return segments[::-1]
