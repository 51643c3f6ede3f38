"""A failed Burn session stays open and responds to every request with the reason."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

from burn_remote_protocol.dialects.burn_0_21 import decode_tasks, encode_tasks
from burn_remote_protocol.dtypes import BOOL, F32
from burn_remote_protocol.errors import OperationFailed, ProtocolViolation
from burn_remote_protocol.messages import Fetch, QueryDType, Read, ReplyValue, Sync, Task, Upload
from burn_remote_protocol.operations.families import numeric
from burn_remote_protocol.operations.families.session import DROP
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorData, TensorSpec, TensorStatus
from burn_remote_server.backends import open_backends
from burn_remote_server.dialects.burn_0_21.task_runner import (
    FREED_INLINE,
    BurnTask,
    TaskRunner,
    Unreadable,
)
from burn_remote_server.execution.costs import TASK_COST
from burn_remote_server.execution.engine import Engine
from burn_remote_server.hosting.host import new_interpreter
from burn_remote_server.programs.stream_fusion import MAX_WINDOW_TASKS
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.tensors.exposed_tensors import Transfers
from burn_remote_server.tensors.slots import InFlight
from support.engines import EngineSession
from support.fused_sessions import ADD, SIGNATURES, TWICE, VECTOR, fused_session
from support.kernels import signature

SPEC = TensorSpec((2,), F32)
DATA = TensorData(bytes(8), (2,), F32)
GARBAGE = Unreadable(ProtocolViolation("no task at all"))


class Answers:
    """An ``Outbox`` that records the engine's output."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.failures: Counter[str] = Counter()

    def reply(self, request: int, value: ReplyValue) -> None:
        self.values[request] = value

    def failed(self, tensors: tuple[int, ...], error: OperationFailed) -> None:
        self.failures[error.code] += 1

    def fetch(self, task: Fetch, slot: InFlight) -> None:
        raise AssertionError("nothing is fetched here")


class Running:
    """A runner over the NumPy backend."""

    def __init__(self) -> None:
        self.answers = Answers()
        settings = Settings()
        (backend,) = open_backends("numpy", 1)
        self.interpreter = new_interpreter(backend, settings, self.answers)
        self.engine = Engine(
            self.interpreter,
            Transfers(),
            self.answers,
            transfer_domain="burn-0.21",
        )
        self.runner = TaskRunner(self.engine, self.interpreter, self.answers)

    def run(self, *tasks: Any) -> dict[int, Any]:
        self.runner.run(tasks)
        return self.answers.values


@pytest.fixture
def running() -> Running:
    return Running()


def added(first: int, second: int, out: int) -> Operation:
    use = TensorUse(SPEC, TensorStatus.READ_ONLY)
    signature = sign(numeric.ADD, use, use, use._replace(status=TensorStatus.NOT_INIT))
    return Operation(signature, (first, second, out))


def test_tasks_run_in_order(running: Running) -> None:
    answers = running.run(Upload(1, DATA), added(1, 1, 2), Read(7, 2, SPEC), Sync(8))
    assert bytes(answers[7].bytes) == bytes(8)
    assert answers[8] is None
    assert running.runner.failure is None


def test_a_failed_operation_fails_its_read_and_the_session_continues(
    running: Running,
) -> None:
    answers = running.run(added(5, 6, 2), Read(1, 2, SPEC), Read(2, 2, SPEC), Upload(3, DATA))
    assert all(isinstance(answers[request], OperationFailed) for request in (1, 2))
    assert isinstance(running.run(Read(3, 3, SPEC))[3], TensorData)


def test_operations_with_drops_and_uploads_have_a_known_cost(running: Running) -> None:
    use = TensorUse(SPEC, TensorStatus.READ_WRITE)
    add, drop = added(1, 1, 2), Operation(sign(DROP, use), (2,))
    running.run(Upload(1, DATA), add)

    cost = running.runner.estimate([add, drop])

    assert cost is not None
    assert cost < 100 * TASK_COST


