"""Tensors that a program has dropped do not count when something else needs their quota."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote_protocol.errors import QuotaExceeded
from burn_remote_protocol.messages import Define, Drop, Read, Sync, Upload
from burn_remote_protocol.operations.row import Operation
from burn_remote_server.execution.early_drops import EarlyDrops
from support.engines import EngineSession, floats, undecoded
from support.kernels import signature
from support.specs import f32

SPEC = f32(4)
ADD = signature("Numeric.AddScalar", SPEC, rhs=1.0)


def wire(*tasks: Any) -> tuple[Any, ...]:
    """Return tasks as they are in a batch; plain tuples are invocations."""
    return tuple(task if type(task) is tuple else undecoded(task) for task in tasks)


def test_a_drop_may_run_once_no_task_before_it_uses_the_tensor() -> None:
    tasks = wire((7, 1, 2), (7, 2, 3), (7, 3, 4), Drop((2, 9)), (7, 1, 5), Drop((3,)))
    drops = EarlyDrops(tasks, 0)
    assert drops.before(0) == [9]  # not used in the batch
    assert drops.before(1) == []
    assert drops.before(2) == [2]
    assert drops.before(2) == []
    assert drops.before(5) == [3]


def test_reads_and_definitions_do_not_end_the_search() -> None:
    tasks = wire((7, 1, 2), Define(3, ADD), Read(1, 1, SPEC), Drop((2, 1)))
    drops = EarlyDrops(tasks, 0)
    assert drops.before(2) == [2]
    assert drops.before(3) == [1]


def test_numbers_of_graphs_are_no_tensors() -> None:
    tasks = wire((7, 1, 2, (3, 0.5)), Drop((3,)))
    assert EarlyDrops(tasks, 0).before(0) == [3]


@pytest.mark.parametrize(
    "other",
    [
        (-7, 1),
        (7, "x"),
        (7, (1, 2), 3),
        ("x",),
        (),
        5,
        (-3, 5),
        (-3, (1.5,)),
        (True, 1.0),
    ],
)
def test_any_other_task_ends_the_search(other: object) -> None:
    drops = EarlyDrops(((-3, (1,)), other, (-3, (2,))), 0)
    assert drops.before(1000) == [1]


def test_tasks_of_burn_are_searched_too() -> None:
    add = Operation(ADD, (1, 2))
    tasks = [add, Sync(1), Read(1, 2, SPEC), Drop((2,)), Operation(ADD, (1, 3)), Drop((1,))]
    drops = EarlyDrops(tasks, 0)
    assert drops.before(2) == []
    assert drops.before(3) == [2]
    assert drops.before(5) == [1]


@pytest.mark.parametrize("limit", ["tensors", "bytes"])
def test_an_operation_fits_if_the_program_has_dropped_what_is_in_its_way(limit: str) -> None:
    session = (
        EngineSession(max_tensors=3) if limit == "tensors" else EngineSession(max_bytes=3 * 16)
    )
    invocations = []
    for step in range(20):  # a program with at most three live tensors
        invocations += [(0, 1, 10 + 2 * step), (0, 10 + 2 * step, 11 + 2 * step)]
    session.run(Upload(1, floats(1, 2, 3, 4)), Define(0, ADD))
    session.run(*invocations, Read(1, 1, SPEC), Drop(tuple(range(10, 50))))
    assert session.outbox.failures == []
    assert [*session.outbox.replies] == [1]
    assert (session.quota.tensors, session.quota.bytes) == (1, 16)


def test_an_operation_beside_tensors_that_are_still_used_is_refused() -> None:
    session = EngineSession(max_tensors=3)
    session.run(Upload(1, floats(1, 2, 3, 4)), Define(0, ADD))
    session.run((0, 1, 10), (0, 1, 11), (0, 1, 12), (0, 10, 13), (0, 11, 14), Drop((10, 11, 12)))
    # When 14 is made, 10 is no longer used; before that, all three tensors are.
    assert [failed for failed, _ in session.outbox.failures] == [(12,), (13,)]
    assert all(isinstance(error, QuotaExceeded) for _, error in session.outbox.failures)
    assert session.values(14, size=4) == [3, 4, 5, 6]


def test_the_drops_of_one_batch_are_not_taken_for_those_of_the_next() -> None:
    session = EngineSession(max_tensors=4)
    session.run(Upload(1, floats(1, 2, 3, 4)), Define(0, ADD))
    session.run(*((0, 1, 10 + n) for n in range(5)), Drop((11, 12, 13, 14)))
    session.run((0, 1, 20), (0, 20, 21), (0, 1, 22), (0, 22, 23), Drop((20, 21, 22)))
    assert session.values(23, size=4) == [3, 4, 5, 6]
    assert session.values(10, size=4) == [2, 3, 4, 5]
