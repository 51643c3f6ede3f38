"""The memory of registered graphs of Burn 0.22, and of what calls leave behind, in the quota."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import msgpack
import pytest

from burn_remote_protocol.dialects.burn_0_22 import Bindings, RunGraph
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.tensors import Slice
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.registered_graphs import CALLS_ONE_BY_ONE, RegisteredGraphs
from burn_remote_server.fusion.cpu.kernel_compiler import opened_compiler
from burn_remote_server.fusion.runtime_selection import with_fusion
from burn_remote_server.programs import graphs as graph_programs
from support.compiled_kernels import compiled_at_once
from support.engines import EngineSession

MANY = 3000


def tensor(identifier: int, status: str = "ReadOnly") -> Any:
    return [[identifier], [[0]], status, "F32"]


def step(name: str) -> Any:
    return {"NumericFloat": ["F32", {name: [tensor(0), tensor(0), tensor(1, "NotInit")]}]}


def mask() -> Any:
    return [[4], [[0]], "ReadOnly", {"Bool": "Native"}]


def masked() -> Any:
    """Return the comparison of a tensor with 1.5, whose result is ``mask()``."""
    out = [[4], [[0]], "NotInit", {"Bool": "Native"}]
    return {"NumericFloat": ["F32", {"LowerElem": [tensor(0), {"Float": 1.5}, out]}]}


def packed(*operations: Any) -> bytes:
    return bytes(msgpack.packb(operations))


STEP = packed(step("Add"))


def call(number: int, graph: int = 0, *, registers: bool = False) -> RunGraph:
    """Return a call of a graph of one operation that binds thousands of values besides."""
    bindings = Bindings(
        ((0, 1), (1, 2)),
        (2, *range(number, number + MANY)),
        tuple(Scalar("Float", float(number + place)) for place in range(MANY)),
        tuple(Slice(number + place, None, 1) for place in range(MANY)),
    )
    return RunGraph(graph, STEP if registers else None, bindings)


BINDINGS = Bindings(((0, 1), (1, 2)), (2,), (), ())


@pytest.fixture
def session() -> EngineSession:
    made = EngineSession(max_bytes=16 * 2**20)
    made.upload(1, 1.0, 2.0)
    return made


@pytest.fixture
def graphs(session: EngineSession) -> RegisteredGraphs:
    return RegisteredGraphs(session.interpreter, lambda tensor, error: None)


@pytest.fixture
def compiled() -> Iterator[EngineSession]:
    """Return a session whose kernels are compiled at once, with a tensor."""
    pytest.importorskip("llvmlite", reason="the extra fusion is not installed")
    made = EngineSession(backend=with_fusion(NumpyBackend()))
    made.upload(1, 1.0, 2.0)
    with compiled_at_once():
        yield made


def test_the_values_of_calls_count_in_the_quota_while_they_are_kept(
    session: EngineSession, graphs: RegisteredGraphs
) -> None:
    before = session.quota.held
    for number in range(3):
        graphs.run(call(number, registers=number == 0))
    held = session.quota.held - before

    assert held > 3 * 3 * MANY * 100  # three calls, three lists, 100 bytes for each value
    graphs.run(RunGraph(0, packed(step("Sub")), Bindings(((0, 1), (1, 2)), (2,), (), ())))
    assert session.quota.held - before < held / 10  # another graph has taken its number


def test_a_call_with_a_size_that_no_tensor_can_have_fails_the_outputs_of_the_graph(
    session: EngineSession,
) -> None:
    failed: dict[int, str] = {}
    graphs = RegisteredGraphs(
        session.interpreter, lambda tensor, error: failed.update({tensor: str(error)})
    )
    graphs.run(RunGraph(0, STEP, Bindings(((0, 1), (1, 2)), (2**62,), (), ())))
    assert [*failed] == [2]
    assert "elements" in failed[2]
    graphs.run(RunGraph(0, None, BINDINGS))
    assert session.values(2, size=2) == [2, 4]


def test_a_call_whose_values_do_not_fit_runs_and_leaves_nothing(
    session: EngineSession, graphs: RegisteredGraphs
) -> None:
    for graph in range(20):
        for number in range(4):
            graphs.run(call(number, graph, registers=number == 0))
            assert session.values(2, size=2) == [2, 4]

    assert session.quota.bytes + session.quota.held <= session.quota.max_bytes


def test_lists_in_the_operations_of_a_graph_count(
    session: EngineSession, graphs: RegisteredGraphs
) -> None:
    numbers = [{"UInt": value} for value in range(1000)]
    custom = {"Custom": ["nothing", [], [tensor(1, "NotInit")], numbers]}
    before = session.quota.held
    graphs.run(RunGraph(0, packed(*[custom] * 10), Bindings(((1, 2),), (2,), (), ())))

    assert session.quota.held - before > 10 * 1000 * 100


def test_a_graph_that_is_registered_again_under_another_number_is_the_same_one(
    session: EngineSession, graphs: RegisteredGraphs
) -> None:
    bindings = Bindings(((0, 1), (1, 2)), (2,), (), ())
    graphs.run(RunGraph(0, STEP, bindings))
    before = session.quota.held
    calls = session.interpreter.counts.graph_calls
    for number in range(1, 10):
        graphs.run(RunGraph(number, STEP, bindings))
        assert session.values(2, size=2) == [2, 4]
    assert session.interpreter.counts.graph_calls - calls == 10 - CALLS_ONE_BY_ONE
    assert session.quota.held - before < 10_000
    for number in range(10):
        graphs.run(RunGraph(number, packed(step("Sub")), bindings))
    assert session.values(2, size=2) == [0, 0]
    graphs.run(RunGraph(3, None, bindings))
    assert session.values(2, size=2) == [0, 0]


def test_calls_that_ran_one_by_one_count_towards_the_compilation_of_kernels(
    compiled: EngineSession,
) -> None:
    registered = RegisteredGraphs(compiled.interpreter, lambda tensor, error: None)
    compiler = opened_compiler()
    assert compiler is not None
    before = compiler.counts.compiled
    number = {"Float": 0.8125}
    steps = [
        {"NumericFloat": ["F32", {"MulScalar": [tensor(0), number, tensor(2, "NotInit")]}]},
        {"NumericFloat": ["F32", {"AddScalar": [tensor(2), number, tensor(1, "NotInit")]}]},
    ]
    with patch.object(graph_programs, "COMPILED_AT", CALLS_ONE_BY_ONE + 1):
        for _ in range(CALLS_ONE_BY_ONE):
            registered.run(RunGraph(0, packed(*steps), BINDINGS))
        assert compiler.counts.compiled == before
        registered.run(RunGraph(0, None, BINDINGS))
    assert compiler.counts.compiled == before + 1
    assert compiled.values(2, size=2) == [1.625, 2.4375]


def test_a_compiled_graph_fills_a_tensor_with_a_number_of_each_call(
    compiled: EngineSession,
) -> None:
    registered = RegisteredGraphs(compiled.interpreter, lambda tensor, error: None)
    full = {"NumericFloat": ["F32", {"Full": [tensor(2, "NotInit"), {"UInt": 0}]}]}
    add = {
        "NumericFloat": ["F32", {"Add": [tensor(0), tensor(2, "ReadWrite"), tensor(1, "NotInit")]}]
    }
    for call in range(CALLS_ONE_BY_ONE + 3):
        number = Scalar("Float", call / 2)
        bindings = Bindings(((0, 1), (1, 2)), (2,), (number,), ())
        registered.run(RunGraph(0, None if call else packed(full, add), bindings))
        assert compiled.values(2, size=2) == [1 + call / 2, 2 + call / 2]
    assert compiled.interpreter.counts.graph_calls


def test_a_compiled_graph_uses_the_numbers_of_each_call(
    session: EngineSession, graphs: RegisteredGraphs
) -> None:
    """Whether the numbers of two calls are one object, equal objects, or differ."""
    scaled = {
        "NumericFloat": ["F32", {"MulScalar": [tensor(0), {"UInt": 0}, tensor(1, "NotInit")]}]
    }
    filled = {"BaseFloat": {"MaskFill": [tensor(1), mask(), {"UInt": 1}, tensor(3, "NotInit")]}}
    program = packed(scaled, masked(), filled)

    def bindings(factor: float, value: float) -> Bindings:
        numbers = (Scalar("Float", factor), Scalar("Float", value))
        return Bindings(((0, 1), (1, 2), (3, 3)), (2,), numbers, ())

    ones, twos = bindings(1.0, 7.0), bindings(2.0, 8.0)
    calls = session.interpreter.counts.graph_calls
    for number in range(CALLS_ONE_BY_ONE + 1):
        graphs.run(RunGraph(0, program if not number else None, ones))
    for each, first, second in (
        (ones, [1, 2], [7, 2]),
        (twos, [2, 4], [8, 4]),
        (twos, [2, 4], [8, 4]),
        (bindings(2.0, 8.0), [2, 4], [8, 4]),
        (bindings(2.0, 9.0), [2, 4], [9, 4]),
        (ones, [1, 2], [7, 2]),
    ):
        graphs.run(RunGraph(0, None, each))
        assert session.values(2, size=2) == first
        assert session.values(3, size=2) == second
    assert session.interpreter.counts.graph_calls - calls == 7


def test_floats_that_are_equal_but_differ_in_their_bytes_are_different_graphs(
    session: EngineSession, graphs: RegisteredGraphs
) -> None:
    def scaled(factor: float) -> bytes:
        body = [tensor(0), {"Float": factor}, tensor(1, "NotInit")]
        return packed({"NumericFloat": ["F32", {"MulScalar": body}]})

    bindings = Bindings(((0, 1), (1, 2)), (2,), (), ())
    graphs.run(RunGraph(0, scaled(0.0), bindings))
    graphs.run(RunGraph(1, scaled(-0.0), bindings))
    assert [math.copysign(1, value) for value in session.values(2, size=2)] == [-1, -1]


def test_a_graph_is_compiled_after_several_calls(
    session: EngineSession, graphs: RegisteredGraphs
) -> None:
    graphs.run(RunGraph(0, STEP, BINDINGS))
    for _ in range(CALLS_ONE_BY_ONE - 1):
        graphs.run(RunGraph(0, None, BINDINGS))
        assert session.values(2, size=2) == [2, 4]
    assert session.interpreter.counts.graphs == 0
    for _ in range(2):
        graphs.run(RunGraph(0, None, BINDINGS))
        assert session.values(2, size=2) == [2, 4]
    assert session.interpreter.counts.graphs == 1


def test_a_graph_that_only_drops_a_tensor_of_the_session_is_compiled(
    session: EngineSession, graphs: RegisteredGraphs
) -> None:
    operations = packed(step("Add"), {"Drop": tensor(2, "ReadWrite")})
    bindings = Bindings(((0, 1), (1, 2), (2, 3)), (2,), (), ())
    for _ in range(CALLS_ONE_BY_ONE + 2):
        session.upload(3, 5.0, 6.0)
        graphs.run(RunGraph(0, operations, bindings))
        assert session.values(2, size=2) == [2, 4]
        assert 3 not in session.tensors.arrays
    assert session.interpreter.counts.graph_calls == 2


def test_a_tensor_bound_twice_gives_the_same_results_in_every_call(
    session: EngineSession, graphs: RegisteredGraphs
) -> None:
    add = {"Add": [tensor(0), tensor(1, "ReadWrite"), tensor(2, "NotInit")]}
    copy = {"Add": [tensor(0), tensor(0), tensor(3, "NotInit")]}
    operations = packed({"NumericFloat": ["F32", add]}, {"NumericFloat": ["F32", copy]})
    failed = []
    for call in range(CALLS_ONE_BY_ONE + 2):
        session.upload(1, 5.0, 6.0)
        out = 10 + 2 * call
        bindings = Bindings(((0, 1), (1, 1), (2, out), (3, out + 1)), (2,), (), ())
        graphs.run(RunGraph(0, operations, bindings))
        assert session.values(out, size=2) == [10, 12]
        failed.append(out + 1 not in session.tensors.arrays)
    assert all(failed)  # the first operation has used the tensor for the last time
