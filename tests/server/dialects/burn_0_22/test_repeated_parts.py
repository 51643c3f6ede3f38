"""Parts of a program that a client repeats give the results and failures of their messages."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgpack
import numpy as np
import pytest

from burn_remote_protocol.dtypes import I32
from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.messages import Upload
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.access.quota import Pool, Quota
from burn_remote_server.backends import open_backends
from burn_remote_server.dialects.burn_0_22 import repeated_parts
from burn_remote_server.dialects.burn_0_22.repeated_parts import RepeatedParts
from burn_remote_server.execution import joined_operations
from burn_remote_server.execution.joined_operations import JoinedOperations, JoinedPart
from burn_remote_server.fusion.runtime_selection import with_fusion
from burn_remote_server.programs.graph_runner import GraphRunner, Stopped
from burn_remote_server.programs.graphs import GraphPlan
from burn_remote_server.settings.server_settings import Settings
from support.frame_programs import (
    added,
    drawn_step,
    dropped,
    read,
    registered,
    selected,
    shifted,
    tensor,
)
from support.frame_runners import FrameRunner

SIZES = range(3, 13)


def framed(messages: list[Any]) -> list[bytes]:
    """Return frames of four messages; the last one has two to five: one message is never known."""
    places = range(0, len(messages) - 1, 4)
    ends = [*places[1:], len(messages)]
    return [msgpack.packb(messages[place:end]) for place, end in zip(places, ends, strict=True)]


def sums(step: int) -> list[Any]:
    """Return a step that adds vectors of several sizes to themselves and reads the last sum."""
    start = 10_000 + 20 * step
    messages = []
    for out, size in enumerate(SIZES, start):
        messages += [
            added(100 + size, 100 + size, out, size=size),
            added(100 + size, out, out + 10, size=size),
            dropped(out, size),
        ]
    drops = [dropped(start + 10 + place, size) for place, size in enumerate(SIZES)]
    return [*messages, read(step, start + 19, size=SIZES[-1]), *drops]


def started(settings: Settings | None = None, pool: Pool | None = None) -> FrameRunner:
    backend = with_fusion(open_backends("numpy", 1)[0])
    running = FrameRunner(backend, settings, pool)
    running.upload(1, 1.5, 2.5)
    running.upload(2, 1, 2, 3)
    for number, index in ((3, 1), (4, 9)):  # an index of tensor 1, and one beyond its end
        data = TensorData(np.asarray([index], np.int32).tobytes(), (1,), I32)
        running.runner.run([Upload(number, data)])
    for size in SIZES:
        running.upload(100 + size, *range(size))
    return running


def state(running: FrameRunner) -> list[Any]:
    """Return the state of a session without the memory of its plans and parts."""
    found = running.state
    tensors, size, held = found[4]
    found[4] = tensors, size, held - running.interpreter.plans._plan_account._charged
    return found


def searched(running: FrameRunner) -> RepeatedParts:
    parts = running.runner._parts
    assert parts is not None
    return parts


def compiled(running: FrameRunner) -> list[JoinedPart]:
    return [known.part for known in searched(running)._known.values() if known.part is not None]


def repeated(running: FrameRunner, count: int, first: int = 0) -> None:
    """Run steps of ``sums``, each in a batch of its own."""
    for step in range(first, first + count):
        running.run_together(framed(sums(step)))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list to which each call of a part adds whether the part ran."""
    found: list[bool] = []
    run = JoinedOperations.run

    def noted(self: JoinedOperations, part: Any, numbers: Any) -> bool:
        found.append(run(self, part, numbers))
        return found[-1]

    monkeypatch.setattr(JoinedOperations, "run", noted)
    return found


def test_a_program_in_batches_gives_the_replies_of_its_messages(calls: list[bool]) -> None:
    together, one_by_one = started(), started()
    program = framed([each for step in range(200) for each in sums(step)])
    for place in range(0, len(program), 20):
        together.run_together(program[place : place + 20])
        one_by_one.run(program[place : place + 20], undivided=False)

        assert state(together) == state(one_by_one)
    assert calls.count(True) > 20
    assert together.answers.values[199] == [3 * each for each in range(SIZES[-1])]