def test_inputs_that_an_operation_uses_for_the_last_time_are_freed(running: Running) -> None:
    last, kept = (
        TensorUse(SPEC, status) for status in (TensorStatus.READ_WRITE, TensorStatus.READ_ONLY)
    )
    signature = sign(numeric.ADD, last, kept, kept._replace(status=TensorStatus.NOT_INIT))
    running.run(Upload(1, DATA), Upload(2, DATA))

    for result in (3, 4):  # the second time, its plan is known
        running.run(Upload(1, DATA), Operation(signature, (1, 2, result)))

    assert {*running.interpreter.tensors.arrays} == {2, 3, 4}
    assert running.interpreter.quota.tensors == 3
    assert running.interpreter.quota.bytes == 3 * SPEC.nbytes


def test_a_last_read_frees_a_failed_tensor(running: Running) -> None:
    last: list[Task] = [*decode_tasks(encode_tasks([Read(0, 2, SPEC)], 1))]  # type: ignore[list-item]
    running.run(added(5, 6, 2), *last)
    assert len(running.interpreter.tensors) == 1
    running.run(added(5, 6, 2), *decode_tasks(LAST_READ))
    assert len(running.interpreter.tensors) == 0


LAST_READ = encode_tasks([Read(0, 2, SPEC)], 1).replace(b"\xa8ReadOnly", b"\xa9ReadWrite")


def test_after_garbage_every_request_gets_the_reason(running: Running) -> None:
    questions = [Read(1, 1, SPEC), QueryDType(2, F32), Sync(3)]
    answers = running.run(Upload(1, DATA), GARBAGE, *questions, Upload(4, DATA))
    assert "no task at all" in str(answers[1])
    assert "no task at all" in str(answers[2])
    assert answers[3] is None
    assert running.answers.failures == {"operation_failed": 1}
    assert running.interpreter.quota.bytes == 0


def test_the_first_error_is_the_reason_for_all_requests(running: Running) -> None:
    other = Unreadable(ProtocolViolation("another one"))
    answers = running.run(GARBAGE, Read(1, 1, SPEC), other, Read(2, 1, SPEC))
    assert str(answers[1]) == str(answers[2])
    assert "no task at all" in str(answers[2])


