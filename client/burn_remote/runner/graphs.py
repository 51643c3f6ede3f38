"""Graphs: sequences of operations that a session issues as one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.tensors import TensorSpec

if TYPE_CHECKING:
    from burn_remote.runner.interface import RunnerClient, TensorHandle

__all__ = ["CodePosition", "Graph", "GraphStep", "recording"]


class _Recording(threading.local):
    """The runner that records what this thread does, if any."""

    runner: RunnerClient | None = None


recording: Final = _Recording()

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
    """Operations from ``input_count`` input tensors to output tensors, and the changing numbers.

    ``output_slots`` are the slots of the outputs, all results of steps; ``outputs`` their specs.
    """

    __slots__ = ("__weakref__", "input_count", "nbytes", "output_slots", "outputs", "steps")

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

    def issue_each(
        self, runner: RunnerClient, inputs: Sequence[TensorHandle], numbers: Sequence[Any]
    ) -> tuple[TensorHandle, ...]:
        """Issue the operations one by one, by a runner that does not take graphs."""
        handles: list[TensorHandle | None] = [*inputs]
        last_use = {slot: place for place, step in enumerate(self.steps) for slot in step.inputs}
        kept = {*self.output_slots}
        for place, step in enumerate(self.steps):
            chosen = [handles[slot] for slot in step.inputs]
            made = runner.register_op(_with_numbers(step, numbers), chosen)  # type: ignore[arg-type]
            chosen.clear()
            handles += made
            del made
            for slot in step.inputs:
                if last_use[slot] == place and slot not in kept:
                    handles[slot] = None  # drops the tensor
        return tuple([handles[slot] for slot in self.output_slots])  # type: ignore[misc]


def _with_numbers(step: GraphStep, numbers: Sequence[Any]) -> Signature:
    """Return the signature of a step with the numbers of a call."""
    signature = step.signature
    if not step.numbers:
        return signature
    arguments = [*signature.arguments]
    for field, place in step.numbers:
        arguments[field] = Scalar(arguments[field].variant, numbers[place])
    return Signature(signature.kind, signature.row, signature.dtype, tuple(arguments))