@pytest.mark.parametrize("seed", range(40))
def test_any_program_in_batches_gives_the_results_and_failures_of_its_messages(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_parts, "CALLS_ONE_BY_ONE", 2)
    random = Random(seed)
    rare = {read} if random.random() < 0.8 else set()
    unusual = random.random() < 0.3
    step = [
        each
        for place in range(3)
        for each in drawn_step(random, 100 + 30 * place)
        if each[0] not in rare and (unusual or not {2, 4, 99}.intersection(each[1:]))
    ]
    messages = [each for k in range(40) for each in shifted(step, 1000 + 100 * k)]
    program = framed(messages)
    small = Settings(max_session_bytes=random.choice([700, 2**30, 2**30]))
    share = random.choice([40, 2**20, 2**20])
    both = [started(small, Pool(4096 * share)) for _ in "ab"]
    together, one_by_one = both
    while program:
        count = random.randrange(1, 40)
        together.run_together(program[:count])
        one_by_one.run(program[:count], undivided=False)
        del program[:count]
        assert state(together) == state(one_by_one)
    for running in both:
        running.engine.close()
        assert state(running)[4] == (0, 0, 0)


def test_a_part_runs_as_messages_if_other_tensors_are_equal_than_before(
    calls: list[bool],
) -> None:
    together, one_by_one = started(), started()
    repeated(together, 40)
    step = sums(77)
    # The same bytes except for the id: the sum of two sums, one of which is freed before.
    step[4] = added(10_000 + 20 * 77, 10_000 + 20 * 77 + 1, 10_000 + 20 * 77 + 11, size=SIZES[1])
    repeated(one_by_one, 40)
    calls.clear()
    together.run_together(framed(step))
    one_by_one.run(framed(step), undivided=False)

    assert False in calls
    assert state(together) == state(one_by_one)
    assert together.answers.failed_tensors


def test_a_failure_within_a_part_is_that_of_its_message_and_the_part_is_soon_given_up(
    calls: list[bool],
) -> None:
    def step(number: int, index: int) -> list[Any]:
        out = 50_000 + number
        messages = sums(number)
        return [*messages[:18], selected(1, index, out), *messages[18:], dropped(out, 1)]

    together, one_by_one = started(), started()
    for number in range(60):
        index = 3 if number < 40 else 4
        together.run_together(framed(step(number, index)))
        one_by_one.run(framed(step(number, index)), undivided=False)

        assert state(together) == state(one_by_one)
    assert calls.count(True) > 5
    assert len(together.answers.failed_tensors) == 20
    plans = [part.plan for part in compiled(together)]
    before = [plan._calls for plan in plans]
    together.run_together(framed(step(60, 4)))
    assert [plan._calls for plan in plans] == before


def test_a_part_takes_no_more_memory_from_other_sessions_than_its_messages(
    calls: list[bool],
) -> None:
    pool = Pool(4096 * 4000)  # a session reserves shares of 4000 bytes
    running = started(pool=pool)
    repeated(running, 40)
    calls.clear()
    other = Quota(pool.max_bytes, 10, pool=pool)
    other.take(pool.max_bytes - pool.taken, 1)
    repeated(running, 2, 40)

    assert True in calls
    assert running.answers.failed_tensors == []


def test_an_end_of_the_session_within_a_part_leaves_no_bytes_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = started()
    repeated(running, 40)

    def ended(self: GraphPlan, *_: Any) -> Any:
        running.engine.stop()
        raise Stopped

    monkeypatch.setattr(GraphPlan, "run", ended)
    running.run_together(framed(sums(40)))

    quota, arrays = running.interpreter.quota, running.interpreter.tensors.arrays
    assert quota.tensors == len(arrays)
    assert quota.bytes == sum(array.nbytes for array in arrays.values())
    assert 40 not in running.answers.values


