"""The kernels that replace runs of exact instructions of a block program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from burn_remote_server.fusion.cpu.block_schedules import Instruction, KernelCall
from burn_remote_server.fusion.cpu.kernel_source import KernelArray, KernelStep, kernel_source

__all__ = ["grouped", "source_of"]


def grouped(
    first: int, instructions: Sequence[Instruction], outputs: Sequence[int]
) -> list[KernelCall]:
    """Return the kernels for all runs of exact instructions on whole blocks.

    ``first`` is the number of inputs and constants.
    """
    last_use = {value: place for place, each in enumerate(instructions) for value in each.operands}
    last_use |= dict.fromkeys(outputs, len(instructions))
    calls: list[KernelCall] = []
    start = 0
    for place in range(len(instructions) + 1):
        if place < len(instructions) and _is_exact(instructions[place]):
            continue
        if place > start:
            run = instructions[start:place]
            used = dict.fromkeys(value for each in run for value in each.operands)
            operands = tuple(value for value in used if value < first + start)
            made = range(first + start, first + place)
            results = tuple(value for value in made if last_use.get(value, -1) >= place)
            calls.append(KernelCall(start, place, operands, results))
        start = place + 1
    return calls


def _is_exact(instruction: Instruction) -> bool:
    return instruction.exact is not None and not instruction.width.is_row


def source_of(
    name: str,
    rank: int,
    call: KernelCall,
    first: int,
    instructions: Sequence[Instruction],
    operands: Sequence[KernelArray],
    taken: Mapping[int, int],
) -> str:
    """Return the assembly of a kernel on blocks with ``rank`` axes.

    ``taken`` has the outputs of the program that are written into inputs, and these inputs.
    """
    number = {value: place for place, value in enumerate(call.operands)}
    steps: list[KernelStep] = []
    for place in range(call.start, call.end):
        each = instructions[place]
        assert each.exact is not None
        values = [number[value] for value in each.operands]
        for step in each.exact:
            chosen = tuple(values[operand] for operand in step.operands)
            values.append(len(operands) + len(steps))
            steps.append(KernelStep(step.name, chosen, step.dtype))
        number[first + place] = values[-1]
    joined = {
        place: call.operands.index(taken[value])
        for place, value in enumerate(call.results)
        if taken.get(value) in call.operands
    }
    results = [number[value] for value in call.results]
    return kernel_source(name, rank, operands, steps, results, joined)
