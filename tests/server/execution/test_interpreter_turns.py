"""Threads of many busy sessions compute in Python one at a time, each for a bounded cost."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from burn_remote_protocol.messages import (
    Cleanup,
    Define,
    Drop,
    Execute,
    Fetch,
    Read,
    Upload,
)
from burn_remote_protocol.operations.row import Operation
from burn_remote_server.execution import interpreter_turns
from burn_remote_server.execution.costs import NEW_SIGNATURE_COST, TASK_COST, python_cost
from burn_remote_server.execution.interpreter_turns import (
    FREE_THREADS,
    TURN_COST,
    InterpreterTurn,
    InterpreterTurns,
)
from support.engines import EngineSession, floats, undecoded, vector
from support.kernels import signature
from support.waiting import PATIENCE_SECONDS, wait_until

COST = TURN_COST // 10


class Working:
    """A thread in a call that is too long to go on without turns, until it has returned."""

    def __init__(self, turns: InterpreterTurns, call: Callable[[InterpreterTurn], None]) -> None:
        self.turn = InterpreterTurn(turns)
        self._call = call
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        self.turn.begin()
        try:
            self.turn.spend(TURN_COST)
            self.turn.spend(0)
            self._call(self.turn)
        finally:
            self.turn.end()

    def join(self) -> None:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()


@pytest.fixture
def turns() -> Iterator[InterpreterTurns]:
    """Turns of so many sessions that each further one must take turns."""
    crowded = InterpreterTurns()
    idle = [InterpreterTurn(crowded) for _ in range(FREE_THREADS)]
    for each in idle:
        each.begin()
        assert not each.has_turn
    yield crowded
    for each in idle:
        each.end()
    assert not crowded.working and not crowded.queue


def test_a_few_sessions_work_without_turns() -> None:
    few = InterpreterTurns()
    for _ in range(FREE_THREADS):
        turn = InterpreterTurn(few)
        turn.begin()
        assert not turn.is_crowded and not turn.has_turn
    assert not few.queue


def test_a_thread_that_does_not_work_for_a_session_takes_no_turn(turns: InterpreterTurns) -> None:
    turn = InterpreterTurn(turns)
    turn.enter()
    turn.spend(1)
    assert not turn.is_crowded and not turn.has_turn


def test_the_first_work_of_a_call_needs_no_turn(turns: InterpreterTurns) -> None:
    turn = InterpreterTurn(turns)
    for _ in range(2):
        turn.begin()
        paced = [turn.has_turn for _ in turn.paced(range(12), lambda _: COST)]
        assert paced == [False] * 10 + [True] * 2
        turn.rest()
        assert [turn.has_turn for _ in turn.paced(range(10), lambda _: COST)] == [False] * 10
        turn.end()


def test_each_thread_passes_its_turn_on_after_its_share_of_work(turns: InterpreterTurns) -> None:
    executed: list[int] = []
    begins = threading.Event()

    def work(number: int) -> Callable[[InterpreterTurn], None]:
        def run(turn: InterpreterTurn) -> None:
            assert begins.wait(PATIENCE_SECONDS)
            for _ in turn.paced(range(20), lambda _: COST):
                assert turn.has_turn
                executed.append(number)

        return run

    threads = []
    for number in range(3):
        threads.append(Working(turns, work(number)))
        wait_until(lambda count=number + 1: len(turns.queue) == count)  # type: ignore[misc]
    begins.set()
    for each in threads:
        each.join()
    share = [0] * 10 + [1] * 10 + [2] * 10
    assert executed == share * 2


def test_a_task_that_may_wait_runs_without_the_turn(turns: InterpreterTurns) -> None:
    seen: list[tuple[str, bool]] = []

    def run(turn: InterpreterTurn) -> None:
        costs = {"short": 1, "waits": None}
        paced = turn.paced(["short", "waits", "short"], costs.__getitem__)
        seen.extend((task, turn.has_turn) for task in paced)

    Working(turns, run).join()
    assert seen == [("short", True), ("waits", False), ("short", True)]


def test_a_thread_overtakes_one_that_keeps_its_turn(
    turns: InterpreterTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter_turns, "PATIENCE_SECONDS", 0.01)
    ends = threading.Event()
    keeps = Working(turns, lambda turn: wait_for(ends))
    wait_until(lambda: len(turns.queue) == 1)
    for _ in range(2):
        Working(turns, lambda turn: None).join()
    ends.set()
    keeps.join()


def wait_for(event: threading.Event) -> None:
    assert event.wait(PATIENCE_SECONDS)


# -- the engine and the session -------------------------------------------------------------------


def in_turn(turns: InterpreterTurns, below: EngineSession, run: Callable[[], None]) -> None:
    """Run a call of an engine in a thread that works in turns."""

    def work(turn: InterpreterTurn) -> None:
        below.engine.turn = turn
        below.interpreter.tensors.before_waiting = turn.leave
        run()

    Working(turns, work).join()


def test_the_tasks_of_a_batch_run_in_turns(
    turns: InterpreterTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = EngineSession()
    spent: list[int] = []
    spend = InterpreterTurn.spend

    def counted(turn: InterpreterTurn, cost: int) -> None:
        spent.append(cost)
        spend(turn, cost)

    monkeypatch.setattr(InterpreterTurn, "spend", counted)
    zeros = signature("Base.Zeros", out=vector(1))
    in_turn(turns, below, lambda: below.run(Define(0, zeros), (0, 1), (0, 2), Drop((1, 2))))
    costs = spent[2:]  # without those of the long call around it
    assert costs[0] == NEW_SIGNATURE_COST
    assert len(costs) == 4 and all(cost >= TASK_COST for cost in costs)
    assert below.quota.tensors == 0


def test_a_thread_that_waits_for_a_tensor_ends_its_turn(turns: InterpreterTurns) -> None:
    below = EngineSession()
    below.run(Fetch(bytes(32), "ws://x", 1, vector(1)))
    ((_, slot),) = below.outbox.fetches
    twice = Execute(Operation(signature("Numeric.Add", vector(1), vector(1)), (1, 1, 2)))
    waits = threading.Thread(target=in_turn, args=(turns, below, lambda: below.run(twice)))
    waits.start()
    wait_until(lambda: below.interpreter.tensors.waits_for is slot)
    Working(turns, lambda turn: None).join()
    wait_until(lambda: not turns.queue)
    slot.complete(below.interpreter.backend.to_device(floats(2.0)))
    waits.join(PATIENCE_SECONDS)
    assert below.values(2, size=1) == [4.0]


def test_definitions_and_small_operations_compute_in_python(turns: InterpreterTurns) -> None:
    below = EngineSession()
    small, large = (signature("Base.Zeros", out=vector(size)) for size in (1, 10**7))
    below.run(Define(0, small), Define(1, large))
    numbered: dict[int, Any] = dict(below.interpreter.numbered)

    def cost(task: Any) -> int | None:
        return python_cost(task if type(task) is tuple else undecoded(task), numbered)

    assert cost(Define(2, small)) == cost(Execute(Operation(small, (1,)))) == NEW_SIGNATURE_COST
    assert cost((0, 1)) == TASK_COST + numbered[0].cost
    assert cost((1, 1)) is None
    assert cost(Read(1, 1, vector(1))) == TASK_COST + 1
    assert cost(Read(1, 1, vector(10**6))) is None
    for waiting in (Cleanup(), Fetch(bytes(32), "ws://x", 1, vector(1)), Upload(1, floats(1.0))):
        assert cost(waiting) is None
    assert cost((7, 1)) == cost(("malformed",)) == TASK_COST


def test_a_session_frees_its_signatures_one_by_one() -> None:
    below = EngineSession()
    zeros = [signature("Base.Zeros", out=vector(size)) for size in range(1, 5)]
    below.run(*(Define(number, each) for number, each in enumerate(zeros)))
    left: list[int] = []
    numbered = below.interpreter.numbered
    for plan in numbered.values():
        weakref.finalize(plan, lambda: left.append(len(numbered)))
    del plan
    below.interpreter.clear()
    assert left == [3, 2, 1, 0]