def test_a_part_that_does_not_return_is_a_lost_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    running = started()
    repeated(running, 40)
    running.engine.tasks = ()  # as between the batches of a session
    lost: list[OperationFailed | None] = []
    run = GraphPlan.run

    def noted(self: GraphPlan, *arguments: Any) -> Any:
        lost.append(running.engine.lost_task("it has not returned"))
        return run(self, *arguments)

    monkeypatch.setattr(GraphPlan, "run", noted)
    repeated(running, 1, 40)

    assert [str(each) for each in lost] == ["Graph() failed: it has not returned"]


@pytest.mark.parametrize("place", ["found", "checked", "run"])
def test_without_memory_for_a_part_its_messages_run(
    place: str, calls: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: Any) -> Any:
        raise MemoryError

    running, one_by_one = started(), started()
    repeated(running, 40)
    repeated(one_by_one, 41)
    if place == "found":
        monkeypatch.setattr(repeated_parts, "FoundPart", exhausted)
    for part in compiled(running):
        if place == "checked":
            monkeypatch.setattr(part, "equal", exhausted)
        if place == "run":
            monkeypatch.setattr(part.plan, "run", exhausted)
    calls.clear()
    repeated(running, 1, 40)

    assert True not in calls
    assert state(running) == state(one_by_one)


def test_a_part_whose_results_cannot_be_stored_ends_the_session_with_a_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = started()
    repeated(running, 40)

    def exhausted(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(GraphRunner, "_store", exhausted)
    repeated(running, 2, 40)

    assert "MemoryError" in str(running.runner.failure)
    assert "the session has failed" in running.answers.values[40]
    assert "the session has failed" in running.answers.values[41]
    assert state(running)[4] == (0, 0, 0)


def test_parts_are_not_compiled_on_the_event_loop(calls: list[bool]) -> None:
    running = started()

    async def on_event_loop() -> None:
        repeated(running, 40)

    asyncio.run(on_event_loop())
    assert calls == []
    repeated(running, 1, 40)
    assert calls == [True]


def test_operations_with_random_numbers_stay_outside_of_parts() -> None:
    def step(number: int) -> list[Any]:
        out = 50_000 + number
        random = {"Random": [tensor(out, "NotInit"), {"Uniform": [0.0, 1.0]}]}
        return [registered({"Float": ["F32", random]}), *sums(number), dropped(out)]

    running = started()
    program = framed([each for number in range(200) for each in step(number)])
    for place in range(0, len(program), 20):
        running.run_together(program[place : place + 20])

    steps = [step for part in compiled(running) for step in part.plan.steps]
    assert steps
    assert "Random" not in {step.plan.signature.row.name for step in steps}


def test_a_session_keeps_a_bounded_number_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_operations, "PARTS_KEPT", 2)
    monkeypatch.setattr(repeated_parts, "PARTS_KNOWN", 4)
    monkeypatch.setattr(repeated_parts, "FORMS_KEPT", 8)
    monkeypatch.setattr(repeated_parts, "FRAME_BYTES_KEPT", 2000)
    monkeypatch.setattr(repeated_parts, "CUTS_KEPT", 2)
    running = started()
    program = framed([each for step in range(200) for each in sums(step)])
    for place in range(0, len(program), 17):
        running.run_together(program[place : place + 17])

        parts = searched(running)
        assert len(parts._forms) <= 8
        assert len(parts._known) <= 4
        assert len(parts._chosen) <= 2
        assert len(compiled(running)) <= 2
        frames = {*parts._cuts}
        assert sum(layout.length for layout in frames) <= 2000
        assert all({*form[2:]} <= frames for form in parts._forms)


def test_parts_take_a_small_share_of_a_sessions_quota(calls: list[bool]) -> None:
    running = started(Settings(max_session_bytes=2**20))
    repeated(running, 40)

    assert calls == []
    assert running.answers.failed_tensors == []
