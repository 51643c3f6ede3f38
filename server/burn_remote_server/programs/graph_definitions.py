"""Definitions of graphs: their checks, their registers, and the memory that they take.

Pure functions of a ``DefineGraph`` and the plans of its steps. ``GraphPlan`` compiles the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, overload

from burn_remote_protocol.errors import ProtocolViolation, shown
from burn_remote_protocol.messages import DefineGraph
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.programs.plans import Plan
from burn_remote_server.tensors.allocations import memory_bytes

__all__ = [
    "FREED_BYTES",
    "Step",
    "Steps",
    "allocate_registers",
    "definition_bytes",
    "expected_inputs",
    "number_variants",
    "peak_bytes",
    "plan_of_step",
    "slot_specs",
]

# Memory of one step of a graph, of one input of a step, and of one number of a step with its value
# in the last call (measured).
GRAPH_STEP_BYTES: Final = 600
GRAPH_INPUT_BYTES: Final = 16
GRAPH_NUMBER_BYTES: Final = 256

# Additional memory of a step whose numbers change, because it keeps a separate plan (measured).
NUMBERED_STEP_BYTES: Final = 2_500

# Additional memory of a fused step: operations and instructions of its block (measured: 920).
FUSED_STEP_BYTES: Final = 1_000

# Dead values of at least this size are freed at once; smaller ones when their register is used
# again.
FREED_BYTES: Final = 64 * 1024


class Step(NamedTuple):
    """One operation of a graph, with registers in place of tensors."""

    plan: Plan
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    released: tuple[int, ...]  # inputs that no later step uses; outputs may take their registers
    unused: tuple[int, ...]  # outputs that neither a later step nor the graph's outputs use
    kept: int  # how many of the outputs are outputs of the graph
    numbers: tuple[tuple[int, int], ...]  # (argument of the signature, place in the call)


class Steps(Sequence[Step]):
    """The steps of a graph, stored in columns; a ``Step`` object is made for each use.

    Python's garbage collector stops tracking tuples of integers when it first examines them. Named
    tuples stay tracked, so they would make each collection slower.
    """

    __slots__ = ("_columns",)

    def __init__(self, steps: Iterable[Step]) -> None:
        self._columns = tuple(zip(*steps, strict=True)) or ((),) * len(Step._fields)

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[Step]:
        return map(Step._make, zip(*self._columns, strict=True))

    @overload
    def __getitem__(self, place: int) -> Step: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Step, ...]: ...
    def __getitem__(self, place: int | slice) -> Step | tuple[Step, ...]:
        found = [column[place] for column in self._columns]
        if isinstance(place, slice):
            return tuple(map(Step._make, zip(*found, strict=True)))
        return Step._make(found)


def plan_of_step(step: tuple[int, ...], numbered: Mapping[int, Any]) -> Plan:
    """Return the plan of a step's signature. Raises ``ProtocolViolation`` for an invalid step."""
    plan = numbered.get(step[0]) if step else None
    if not isinstance(plan, Plan):
        raise ProtocolViolation(f"a step of a graph begins with a signature, not {shown(step)}")
    if len(step) != 1 + plan.input_count:
        raise ProtocolViolation(
            f"a step of a graph gives {len(step) - 1} inputs to {plan.signature.row}; expected "
            f"{plan.input_count}"
        )
    if plan.last_uses:
        raise ProtocolViolation("a step of a graph must not drop its inputs")
    return plan


def slot_specs(task: DefineGraph, plans: Sequence[Plan]) -> list[TensorSpec]:
    """Return the spec of each slot. Raises ``ProtocolViolation`` if steps disagree about one."""
    specs: list[TensorSpec | None] = [None] * task.input_count
    for step, plan in zip(task.steps, plans, strict=True):
        for slot, use in zip(step[1:], plan.signature.input_uses, strict=True):
            if slot >= len(specs):
                raise ProtocolViolation(f"slot {slot} of a graph is used before it is filled")
            if specs[slot] is None:
                specs[slot] = use.spec
            elif specs[slot] != use.spec:
                raise ProtocolViolation(
                    f"slot {slot} of a graph holds {specs[slot]}, but {plan.signature.row} "
                    f"declares {use.spec}"
                )
        specs.extend(plan.signature.outputs)
    known = [spec for spec in specs if spec is not None]
    if len(known) != len(specs):
        raise ProtocolViolation("a graph has an input that no step uses")
    outputs = task.outputs
    if len(set(outputs)) != len(outputs) or any(
        not task.input_count <= slot < len(known) for slot in outputs
    ):
        raise ProtocolViolation(
            f"a graph's outputs must be results of its steps, not {shown(outputs)}"
        )
    return known


