"""A graph gives the results, failures and counts of its operations one by one."""

from __future__ import annotations

import gc
import math
import tracemalloc
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import DataObject, data, integers, lists, sampled_from, sets

from burn_remote.sessions.native.patterns import MAX_STEPS
from burn_remote_protocol.dtypes import F32, I64
from burn_remote_protocol.errors import (
    DeviceLost,
    OperationFailed,
    OutOfMemory,
    ProtocolViolation,
    QuotaExceeded,
)
from burn_remote_protocol.messages import Define, DefineGraph, Drop, Read, Upload
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.access.quota import FREE_OVERHEAD_BYTES, Pool, Quota
from burn_remote_server.backends.interface import ElementwiseCall
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.engine import Engine
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.programs.graph_runner import GraphRunner
from burn_remote_server.programs.graphs import GraphPlan
from burn_remote_server.programs.program_compiler import STOP_COST
from burn_remote_server.tensors.allocations import Allocations
from burn_remote_server.tensors.tensor_table import TensorTable
from support.engines import EngineSession, floats, vector
from support.fused_sessions import ADD as FUSED_ADD
from support.fused_sessions import TWICE, fused_session
from support.interrupts import InterruptAt, MemoryErrorAfterCall, Walk
from support.kernels import signature

ADD, NEGATE, TIMES, TAKE, SPLIT, VIEW, SUBTRACT, GREATER, TOTAL, ADD_ONE, RELU, LIMIT = range(12)
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
    RELU: signature("Numeric.Clamp", vector(2), min=0.0, max=math.inf),
    LIMIT: signature("Numeric.Clamp", vector(2), min=-1.0, max=5.0),
    ADD_ONE: signature("Numeric.Add", vector(2), vector(1)),
}


def codes_of(*kinds: type) -> frozenset[types.CodeType]:
    return frozenset(
        function.__code__
        for kind in kinds
        for function in vars(kind).values()
        if isinstance(function, types.FunctionType)
    )


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


CLAMP = signature("Numeric.Clamp", vector(2), min=1.0, max=2.0)
LOW = [field.name for field in CLAMP.row.fields].index("min")


def _wide_steps(count: int) -> list[Any]:
    join = signature("Base.Cat", (vector(2),) * 2000, dim=0)
    return [Define(20, join), DefineGraph(GRAPH, 1, ((20, *[0] * 2000),) * count, (1,))]


