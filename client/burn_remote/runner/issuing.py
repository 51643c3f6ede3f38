"""Ways to issue a graph in parts or as single operations; the recording runner of each thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from burn_remote.runner.interface import RunnerClient, TensorHandle
from burn_remote.runner.operation_graph import Graph, GraphStep
from burn_remote_protocol.operations.row import Signature

__all__ = ["issue_each", "issue_parts", "recording"]


class _Recording(threading.local):
    """The runner that records the operations of this thread, if any."""

    runner: RunnerClient | None = None


recording: Final = _Recording()


def issue_parts(
    graph: Graph,
    runner: RunnerClient,
    inputs: Sequence[TensorHandle],
    numbers: Sequence[Any],
    most_steps: int,
) -> tuple[TensorHandle, ...]:
    """Issue a graph in parts of at most ``most_steps`` steps, one after the other."""
    handles: dict[int, TensorHandle] = dict(enumerate(inputs))
    for part in graph.parts(most_steps):
        chosen = [handles[slot] for slot in part.inputs]
        values = [numbers[place] for place in part.numbers]
        made = runner.register_graph(part.graph, chosen, values)
        chosen.clear()
        handles.update(zip(part.outputs, made, strict=True))
        del made
        for slot in part.released:
            del handles[slot]  # drops the tensor
    return tuple([handles[slot] for slot in graph.output_slots])


def issue_each(
    graph: Graph,
    runner: RunnerClient,
    inputs: Sequence[TensorHandle],
    numbers: Sequence[Any],
    inner: RunnerClient | None = None,
) -> tuple[TensorHandle, ...]:
    """Issue the operations of a graph one by one, by a runner that does not take graphs.

    ``runner`` becomes the client of results that belong to ``inner``, the runner inside it. It has
    to see when they are dropped, because the program issued the graph, not ``runner``.
    """
    handles: dict[int, TensorHandle] = dict(enumerate(inputs))
    next_slot = graph.input_count
    last_use = {slot: place for place, step in enumerate(graph.steps) for slot in step.inputs}
    kept = {*graph.output_slots}
    for place, step in enumerate(graph.steps):
        chosen = [handles[slot] for slot in step.inputs]
        made = runner.register_op(_with_numbers(step, numbers), chosen)
        chosen.clear()
        if inner is not None:
            for handle in made:
                if handle.client is inner:
                    handle.client = runner
        slots = range(next_slot, next_slot + len(made))
        handles.update(zip(slots, made, strict=True))
        del made
        next_slot = slots.stop
        for slot in {*step.inputs, *slots}:
            if last_use.get(slot, place) == place and slot not in kept:
                del handles[slot]  # drops the tensor
    return tuple([handles[slot] for slot in graph.output_slots])


def _with_numbers(step: GraphStep, numbers: Sequence[Any]) -> Signature:
    """Return the signature of a step with the numbers of a call."""
    if not step.numbers:
        return step.signature
    return step.signature.with_scalars((field, numbers[place]) for field, place in step.numbers)
