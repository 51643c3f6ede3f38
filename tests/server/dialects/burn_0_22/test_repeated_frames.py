"""Frames that a client repeats give the same results and failures as their messages one by one."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgpack
import numpy as np
import pytest

from burn_remote_protocol.dialects.burn_0_22 import decode_messages
from burn_remote_protocol.dialects.burn_0_22_recognition import KnownFrame
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import ProtocolViolation
from burn_remote_protocol.messages import Upload
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.access.quota import Pool, Quota
from burn_remote_server.backends import open_backends
from burn_remote_server.dialects.burn_0_21.task_runner import Unreadable
from burn_remote_server.dialects.burn_0_22 import repeated_frames
from burn_remote_server.fusion.cpu import elementwise_fuser
from burn_remote_server.fusion.runtime_selection import with_fusion
from burn_remote_server.programs.plans import Plan
from burn_remote_server.settings.server_settings import Settings
from support.frame_programs import (
    added,
    drawn_step,
    dropped,
    read,
    registered,
    selected,
    shifted,
    sync,
)
from support.frame_runners import FrameRunner
from support.random_programs import forced_fusion

UNREADABLE = Unreadable(ProtocolViolation("no task at all"))


@pytest.fixture
def running() -> Iterator[FrameRunner]:
    started = FrameRunner()
    started.upload(1, 1.5, 2.5)
    yield started
    started.engine.close()


def frames(steps: int, size: int = 2) -> list[bytes]:
    """Return a program whose steps have seven messages, in frames of four.

    Each fifth step fails: it adds a tensor that the session does not have.
    """
    messages: list[Any] = []
    for step in range(steps):
        start = 1000 + 10 * step
        other = 999 if step % 5 == 4 else 1
        messages += [
            added(1, other, start, size=size),
            added(start, 1, start + 1, size=size),
            added(1, start + 1, start + 2, "ReadWrite", size),
            read(2 * step, start + 2, "ReadWrite", size),
            dropped(start, size),
            dropped(start + 5, size),  # the session has no such tensor
            sync(2 * step + 1),
        ]
    return [msgpack.packb(messages[place : place + 4]) for place in range(0, len(messages), 4)]


def test_a_repeated_program_gives_the_replies_of_its_messages(running: FrameRunner) -> None:
    one_by_one = FrameRunner()
    one_by_one.upload(1, 1.5, 2.5)
    program = frames(60)

    running.run(program, undivided=True)
    one_by_one.run(program, undivided=False)

    assert running.undivided > 60
    assert running.answers.values == one_by_one.answers.values
    assert running.answers.values[0] == [6, 10]
    assert "999" in running.answers.values[8]
    assert running.answers.failed_tensors == one_by_one.answers.failed_tensors
    assert {*running.interpreter.tensors.arrays} == {*one_by_one.interpreter.tensors.arrays}
    assert running.interpreter.quota.tensors == one_by_one.interpreter.quota.tensors
    assert running.interpreter.quota.bytes == one_by_one.interpreter.quota.bytes
    assert running.interpreter.executed == one_by_one.interpreter.executed


@pytest.mark.parametrize("seed", range(40))
def test_a_repeated_program_gives_the_results_and_failures_of_its_messages(seed: int) -> None:
    random = Random(seed)
    step = drawn_step(random)
    messages = [each for k in range(24) for each in shifted(step, 100 + 50 * k)]
    program = [msgpack.packb(messages[place : place + 4]) for place in range(0, len(messages), 4)]
    # With small shares of a small pool, some frames run one by one.
    small = Settings(max_session_bytes=random.choice([40, 90, 2**30]))
    both = [
        FrameRunner(settings=small, pool=Pool(4096 * random.choice([3, 40, 2**20]))) for _ in "ab"
    ]
    for running in both:
        running.upload_inputs_of_steps()
    sequences, one_by_one = both
    for frame in program:
        sequences.run([frame], undivided=True)
        one_by_one.run([frame], undivided=False)
        assert sequences.state == one_by_one.state
    assert sequences.undivided
    for running in both:
        running.engine.close()
        assert running.interpreter.quota.total_bytes == 0


def test_a_kernel_that_runs_out_of_memory_within_a_sequence_is_tried_again(
    running: FrameRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = running.frame(added(1, 1, 2), added(1, 2, 3), read(0, 3), dropped(2), dropped(3))
    for _ in range(2):
        running.runner.run([frame])
    (plan,) = {id(plan): plan for plan in running.interpreter.plans._plans.values()}.values()
    left = [MemoryError()]
    add = plan.run

    def rarely(*inputs: Any) -> Any:
        if left:
            raise left.pop()
        return add(*inputs)

    monkeypatch.setattr(plan, "run", rarely)
    running.answers.values.clear()
    before = running.state[4]
    running.runner.run([frame])

    assert running.answers.values == {0: [4.5, 7.5]}
    assert running.answers.failed_tensors == []
    assert not left
    assert running.state[4] == before


def test_a_sequence_takes_no_more_memory_from_other_sessions_than_its_messages() -> None:
    pool = Pool(4096 * 1000)  # a session reserves shares of 1000 bytes
    running = FrameRunner(pool=pool)
    running.upload(1, *range(100))
    steps = [added(1, 1, out, size=100) for out in (2, 3, 4)]
    drops = [dropped(out, 100) for out in (2, 3, 4)]
    frame = running.frame(steps[0], drops[0], steps[1], drops[1], steps[2], drops[2])
    running.runner.run([frame])
    taken: list[int] = []

    def reclaim(size: int) -> bool:
        taken.append(size)
        return False

    pool.reclaim = reclaim
    other = Quota(pool.max_bytes, 10, pool=pool)
    other.take(pool.max_bytes - pool.taken - 1000, 1)
    for _ in range(3):
        running.runner.run([frame])

    assert running.answers.failed_tensors == []
    assert taken == []


def test_an_end_of_the_session_within_a_sequence_skips_the_rest_of_it(
    running: FrameRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = running.frame(added(1, 1, 2), added(1, 2, 3), added(1, 3, 4), read(0, 4))
    drops = running.frame(dropped(2), dropped(3), dropped(4))
    for _ in range(2):
        running.runner.run([frame])
        running.runner.run([drops])
    (plan,) = {id(plan): plan for plan in running.interpreter.plans._plans.values()}.values()
    add = plan.run

    def ending(*inputs: Any) -> Any:
        running.engine.stop()
        return add(*inputs)

    monkeypatch.setattr(plan, "run", ending)
    running.answers.values.clear()
    executed = running.interpreter.executed
    running.runner.run([frame])

    assert {*running.interpreter.tensors.arrays} == {1, 2}
    assert running.state[4] == (2, 16, 0)
    assert running.interpreter.executed == executed + 1
    assert running.answers.values == {}


def test_a_session_that_fails_within_a_sequence_answers_its_requests(
    running: FrameRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.upload_index(4, 9)
    frame = running.frame(added(1, 1, 2), selected(1, 4, 3), added(1, 1, 5), read(0, 5))
    drops = running.frame(dropped(2), dropped(3), dropped(5))
    for _ in range(2):
        running.runner.run([frame])
        running.runner.run([drops])

    def broken(*_: Any) -> None:
        raise RuntimeError("out of order")

    running.answers.values.clear()
    monkeypatch.setattr(running.interpreter, "_fail", broken)
    running.runner.run([frame])

    assert "out of order" in running.answers.values[0]
    assert running.runner.failure is not None
    assert len(running.interpreter.tensors) == 0


def test_operations_that_fusers_take_are_fused_across_frames() -> None:
    with forced_fusion():
        fused = FrameRunner(with_fusion(open_backends("numpy", 1)[0], compiles=False))
        plain = FrameRunner()
        for each in (fused, plain):
            each.upload(1, *range(1000))
        program = frames(40, 1000)
        fused.run(program, undivided=True)
    plain.run(program, undivided=False)

    assert fused.undivided > 40
    assert fused.interpreter.counts.operations_fused > 40
    assert fused.answers.values == plain.answers.values


def test_a_repeated_frame_has_a_known_cost_and_a_new_one_has_none(running: FrameRunner) -> None:
    frame = running.frame(added(1, 1, 2), read(0, 2))

    assert running.runner.estimate([frame]) is None
    running.runner.run([frame])
    cost = running.runner.estimate([frame])

    alone = running.runner.estimate([*frame.messages()])
    assert cost is not None
    assert alone is not None
    assert cost == alone


def test_a_program_that_is_known_is_not_searched_again(
    running: FrameRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = running.frame(added(1, 1, 2), read(0, 2))
    for _ in range(2):
        running.runner.run([frame])
    monkeypatch.setattr(running.interpreter.plans, "known_plan", None)

    running.runner.run([frame])

    assert running.answers.values == {0: [3, 5]}


def test_a_session_that_has_failed_answers_each_request_of_a_repeated_frame(
    running: FrameRunner,
) -> None:
    frame = running.frame(added(1, 1, 2), read(0, 2), sync(1))
    for _ in range(2):
        running.runner.run([frame])

    running.runner.run([UNREADABLE, frame])

    assert "no task at all" in running.answers.values[0]
    assert running.answers.values[1] == "None"  # ``failed`` carries the error of a sync
    assert running.answers.failed_tensors == [()]


def test_an_error_of_the_server_within_a_repeated_frame_answers_its_requests(
    running: FrameRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("out of order")

    frame = running.frame(added(1, 1, 2), read(0, 2), sync(1))
    for _ in range(2):
        running.runner.run([frame])
    monkeypatch.setattr(running.interpreter, "invoke_simple", broken)

    running.runner.run([frame])

    assert "out of order" in running.answers.values[0]
    assert running.answers.failed_tensors == [()]


def test_a_session_that_is_stopped_runs_no_more_of_a_repeated_frame(running: FrameRunner) -> None:
    frame = running.frame(added(1, 1, 2), read(0, 2))
    for _ in range(2):
        running.runner.run([frame])
    running.answers.values.clear()

    running.engine.stop()
    running.runner.run([frame])

    assert running.answers.values == {}


def test_a_lost_device_fails_repeated_frames(running: FrameRunner) -> None:
    frame = running.frame(added(1, 1, 2), read(0, 2))
    for _ in range(2):
        running.runner.run([frame])

    running.interpreter.lose("it fell off the bus")
    running.runner.run([frame])

    assert "it fell off the bus" in running.answers.values[0]


def test_the_operation_that_does_not_return_is_named_within_a_repeated_frame(
    running: FrameRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = running.frame(dropped(3), added(1, 1, 2), read(0, 2))
    for _ in range(2):
        running.runner.run([frame])
    seen: list[Any] = []

    def observed(*_: Any) -> None:
        seen.append(running.engine.lost_task("it has not returned"))

    monkeypatch.setattr(running.interpreter, "invoke_simple", observed)
    running.runner.run([frame])

    assert [error.operation for error in seen] == ["Numeric.Add"]


def test_a_session_keeps_a_bounded_number_of_programs(
    running: FrameRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_frames, "PROGRAMS_KEPT", 4)
    for count in range(10):
        frame = running.frame(added(1, 1, 2), *[sync(number) for number in range(count + 1)])
        for _ in range(2):
            running.runner.run([frame])

    assert len(running.runner._programs._programs) <= 4


def test_the_frames_of_the_programs_of_a_session_have_a_bounded_length(
    running: FrameRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_frames, "PROGRAM_FRAME_BYTES_KEPT", 2000)
    for count in range(10):
        frame = running.frame(added(1, 1, 2), *[sync(number) for number in range(count + 1)])
        for _ in range(2):
            running.runner.run([frame])

    kept = running.runner._programs._programs
    assert kept
    assert sum(layout.length for layout in kept) <= 2000


def test_undivided_frames_have_the_messages_of_their_bytes(running: FrameRunner) -> None:
    packed = msgpack.packb([added(1, 1, 2), sync(9)])

    assert running.frame(added(1, 1, 2), sync(9)).messages() == decode_messages(packed)


def column_frame(running: FrameRunner) -> KnownFrame:
    """Return a frame with an operation that fusers take only after a larger one."""
    ids = [(1, "ReadOnly"), (1, "ReadOnly"), (2, "NotInit")]
    uses = [[[number], [[2, 1]], status, "F32"] for number, status in ids]
    add = registered({"NumericFloat": ["F32", {"Add": uses}]})
    return running.frame(add, registered({"Drop": [[2], [[2, 1]], "ReadWrite", "F32"]}))


@pytest.mark.parametrize("follows", [False, True], ids=["first", "after a fusible operation"])
def test_an_operation_that_only_joins_others_divides_its_frame_only_after_them(
    follows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elementwise_fuser, "BLOCKS_PAY", ((100_000, 1),))
    running = FrameRunner(with_fusion(open_backends("numpy", 1)[0], compiles=False))
    elements = np.ones(100_000, np.float32)
    running.upload(3, *elements)
    column = TensorData(elements[:2].tobytes(), (2, 1), F32)
    running.runner.run([Upload(1, column)])
    large = running.frame(added(3, 3, 4, size=100_000), dropped(4, size=100_000))
    small = column_frame(running)
    batch = [large, small] if follows else [small]
    for _ in range(2):
        running.runner.run(batch)
    looked_up = []
    known_plan = running.interpreter.plans.known_plan

    def spy(signature: Signature) -> Plan | None:
        looked_up.append(signature.outputs[0].shape if signature.outputs else None)
        return known_plan(signature)

    monkeypatch.setattr(running.interpreter.plans, "known_plan", spy)
    running.runner.run(batch)

    assert ((2, 1) in looked_up) == follows
    assert ((100_000,) in looked_up) == follows
    assert len(running.interpreter.tensors) == 2
    running.engine.close()
