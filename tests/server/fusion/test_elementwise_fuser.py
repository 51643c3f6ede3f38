"""Runs of element-wise operations in a graph become one optimization, with the same effects."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from burn_remote_protocol.dtypes import F32, I64
from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.messages import Define, DefineGraph, Read, Upload
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.fusion.cpu.elementwise_fuser import MIN_REUSING_ELEMENTS
from burn_remote_server.fusion.runtime_selection import with_fusion
from burn_remote_server.programs.graphs import GraphPlan
from support.compiled_kernels import compiled_at_once
from support.engines import EngineSession, floats
from support.fused_sessions import (
    ADD,
    ADD_INTEGERS,
    DIVIDE,
    INTEGERS,
    SIGNATURES,
    SUM,
    TWICE,
    VECTOR,
    fused_session,
    ran_one_by_one,
)
from support.kernels import signature
from support.random_programs import forced_fusion

GRAPH = 4096


@pytest.fixture(params=["blocks", "compiled"])
def session(request: pytest.FixtureRequest) -> Iterator[EngineSession]:
    compiles = request.param == "compiled"
    if compiles:
        pytest.importorskip("llvmlite", reason="the extra fusion is not installed")
    with fused_session(compiles=compiles) as session, compiled_at_once():
        yield session


def integers(*values: int) -> TensorData:
    return TensorData(np.array(values, np.int64).tobytes(), (len(values),), I64)


def blocks(session: EngineSession) -> list[tuple[int, int]]:
    """Return the first and last place of each run of steps that the element-wise fuser took."""
    plan = session.interpreter.numbered[GRAPH]
    assert isinstance(plan, GraphPlan)
    return [
        (block.start, block.end)
        for block in plan.blocks.values()
        if block.execution.optimization.name == "elementwise"
    ]


def test_a_run_of_elementwise_steps_is_fused(session: EngineSession) -> None:
    steps = ((ADD, 0, 1), (TWICE, 2), (ADD, 3, 2), (SUM, 4), (TWICE, 4), (TWICE, 6))
    session.run(DefineGraph(GRAPH, 2, steps, (5, 7)), (GRAPH, 1, 2, 3, 4))
    assert blocks(session) == [(0, 3), (4, 6)]
    one = np.arange(1000, dtype=np.float32) + 1
    assert session.values(4, size=1000) == (one * 12).tolist()
    assert session.values(1, size=1000) == [*range(1000)]


def test_without_fusion_no_step_is_fused() -> None:
    session = EngineSession(backend=NumpyBackend())
    session.run(*(Define(number, signed) for number, signed in SIGNATURES.items()))
    with forced_fusion():
        session.run(DefineGraph(GRAPH, 2, ((ADD, 0, 1), (TWICE, 2)), (3,)))
    assert blocks(session) == []


@pytest.mark.parametrize(
    ("compiles", "least", "count"),
    [(False, 2**20, 5), (False, 2**19, 9), (True, 2**20, 2), (True, 256 * 1024, 5)],
)
def test_small_results_and_short_runs_are_not_fused(compiles: bool, least: int, count: int) -> None:
    if compiles:
        pytest.importorskip("llvmlite", reason="the extra fusion is not installed")
    session = EngineSession(backend=with_fusion(NumpyBackend(), compiles=compiles))
    for size, length in ((least, count), (least - 1, count), (least, count - 1)):
        twice = signature("Numeric.MulScalar", TensorSpec((size,), F32), rhs=2.0)
        steps = tuple((0, place) for place in range(length))
        session.run(Define(0, twice), DefineGraph(GRAPH, 1, steps, (length,)))
        assert bool(blocks(session)) is ((size, length) == (least, count))


@pytest.mark.parametrize(("tanhs", "least"), [(1, 384 * 1024), (3, 2**20)])
def test_smaller_results_are_fused_if_kernels_compute_half_of_the_steps(
    tanhs: int, least: int
) -> None:
    pytest.importorskip("llvmlite", reason="the extra fusion is not installed")
    session = EngineSession(backend=with_fusion(NumpyBackend()))
    for size in (least, least - 1):
        one = TensorSpec((size,), F32)
        twice, tanh = signature("Numeric.MulScalar", one, rhs=2.0), signature("Float.Tanh", one)
        steps = tuple((int(place < tanhs), place) for place in range(5))
        session.run(Define(0, twice), Define(1, tanh), DefineGraph(GRAPH, 1, steps, (5,)))
        assert bool(blocks(session)) is (size == least)


@pytest.mark.parametrize(
    ("compiles", "count", "is_fused"),
    [(False, 5, False), (False, 6, True), (True, 5, False), (True, 6, True)],
)
def test_steps_that_could_write_over_an_input_are_fused_only_in_longer_runs(
    compiles: bool, count: int, is_fused: bool
) -> None:
    if compiles:
        pytest.importorskip("llvmlite", reason="the extra fusion is not installed")
    session = EngineSession(backend=with_fusion(NumpyBackend(), compiles=compiles))
    large = TensorSpec((2 * MIN_REUSING_ELEMENTS,), F32)
    session.run(
        Define(0, signature("Numeric.Full", out=large, value=1.0)),
        Define(1, signature("Numeric.MulScalar", large, rhs=2.0)),
        # The first result has no inputs, so the graph's input has a step of its own.
        Define(2, signature("Numeric.MulScalar", VECTOR, rhs=2.0)),
        DefineGraph(
            GRAPH,
            1,
            ((2, 0), (0,), *[(1, 2 + place) for place in range(count)]),
            (1, 2 + count),
        ),
    )
    assert bool(blocks(session)) is is_fused


def test_steps_without_a_result_that_dies_among_them_are_not_fused(session: EngineSession) -> None:
    session.run(DefineGraph(GRAPH, 2, ((ADD, 0, 1), (TWICE, 0)), (2, 3)))
    assert blocks(session) == []


def test_results_that_die_are_never_made() -> None:
    size = 2 * 2**20
    twice = signature("Numeric.MulScalar", TensorSpec((size,), F32), rhs=2.0)
    session = EngineSession(backend=with_fusion(NumpyBackend()))
    session.upload(1, *[1.0] * size)
    steps = ((0, 0), (0, 1), (0, 2), (0, 2), (0, 3), (0, 4))
    session.run(Define(0, twice), DefineGraph(GRAPH, 1, steps, (5, 6)), (GRAPH, 1, 2, 3))
    tracemalloc.start()
    try:
        session.run((GRAPH, 1, 4, 5))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * 4 * size


def test_changed_numbers_of_a_call_take_effect_in_a_block(session: EngineSession) -> None:
    steps = ((TWICE, 0), (ADD, 1, 0), (TWICE, 2))
    session.run(DefineGraph(GRAPH, 1, steps, (3,), ((0, 1, 1), (2, 1, 0))))
    assert blocks(session) == [(0, 3)]
    ones = np.ones(1000, np.float32)
    for tensor, (last, first) in enumerate([(3.0, 5.0), (3.0, -1.0), (0.5, 5.0)], start=3):
        session.run((GRAPH, 2, tensor, (last, first)))
        assert session.values(tensor, size=1000) == ((ones * first + ones) * last).tolist()


def test_an_unsuitable_layout_runs_the_steps_one_by_one(session: EngineSession) -> None:
    session.tensors.store(5, np.arange(1000, dtype=np.float32)[::-1])
    session.run(DefineGraph(GRAPH, 2, ((ADD, 0, 1), (TWICE, 2)), (3,)))
    with ran_one_by_one() as count:
        session.run((GRAPH, 5, 2, 3))
    assert session.values(3, size=1000) == [2 * (1000 - place) for place in range(1000)]
    assert count.call_count == 1


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_failure_in_a_block_is_that_of_its_step(session: EngineSession, place: int) -> None:
    steps = [(ADD_INTEGERS, 0, 0), (ADD_INTEGERS, 2, 0), (ADD_INTEGERS, 3, 0), (ADD, 5, 5)]
    steps[place] = (DIVIDE, 0, 1)
    steps[3] = (ADD_INTEGERS, 4, 0)
    session.run(
        Upload(6, integers(*[1] * 1000)),
        Upload(7, integers(*[*[1] * 999, 0])),
        DefineGraph(GRAPH, 2, tuple(steps), (2, 5)),
        (GRAPH, 6, 7, 8, 9),
    )
    assert blocks(session) == [(0, 4)]
    session.run(Read(1, 8, INTEGERS), Read(2, 9, INTEGERS))
    failed = session.outbox.replies[2]
    assert isinstance(failed, OperationFailed)
    assert (failed.operation, failed.step) == ("Numeric.Div", place)
    assert "integer division by 0" in failed.reason
    assert isinstance(session.outbox.replies[1], OperationFailed) is (place == 0)
    assert len(session.outbox.failures) == 1


def test_a_fused_graph_counts_the_bytes_of_its_outputs(session: EngineSession) -> None:
    before = session.quota.bytes, session.quota.tensors
    steps = ((ADD, 0, 1), (TWICE, 2), (TWICE, 3))
    session.run(DefineGraph(GRAPH, 2, steps, (4,)), (GRAPH, 1, 2, 3))
    assert (session.quota.bytes, session.quota.tensors) == (before[0] + 4000, before[1] + 1)


def test_a_fused_graph_that_exceeds_the_quota_fails_as_its_steps_do() -> None:
    messages = []
    for fused in (False, True):
        backend = NumpyBackend()
        with forced_fusion():
            session = EngineSession(
                backend=with_fusion(backend) if fused else backend, max_bytes=10_000
            )
            session.run(*(Define(number, signed) for number, signed in SIGNATURES.items()))
            session.run(Upload(1, floats(*range(1000))))
            steps = ((TWICE, 0), (TWICE, 1), (ADD, 1, 2))
            session.run(DefineGraph(GRAPH, 1, steps, (1, 2, 3)), (GRAPH, 1, 2, 3, 4))
            with pytest.raises(OperationFailed) as raised:
                session.values(4, size=1000)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