def test_a_request_that_itself_ends_the_session_gets_an_operation_failure(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(task: Task) -> None:
        raise ProtocolViolation("no such request")

    monkeypatch.setattr(running.engine, "handle", refuse)
    answers = running.run(Read(1, 1, SPEC))
    assert isinstance(answers[1], OperationFailed)
    assert "the session has failed: " in str(answers[1])


def test_the_reason_that_is_kept_refers_to_no_frames(running: Running) -> None:
    running.run(GARBAGE, Read(1, 1, SPEC), Read(2, 1, SPEC))
    assert running.runner.failure is not None
    assert running.runner.failure.__traceback__ is None
    assert GARBAGE.error.__traceback__ is None


def test_a_session_that_was_stopped_executes_nothing_more(running: Running) -> None:
    running.run(Upload(1, DATA))
    running.engine.stop()
    assert running.run(added(1, 1, 2), Read(1, 1, SPEC), Sync(2)) == {}
    assert len(running.interpreter.tensors) == 1


def test_a_bug_in_the_server_is_reported_and_logged(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)

    def broken(operation: Operation) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(running.interpreter, "execute", broken)
    answers = running.run(added(1, 1, 2), Read(1, 1, SPEC))
    assert "a mistake of ours" in str(answers[1])
    assert "session failed" in caplog.text


def test_operations_that_may_wait_or_are_new_have_no_estimate(running: Running) -> None:
    fetch = Fetch(1, "ws://a:1", 3, None)
    assert running.runner.estimate([Upload(1, DATA), Sync(1)]) is not None
    assert running.runner.estimate([fetch]) is None
    operation = added(1, 1, 2)
    assert running.runner.estimate([operation]) is None
    running.run(Upload(1, DATA), operation)
    assert running.runner.estimate([operation]) is not None
    running.run(added(8, 9, 3))
    assert running.runner.estimate([operation]) is None  # there is a failed tensor


def test_an_estimate_sums_the_costs_of_tasks_operations_and_uploads(running: Running) -> None:
    operation = added(1, 1, 2)
    running.run(Upload(1, DATA), operation)
    plan = running.interpreter.plans.known_plan(operation.signature)
    assert plan is not None
    seen = running.runner.estimate([Upload(1, DATA), operation, operation, Sync(1)])
    assert seen == 4 * TASK_COST + 2 * plan.cost + len(DATA.bytes)


def test_a_session_of_too_many_tensors_for_the_event_loop_has_no_estimate(
    running: Running,
) -> None:
    array = np.zeros(2, np.float32)
    for tensor in range(FREED_INLINE):
        running.interpreter.tensors.store(tensor, array)
    assert running.runner.estimate([Sync(1)]) is not None
    running.interpreter.tensors.store(FREED_INLINE, array)
    assert running.runner.estimate([Sync(1)]) is None
    assert FREED_INLINE <= 10_000  # freeing 5,000 tensors takes about 1 ms


RUNNING_SUM: Final = signature("Numeric.CumSum", VECTOR, axis=0)  # which no fuser takes


class Fusing:
    """A runner over a session with the tensors 1 (0 to 999) and 2 (ones), and fusion."""

    def __init__(self, session: EngineSession) -> None:
        self.session = session
        self.runner = TaskRunner(session.engine, session.interpreter, session.outbox)

    @property
    def fused(self) -> int:
        """Operations that were fused so far."""
        return self.session.interpreter.counts.operations_fused

    def run(self, *tasks: BurnTask) -> None:
        self.runner.run(tasks)

    def plan(self) -> None:
        """Run the pair of operations often enough that the next ones are fused."""
        for first in (910, 920, 930):
            self.run(*pair(first))
        assert self.fused == 2

    def assert_pair(self, first: int) -> None:
        """Check the result of the pair, and that its intermediate tensor is gone."""
        expected = [2 * (value + 1) for value in range(1000)]
        assert self.session.values(first + 1, size=1000) == expected
        assert first not in self.session.tensors.arrays


def pair(first: int) -> list[Operation]:
    """Return tasks that make tensor ``first + 1`` of 1 and 2, and drop ``first``."""
    return [
        Operation(SIGNATURES[ADD], (1, 2, first)),
        Operation(SIGNATURES[TWICE], (first, first + 1)),
        Operation(sign(DROP, TensorUse(VECTOR, TensorStatus.READ_WRITE)), (first,)),
    ]


@pytest.fixture
def fusing() -> Iterator[Fusing]:
    with fused_session() as session:
        yield Fusing(session)


def test_operations_that_arrive_together_are_fused_when_their_plans_are_known(
    fusing: Fusing,
) -> None:
    for first, expected in ((10, 0), (20, 0), (30, 2), (40, 4)):
        fusing.run(*pair(first))
        assert fusing.fused == expected
        fusing.assert_pair(first)


def test_tasks_around_a_fused_run_are_executed_once_and_in_order(fusing: Fusing) -> None:
    fusing.plan()
    executed = fusing.session.interpreter.executed
    fusing.run(Sync(1), *pair(10), Read(2, 11, VECTOR), *pair(20), Read(3, 21, VECTOR), Sync(4))
    assert fusing.fused == 6
    assert fusing.session.interpreter.executed == executed + 4
    assert [*fusing.session.outbox.replies] == [1, 2, 3, 4]
    assert not fusing.session.outbox.failures
    fusing.assert_pair(10)
    fusing.assert_pair(20)


def test_the_task_directly_after_a_fused_run_is_executed(fusing: Fusing) -> None:
    # The last use of the first result, as Burn's client marks it: no drop follows.
    dying = TensorUse(VECTOR, TensorStatus.READ_WRITE)
    twice = sign(SIGNATURES[TWICE].row, dying, *SIGNATURES[TWICE].arguments[1:])
    for first in (10, 20, 30):
        fusing.run(
            Operation(SIGNATURES[ADD], (1, 2, first)),
            Operation(twice, (first, first + 1)),
            Sync(first),
            Sync(first + 1),
        )
    assert fusing.fused == 2
    assert [*fusing.session.outbox.replies] == [10, 11, 20, 21, 30, 31]
    fusing.assert_pair(30)


def test_a_read_between_operations_sees_the_tensor_and_prevents_their_fusion(
    fusing: Fusing,
) -> None:
    fusing.plan()
    add, twice, drop = pair(10)
    for _ in range(3):
        fusing.run(add, Read(len(fusing.session.outbox.replies), 10, VECTOR), twice, drop)
    assert fusing.fused == 2
    assert all(isinstance(reply, TensorData) for reply in fusing.session.outbox.replies.values())
    fusing.assert_pair(10)


def test_only_operations_that_may_be_fused_are_offered_to_the_fusers(
    fusing: Fusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Operation(RUNNING_SUM, (1, 5))
    fusing.run(running)

    def refuse(*arguments: object) -> int:
        raise AssertionError("a running sum cannot be fused")

    monkeypatch.setattr(fusing.session.interpreter, "invoke_fused", refuse)
    fusing.run(running)
    assert fusing.runner.failure is None


def test_an_operation_that_no_fuser_takes_ends_the_window(fusing: Fusing) -> None:
    fusing.plan()
    running = Operation(RUNNING_SUM, (1, 5))
    add, twice, drop = pair(10)
    windows = fusing.session.interpreter.counts.windows
    for _ in range(3):
        fusing.run(running, add, running, twice, drop)
    assert fusing.fused == 2
    # Single operations on either side of the running sum are no windows.
    assert fusing.session.interpreter.counts.windows == windows
    fusing.assert_pair(10)


def test_a_window_has_a_bounded_number_of_tasks(fusing: Fusing) -> None:
    add = Operation(SIGNATURES[ADD], (1, 2, 10))
    fusing.run(add)
    windows = fusing.session.interpreter.counts.windows
    fusing.run(*[Operation(add.signature, (1, 2, 10 + n)) for n in range(MAX_WINDOW_TASKS + 2)])
    assert fusing.session.interpreter.counts.windows == windows + 2


def test_no_operation_runs_on_a_lost_device(fusing: Fusing) -> None:
    fusing.plan()
    fusing.session.interpreter.lose("the device is gone")
    fusing.run(*pair(10))
    assert fusing.fused == 2
    assert not {10, 11} & {*fusing.session.tensors.arrays}
    assert [error.code for _, error in fusing.session.outbox.failures] == ["device_lost"]


def test_the_cost_of_a_read_grows_with_its_elements() -> None:
    session = EngineSession()
    runner = TaskRunner(session.engine, session.interpreter, session.outbox)
    wide = TensorSpec((1000, 1000), F32)

    assert (runner.estimate([Read(1, 1, wide)]) or 0) >= wide.size


def test_a_read_that_copies_nothing_costs_as_much_as_a_short_one() -> None:
    session = EngineSession()
    runner = TaskRunner(session.engine, session.interpreter, session.outbox)
    wide = TensorSpec((1000, 1000), F32)
    array = np.zeros((1000, 1000), np.float32)
    for tensor, elements in enumerate([array, array.T[:500], array.astype(np.float64)], 1):
        session.tensors.store(tensor, elements)

    assert runner.estimate([Read(1, 1, wide)]) == TASK_COST
    for copied in (Read(1, 2, TensorSpec((500, 1000), F32)), Read(1, 3, wide)):
        assert (runner.estimate([copied]) or 0) >= copied.spec.size
    # A task before it may replace the tensor.
    assert (runner.estimate([Sync(1), Read(2, 1, wide)]) or 0) >= wide.size


def test_an_upload_that_stays_where_it_arrived_costs_as_much_as_a_short_one() -> None:
    session = EngineSession()
    runner = TaskRunner(session.engine, session.interpreter, session.outbox)
    backend = session.interpreter.backend
    backend.begin_recycling(2**26)
    size, head = 2**20, 21
    costs = []
    for tensor in range(3):
        elements = backend.arriving_memory(head + 4 * size)[head:]
        upload = Upload(tensor, TensorData(elements, (size,), F32))
        costs.append(runner.estimate([upload]))
        runner.run([upload])
        del elements, upload
    moved, *stayed = costs
    assert moved is not None
    assert moved >= 4 * size
    assert stayed == [2 * TASK_COST] * 2
    bools = Upload(9, TensorData(backend.arriving_memory(size), (size,), BOOL))
    assert (runner.estimate([bools]) or 0) >= size  # each byte is examined
