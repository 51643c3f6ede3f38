"""Graphs whose programs a device captures give the results of their operations one by one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.messages import Define, DefineGraph, Drop
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.interface import NotCaptured
from burn_remote_server.fusion.runtime_selection import with_fusion
from burn_remote_server.programs.instructions import (
    FREE,
    MANY_OUTPUTS,
    ONE_INPUT,
    TWO_INPUTS,
    segments_of,
)
from support.capturing import CapturingBackend, CapturingSession
from support.engines import EngineSession, vector
from support.kernels import signature
from support.random_programs import difference, drawn_program, run_eagerly, run_graph

ADD, TIMES, TOTAL, CLAMP, DRAW, TURN, SUBTRACT, FILL, WIDEN = range(9)
GRAPH = 4096
MATRIX = TensorSpec((2, 3), F32)
NUMBER = TensorSpec((), F32)
SIGNATURES = {
    ADD: signature("Numeric.Add", vector(3), vector(3)),
    TIMES: signature("Numeric.MulScalar", vector(3), rhs=2.0),
    TOTAL: signature("Numeric.SumDim", vector(3), axis=0, accumulator_len=1),
    CLAMP: signature("Numeric.Clamp", vector(3), min=0.0, max=math.inf),
    DRAW: signature("Float.Random", out=vector(3), distribution=("Default",)),
    TURN: signature("Numeric.MulScalar", MATRIX, rhs=2.0),
    SUBTRACT: signature("Numeric.Sub", vector(3), vector(1)),
    FILL: signature("Numeric.Full", out=NUMBER, value=2.0),
    WIDEN: signature("Base.Reshape", NUMBER, out=vector(1)),
}


def place_of(number: int, field: str) -> int:
    return [each.name for each in SIGNATURES[number].row.fields].index(field)


@pytest.fixture
def session() -> EngineSession:
    return opened()


def opened(**limits: Any) -> EngineSession:
    session = EngineSession(backend=with_fusion(CapturingBackend(), compiles=False), **limits)
    session.run(*(Define(number, signed) for number, signed in SIGNATURES.items()))
    session.upload(1, 1, 2, 3)
    session.upload(2, 10, 20, 30)
    return session


def device_of(session: EngineSession) -> CapturingSession:
    found = session.interpreter.session
    assert isinstance(found, CapturingSession)
    return found


def call(session: EngineSession, *arguments: Any, output: int = 3, size: int = 3) -> list[float]:
    """Call the graph and return its output, which is dropped."""
    session.run((GRAPH, *arguments))
    values = session.values(output, size=size)
    session.run(Drop((output,)))
    return values


TWO_STEPS = DefineGraph(GRAPH, 2, ((ADD, 0, 1), (ADD, 2, 1)), (3,))


def test_the_third_call_launches_what_it_captured(session: EngineSession) -> None:
    session.run(TWO_STEPS)
    counts = session.interpreter.counts
    for number in range(5):
        assert call(session, 1, 2, 3) == [21, 42, 63]
        assert (counts.captures, counts.replays) == (int(number >= 2), max(0, number - 1))
    session.upload(1, 0, 0, 0)
    assert call(session, 1, 2, 3) == [20, 40, 60]
    assert (counts.captures, counts.replays, counts.replay_fallbacks) == (1, 4, 0)


def test_a_launch_takes_the_numbers_of_its_call(session: EngineSession) -> None:
    numbers = ((0, place_of(TIMES, "rhs"), 0),)
    session.run(DefineGraph(GRAPH, 2, ((TIMES, 0), (ADD, 2, 1)), (3,), numbers))
    for factor in (2.0, 3.0, 2.5, -1.0, 0.0):
        expected = [factor * x + y for x, y in ((1, 10), (2, 20), (3, 30))]
        assert call(session, 1, 2, 3, (factor,)) == expected
    assert session.interpreter.counts.replays == 3


def test_a_tensor_of_a_number_has_the_number_of_each_launch(session: EngineSession) -> None:
    numbers = ((0, place_of(FILL, "value"), 0),)
    steps = ((FILL,), (WIDEN, 1), (SUBTRACT, 0, 2), (ADD, 3, 3))
    session.run(DefineGraph(GRAPH, 1, steps, (4,), numbers))
    for number in (2.0, 3.0, 2.5, -1.0, 0.0, 0.0):
        assert call(session, 1, 3, (number,)) == [2 * (x - number) for x in (1, 2, 3)]
    counts = session.interpreter.counts
    assert (counts.replays, counts.replay_fallbacks) == (4, 0)


def test_a_number_may_be_an_output_as_a_tensor(session: EngineSession) -> None:
    numbers = ((0, place_of(FILL, "value"), 0),)
    steps = ((FILL,), (WIDEN, 1), (ADD, 0, 0), (ADD, 3, 3))
    session.run(DefineGraph(GRAPH, 1, steps, (2, 4), numbers))
    for tensor, number in enumerate((2.0, 2.0, 3.0, 3.0, 4.0), 10):
        assert call(session, 1, tensor, 3, (number,)) == [4, 8, 12]
    found = [session.values(tensor, size=1) for tensor in range(10, 15)]
    assert found == [[2.0], [2.0], [3.0], [3.0], [4.0]]


def test_a_kernel_that_depends_on_a_number_is_launched_for_this_number_only(
    session: EngineSession,
) -> None:
    numbers = ((0, place_of(CLAMP, "min"), 0),)
    session.run(DefineGraph(GRAPH, 2, ((CLAMP, 0), (ADD, 2, 1)), (3,), numbers))
    counts = session.interpreter.counts
    for least, replays in ((0.0, 0), (0.0, 0), (0.0, 1), (2.5, 1), (0.0, 1), (0.0, 1), (0.0, 2)):
        found = call(session, 1, 2, 3, (least,))
        assert found == [max(least, x) + y for x, y in ((1, 10), (2, 20), (3, 30))]
        assert counts.replays == replays


def test_a_step_that_cannot_be_captured_divides_the_program(session: EngineSession) -> None:
    device_of(session).refused = frozenset({"SumDim"})
    steps = ((ADD, 0, 1), (ADD, 2, 1), (TOTAL, 3), (SUBTRACT, 3, 4), (ADD, 5, 5))
    session.run(DefineGraph(GRAPH, 2, steps, (6,)))
    for _ in range(8):
        assert call(session, 1, 2, 3) == [-210, -168, -126]
    counts = session.interpreter.counts
    assert (counts.captures, counts.captures_refused) == (2, 1)
    assert counts.graph_fallbacks == 0


def test_a_program_that_cannot_be_captured_runs_as_before(session: EngineSession) -> None:
    device_of(session).capture_error = NotCaptured("no")
    session.run(TWO_STEPS)
    for _ in range(5):
        assert call(session, 1, 2, 3) == [21, 42, 63]
    counts = session.interpreter.counts
    assert (counts.captures, counts.captures_refused, counts.graph_fallbacks) == (0, 1, 0)


def test_random_numbers_are_drawn_in_each_call(session: EngineSession) -> None:
    session.run(DefineGraph(GRAPH, 2, ((DRAW,), (ADD, 2, 0), (ADD, 3, 1)), (4,)))
    drawn = {tuple(call(session, 1, 2, 3)) for _ in range(6)}
    assert len(drawn) == 6
    assert session.interpreter.counts.replays == 4


def test_a_launch_that_fails_is_replaced_by_the_operations(session: EngineSession) -> None:
    session.run(TWO_STEPS)
    for error in (None, None, None, RuntimeError("lost"), MemoryError(), None):
        device_of(session).launch_error = error
        assert call(session, 1, 2, 3) == [21, 42, 63]
    counts = session.interpreter.counts
    assert (counts.replays, counts.replay_fallbacks, counts.graph_fallbacks) == (1, 1, 0)


def test_failed_inputs_fail_the_outputs_of_a_captured_graph(session: EngineSession) -> None:
    session.run(TWO_STEPS)
    for _ in range(4):
        call(session, 1, 2, 3)
    session.run((ADD, 1, 99, 50), (GRAPH, 50, 2, 3))
    with pytest.raises(OperationFailed, match="99"):
        session.values(3, size=3)
    assert call(session, 1, 2, 3) == [21, 42, 63]
    assert session.interpreter.counts.replays == 3


def test_inputs_in_another_layout_are_not_launched(session: EngineSession) -> None:
    session.run(DefineGraph(GRAPH, 1, ((TURN, 0), (TURN, 1)), (2,)))
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for place, order in enumerate("CCCFFFF"):
        session.tensors.store(1, np.asarray(array, order=order))  # type: ignore[call-overload]
        session.run((GRAPH, 1, 3))
        np.testing.assert_array_equal(session.tensors.array(3), array * 4)
        session.run(Drop((3,)))
        assert session.interpreter.counts.replays == (0, 0, 1, 1, 1, 1, 2)[place]


def test_captured_memory_counts_until_tensors_need_it() -> None:
    session = opened(max_bytes=1000)
    device_of(session).captured_bytes = 800
    session.run(TWO_STEPS)
    before = session.quota.total_bytes
    for _ in range(3):
        call(session, 1, 2, 3)
    assert session.quota.total_bytes == before + 800
    for tensor in range(10, 20):
        session.upload(tensor, *[0.0] * 10)
    assert not session.outbox.failures
    counts = session.interpreter.counts
    assert counts.captures_released == 1
    assert session.quota.held == 0
    assert call(session, 1, 2, 3) == [21, 42, 63]


def test_a_capture_for_which_there_is_no_room_is_not_kept() -> None:
    session = opened(max_bytes=1000)
    device_of(session).captured_bytes = 2000
    session.run(TWO_STEPS)
    for _ in range(5):
        assert call(session, 1, 2, 3) == [21, 42, 63]
    counts = session.interpreter.counts
    assert (counts.captures, counts.replays, session.quota.held) == (0, 0, 0)


def test_a_graph_that_is_replaced_gives_its_captured_memory_back(session: EngineSession) -> None:
    device_of(session).captured_bytes = 500
    session.run(TWO_STEPS)
    before = session.quota.total_bytes
    for _ in range(3):
        call(session, 1, 2, 3)
    assert session.quota.held == 500
    session.run(DefineGraph(GRAPH, 1, ((TIMES, 0),), (1,)))
    assert session.quota.total_bytes == before


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_random_programs_have_the_same_outcomes(first: int) -> None:
    for seed in range(first, first + 20):
        program = drawn_program(seed)
        expected = run_eagerly(program)
        capturing = with_fusion(CapturingBackend(), compiles=False)
        found, _ = run_graph(program, fused=True, backend=capturing, calls=4)
        problem = difference(found, expected)
        assert problem is None, f"seed {seed}: {problem}"


def test_a_server_without_fusion_captures_nothing() -> None:
    session = EngineSession(backend=CapturingBackend())
    session.run(*(Define(number, signed) for number, signed in SIGNATURES.items()))
    session.upload(1, 1, 2, 3)
    session.upload(2, 10, 20, 30)
    session.run(TWO_STEPS)
    for _ in range(5):
        assert call(session, 1, 2, 3) == [21, 42, 63]
    assert session.interpreter.counts.captures == 0


def test_segments_take_and_give_only_what_is_used() -> None:
    program = (
        (TWO_INPUTS, 0, 0, 1, 2),
        (ONE_INPUT, 0, 2, 0, 3),
        (FREE, 0, 0, 0, (2,)),
        (MANY_OUTPUTS, 0, (3,), 0, (2, 4)),  # not captured
        (TWO_INPUTS, 0, 2, 3, 5),
        (ONE_INPUT, 0, 5, 0, 5),
    )
    segments = segments_of(program, {0, 1, 2, 4, 5}, {5})
    assert [(each.start, each.is_capturable) for each in segments] == [
        (0, True),
        (3, False),
        (4, True),
    ]
    assert [each.inputs for each in segments] == [(0, 1), (3,), (2, 3)]
    assert [each.outputs for each in segments] == [(3,), (2,), (5,)]
    assert [each.cleared for each in segments] == [(0, 1, 2), (4,), (2, 3)]


def test_a_single_kernel_is_not_worth_a_capture() -> None:
    program = ((ONE_INPUT, 0, 0, 0, 1), (MANY_OUTPUTS, 0, (1,), 0, (2,)))
    (segment,) = segments_of(program, {0}, {2})
    assert not segment.is_capturable
