"""Batches of frames of Burn 0.22: long ones are decoded in several turns."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
import pytest

from burn_remote_protocol.dialects import burn_0_22
from burn_remote_protocol.dialects.bounded_unpacking import STEP_BYTES
from burn_remote_protocol.dialects.burn_0_22_recognition import MessageRecognizer
from burn_remote_protocol.errors import ProtocolViolation
from burn_remote_protocol.messages import Seed
from burn_remote_server.dialects.burn_0_21.task_runner import Unreadable
from burn_remote_server.dialects.burn_0_22.frame_batch import FrameBatch
from burn_remote_server.execution import decoding_turns
from burn_remote_server.execution.decoding_turns import DecodingTurns

SEEDS = [Seed(number) for number in range(300)]


def packed(*tasks: Any) -> bytes:
    return bytes(msgpack.packb([{"Task": task} for task in tasks]))


async def test_others_run_between_the_messages_of_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_turns, "STEP_SECONDS", 0)  # a pause after each message
    batch = FrameBatch(MessageRecognizer())
    frame = packed(*[{"Seed": seed.seed} for seed in SEEDS])
    adding = asyncio.create_task(batch.add_in_turns(frame, DecodingTurns()))
    iterations = 0
    while not adding.done():
        await asyncio.sleep(0)
        iterations += 1

    assert batch.tasks == SEEDS
    assert iterations >= len(SEEDS)


@pytest.mark.parametrize("count", [1, 2])
async def test_others_run_between_the_steps_of_a_long_message(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(decoding_turns, "STEP_SECONDS", 0)  # a pause after each step
    batch = FrameBatch(MessageRecognizer())
    frame = packed(*[{"Nonsense": [[[[None]] * 4000] * 20]}] * count)
    elements = packed({"RegisterTensor": [[0], [1], [bytes(600_000), [150_000], "F32"]]})
    if count == 2:  # with long elements, a frame is unpacked message by message
        frame = b"\x93" + frame[1:] + elements[1:]
    adding = asyncio.create_task(batch.add_in_turns(frame, DecodingTurns()))
    iterations = 0
    while not adding.done():
        await asyncio.sleep(0)
        iterations += 1

    assert [type(task) for task in batch.tasks[:count]] == [Unreadable] * count
    assert iterations >= count * 160_000 // STEP_BYTES


@pytest.mark.parametrize("frame", [b"", memoryview(b""), b"\x90", b"\xc1"])
async def test_a_frame_without_messages_that_is_decoded_in_turns_is_no_error_of_the_server(
    frame: bytes | memoryview,
) -> None:
    batch = FrameBatch(MessageRecognizer())
    await batch.add_in_turns(frame, DecodingTurns())

    assert [type(task) for task in batch.tasks] == ([] if frame == b"\x90" else [Unreadable])


def test_a_message_is_decoded_only_when_it_is_taken() -> None:
    messages = burn_0_22.each_message(packed({"Seed": 1}, {"Nonsense": 1}))

    assert next(messages) == Seed(1)
    assert "Nonsense" in str(next(messages))


def test_the_operations_of_a_graph_are_left_to_the_thread_of_the_session() -> None:
    (message,) = burn_0_22.decode_messages(
        packed({"RegisterAndExecuteGraph": [[0], 1, [["nonsense"]], [[], [], [], []]]})
    )

    assert isinstance(message, burn_0_22.RunGraph)
    with pytest.raises(ProtocolViolation, match="operation"):
        burn_0_22.decode_graph(message.operations or b"")


def test_a_long_frame_is_not_copied_for_each_of_its_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed: list[int] = []

    class CountingUnpacker(msgpack.Unpacker):  # type: ignore[misc]
        def feed(self, values: Any) -> None:
            fed.append(len(values))
            super().feed(values)

    monkeypatch.setattr(msgpack, "Unpacker", CountingUnpacker)
    elements = bytes(600_000)
    upload = {"RegisterTensor": [[0], [1], [elements, [150_000], "F32"]]}
    frame = packed(*[{"Seed": 1}] * 4000, upload)

    assert len(burn_0_22.decode_messages(frame)) == 4001
    assert sum(fed) < 20 * len(frame)
