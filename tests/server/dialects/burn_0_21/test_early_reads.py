"""A read passes the tasks in front of it that do not concern its tensor, and no others."""

from __future__ import annotations

from random import Random
from typing import Any

import msgpack
import numpy as np
import pytest

from burn_remote_protocol.dialects.burn_0_22_recognition import KnownFrame, MessageRecognizer
from burn_remote_protocol.dtypes import I32
from burn_remote_protocol.messages import Drop, Read, Sync, Upload
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.dialects.burn_0_21.early_reads import MAX_PASSED, divided_after_reads
from burn_remote_server.dialects.burn_0_22.frame_batch import FrameBatch
from support.frame_programs import added, drawn_step, dropped, read, shifted, sync
from support.frame_runners import FrameRunner

Messages = list[Any]


def packed(*messages: Any) -> bytes:
    frame: bytes = msgpack.packb(messages)
    return frame


def known(*messages: Any) -> KnownFrame:
    """Return a frame undivided, which the recognizer has seen before."""
    recognizer = MessageRecognizer()
    for _ in range(3):
        recognizer.decode(packed(*messages))
    found = recognizer.recognize(packed(*messages))
    assert found is not None
    return found


def in_messages(tasks: Any) -> Messages:
    return [
        each for task in tasks for each in (task.messages() if type(task) is KnownFrame else [task])
    ]


def parts_of(*frames: Messages, recognized: bool) -> list[Messages]:
    """Return the messages of each part of some frames."""
    if recognized:
        tasks: Messages = [known(*frame) for frame in frames]
    else:
        tasks = [each for frame in frames for each in MessageRecognizer().decode(packed(*frame))]
    return [in_messages(part) for part in divided_after_reads(tasks)]


def outputs(part: Messages) -> list[Any]:
    """Return the outputs of operations, and the tensors of reads and drops as text."""
    return [
        f"read {task.tensor}"
        if type(task) is Read
        else f"drop {task.tensors[0]}"
        if type(task) is Drop or task.signature.row.family == "Drop"
        else task.tensors[-1]
        for task in part
    ]


@pytest.mark.parametrize("recognized", [True, False])
def test_a_read_moves_behind_the_last_task_that_names_its_tensor(recognized: bool) -> None:
    frames = (
        [added(1, 1, 5), added(1, 1, 6)],
        [added(1, 1, 7), added(7, 1, 8)],
        [added(1, 1, 9), dropped(8), read(0, 5)],
    )
    first, second = parts_of(*frames, recognized=recognized)
    assert outputs(first) == ([5, 6, "read 5"] if recognized else [5, "read 5"])
    rest = [7, 8, 9, "drop 8"]
    assert outputs(second) == (rest if recognized else [6, *rest])


@pytest.mark.parametrize("recognized", [True, False])
@pytest.mark.parametrize(
    "between",
    [
        [added(5, 1, 6), added(1, 1, 7)],  # uses the tensor
        [added(1, 1, 5), added(1, 1, 7)],  # replaces it
        [dropped(5), dropped(7)],  # frees it
        [sync(1), sync(2)],
        [read(1, 6), read(2, 6)],  # the order of the replies stays the same
    ],
)
def test_a_read_stays_behind_tasks_that_concern_its_tensor_or_answer(
    between: Messages, recognized: bool
) -> None:
    frames = [added(1, 1, 5), added(1, 1, 6)], between, [read(0, 5), *between][::-1]
    assert len(parts_of(*frames, recognized=recognized)) == 1


def test_a_read_stays_behind_an_upload() -> None:
    upload = Upload(5, TensorData(np.zeros(2, np.float32).tobytes(), (2,), I32))
    tasks = [upload, *MessageRecognizer().decode(packed(read(0, 6)))]
    assert divided_after_reads(tasks) == [tasks]


@pytest.mark.parametrize("recognized", [True, False])
def test_the_last_use_of_a_tensor_frees_it_after_the_read(recognized: bool) -> None:
    frames = (
        [added(1, 1, 5), added(1, 1, 6)],
        [added(1, 1, 7), added(1, 1, 8)],
        [added(1, 1, 9), read(0, 5, "ReadWrite")],
    )
    parts = parts_of(*frames, recognized=recognized)
    order = [each for part in parts for each in outputs(part)]
    assert order.index("read 5") < order.index(7)
    assert order.index("read 5") < order.index("drop 5")


def test_a_read_passes_a_bounded_number_of_tasks() -> None:
    (operation,) = MessageRecognizer().decode(packed(added(1, 1, 6)))
    (one,) = MessageRecognizer().decode(packed(read(0, 5)))
    assert isinstance(operation, Operation)
    first, second = divided_after_reads([operation] * 100 + [one])
    assert (len(first), len(second)) == (101 - MAX_PASSED, MAX_PASSED)


def test_several_reads_keep_their_order() -> None:
    frames = (
        [added(1, 1, 5), added(1, 1, 6)],
        [added(1, 1, 7), read(0, 5)],
        [added(1, 1, 8), added(1, 1, 9)],
        [added(1, 1, 10), read(1, 6)],
    )
    parts = parts_of(*frames, recognized=True)
    reads = [each for part in parts for each in outputs(part) if str(each).startswith("read")]
    assert reads == ["read 5", "read 6"]


@pytest.mark.parametrize("seed", range(30))
def test_programs_give_the_same_results_and_failures_as_in_their_order(seed: int) -> None:
    random = Random(seed)
    step = drawn_step(random)
    messages = [each for k in range(24) for each in shifted(step, 100 + 50 * k)]
    frames = [packed(*messages[place : place + 4]) for place in range(0, len(messages), 4)]
    both = early, in_order = [FrameRunner(), FrameRunner()]
    for running in both:
        running.upload_inputs_of_steps()
    moved = 0
    while frames:
        count = random.randrange(1, 12)
        now, frames = frames[:count], frames[count:]
        batch = FrameBatch(early.recognizer)
        for frame in now:
            batch.add(frame)
            in_order.runner.run(in_order.recognizer.decode(frame))
        parts = divided_after_reads(batch.tasks)
        moved += len(parts) - 1
        for part in parts:
            early.runner.run(part)
        assert early.state == in_order.state
    assert moved
    for running in both:
        running.engine.close()
        assert running.interpreter.quota.total_bytes == 0


def test_syncs_are_not_reads() -> None:
    tasks = MessageRecognizer().decode(packed(added(1, 1, 5), sync(0)))
    assert [type(each) for each in tasks] == [Operation, Sync]
    assert divided_after_reads(tasks) == [tasks]
