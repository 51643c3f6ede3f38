"""Fused operations write results over inputs that die, where nobody can notice it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import burn_remote_server.fusion.cpu.block_program as block_program
from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.messages import Define, DefineGraph, Drop
from burn_remote_server.execution import plan_table
from burn_remote_server.fusion.cpu.block_optimization import BlockOptimization
from burn_remote_server.programs.graphs import GraphPlan
from support.compiled_kernels import compiled_at_once
from support.engines import EngineSession
from support.fused_sessions import ADD, ADD_INTEGERS, DIVIDE, TWICE, VECTOR, fused_session
from support.kernels import Array, signature
from support.memory_reuse import forced_reuse

GRAPH, NUMBERED = 4096, 4097
COUNTING = np.arange(1000, dtype=np.float32)


@pytest.fixture(params=["blocks", "compiled"])
def session(request: pytest.FixtureRequest) -> Iterator[EngineSession]:
    compiles = request.param == "compiled"
    if compiles:
        pytest.importorskip("llvmlite", reason="the extra fusion is not installed")
    with fused_session(compiles=compiles) as session, compiled_at_once():
        yield session


def address(session: EngineSession, tensor: int) -> int:
    return int(session.tensors.arrays[tensor].ctypes.data)


def store(session: EngineSession, *tensors: int, dtype: Any = np.float32) -> list[int]:
    """Store the numbers from 0 to 999 in each tensor; return the addresses."""
    for tensor in tensors:
        session.tensors.store(tensor, np.arange(1000, dtype=dtype))
    return [address(session, tensor) for tensor in tensors]


def values(session: EngineSession, tensor: int) -> list[float]:
    found: list[float] = session.tensors.arrays[tensor].tolist()
    return found


def test_results_of_a_graph_take_the_memory_of_the_inputs_that_die(session: EngineSession) -> None:
    # Two results: twice the sum, and the sum of that and the first input.
    session.run(DefineGraph(GRAPH, 2, ((ADD, 0, 1), (TWICE, 2), (ADD, 3, 0)), (3, 4)))
    for _ in range(2):
        before = store(session, 11, 12)
        session.run((GRAPH, 11, 12, 13, 14), Drop((11, 12)))
        assert {address(session, 13), address(session, 14)} == {*before}
        assert values(session, 13) == (COUNTING * 4).tolist()
        assert values(session, 14) == (COUNTING * 5).tolist()
        assert (session.quota.bytes, session.quota.tensors) == (4 * 4000, 4)
        session.run(Drop((13, 14)))


@pytest.mark.parametrize("limit_seconds", [60.0, 1e-6])
def test_only_a_time_limit_within_reach_keeps_inputs_from_being_overwritten(
    limit_seconds: float,
) -> None:
    with (
        patch.object(plan_table, "TIMED_COST", 0),  # single operations are timed
        fused_session(compiles=False, max_operation_seconds=limit_seconds) as session,
    ):
        session.run(DefineGraph(GRAPH, 2, ((ADD, 0, 1), (TWICE, 2), (ADD, 3, 0)), (3, 4)))
        plan = session.interpreter.numbered[GRAPH]
        assert isinstance(plan, GraphPlan)
        assert plan.fused_count == 3
        assert plan.reusable_inputs == ({0, 1} if limit_seconds == 60.0 else set())


def test_a_graph_offers_no_inputs_to_an_optimization_that_overwrites_none(
    session: EngineSession,
) -> None:
    with patch.object(BlockOptimization, "reuses_inputs", False):
        session.run(DefineGraph(GRAPH, 2, ((ADD, 0, 1), (TWICE, 2), (ADD, 3, 0)), (3, 4)))
    plan = session.interpreter.numbered[GRAPH]
    assert isinstance(plan, GraphPlan)
    assert (plan.fused_count, plan.reusable_inputs) == (3, set())
    before = store(session, 11, 12)
    session.run((GRAPH, 11, 12, 13, 14), Drop((11, 12)))
    assert not {address(session, 13), address(session, 14)}.intersection(before)
    assert values(session, 14) == (COUNTING * 5).tolist()


def test_a_time_limit_within_reach_keeps_inputs_of_a_stream_from_being_overwritten() -> None:
    with (
        patch.object(plan_table, "NANOSECONDS", 1),  # each operation could take 60 s
        fused_session(compiles=False, max_operation_seconds=60.0) as session,
    ):
        for first in (10, 20, 30):
            (before,) = store(session, 3)
            session.run((TWICE, 3, first), Drop((3,)), (TWICE, first, first + 1), Drop((first,)))
            assert values(session, first + 1) == (COUNTING * 4).tolist()
            if first > 10:
                assert address(session, first + 1) != before
        assert session.interpreter.counts.operations_fused == 4


def test_results_of_a_stream_take_the_memory_of_the_inputs_that_die(session: EngineSession) -> None:
    for first in (10, 20, 30):
        before = store(session, 3, 4)
        session.run(
            (ADD, 3, 4, first),
            Drop((4,)),
            (TWICE, first, first + 1),
            Drop((first,)),
            (ADD, first + 1, 3, first + 2),
            Drop((3,)),
        )
        if first > 10:
            assert {address(session, first + 1), address(session, first + 2)} == {*before}
        assert values(session, first + 1) == (COUNTING * 4).tolist()
        assert values(session, first + 2) == (COUNTING * 5).tolist()
        session.run(Drop((first + 1, first + 2)))
        assert (session.quota.bytes, session.quota.tensors) == (2 * 4000, 2)
    assert session.interpreter.counts.operations_fused == 6


def test_results_between_blocks_are_overwritten(session: EngineSession) -> None:
    flip = signature("Base.Flip", VECTOR, axes=(0,))
    session.run(Define(5, flip))
    steps = ((ADD, 0, 1), (TWICE, 2), (5, 3), (TWICE, 4), (ADD, 5, 1))
    session.run(DefineGraph(GRAPH, 2, steps, (6,)))
    session.run((GRAPH, 1, 2, 3))
    assert values(session, 3) == (((COUNTING + 1) * 4)[::-1] + 1).tolist()
    assert values(session, 1) == COUNTING.tolist()


@pytest.mark.parametrize(
    "hold", [lambda array: array, lambda array: array[3:4], memoryview], ids=["it", "view", "reply"]
)
def test_an_input_that_something_else_references_is_not_overwritten(
    session: EngineSession, hold: Callable[[Array], Any]
) -> None:
    session.run(DefineGraph(GRAPH, 1, ((TWICE, 0), (TWICE, 1)), (2,)))
    store(session, 3)
    held = hold(session.tensors.arrays[3])
    expected = np.array(held)
    session.run((GRAPH, 3, 4), Drop((3,)))
    assert np.array_equal(np.asarray(held), expected)
    assert values(session, 4) == (COUNTING * 4).tolist()


@pytest.mark.parametrize(
    "hold", [lambda array: array, lambda array: array[3:4], memoryview], ids=["it", "view", "reply"]
)
def test_an_input_of_a_stream_that_something_else_references_is_not_overwritten(
    session: EngineSession, hold: Callable[[Array], Any]
) -> None:
    for first in (10, 20, 30):
        store(session, 3)
        held = hold(session.tensors.arrays[3])
        expected = np.array(held)
        session.run((TWICE, 3, first), Drop((3,)), (TWICE, first, first + 1), Drop((first,)))
        assert np.array_equal(np.asarray(held), expected)
        assert values(session, first + 1) == (COUNTING * 4).tolist()
    assert session.interpreter.counts.operations_fused == 4


def test_an_input_of_a_stream_with_another_dtype_fails_as_in_a_single_operation(
    session: EngineSession,
) -> None:
    for first in (10, 20, 30):
        store(session, 3, dtype=np.int32 if first == 30 else np.float32)
        session.run((TWICE, 3, first), Drop((3,)), (TWICE, first, first + 1), Drop((first,)))
    assert session.interpreter.counts.operations_fused == 2
    with pytest.raises(OperationFailed, match="float32"):
        session.tensors.array(31)


def test_an_input_that_lives_on_is_not_overwritten(session: EngineSession) -> None:
    session.run(DefineGraph(GRAPH, 2, ((ADD, 0, 1), (TWICE, 2)), (3,)))
    store(session, 3)
    for arguments in ((3, 3, 4), (3, 1, 5)):
        session.run((GRAPH, *arguments))
        assert values(session, 3) == COUNTING.tolist()
    session.run((GRAPH, 3, 3, 6), Drop((3,)))
    assert values(session, 6) == (COUNTING * 4).tolist()


def test_an_input_is_not_overwritten_while_a_later_operation_reads_it(
    session: EngineSession,
) -> None:
    # The first result is complete before the input is read for the last time.
    steps = ((TWICE, 0), (ADD, 1, 0), (TWICE, 2), (ADD, 3, 0))
    session.run(DefineGraph(GRAPH, 1, steps, (1, 4)))
    store(session, 3)
    session.run((GRAPH, 3, 4, 5), Drop((3,)))
    assert values(session, 4) == (COUNTING * 2).tolist()
    assert values(session, 5) == (COUNTING * 7).tolist()


def test_operations_that_can_fail_overwrite_no_input(session: EngineSession) -> None:
    session.run(DefineGraph(GRAPH, 2, ((ADD_INTEGERS, 0, 1), (DIVIDE, 2, 1)), (3,)))
    store(session, 3, 4, dtype=np.int64)
    session.run((GRAPH, 3, 4, 5), Drop((3, 4)))  # 0 ÷ 0
    with pytest.raises(OperationFailed) as failed:
        session.tensors.array(5)
    assert (failed.value.operation, failed.value.step) == ("Numeric.Div", 1)
    before = store(session, 3, 4, dtype=np.int64)
    session.tensors.arrays[4][0] = 1
    session.run((GRAPH, 3, 4, 6), Drop((3, 4)))
    assert address(session, 6) not in before
    assert values(session, 6) == [1, *[2] * 999]


class FailingSteps:
    """Executes steps of blocks until one of them raises."""

    def __init__(self, error: BaseException, before: int) -> None:
        self.error = error
        self.before = before
        self._run_step = block_program._run_step

    def __call__(self, step: Any, registers: list[Any]) -> None:
        self.before -= 1
        if self.before < 0:
            raise self.error
        self._run_step(step, registers)


@pytest.mark.parametrize("before", [0, 5, 100])
def test_if_memory_runs_out_halfway_only_results_of_overwritten_inputs_fail(before: int) -> None:
    with fused_session(compiles=False) as session:
        steps = ((TWICE, 0), (TWICE, 2), (TWICE, 1), (TWICE, 4))
        session.run(DefineGraph(GRAPH, 2, steps, (3, 5)))
        store(session, 3)
        failing = FailingSteps(MemoryError("no room"), before)
        with patch.object(block_program, "_run_step", failing):
            session.run((GRAPH, 3, 1, 5, 6), Drop((3,)))
        assert values(session, 6) == (COUNTING * 4).tolist()
        if before == 100:
            assert values(session, 5) == (COUNTING * 4).tolist()
        else:
            with pytest.raises(OperationFailed, match="ran as one failed: MemoryError: no room"):
                session.tensors.array(5)
        assert values(session, 1) == COUNTING.tolist()
        session.run(Drop((5, 6)))
        assert (session.quota.bytes, session.quota.tensors) == (2 * 4000, 2)


@pytest.mark.parametrize("error", [MemoryError("no room"), KeyboardInterrupt()], ids=repr)
def test_operations_of_a_stream_never_use_an_input_that_was_overwritten_in_part(
    error: BaseException,
) -> None:
    with fused_session(compiles=False) as session:
        for first in (10, 20, 30):
            store(session, 3)
            tasks: list[Any] = [(TWICE, 3, first), (TWICE, first, first + 1), Drop((first, 3))]
            if first < 30:
                session.run(*tasks)
                continue
            failing = FailingSteps(error, 3)
            try:
                with patch.object(block_program, "_run_step", failing):
                    session.run(*tasks)
            except KeyboardInterrupt:
                with pytest.raises(OperationFailed, match="it was interrupted"):
                    session.tensors.array(3)
            else:
                with pytest.raises(OperationFailed, match="MemoryError: no room"):
                    session.tensors.array(first + 1)
        assert session.interpreter.counts.operations_fused == 2


def test_an_operation_whose_number_changes_takes_the_memory_of_an_input_that_dies() -> None:
    session = EngineSession()
    times = signature("Numeric.MulScalar", VECTOR, rhs=2.0)
    with forced_reuse(4000):
        session.run(Define(0, times))
        number = next(place for place, each in enumerate(times.row.fields) if each.name == "rhs")
        session.run(DefineGraph(NUMBERED, 1, ((0, 0),), (1,), ((0, number, 0),)))
        for rate in (3.0, 4.0, 5.0):
            (before,) = store(session, 3)
            session.run((NUMBERED, 3, 4, (rate,)), Drop((3,)))
            assert address(session, 4) == before
            assert values(session, 4) == (COUNTING * rate).tolist()
            store(session, 3)
            session.run((NUMBERED, 3, 5, (rate,)))
            assert values(session, 3) == COUNTING.tolist()
