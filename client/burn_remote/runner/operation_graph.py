"""Graphs: sequences of operations that a session issues as one."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType
from typing import Final, NamedTuple, final

from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["CodePosition", "Graph", "GraphPart", "GraphStep", "part_of"]

# The bound on a definition as the two numbers below estimate it. They count at least a third more
# than a step's bytes on the wire, so a definition takes about one batch (64 KiB) at most.
MAX_GRAPH_BYTES: Final = 96 * 1024
STEP_BYTES: Final = 6
SLOT_BYTES: Final = 4


# A code object and the offset of an instruction in it; the line is computed only on request.
CodePosition = tuple[CodeType, int]


class GraphStep(NamedTuple):
    """One operation of a graph.

    ``inputs`` are slots: the inputs of the graph have the first ones, and each output of a step
    fills the next. ``numbers`` lists the scalars that change from call to call: the position among
    the arguments of the signature, and the position among the numbers of a call. ``issued_at`` is
    the place in the program that issued the operation.
    """

    signature: Signature
    inputs: tuple[int, ...]
    numbers: tuple[tuple[int, int], ...] = ()
    issued_at: CodePosition | None = None


@final
class Graph:
    """Operations that compute output tensors from ``input_count`` inputs and changing numbers.

    ``output_slots`` are the slots of the outputs, all results of steps; ``outputs`` their specs.
    """

    __slots__ = (
        "__weakref__", "_parts", "fits_in", "input_count", "nbytes", "output_slots", "outputs",
        "steps",
    )  # fmt: skip

    def __init__(
        self, input_count: int, steps: Sequence[GraphStep], output_slots: Sequence[int]
    ) -> None:
        self.input_count: Final = input_count
        self.steps: Final = tuple(steps)
        self.output_slots: Final = tuple(output_slots)
        made = [spec for step in self.steps for spec in step.signature.outputs]
        self.outputs: Final[tuple[TensorSpec, ...]] = tuple(
            [made[slot - input_count] for slot in self.output_slots]
        )
        self.nbytes: Final = sum(spec.nbytes for spec in self.outputs)
        self._parts: tuple[int, tuple[GraphPart, ...]] = (0, ())  # with the number of steps allowed
        # The number of steps allowed for which ``fits`` last returned ``True``. Calls compare it
        # first, because calling ``fits`` takes a tenth of their time.
        self.fits_in = -1

    def fits(self, most_steps: int) -> bool:
        """Return whether a server that allows so many steps runs this graph as one task."""
        is_whole = len(self.parts(most_steps)) == 1
        if is_whole:
            self.fits_in = most_steps
        return is_whole

    def parts(self, most_steps: int) -> tuple[GraphPart, ...]:
        """Split the graph into consecutive parts, each short enough for a server.

        A graph that is short enough is the only part.
        """
        if self._parts[0] != most_steps:
            self._parts = (most_steps, _split(self, most_steps))
        return self._parts[1]


class GraphPart(NamedTuple):
    """A part of a graph, which is a graph itself.

    ``inputs`` and ``outputs`` are the slots of the whole graph that the part reads and fills, and
    ``numbers`` the positions of its numbers among those of a call. ``released`` are slots that no
    later part uses, and that are not outputs of the whole graph.
    """

    graph: Graph
    inputs: tuple[int, ...]
    numbers: tuple[int, ...]
    outputs: tuple[int, ...]
    released: tuple[int, ...]


def _split(graph: Graph, most_steps: int) -> tuple[GraphPart, ...]:
    runs: list[list[GraphStep]] = []
    size = 0
    for step in graph.steps:
        length = STEP_BYTES + SLOT_BYTES * (
            len(step.inputs) + len(step.signature.outputs) + 2 * len(step.numbers)
        )
        if not runs or len(runs[-1]) >= most_steps or size + length > MAX_GRAPH_BYTES:
            runs.append([])
            size = 0
        runs[-1].append(step)
        size += length
    if len(runs) == 1:
        return (GraphPart(graph, (), (), graph.output_slots, ()),)
    # The last run that uses each slot; outputs of the graph are used after the last one.
    last_use = {
        slot: number for number, run in enumerate(runs) for step in run for slot in step.inputs
    } | dict.fromkeys(graph.output_slots, len(runs))
    parts: list[GraphPart] = []
    first_made = graph.input_count
    for number, run in enumerate(runs):
        made = range(first_made, first_made + sum(len(step.signature.outputs) for step in run))
        part = part_of(run, made, [slot for slot in made if last_use.get(slot, -1) > number])
        released = tuple(
            [slot for slot in part.inputs if slot >= graph.input_count and last_use[slot] == number]
        )
        parts.append(part._replace(released=released))
        first_made = made.stop
    return tuple(parts)


def part_of(steps: Sequence[GraphStep], made: range, outputs: Sequence[int]) -> GraphPart:
    """Return consecutive steps as a graph of their own.

    ``made`` are the slots of their results, ``outputs`` those of them that the part returns. All
    other slots are its inputs, in ascending order.
    """
    used = {slot for step in steps for slot in step.inputs}
    inputs = tuple(sorted(used.difference(made)))
    slots = {slot: place for place, slot in enumerate([*inputs, *made])}
    numbers = tuple(sorted({place for step in steps for _, place in step.numbers}))
    places = {place: own for own, place in enumerate(numbers)}
    own = [
        step._replace(
            inputs=tuple([slots[slot] for slot in step.inputs]),
            numbers=tuple([(field, places[place]) for field, place in step.numbers]),
        )
        for step in steps
    ]
    graph = Graph(len(inputs), own, [slots[slot] for slot in outputs])
    return GraphPart(graph, inputs, numbers, tuple(outputs), ())
