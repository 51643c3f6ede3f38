"""A failed Burn session stays open and responds to every request with the reason."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from burn_remote_protocol.dialects.burn_0_21 import decode_tasks, encode_tasks
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import BurnRemoteError, OperationFailed, ProtocolViolation
from burn_remote_protocol.messages import Fetch, QueryDType, Read, Sync, Task, Upload
from burn_remote_protocol.operations.families import numeric
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorData, TensorSpec, TensorStatus
from burn_remote_server.backends import open_backends
from burn_remote_server.dialects.burn.task_runner import TaskRunner, Unreadable
from burn_remote_server.execution.engine import Engine
from burn_remote_server.execution.exposed import Transfers
from burn_remote_server.execution.slots import InFlight
from burn_remote_server.hosting.host import new_interpreter
from burn_remote_server.settings.server_settings import Settings

SPEC = TensorSpec((2,), F32)
DATA = TensorData(bytes(8), (2,), F32)
GARBAGE = Unreadable(ProtocolViolation("no task at all"))


class Answers:
    """An ``Outbox`` that records the engine's output."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.failures: Counter[str] = Counter()

    def reply(self, request: int, value: TensorData | BurnRemoteError | int | None) -> None:
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
        engine = Engine(
            self.interpreter,
            Transfers(),
            self.answers,
            transfer_domain="burn-0.21",
        )
        self.runner = TaskRunner(engine, self.interpreter, self.answers)

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


def test_a_bug_in_the_server_is_reported_too(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(operation: Operation) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(running.interpreter, "execute", broken)
    answers = running.run(added(1, 1, 2), Read(1, 1, SPEC))
    assert "a mistake of ours" in str(answers[1])


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