def _replaced_signatures(count: int) -> list[Any]:
    made: list[Any] = []
    for graph in range(count // 100):
        for number in range(100):
            out = TensorSpec((graph + 1, number + 1), F32)
            made.append(Define(100 + number, signature("Base.Zeros", out=out)))
        steps = tuple((100 + number,) for number in range(100))
        made.append(DefineGraph(GRAPH + graph, 0, steps, (0,)))
    return made


def _numbered_steps(count: int) -> list[Any]:
    steps = tuple((20, slot) for slot in range(count))
    numbers = tuple((place, LOW, 0) for place in range(count))
    call = (GRAPH, 1, 2, (0.5,))
    return [Define(20, CLAMP), DefineGraph(GRAPH, 1, steps, (count,), numbers), call]


def _numbers_of_one_step(count: int) -> list[Any]:
    numbers = tuple((0, LOW, place) for place in range(count))
    call = (GRAPH, 1, 2, tuple(place / 8 for place in range(count)))
    return [Define(20, CLAMP), DefineGraph(GRAPH, 1, ((20, 0),), (1,), numbers), call]


@pytest.mark.parametrize(
    ("made", "count"),
    [
        (_wide_steps, 200),
        (_replaced_signatures, 2000),
        (_numbered_steps, 1000),
        (_numbers_of_one_step, 4000),
    ],
)
def test_a_graph_counts_the_memory_that_it_takes(
    session: EngineSession, made: Callable[[int], list[Any]], count: int
) -> None:
    tracemalloc.start()
    try:
        for task in made(count):
            session.run(task)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= 1.1 * session.quota.held + FREE_OVERHEAD_BYTES + 2**18


def test_a_graph_counts_the_memory_of_its_fused_steps() -> None:
    count = 2000
    steps = tuple((TWICE, slot) if slot % 2 else (FUSED_ADD, slot, slot) for slot in range(count))
    with fused_session() as session:
        session.run(DefineGraph(GRAPH + 1, 1, steps[:64], (64,)))  # warms caches
        before = session.quota.held
        tracemalloc.start()
        try:
            session.run(DefineGraph(GRAPH, 1, steps, (count,)))
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert session.interpreter.numbered[GRAPH].fused_count == count
        assert taken <= 1.1 * (session.quota.held - before) + FREE_OVERHEAD_BYTES


def test_the_garbage_collector_tracks_no_object_for_each_step(session: EngineSession) -> None:
    """It stops all threads for as long as it examines objects."""
    huge = signature("Base.Zeros", out=vector(2**30))
    session.run(Define(20, CLAMP), Define(21, huge))
    assert session.interpreter.numbered[21].error is not None
    kinds = ((NEGATE, 0), (ADD, 0, 0), (LIMIT, 0), (VIEW, 0), (SPLIT, 0), (20, 0), (21,))
    repeats = 500
    count = repeats * len(kinds)
    numbers = tuple((len(kinds) * repeat + 5, LOW, 0) for repeat in range(repeats))
    gc.collect()
    before = len(gc.get_objects())
    session.run(DefineGraph(GRAPH, 1, kinds * repeats, (count,), numbers))
    gc.collect()
    assert len(gc.get_objects()) - before < 0.1 * count


def test_the_steps_of_a_graph_are_those_of_its_definition(session: EngineSession) -> None:
    session.run(DefineGraph(GRAPH, 2, ((ADD, 0, 1), (NEGATE, 2), (SPLIT, 3)), (4,)))
    steps = session.interpreter.numbered[GRAPH].steps
    add, negate, split = steps
    assert [step.inputs for step in steps] == [(0, 1), *add[2:3], *negate[2:3]]
    assert [step.plan.signature.row.name for step in steps] == [
        "Add",
        "MulScalar",
        "MaxDimWithIndices",
    ]
    assert [steps[0], steps[-1]] == [add, split]
    assert steps[1:] == (negate, split)
    assert steps[:0] == ()
    assert len(steps) == 3


def test_small_values_that_died_count_until_their_memory_is_free() -> None:
    session = EngineSession(max_bytes=2**26)
    wide, tall, count = TensorSpec((1, 16_000), F32), TensorSpec((16_000, 1), F32), 200
    session.run(
        Define(0, signature("Numeric.Full", out=wide, value=1.0)),
        Define(1, signature("Numeric.Full", out=tall, value=1.0)),
        Define(2, signature("Float.Matmul", wide, tall)),
        Define(3, signature("Numeric.Full", out=TensorSpec((16_000, count), F32), value=1.0)),
    )
    pairs = range(count // 2)
    steps = [*[(0,), (1,)] * (count // 2), *((2, 2 * n, 2 * n + 1) for n in pairs), (3,)]
    session.run(DefineGraph(GRAPH, 0, tuple(steps), (count + count // 2,)))
    plan = session.interpreter.numbered[GRAPH]
    tracemalloc.start()
    try:
        session.run((GRAPH, 1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= plan.peak_bytes + 2**18
    assert session.quota.bytes == 16_000 * count * 4


class GreedyPool(Pool):
    """A pool in which another session takes all that this one gives back."""

    def give_back(self, size: int) -> None:
        """Give bytes to the other session."""


def test_a_step_that_fails_ends_no_session_although_others_take_what_it_frees() -> None:
    session = EngineSession()
    session.quota = Quota(2**30, 1000, pool=GreedyPool(52))
    session.interpreter = Interpreter(NumpyBackend(), session.quota, session.outbox.failed)
    session.tensors = session.interpreter.tensors
    session.engine = Engine(
        session.interpreter, session.transfers, session.outbox, transfer_domain="test"
    )
    session.run(*(Define(number, signed) for number, signed in SIGNATURES.items()))
    session.upload(1, 1, 2)
    session.run(Upload(2, places(0, 7)))
    steps = ((NEGATE, 0), (TAKE, 0, 1), (ADD, 2, 0))
    session.run(DefineGraph(GRAPH, 2, steps, (2, 3, 4)), (GRAPH, 1, 2, 3, 4, 5))
    assert session.values(3, size=2) == [-1, -2]
    with pytest.raises(OperationFailed):
        session.values(4, size=2)


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


def test_steps_with_the_same_signature_and_number_bind_it_once_in_each_call(
    session: EngineSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ((TIMES, 0), (TIMES, 1), (TIMES, 2), (TIMES, 0), (ADD, 3, 4))
    numbers = ((0, 1, 0), (1, 1, 0), (2, 1, 0), (3, 1, 1))
    session.run(DefineGraph(GRAPH, 1, steps, (5,), numbers))
    backend = session.interpreter.session
    known, bound = backend.bind_elementwise, []

    def bind(signature: Any, values: Any = None) -> Any:
        bound.append(values)
        return known(signature, values)

    monkeypatch.setattr(backend, "bind_elementwise", bind)
    for tensor, (cubed, once) in enumerate([(2.0, 0.5), (0.5, -1.0)], start=3):
        bound.clear()
        session.run((GRAPH, 1, tensor, (cubed, once)))
        expected = [one * cubed**3 + one * once for one in (1.0, 2.0)]
        assert session.values(tensor, size=2) == expected
        assert [[*one.values()] for one in bound] == [[cubed], [once]]


def test_a_limit_that_changes_from_call_to_call_may_be_infinite(session: EngineSession) -> None:
    session.run(DefineGraph(GRAPH, 1, ((RELU, 0),), (1,), ((0, 1, 0), (0, 2, 1))))
    limits = [(0.0, math.inf), (1.5, 1.75), (-math.inf, 1.5), (-math.inf, math.inf)]
    for tensor, (low, high) in enumerate(limits, start=3):
        session.run((GRAPH, 1, tensor, (low, high)))
        assert session.values(tensor, size=2) == np.clip([1.0, 2.0], low, high).tolist()


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
        (DefineGraph(GRAPH, 1, ((ADD, 0),), (1,)), "gives 1 inputs to Numeric.Add; expected 2"),
        (DefineGraph(GRAPH, 1, ((NEGATE, 1),), (1,)), "used before it is filled"),
        (DefineGraph(GRAPH, 1, ((NEGATE, 0),), (0,)), "outputs must be results"),
        (DefineGraph(GRAPH, 1, ((NEGATE, 0),), (2,)), "outputs must be results"),
        (DefineGraph(GRAPH, 1, ((NEGATE, 0),), (1, 1)), "outputs must be results"),
        (DefineGraph(GRAPH, 2, ((NEGATE, 0),), (2,)), "an input that no step uses"),
        (DefineGraph(GRAPH, 1, ((SPLIT, 0), (NEGATE, 1)), (3,)), "declares"),
        (DefineGraph(GRAPH, 1, ((TIMES, 0),), (1,), ((1, 1, 0),)), "is not a scalar"),
        (DefineGraph(GRAPH, 1, ((TIMES, 0),), (1,), ((0, 0, 0),)), "is not a scalar"),
        (DefineGraph(GRAPH, 1, ((TIMES, 0),), (1,), ((0, 9, 0),)), "is not a scalar"),
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


def test_a_call_reports_the_failures_of_as_many_steps_as_a_pattern_has(
    session: EngineSession,
) -> None:
    steps = [(TAKE, 0, 1)] * (MAX_STEPS + 1)
    outputs = range(10, 10 + len(steps))
    session.run(
        DefineGraph(GRAPH, 2, tuple(steps), tuple(range(2, 2 + len(steps)))),
        Upload(7, places(0, 9)),
        (GRAPH, 1, 7, *outputs),
    )
    assert [failure.step for _, failure in session.outbox.failures] == [*range(MAX_STEPS)]


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
        # Slot 1 is x * 2. Its last use is the third step, but slot 2 is a view of it, so
        # slot 3, which is slot 1 plus one, needs memory of its own. Slot 4 takes slot 3's.
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
        (((ADD, 0, 1), (NEGATE, 2), (RELU, 3), (LIMIT, 4), (NEGATE, 5)), (6,), {1}),
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


@pytest.mark.parametrize(
    ("shape", "steps", "outputs", "overwriting"),
    [
        ((3, 3), ((0, 0, 1), (1, 2, 1)), (3,), {1}),
        ((3, 3), ((0, 0, 1), (1, 2, 1)), (2, 3), set()),  # an output of the graph
        ((3, 3), ((1, 0, 1), (0, 2, 1), (1, 2, 3)), (4,), {2}),  # operands of a product stay
        ((3, 1), ((0, 0, 1), (1, 0, 2)), (3,), {1}),  # the other operand is repeated
    ],
)
def test_steps_after_a_product_take_its_memory(
    shape: tuple[int, int], steps: Any, outputs: Any, overwriting: set[int]
) -> None:
    left, right = TensorSpec(shape, F32), TensorSpec((shape[1], 3), F32)
    session = EngineSession()
    session.run(
        Define(0, signature("Float.Matmul", left, right)),
        Define(1, signature("Numeric.Add", left, TensorSpec((3, 3), F32))),
        DefineGraph(GRAPH, 2, steps, outputs),
    )
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


def test_a_step_runs_again_after_a_cleanup_if_a_library_of_the_device_lacked_memory(
    session: EngineSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LibraryWithoutMemory(RuntimeError):
        pass

    errors = [LibraryWithoutMemory()]
    cleanups = []

    def triple(x: Any) -> Any:
        if errors:
            raise errors.pop()
        return 3 * x

    def explained(error: Exception) -> Exception:
        return MemoryError() if isinstance(error, LibraryWithoutMemory) else error

    inner, backend = session.interpreter.session, session.interpreter.backend
    monkeypatch.setattr(inner, "bind_elementwise", lambda signature, numbers=None: ())
    monkeypatch.setattr(inner, "bind", lambda signature: triple)
    monkeypatch.setattr(backend, "explained", explained)
    monkeypatch.setattr(backend, "memory_cleanup", lambda: cleanups.append(1))
    kind = max(SIGNATURES) + 1
    tripled = signature("Numeric.MulScalar", vector(2), rhs=3.0)
    session.run(Define(kind, tripled), DefineGraph(GRAPH, 1, ((kind, 0),), (1,)), (GRAPH, 1, 3))
    assert session.values(3, size=2) == [3, 6]
    assert len(cleanups) == 1


@given(data())
def test_a_graph_gives_the_results_of_its_operations(draw: DataObject) -> None:
    kinds = draw.draw(
        lists(sampled_from((ADD, NEGATE, TIMES, VIEW, SUBTRACT, RELU, LIMIT)), min_size=1)
    )
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


def test_a_number_that_its_step_cannot_take_fails_only_that_step(session: EngineSession) -> None:
    spec = TensorSpec((2,), I64)
    session.run(
        Define(5, signature("Numeric.RemScalar", spec, rhs=1)),
        Upload(7, places(10, 11)),
        DefineGraph(GRAPH, 2, ((5, 0), (TIMES, 1)), (2, 3), ((0, 1, 0), (1, 1, 1))),
    )
    tensors = session.interpreter.tensors
    for number in (3, 0, 0, 4, 0):
        session.run((GRAPH, 7, 1, 11, 12, (number, 2.0)))
        assert tensors.arrays[12].tolist() == [2, 4]
        if number:
            assert tensors.arrays[11].tolist() == [10 % number, 11 % number]
        else:
            assert isinstance(tensors.slots[11], OperationFailed)


def test_a_graph_of_a_lost_device_runs_no_kernel(session: EngineSession) -> None:
    session.run(
        Upload(7, places(0, 9)),
        (TAKE, 1, 7, 8),  # fails
        DefineGraph(GRAPH, 2, ((ADD, 0, 1), (NEGATE, 1)), (2, 3)),
        Define(ADD, SIGNATURES[TIMES]),  # the graph keeps the replaced plans
        Define(NEGATE, SIGNATURES[TIMES]),
    )
    session.interpreter.lose("the GPU is lost")
    session.run((GRAPH, 8, 1, 3, 4))
    assert {3, 4} <= session.interpreter.tensors.slots.keys()
    for tensor in (3, 4):
        with pytest.raises(DeviceLost):
            session.values(tensor, size=2)


@pytest.mark.parametrize("is_step_by_step", [False, True])
def test_the_end_of_a_session_stops_a_long_graph(is_step_by_step: bool) -> None:
    session = EngineSession()
    side = TensorSpec((150, 150), F32)
    count, ran = 200, []
    session.run(Define(0, signature("Float.Matmul", side, side)), Define(1, SIGNATURES[NEGATE]))
    plan = session.interpreter.numbered[0]
    assert plan.cost * count > 5 * STOP_COST
    run = plan.run

    def counted(*arrays: Any) -> Any:
        ran.append(1)
        if len(ran) == 20:
            session.engine.stop()
        return run(*arrays)

    plan.run = counted
    steps = tuple((0, max(slot - 1, 0), slot) for slot in range(count))
    session.run(
        Upload(1, TensorData(np.eye(150, dtype=np.float32).tobytes(), side.shape, F32)),
        DefineGraph(GRAPH, 1, steps, (count,)),
    )
    before = session.quota.bytes, session.quota.tensors
    if is_step_by_step:
        session.quota.take(session.quota.max_bytes - before[0] - 6 * side.nbytes, 0)
        before = session.quota.bytes, session.quota.tensors
    session.run((GRAPH, 1, 2), (GRAPH, 1, 3))
    assert 20 <= len(ran) < 20 + count // 4
    assert (session.quota.bytes, session.quota.tensors) == before
    assert 3 not in session.interpreter.tensors.arrays


def test_an_interrupt_anywhere_in_a_graph_leaks_no_memory() -> None:
    codes = codes_of(GraphPlan, GraphRunner)
    leaks = 0
    walk = Walk()
    for place in walk:
        session = EngineSession()
        session.run(*(Define(number, signed) for number, signed in SIGNATURES.items()))
        session.upload(1, 1, 2)
        session.run(Upload(7, places(0, 9)))
        steps = ((ADD, 0, 0), (TIMES, 2), (TAKE, 2, 1), (NEGATE, 4), (NEGATE, 3))
        graph = DefineGraph(GRAPH, 2, steps, (5, 6), ((1, 1, 0),))
        session.run(graph)
        before = session.quota.bytes, session.quota.tensors
        peak = session.interpreter.numbered[GRAPH].peak_bytes
        task = (GRAPH, 1, 7, 3, 4, (2.0,))
        interrupt = InterruptAt(place, codes)
        with interrupt.watching():
            session.run(task)
        if interrupt.has_come:
            session.engine.fail_interrupted(task)
        assert {3, 4} == {3, 4} & (
            session.interpreter.tensors.arrays.keys() | session.interpreter.tensors.slots.keys()
        )
        session.run(Drop((3, 4)))
        # As with single operations, bytes stay counted between the kernel and its stored result.
        leaked = session.quota.bytes - before[0], session.quota.tensors - before[1]
        assert leaked in {(0, 0), (8, 1), (16, 2), (24, 2), (peak, 2)}, interrupt.place
        leaks += leaked != (0, 0)
        session.run((GRAPH, 1, 7, 3, 4, (3.0,)))  # with other numbers
        assert session.values(4, size=2) == [-6, -12]
    assert leaks < walk.count / 4
    walk.check(GraphPlan.run, GraphPlan._run, GraphRunner.run, GraphRunner._run_step)


def test_memory_of_definitions_counts_until_they_are_replaced(session: EngineSession) -> None:
    session.run(Define(9, SIGNATURES[TIMES]))
    counted = session.interpreter.plans._plan_account
    sizes = []
    for round_ in range(3):
        for number in range(GRAPH, GRAPH + 256):
            steps = tuple((TIMES, slot) for slot in range(20 + round_))
            numbers = tuple((place, 1, place) for place in range(len(steps)))
            session.run(DefineGraph(number, 1, steps, (len(steps),), numbers))
        sizes.append(counted.bytes)
    assert sizes[0] > 256 * 20 * 3000
    assert sizes[2] < 1.2 * sizes[0]


@pytest.mark.parametrize("other", [1, 99])
def test_an_input_of_another_dtype_fails_only_the_steps_that_use_it(
    session: EngineSession, other: int
) -> None:
    session.run(
        Upload(7, places(0, 1)),
        DefineGraph(GRAPH, 3, ((NEGATE, 0), (NEGATE, 1), (NEGATE, 2)), (3, 4, 5)),
        (GRAPH, 7, 2, other, 11, 12, 13),  # 99 is unknown
    )
    with pytest.raises(OperationFailed, match=r"int64\[2\]; the graph expects float32\[2\]"):
        session.values(11, size=2)
    assert session.values(12, size=2) == [-10, -20]
    assert (13 in session.interpreter.tensors.arrays) == (other == 1)


@pytest.mark.parametrize(
    ("steps", "outputs", "second"),
    [
        (((ADD, 0, 1), (NEGATE, 2), (SPLIT, 3), (ADD, 3, 2)), (6, 3, 4), 2),
        (((ADD, 0, 1), (VIEW, 2), (VIEW, 0), (NEGATE, 3)), (3, 4, 5), 2),
        # The second step fails, so the steps run one by one.
        (((NEGATE, 0), (TAKE, 2, 1), (NEGATE, 2), (NEGATE, 4), (VIEW, 4)), (3, 5, 6), 9),
    ],
    ids=["program", "views", "one-by-one"],
)
def test_a_graph_that_fails_for_memory_keeps_no_bytes_counted(
    session: EngineSession, steps: Any, outputs: tuple[int, ...], second: int
) -> None:
    session.run(Upload(9, places(0, 7)), DefineGraph(GRAPH, 2, steps, outputs))
    results = (20, 21, 22)
    call = (GRAPH, 1, second, *results)
    for _ in range(3):
        session.run(call, Drop(results))
    before = session.quota.bytes, session.quota.tensors, session.quota.held
    # Not the instructions of a program that run no kernel: they need no memory.
    codes = codes_of(GraphRunner, TensorTable, Allocations) | {GraphPlan.run.__code__}
    walk = Walk()
    for place in walk:
        lack = MemoryErrorAfterCall(place, codes)
        with lack.watching():
            session.run(call)
        session.run(Drop(results))
        after = session.quota.bytes, session.quota.tensors, session.quota.held
        assert after == before, lack.place
    walk.check(GraphRunner._store)