def expected_inputs(task: DefineGraph, plans: Sequence[Plan]) -> tuple[tuple[Any, Any], ...]:
    """Return the shape and array dtype of each input of a graph."""
    expected: dict[int, tuple[Any, Any]] = {}
    for step, plan in zip(task.steps, plans, strict=True):
        for slot, found in zip(step[1:], plan.expected, strict=False):
            expected.setdefault(slot, found)
    return tuple(expected[slot] for slot in range(task.input_count) if slot in expected)


def number_variants(task: DefineGraph, plans: Sequence[Plan]) -> tuple[str, ...]:
    """Return the scalar variant of each number of a call."""
    variants: dict[int, str] = {}
    for step, field, position in task.numbers:
        arguments = plans[step].signature.arguments if step < len(plans) else ()
        scalar = arguments[field] if field < len(arguments) else None
        if type(scalar) is not Scalar:
            raise ProtocolViolation(f"argument {field} of step {step} of a graph is not a scalar")
        if variants.setdefault(position, scalar.variant) != scalar.variant:
            raise ProtocolViolation(f"number {position} of a graph has two types")
    if [*range(len(variants))] != sorted(variants):
        raise ProtocolViolation(f"the numbers of a graph are not consecutive: {sorted(variants)}")
    return tuple(variants[position] for position in range(len(variants)))


def allocate_registers(
    task: DefineGraph, plans: Sequence[Plan], slot_count: int
) -> tuple[list[Step], tuple[int, ...], list[Any]]:
    """Assign registers to slots.

    Returns the steps, the registers of the graph's outputs, and the initial (empty) values of the
    registers after those of the inputs.
    """
    last_use = [-1] * slot_count
    for place, step in enumerate(task.steps):
        for slot in step[1:]:
            last_use[slot] = place
    kept = {*task.outputs}
    register = {slot: slot for slot in range(task.input_count)}
    free: list[int] = []
    top = next_slot = task.input_count
    numbers: dict[int, list[tuple[int, int]]] = {}
    for place, field, position in task.numbers:
        numbers.setdefault(place, []).append((field, position))
    steps: list[Step] = []
    for place, (step, plan) in enumerate(zip(task.steps, plans, strict=True)):
        inputs = tuple(register[slot] for slot in step[1:])
        dying = [slot for slot in dict.fromkeys(step[1:]) if last_use[slot] == place]
        released = [register[slot] for slot in dying if slot not in kept]
        free += released
        made = range(next_slot, next_slot + plan.output_count)
        next_slot += plan.output_count
        for slot in made:
            if free:
                register[slot] = free.pop()
            else:
                register[slot] = top
                top += 1
        unused = [register[slot] for slot in made if last_use[slot] < 0 and slot not in kept]
        free += unused
        outputs = tuple(register[slot] for slot in made)
        steps.append(
            Step(
                plan,
                inputs,
                outputs,
                tuple(released),
                tuple(unused),
                len(kept.intersection(made)),
                tuple(numbers.get(place, ())),
            )
        )
    return (
        steps,
        tuple(register[slot] for slot in task.outputs),
        [None] * (top - task.input_count),
    )


def definition_bytes(task: DefineGraph, fused_count: int) -> int:
    """Return the memory of a graph without its tensors; ``fused_count`` of its steps are fused."""
    numbered = {step for step, _, _ in task.numbers}
    return (
        GRAPH_STEP_BYTES * len(task.steps)
        + GRAPH_INPUT_BYTES * sum(map(len, task.steps))
        + GRAPH_NUMBER_BYTES * len(task.numbers)
        + NUMBERED_STEP_BYTES * len(numbered)
        + FUSED_STEP_BYTES * fused_count
    )


def peak_bytes(steps: Sequence[Step]) -> int:
    """Return the most bytes that the registers hold, except those of the inputs.

    A small dead value counts until its register is used again, because the program frees it only
    then.
    """
    held: dict[int, int] = {}
    total = peak = 0
    for step in steps:
        total += step.plan.output_bytes
        peak = max(peak, total)
        dead = {*step.released, *step.unused}
        for register in dead.difference(step.outputs):
            if held.get(register, 0) >= FREED_BYTES:
                total -= held.pop(register)
        specs = step.plan.signature.outputs
        for register, size in zip(step.outputs, map(memory_bytes, specs), strict=True):
            total -= held.pop(register, 0)
            held[register] = size
        for register in step.unused:
            if held[register] >= FREED_BYTES:
                total -= held.pop(register)
    return peak
