"""A graph gives the results, failures and counts of its operations one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import DataObject, data, integers, lists, sampled_from, sets

from burn_remote_protocol.dtypes import F32, I64
from burn_remote_protocol.errors import (
    OperationFailed,
    OutOfMemory,
    ProtocolViolation,
    QuotaExceeded,
)
from burn_remote_protocol.messages import Define, DefineGraph, Drop, Read, Upload
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.interface import ElementwiseCall
from support.engines import EngineSession, floats, vector
from support.kernels import signature

ADD, NEGATE, TIMES, TAKE, SPLIT, VIEW, SUBTRACT, GREATER, TOTAL, ADD_ONE = range(10)
GRAPH = 4096
PLACES = TensorSpec((2,), I64)

SIGNATURES = {
    ADD: signature("Numeric.Add", vector(2), vector(2)),
    NEGATE: signature("Numeric.MulScalar", vector(2), rhs=-1.0),
    TIMES: signature("Numeric.MulScalar", vector(2), rhs=2.0),
    TAKE: signature("Base.Select", vector(2), PLACES, dim=0),
    SPLIT: signature("Numeric.MaxDimWithIndices", vector(2), dim=0),
    VIEW: signature("Base.Reshape", vector(2), out=vector(2)),
    SUBTRACT: signature("Numeric.Sub", vector(2), vector(2)),
    GREATER: signature("Numeric.GreaterElem", vector(2), rhs=0.0),
    TOTAL: signature("Numeric.SumDim", vector(2), axis=0, accumulator_len=1),
    ADD_ONE: signature("Numeric.Add", vector(2), vector(1)),
}


@pytest.fixture
def session() -> EngineSession:
    session = EngineSession()
    session.run(*(Define(number, signed) for number, signed in SIGNATURES.items()))
    session.upload(1, 1, 2)
    session.upload(2, 10, 20)
    return session


def places(*values: int) -> TensorData:
    return TensorData(np.array(values, np.int64).tobytes(), (len(values),), I64)


def test_a_graph_returns_the_results_of_its_steps(session: EngineSession) -> None:
    steps = ((ADD, 0, 1), (NEGATE, 2), (ADD, 3, 2), (ADD, 3, 0))
    session.run(DefineGraph(GRAPH, 2, steps, (5, 3)), (GRAPH, 1, 2, 3, 4))
    assert session.values(3, size=2) == [-10, -20]
    assert session.values(4, size=2) == [-11, -22]


def test_steps_with_several_outputs_fill_one_slot_for_each(session: EngineSession) -> None:
    session.run(DefineGraph(GRAPH, 1, ((SPLIT, 0),), (2, 1)), (GRAPH, 1, 3, 4))
    assert session.values(4, size=1) == [2]
    session.run(Read(7, 3, TensorSpec((1,), I64)))
    assert np.frombuffer(session.outbox.replies[7].bytes, np.int64) == [1]


def test_only_outputs_stay_counted(session: EngineSession) -> None:
    before = session.quota.bytes, session.quota.tensors
    steps = ((ADD, 0, 1), (NEGATE, 2), (NEGATE, 3), (NEGATE, 4))
    session.run(DefineGraph(GRAPH, 2, steps, (5,)), (GRAPH, 1, 2, 3))
    assert (session.quota.bytes, session.quota.tensors) == (before[0] + 8, before[1] + 1)
    session.run(Drop((3,)))
    assert (session.quota.bytes, session.quota.tensors) == before


def test_outputs_that_share_memory_count_until_the_last_is_dropped() -> None:
    session = EngineSession()
    whole, part = vector(1000), TensorSpec((10, 100), F32)
    session.run(
        Define(0, signature("Numeric.MulScalar", whole, rhs=2.0)),
        Define(1, signature("Base.Reshape", whole, out=part)),
        Upload(1, floats(*range(1000))),
        DefineGraph(GRAPH, 1, ((0, 0), (1, 1)), (1, 2)),
        (GRAPH, 1, 2, 3),
        Drop((2,)),
    )
    assert session.quota.total_bytes == 8000
    session.run(Drop((3,)))
    assert session.quota.total_bytes == 4000


def test_numbers_of_a_call_replace_the_scalars_of_their_steps(session: EngineSession) -> None:
    steps = ((TIMES, 0), (ADD, 1, 0), (TIMES, 2))
    graph = DefineGraph(GRAPH, 1, steps, (3,), ((0, 1, 1), (2, 1, 0)))
    session.run(graph)
    for tensor, (last, first) in enumerate([(3.0, 5.0), (3.0, -1.0), (0.5, 5.0)], start=3):
        session.run((GRAPH, 1, tensor, (last, first)))
        expected = (
            np.array([1, 2], np.float32) * np.float32(first) + np.array([1, 2], np.float32)
        ) * np.float32(last)
        assert session.values(tensor, size=2) == expected.tolist()


@pytest.mark.parametrize("numbers", [None, (), (1,), (True,), ("2",), (1.0, 2.0), 3.0])
def test_wrong_numbers_end_the_session(session: EngineSession, numbers: Any) -> None:
    session.run(DefineGraph(GRAPH, 1, ((TIMES, 0),), (1,), ((0, 1, 0),)))
    task = (GRAPH, 1, 3) if numbers is None else (GRAPH, 1, 3, numbers)
    with pytest.raises(ProtocolViolation, match=r"takes 2 tensor ids and 1 numbers \(Float\)"):
        session.run(task)


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        (DefineGraph(GRAPH, 1, ((77, 0),), (1,)), "begins with a signature"),
        (DefineGraph(GRAPH, 1, ((),), (1,)), "begins with a signature"),
        (DefineGraph(GRAPH, 1, ((ADD, 0),), (1,)), "has 2 inputs, not 1"),
        (DefineGraph(GRAPH, 1, ((NEGATE, 1),), (1,)), "used before it is filled"),
        (DefineGraph(GRAPH, 1, ((NEGATE, 0),), (0,)), "outputs are results"),
        (DefineGraph(GRAPH, 1, ((NEGATE, 0),), (2,)), "outputs are results"),
        (DefineGraph(GRAPH, 1, ((NEGATE, 0),), (1, 1)), "outputs are results"),
        (DefineGraph(GRAPH, 2, ((NEGATE, 0),), (2,)), "an input that no step uses"),
        (DefineGraph(GRAPH, 1, ((SPLIT, 0), (NEGATE, 1)), (3,)), "declares"),
        (DefineGraph(GRAPH, 1, ((TIMES, 0),), (1,), ((1, 1, 0),)), "is no scalar"),
        (DefineGraph(GRAPH, 1, ((TIMES, 0),), (1,), ((0, 0, 0),)), "is no scalar"),
        (DefineGraph(GRAPH, 1, ((TIMES, 0),), (1,), ((0, 9, 0),)), "is no scalar"),
        (DefineGraph(GRAPH, 1, ((TIMES, 0),), (1,), ((0, 1, 3),)), "not consecutive"),
    ],
    ids=lambda each: each if isinstance(each, str) else "graph",
)
def test_an_invalid_definition_ends_the_session(
    session: EngineSession, graph: DefineGraph, text: str
) -> None:
    with pytest.raises(ProtocolViolation, match=text):
        session.run(graph)


def test_only_what_depends_on_a_failed_step_fails(session: EngineSession) -> None:
    steps = ((NEGATE, 0), (TAKE, 0, 1), (ADD, 3, 2), (NEGATE, 2))
    session.run(
        DefineGraph(GRAPH, 2, steps, (4, 5)),
        Upload(7, places(0, 9)),
        (GRAPH, 1, 7, 3, 4),
    )
    with pytest.raises(OperationFailed, match=r"Base.Select"):
        session.values(3, size=2)
    assert session.values(4, size=2) == [1, 2]
    ((tensors, failure),) = session.outbox.failures
    assert (tensors, failure.tensor, failure.step) == ((3,), 3, 1)
    session.run(Upload(7, places(1, 0)), (GRAPH, 1, 7, 3, 4))
    assert session.values(3, size=2) == [1, -1]


def test_a_failed_input_fails_only_what_uses_it(session: EngineSession) -> None:
    session.run(Upload(7, places(0, 9)), (TAKE, 1, 7, 8))
    session.run(DefineGraph(GRAPH, 2, ((ADD, 0, 1), (NEGATE, 1)), (2, 3)), (GRAPH, 8, 2, 3, 4))
    with pytest.raises(OperationFailed, match=r"Base.Select"):
        session.values(3, size=2)
    assert session.values(4, size=2) == [-10, -20]
    assert len(session.outbox.failures) == 1  # of the operation outside the graph


def test_the_first_step_that_exceeds_the_quota_is_the_one_that_fails() -> None:
    session = EngineSession(max_bytes=40)
    session.run(*(Define(number, signed) for number, signed in SIGNATURES.items()))
    session.upload(1, 1, 2)
    steps = tuple((NEGATE, slot) for slot in range(5))
    session.run(DefineGraph(GRAPH, 1, steps, (1, 2, 3, 4, 5)), (GRAPH, 1, 11, 12, 13, 14, 15))
    for tensor in (11, 12, 13, 14):
        session.values(tensor, size=2)
    with pytest.raises(QuotaExceeded):
        session.values(15, size=2)
    assert session.quota.bytes == 40


@pytest.mark.parametrize("size", [1000, 100_000])
def test_results_in_dying_memory_leave_views_and_inputs_as_they_were(size: int) -> None:
    session = EngineSession()
    whole, part = vector(size), TensorSpec((size // 10, 10), F32)
    session.run(
        Define(0, signature("Numeric.MulScalar", whole, rhs=2.0)),
        Define(1, signature("Base.Reshape", whole, out=part)),
        Define(2, signature("Numeric.AddScalar", whole, rhs=1.0)),
        Upload(1, floats(*range(size))),
        # 1: x * 2 (dies in step 2, but 2 is its view), 3: 1 + 1, 4: 3 * 2 in the memory of 3
        DefineGraph(GRAPH, 1, ((0, 0), (1, 1), (2, 1), (0, 3), (0, 4), (0, 0)), (2, 5, 6)),
        (GRAPH, 1, 2, 3, 4),
    )
    x = np.arange(size, dtype=np.float32)
    arrays = session.interpreter.tensors.arrays
    np.testing.assert_array_equal(arrays[2].reshape(-1), x * 2)
    np.testing.assert_array_equal(arrays[3], (x * 2 + 1) * 4)
    np.testing.assert_array_equal(arrays[4], x * 2)
    np.testing.assert_array_equal(arrays[1], x)
    assert not np.shares_memory(arrays[2], arrays[3])


@pytest.mark.parametrize(
    ("steps", "outputs", "overwriting"),
    [
        (((TIMES, 0), (NEGATE, 2), (ADD, 1, 3)), (4,), {1, 2}),
        (((TIMES, 0), (ADD, 1, 2), (ADD, 3, 3)), (4,), {1, 2}),
        (((TIMES, 0), (ADD, 1, 2), (ADD, 2, 3)), (4,), {2}),  # used by a later step
        (((TIMES, 0), (ADD, 1, 2)), (2, 3), set()),  # an output of the graph
        (((ADD, 0, 1), (VIEW, 2), (NEGATE, 2), (ADD, 3, 4)), (5,), {3}),  # it has a view
        (((ADD, 0, 1), (VIEW, 2), (NEGATE, 3)), (4,), set()),  # it is a view
        (((ADD, 0, 1), (GREATER, 2)), (3,), set()),  # of another dtype
        (((TIMES, 0), (TOTAL, 2), (ADD_ONE, 1, 3)), (4,), set()),  # of another shape
    ],
    ids=lambda value: str(value) if isinstance(value, set) else "",
)
def test_elementwise_steps_overwrite_only_results_that_nothing_else_uses(
    session: EngineSession, steps: Any, outputs: Any, overwriting: set[int]
) -> None:
    session.run(DefineGraph(GRAPH, 2, steps, outputs))
    assert session.interpreter.numbered[GRAPH].overwriting == overwriting


def test_a_step_that_overwrites_is_not_repeated_without_memory(
    session: EngineSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def negated(x: Any, minus: Any, into: Any = None) -> Any:
        if into is None:
            return x * minus
        into *= minus
        raise MemoryError

    call = ElementwiseCall(negated, (np.float32(-1),), negated)
    bind: Any = lambda signature, numbers=None: (call,) if len(signature.input_uses) == 1 else ()  # noqa: E731
    monkeypatch.setattr(session.interpreter.session, "bind_elementwise", bind)
    session.run(DefineGraph(GRAPH, 1, ((NEGATE, 0), (NEGATE, 1), (ADD, 2, 0)), (3,)), (GRAPH, 1, 3))
    with pytest.raises(OutOfMemory, match=r"Numeric.MulScalar"):
        session.values(3, size=2)


@given(data())
def test_a_graph_gives_the_results_of_its_operations(draw: DataObject) -> None:
    kinds = draw.draw(lists(sampled_from((ADD, NEGATE, TIMES, VIEW, SUBTRACT)), min_size=1))
    steps: list[tuple[int, ...]] = []
    for place, kind in enumerate(kinds):
        count = 2 if kind in (ADD, SUBTRACT) else 1
        steps.append((kind, *[draw.draw(integers(0, place + 1)) for _ in range(count)]))
    used = {slot for step in steps for slot in step[1:]}
    steps += [(NEGATE, slot) for slot in {0, 1} - used]  # every input is used
    outputs = draw.draw(sets(integers(2, len(steps) + 1), min_size=1))
    session = EngineSession()
    session.run(*(Define(number, signed) for number, signed in SIGNATURES.items()))
    session.upload(0, 1.5, -2)
    session.upload(1, 3, 0.1)
    for place, (kind, *slots) in enumerate(steps):
        session.run((kind, *slots, 2 + place))
    graph = DefineGraph(GRAPH, 2, tuple(steps), tuple(outputs))
    session.run(graph, (GRAPH, 0, 1, *[500 + slot for slot in outputs]))
    for slot in outputs:
        assert session.values(500 + slot, size=2) == session.values(slot, size=2)
    assert session.values(0, size=2) == [1.5, -2]
