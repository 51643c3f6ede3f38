"""A read of a graph's output is answered before the rest of the graph runs, with the same reply."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from burn_remote_protocol.dialects.burn_0_22 import Bindings, RunGraph
from burn_remote_protocol.dtypes import F32, I32
from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.messages import Drop, Read, Sync, Upload
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends import open_backends
from burn_remote_server.dialects.burn_0_22.task_runner import MAX_EARLY_BYTES
from burn_remote_server.execution.registered_graphs import CALLS_ONE_BY_ONE
from burn_remote_server.fusion.runtime_selection import with_fusion
from burn_remote_server.programs.graph_runner import GraphRunner
from support.frame_runners import FrameRunner
from support.recorded import recordings_0_22, sessions

GRAPH = 3
INPUT, INDICES = 1, 2
LOSS, WEIGHTS = 101, 102
# The inputs and the results that a call binds to tensors of the session.
BOUND = ((0, INPUT), (9, INDICES), (1, LOSS), (4, WEIGHTS))
SPEC = TensorSpec((2,), F32)


def tensor(number: int, status: str = "ReadOnly") -> Any:
    return [[number], [[0]], status, "F32"]


def operation(name: str, first: int, second: int, out: int) -> Any:
    uses = [tensor(first), tensor(second), tensor(out, "NotInit")]
    return {"NumericFloat": ["F32", {name: uses}]}


def selected(source: int, indices: int, out: int) -> Any:
    uses = [tensor(source), 0, [[indices], [[0]], "ReadOnly", "I32"], tensor(out, "NotInit")]
    return {"BaseFloat": {"Select": uses}}


# The loss is the result of the first step, and the third one fails if an index is too large.
STEPS: bytes = msgpack.packb(
    [
        operation("Add", 0, 0, 1),
        operation("Mul", 1, 0, 2),
        selected(2, 9, 3),
        operation("Sub", 3, 1, 4),
    ]
)


def call(size: int = 2) -> RunGraph:
    return RunGraph(GRAPH, STEPS, Bindings(BOUND, (size,), (), ()))


class Session:
    """A session whose replies are sent during its tasks, if it may do that."""

    def __init__(self, *values: float, is_early: bool = True) -> None:
        self.running = FrameRunner(with_fusion(open_backends("numpy", 1)[0]))
        self.running.upload(INPUT, *values)
        self.index(*range(len(values)))
        # For each early reply: the requests that were answered, and whether the graph had ended.
        self.sent: list[tuple[list[int], bool]] = []
        if is_early:
            self.running.runner.send_replies = self.send

    def send(self) -> None:
        answers, arrays = self.running.answers, self.running.interpreter.tensors.arrays
        self.sent.append(([*answers.values], WEIGHTS in arrays))

    def index(self, *values: int) -> None:
        data = np.asarray(values, np.int32).tobytes()
        self.running.runner.run([Upload(INDICES, TensorData(data, (len(values),), I32))])

    def run(self, *tasks: Any) -> None:
        self.running.runner.run(tasks)

    def warm_up(self, *tasks: Any) -> None:
        """Call the graph as often as it takes to compile it."""
        for _ in range(CALLS_ONE_BY_ONE):
            self.run(*tasks)
        assert self.sent == []


@pytest.fixture
def session() -> Session:
    made = Session(1, 2)
    made.warm_up(call(), Drop((LOSS, WEIGHTS)))
    return made


def test_the_reply_leaves_before_the_rest_of_the_graph_runs(session: Session) -> None:
    session.run(call(), Read(7, LOSS, SPEC), Drop((LOSS,)), Read(8, WEIGHTS, SPEC))
    assert session.sent == [([7], False)]
    assert session.running.answers.values == {7: [2, 4], 8: [0, 4]}


def test_a_graph_that_fails_later_gives_the_reply_and_the_failure(session: Session) -> None:
    session.index(0, 5)
    session.run(call(), Read(7, LOSS, SPEC), Read(8, WEIGHTS, SPEC), Read(9, LOSS, SPEC))
    assert session.sent == [([7], False)]
    values = session.running.answers.values
    assert values[7] == values[9] == [2, 4]
    assert "5" in values[8]


def test_a_result_that_no_instruction_makes_is_not_read_early() -> None:
    steps = msgpack.packb([operation("Add", 0, 9, 1)])  # of a float and an integer
    task = RunGraph(GRAPH, steps, Bindings(BOUND[:3], (2,), (), ()))
    both = early, in_turn = [Session(1, 2), Session(1, 2, is_early=False)]
    for each in both:
        for request in range(CALLS_ONE_BY_ONE + 2):
            each.run(task, Read(request, LOSS, SPEC))
    assert early.sent == []
    assert early.running.state == in_turn.running.state


def test_a_session_that_fails_within_the_graph_replies_once(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise OperationFailed("the results were not stored")

    replies: list[int] = []
    monkeypatch.setattr(GraphRunner, "_store", fail)
    monkeypatch.setattr(
        session.running.answers, "reply", lambda request, _: replies.append(request)
    )
    session.run(call(), Read(7, LOSS, SPEC), Read(8, WEIGHTS, SPEC))
    assert session.running.runner.failure is not None
    assert replies == [7, 8]


def test_a_read_without_memory_for_its_reply_is_answered_in_its_turn(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(session.running.engine, "answer_read", fail)
    session.run(call(), Read(7, LOSS, SPEC))
    assert session.sent == []
    assert session.running.answers.values == {7: [2, 4]}


@pytest.mark.parametrize(
    "tasks",
    [
        (Read(7, INPUT, SPEC),),  # no result of the graph
        (Read(7, LOSS, TensorSpec((1, 2), F32)),),
        (Read(7, LOSS, TensorSpec((2,), I32)),),
        (Sync(6), Read(7, LOSS, SPEC)),
        (Drop((LOSS,)), Read(7, LOSS, SPEC)),
    ],
)
def test_other_reads_are_answered_in_their_turn(tasks: tuple[Any, ...]) -> None:
    both = early, in_turn = [Session(1, 2), Session(1, 2, is_early=False)]
    for each in both:
        each.warm_up(call(), Drop((LOSS, WEIGHTS)))
        each.run(call(), *tasks)
    assert early.sent == []
    assert early.running.state == in_turn.running.state


@pytest.mark.parametrize("more", [0, 1])
def test_only_short_replies_leave_early(more: int) -> None:
    size = MAX_EARLY_BYTES // 4 + more
    session = Session(*range(size))
    session.warm_up(call(size), Drop((LOSS, WEIGHTS)))
    session.run(call(size), Read(7, LOSS, TensorSpec((size,), F32)))
    assert len(session.sent) == 1 - more
    assert session.running.answers.values[7][-1] == 2 * (size - 1)


@pytest.mark.parametrize("name", ["train+fusion", "train-20+fusion", "many+fusion"])
def test_recorded_sessions_get_the_same_replies_as_in_turn(name: str) -> None:
    found = [each for file in recordings_0_22() for each in sessions(file)]
    (recorded,) = [each for each in found if each["name"] == name]
    frames = [each["payload"] for each in recorded["frames"] if each["dir"] == "c2s"]
    both = early, in_turn = [Session(1, 2), Session(1, 2, is_early=False)]
    for frame in frames[1:-1]:  # without the opening and the end of the session
        for each in both:
            each.run(*each.running.recognizer.decode(frame))
        assert early.running.state == in_turn.running.state
    assert bool(early.sent) == (name == "train-20+fusion")
