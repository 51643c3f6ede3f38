"""Large element-wise operations that arrive together are fused from their second time on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.messages import Define, Drop, Read
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorStatus
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.dialects.burn_0_21.task_runner import BurnTask, TaskRunner
from burn_remote_server.fusion.runtime_selection import with_fusion
from support.compiled_kernels import compiled_at_once
from support.engines import EngineSession
from support.fused_sessions import (
    ADD,
    DIVIDE,
    SIGNATURES,
    TWICE,
    VECTOR,
    fused_session,
)
from support.kernels import signature
from support.random_programs import forced_fusion


@pytest.fixture(params=["blocks", "compiled"])
def session(request: pytest.FixtureRequest) -> Iterator[EngineSession]:
    compiles = request.param == "compiled"
    if compiles:
        pytest.importorskip("llvmlite", reason="the extra fusion is not installed")
    with fused_session(compiles=compiles) as session, compiled_at_once():
        yield session


def chain(first: int) -> list[Any]:
    """Return tasks that make tensor ``first + 2`` and drop their other results."""
    return [
        (ADD, 1, 2, first),
        (TWICE, first, first + 1),
        Drop((first,)),
        (ADD, first + 1, 2, first + 2),
        Drop((first + 1,)),
    ]


RESULT = [2 * (value + 1) + 1 for value in range(1000)]


def fused(session: EngineSession) -> int:
    return session.interpreter.counts.operations_fused


def test_a_repeated_run_of_operations_is_fused(session: EngineSession) -> None:
    for first, expected in ((10, 0), (20, 3), (30, 6)):
        session.run(*chain(first))
        assert fused(session) == expected
        assert session.values(first + 2, size=1000) == RESULT
    counts = session.interpreter.counts
    assert (counts.windows, counts.plans_explored, counts.plans_found) == (3, 1, 1)
    assert session.interpreter.executed == 9
    assert {*session.tensors.arrays} == {1, 2, 12, 22, 32}


def test_results_that_are_not_dropped_are_kept(session: EngineSession) -> None:
    tasks = [task for task in chain(10) if not isinstance(task, Drop)]
    for _ in range(3):
        session.run(*tasks)
    # No intermediate result is dropped, so fusion would save nothing.
    assert fused(session) == 0
    assert {*session.tensors.arrays} == {1, 2, 10, 11, 12}


def test_other_numbers_are_the_same_window(session: EngineSession) -> None:
    for place, first in enumerate((10, 20, 30, 40)):
        times = signature("Numeric.MulScalar", VECTOR, rhs=float(place))
        plus = signature("Numeric.AddScalar", VECTOR, rhs=place / 2)
        session.run(Define(5, times), Define(6, plus))
        session.run((5, 1, first), (6, first, first + 1), Drop((first,)))
        assert session.values(first + 1, size=1000) == [x * place + place / 2 for x in range(1000)]
    counts = session.interpreter.counts
    assert (counts.plans_explored, counts.plans_found, counts.operations_fused) == (1, 2, 6)


def test_a_read_ends_the_window(session: EngineSession) -> None:
    tasks = chain(10)
    for request in range(3):
        session.run(*tasks[:2], Read(request, 11, VECTOR), *tasks[2:], Drop((12,)))
    assert fused(session) == 0


def test_a_batch_that_drops_other_tensors_is_another_window(session: EngineSession) -> None:
    for first in (10, 20, 30):
        session.run(*chain(first))
    session.run(*chain(40)[:4])
    assert {40, 41, 42} & {*session.tensors.arrays} == {41, 42}
    assert session.values(41, size=1000) == [2 * (value + 1) for value in range(1000)]


def test_inputs_that_the_window_drops_are_gone_after_it(session: EngineSession) -> None:
    for first in (10, 20, 30):
        session.upload(3, *[1.0] * 1000)
        session.run((ADD, 1, 3, first), Drop((3,)), (TWICE, first, first + 1), Drop((first,)))
    assert fused(session) == 4
    assert {*session.tensors.arrays} == {1, 2, 11, 21, 31}
    assert session.quota.tensors == 5


def test_a_failure_in_a_window_is_that_of_its_operation(session: EngineSession) -> None:
    for tensor, value in ((5, 4), (6, 2)):
        session.tensors.store(tensor, np.full(1000, value))
    for first, divisor in ((10, 1), (20, 1), (30, 0)):
        session.tensors.store(7, np.array([*[1] * 999, divisor]))
        session.run((DIVIDE, 5, 6, first), (DIVIDE, first, 7, first + 1), Drop((first,)))
    assert (fused(session), session.interpreter.counts.fallbacks) == (2, 1)
    ((tensors, failure),) = session.outbox.failures
    assert (tensors, failure.tensor, failure.operation) == ((31,), 31, "Numeric.Div")
    assert failure.step is None
    assert {*session.tensors.arrays} == {1, 2, 5, 6, 7, 11, 21}


def test_a_window_that_does_not_fit_the_quota_runs_one_by_one() -> None:
    with forced_fusion():
        session = EngineSession(backend=with_fusion(NumpyBackend()), max_bytes=20_000)
        session.run(*(Define(number, signed) for number, signed in SIGNATURES.items()))
        session.upload(1, *range(1000))
        session.upload(2, *[1.0] * 1000)
        for first in (10, 20, 30):
            session.run(*chain(first))
            assert session.values(first + 2, size=1000) == RESULT
            session.run(Drop((first + 2,)))
    counts = session.interpreter.counts
    assert (counts.operations_fused, counts.fallbacks) == (3 * 2, 0)
    assert session.quota.bytes == 8000


def test_an_invalid_task_ends_the_window(session: EngineSession) -> None:
    for first in (10, 20, 30):
        session.run(*chain(first))
    with pytest.raises(Exception, match="takes 3 tensor ids"):
        session.run(*chain(40)[:3], (ADD, 41, 2))
    assert {40, 41} & {*session.tensors.arrays} == {41}


def last_use(signed: Signature, *positions: int) -> Signature:
    """Return a signature that drops inputs, as Burn's client sends it."""
    arguments = [*signed.arguments]
    uses = [place for place, each in enumerate(arguments) if isinstance(each, TensorUse)]
    for position in positions:
        place = uses[position]
        arguments[place] = TensorUse(arguments[place].spec, TensorStatus.READ_WRITE)
    return sign(signed.row, *arguments)


def test_operations_of_burns_dialect_are_fused(session: EngineSession) -> None:
    runner = TaskRunner(session.engine, session.interpreter, session.outbox)
    add = last_use(SIGNATURES[ADD], 0)
    twice = last_use(SIGNATURES[TWICE], 0)
    for first, expected in ((10, 0), (20, 0), (30, 3), (40, 6)):
        tasks: list[BurnTask] = [
            Operation(SIGNATURES[ADD], (1, 2, first)),
            Operation(twice, (first, first + 1)),
            Operation(add, (first + 1, 2, first + 2)),
        ]
        runner.run(tasks)
        assert fused(session) == expected
        assert session.values(first + 2, size=1000) == RESULT
    assert {*session.tensors.arrays} == {1, 2, 12, 22, 32, 42}
    assert session.quota.tensors == 6


def test_a_failed_input_fails_the_operations_of_a_window(session: EngineSession) -> None:
    for first in (10, 20):
        session.run(*chain(first))
    session.run(Drop((2,)))
    session.run(*chain(30))
    with pytest.raises(OperationFailed, match="32"):
        session.values(32, size=1000)
