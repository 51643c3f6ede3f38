"""The steps of a block program, and the registers that they use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from burn_remote_server.backends.interface import Run
from burn_remote_server.fusion.cpu.exact_operations import ExactStep

__all__ = [
    "Instruction",
    "KernelCall",
    "Schedule",
    "Step",
    "Width",
    "inputs_taken",
    "most_held",
    "scheduled",
]


class Width(NamedTuple):
    """The dtype of an array of a program, and whether it has one element for each row.

    Without ``is_row``, the array has the program's whole shape.
    """

    dtype: np.dtype[Any]
    is_row: bool = False


class Instruction(NamedTuple):
    """A call of ``function(*operands)``, or of ``into(*operands, out=…)``, on one block.

    Operands and results are values, which have numbers: first the inputs of the program, then the
    constants, then the results of the instructions. ``width`` is the result's. ``exact`` has the
    exact functions with the same result, or is ``None``.
    """

    function: Run
    into: Run | None
    operands: tuple[int, ...]
    width: Width
    is_reduction: bool = False
    exact: tuple[ExactStep, ...] | None = None


class KernelCall(NamedTuple):
    """A kernel that replaces the instructions from ``start`` to ``end``.

    ``operands`` and ``results`` are values; the results are those that are used later.
    """

    start: int
    end: int
    operands: tuple[int, ...]
    results: tuple[int, ...]


class Step(NamedTuple):
    """An instruction on registers, or a kernel: ``kernel`` is its place, -1 for an instruction.

    ``registers`` are a kernel's operands, then its results.
    """

    function: Run | None
    takes_out: bool
    sources: tuple[int, ...]
    target: int
    kernel: int = -1
    registers: tuple[int, ...] = ()


class Schedule(NamedTuple):
    """Steps, and scratch arrays, whose registers follow those of inputs, constants and outputs."""

    steps: tuple[Step, ...]
    scratch: tuple[Width, ...]


def scheduled(
    first: int,
    instructions: Sequence[Instruction],
    outputs: Sequence[int],
    kernels: Sequence[KernelCall] = (),
    taken: Mapping[int, int] | None = None,
) -> Schedule:
    """Assign registers to inputs and constants, then to outputs, then to reusable scratch arrays.

    ``first`` is the number of inputs and constants, and ``taken`` is the result of
    ``inputs_taken``. An instruction may overwrite an operand that is not used afterwards; a kernel
    may not.
    """
    calls = {call.start: (number, call) for number, call in enumerate(kernels)}
    replaced = {place for call in kernels for place in range(call.start, call.end)}
    last_use = _last_uses(instructions, kernels)
    registers = _Registers(first, instructions, outputs)
    for value in outputs:
        if taken and value in taken:
            continue  # the input may still be read before the output itself is written
        # An operand that dies here gets the output's register, and is overwritten by the output. So
        # does an operand that dies where that one is made, and so on.
        joined: int | None = value
        while joined is not None:
            place = joined - first
            each = instructions[place]
            dying = [operand for operand in each.operands if last_use.get(operand) == place]
            joined = None
            if place not in replaced and each.into is not None:
                joined = registers.join(first + place, dying)
    steps: list[Step] = []
    for place, each in enumerate(instructions):
        if place in calls:
            number, call = calls[place]
            sources = registers.of(call.operands)
            targets = tuple([registers.assigned(value) for value in call.results])
            steps.append(Step(None, True, (), 0, number, (*sources, *targets)))
            registers.free(value for value in {*call.operands} if last_use[value] == place)
        elif place not in replaced:
            sources = registers.of(each.operands)
            registers.free(value for value in {*each.operands} if last_use[value] == place)
            target = registers.assigned(first + place)
            if first + place not in last_use:  # a result that nothing uses
                registers.free([first + place])
            function = each.into or each.function
            steps.append(Step(function, each.into is not None, sources, target))
    return Schedule(tuple(steps), tuple(registers.scratch))


def inputs_taken(
    first: int,
    instructions: Sequence[Instruction],
    outputs: Sequence[int],
    candidates: Mapping[int, Width],
    kernels: Sequence[KernelCall] = (),
) -> dict[int, int]:
    """Return the outputs that can be written into an input, each with that input.

    ``candidates`` are the inputs that may be overwritten. The last step that reads such an input
    comes before the step that writes the output, or is that step.
    """
    last_use = _last_uses(instructions, kernels)
    made = {value: value - first for value in outputs}
    for call in kernels:
        made |= {value: call.start for value in call.results if value in made}
    # Assigning inputs to outputs in the order in which the outputs are made finds the most pairs,
    # because a later output can take any input that an earlier one can take.
    taken: dict[int, int] = {}
    for value in sorted(outputs, key=made.__getitem__):
        width = instructions[value - first].width
        for candidate, its_width in candidates.items():
            is_read = last_use[candidate] > made[value]
            if its_width == width and not is_read and candidate not in taken.values():
                taken[value] = candidate
                break
    return taken


def most_held(first: int, instructions: Sequence[Instruction], outputs: Sequence[int]) -> int:
    """Return the most bytes for each element that single operations hold in results at once.

    This counts results as wide as the program's shape only.
    """
    last_use = _last_uses(instructions, ())
    held = most = 0
    for place, each in enumerate(instructions):
        held += _width_bytes(each)
        most = max(most, held)
        for value in {*each.operands, first + place}:
            is_last = last_use.get(value, place) == place and value not in outputs
            if value >= first and is_last:
                held -= _width_bytes(instructions[value - first])
    return most


def _width_bytes(instruction: Instruction) -> int:
    return 0 if instruction.width.is_row else instruction.width.dtype.itemsize


def _last_uses(
    instructions: Sequence[Instruction], kernels: Sequence[KernelCall]
) -> dict[int, int]:
    """Return the place where each value is used last."""
    calls = {call.start: call for call in kernels}
    replaced = {place for call in kernels for place in range(call.start, call.end)}
    last_use: dict[int, int] = {}
    for place, each in enumerate(instructions):
        if place in calls:  # all operands are used at the kernel's start
            last_use |= dict.fromkeys(calls[place].operands, place)
        elif place not in replaced:
            last_use |= dict.fromkeys(each.operands, place)
    return last_use


class _Registers:
    """The registers of values; ``scratch`` has those beyond the fixed ones."""

    def __init__(
        self, first: int, instructions: Sequence[Instruction], outputs: Sequence[int]
    ) -> None:
        self._first = first
        self._fixed = first + len(outputs)
        self._instructions = instructions
        self._register = {value: value for value in range(first)}
        self._register |= {value: first + place for place, value in enumerate(outputs)}
        self._free: dict[Width, list[int]] = {}
        self.scratch: list[Width] = []

    def join(self, value: int, operands: Iterable[int]) -> int | None:
        """Assign the register of a value to an operand with the same width; return the operand.

        Returns ``None`` if there is no such operand without a register.
        """
        width = self._instructions[value - self._first].width
        for operand in operands:
            is_free = operand not in self._register
            if is_free and self._instructions[operand - self._first].width == width:
                self._register[operand] = self._register[value]
                return operand
        return None

    def of(self, values: Iterable[int]) -> tuple[int, ...]:
        return tuple([self._register[value] for value in values])

    def assigned(self, value: int) -> int:
        register = self._register.get(value)
        if register is None:
            width = self._instructions[value - self._first].width
            waiting = self._free.get(width)
            if waiting:
                register = waiting.pop()
            else:
                register = self._fixed + len(self.scratch)
                self.scratch.append(width)
            self._register[value] = register
        return register

    def free(self, values: Iterable[int]) -> None:
        for value in values:
            if self._register[value] >= self._fixed:
                width = self._instructions[value - self._first].width
                self._free.setdefault(width, []).append(self._register[value])
