"""Recorded sessions give the same bits if each run of operations is one graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dialects.native import MAX_GRAPH_STEPS
from burn_remote_protocol.messages import DefineGraph
from burn_remote_protocol.operations.encoding import decode_operation
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorData, TensorStatus
from burn_remote_server.backends import Backend, open_backends
from burn_remote_server.fusion.runtime_selection import with_fusion
from support.recorded import recordings, sessions
from support.replay import Replay, in_context

GRAPH = 4096


class GraphReplay(Replay):
    """A replay in which each maximal run of operations is defined and run as one graph."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.graphs = self.steps = 0
        self._waiting: list[Operation] = []
        self._server = 0

    def _execute(self, number: int, task: Any, identity: Any) -> None:
        name, body = (task, None) if type(task) is str else task[0]
        if name != "RegisterOperation" or number != self._server:
            self._run_waiting()
        self._server = number
        if name != "RegisterOperation":
            super()._execute(number, task, identity)
            return
        operation = decode_operation(body)
        self._mark_random(number, operation)
        made = {one for waiting in self._waiting for one in outputs_of(waiting)}
        if made.intersection(outputs_of(operation)) or len(self._waiting) == MAX_GRAPH_STEPS:
            self._run_waiting()
        self._waiting.append(operation)

    def _run_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        interpreter = self.servers[self._server].interpreter
        interpreter.session.activate()
        steps: list[tuple[Signature, tuple[int, ...], tuple[int, ...]]] = []
        dropped: list[int] = []
        for operation in waiting:
            signature, tensors = operation
            if signature.row.family == "Drop":
                dropped += tensors
            elif signature.row.family != "Init":
                uses = signature.input_uses
                lasting = zip(tensors, uses, strict=False)
                dropped += [one for one, use in lasting if use.status is TensorStatus.READ_WRITE]
                steps.append((read_only(signature), tensors[: len(uses)], outputs_of(operation)))
        if steps:
            self._run_graph(interpreter, steps, {*dropped})
        interpreter.tensors.drop(dropped)

    def _run_graph(self, interpreter: Any, steps: Any, dropped: set[int]) -> None:
        made = {one for _, _, outputs in steps for one in outputs}
        inputs = [*dict.fromkeys(one for _, used, _ in steps for one in used if one not in made)]
        slots = {tensor: slot for slot, tensor in enumerate(inputs)}
        wire = []
        for place, (signature, used, outputs) in enumerate(steps):
            interpreter.plans.define(place, signature)
            wire.append((place, *[slots[one] for one in used]))
            slots |= {one: len(slots) + more for more, one in enumerate(outputs)}
        kept = [one for _, _, outputs in steps for one in outputs if one not in dropped]
        places = tuple(slots[one] for one in kept)
        interpreter.plans.define_graph(DefineGraph(GRAPH, len(inputs), tuple(wire), places))
        interpreter.invoke_graph(interpreter.numbered[GRAPH], (*inputs, *kept))
        self.graphs += 1
        self.steps += len(steps)


def outputs_of(operation: Operation) -> tuple[int, ...]:
    signature, tensors = operation
    return tuple(tensors[len(signature.input_uses) :])


def read_only(signature: Signature) -> Signature:
    """Return a signature that drops none of its inputs."""

    def changed(argument: Any) -> Any:
        if type(argument) is TensorUse and argument.status is TensorStatus.READ_WRITE:
            return argument._replace(status=TensorStatus.READ_ONLY)
        return tuple(map(changed, argument)) if type(argument) is tuple else argument

    arguments = tuple(map(changed, signature.arguments))
    return Signature(signature.kind, signature.row, signature.dtype, arguments)


def elements(data: TensorData | str) -> Any:
    """Return the bytes of a response, with equal bytes for every NaN."""
    if isinstance(data, str) or data.dtype.name not in ("F32", "F64", "F16"):
        return data if isinstance(data, str) else bytes(data.bytes)
    array = np.frombuffer(data.bytes, f"f{data.dtype.itemsize}").copy()
    array[np.isnan(array)] = np.nan
    return array.tobytes()


@pytest.fixture(scope="module", params=["numpy", "fusion<numpy>"])
def backend(request: pytest.FixtureRequest) -> Backend:
    (opened,) = open_backends("numpy", 1)
    return opened if request.param == "numpy" else with_fusion(opened)


@pytest.mark.parametrize("recording", recordings())
def test_recorded_sessions_as_graphs_give_the_bits_of_their_operations(
    recording: str, backend: Backend
) -> None:
    compared = graphs = steps = 0
    different = []
    for session in sessions(recording):
        eager, whole = Replay(session, backend, False), GraphReplay(session, backend, False)
        in_context(eager, backend)
        outcome = in_context(whole, backend)
        compared += len(eager.kept)
        graphs, steps = graphs + whole.graphs, steps + whole.steps
        if outcome.problems or [*map(elements, whole.kept)] != [*map(elements, eager.kept)]:
            different.append((session["name"], outcome.problems))
    print(f"{recording}: {compared:,} responses, {graphs:,} graphs of {steps:,} steps")  # noqa: T201
    assert not different
    assert steps >= graphs > 0
