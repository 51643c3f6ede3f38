"""What leaves a session, in which order, and what the server keeps of it."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from burn_remote_protocol.dialects.native import CHUNK_BYTES, decode_frame
from burn_remote_protocol.dtypes import U8
from burn_remote_protocol.errors import QuotaExceeded
from burn_remote_protocol.messages import Chunk, Fetch, Lent, Reply
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.execution.outbox import NativeOutbox
from burn_remote_server.execution.slots import InFlight


def no_fetch(task: Fetch, slot: InFlight) -> None:
    raise AssertionError("nothing here fetches")


def data(size: int) -> TensorData:
    return TensorData(np.zeros(size, np.uint8).data, (size,), U8)


def taken(outbox: NativeOutbox) -> list[object]:
    messages = []
    while (frame := outbox.take()) is not None:
        messages.append(decode_frame(frame if isinstance(frame, bytes) else b"".join(frame)))
    return messages


def test_a_large_answer_is_its_shape_and_then_chunks_in_order() -> None:
    outbox = NativeOutbox(no_fetch)
    outbox.reply(1, data(2 * CHUNK_BYTES + 1))
    first, *chunks = taken(outbox)
    assert first == Reply(1, TensorSpec((2 * CHUNK_BYTES + 1,), U8))
    assert [(c.offset, len(c.data)) for c in chunks if isinstance(c, Chunk)] == [
        (0, CHUNK_BYTES), (CHUNK_BYTES, CHUNK_BYTES), (2 * CHUNK_BYTES, 1)
    ]  # fmt: skip


def test_of_an_answer_that_is_abandoned_nothing_more_leaves() -> None:
    outbox = NativeOutbox(no_fetch, max_waiting_bytes=3 * CHUNK_BYTES)
    outbox.reply(1, data(2 * CHUNK_BYTES))
    outbox.reply(2, data(CHUNK_BYTES))
    assert [outbox.take() is not None for _ in range(3)]  # two shapes and the first chunk
    outbox.abandon(1)
    outbox.reply(3, data(2 * CHUNK_BYTES))  # there is room again
    payloads = [message.payload for message in taken(outbox) if isinstance(message, Chunk)]
    assert payloads == [2, 3, 3]
    assert len(outbox) == 0


def test_what_is_lent_is_its_shape_and_then_the_handle() -> None:
    outbox = NativeOutbox(no_fetch)
    outbox.lend(1, TensorSpec((3,), U8), b"handle")
    assert taken(outbox) == [Reply(1, TensorSpec((3,), U8)), Lent(1, b"handle")]


def test_large_answers_take_turns_and_small_ones_go_first() -> None:
    outbox = NativeOutbox(no_fetch)
    outbox.reply(1, data(2 * CHUNK_BYTES))
    outbox.reply(2, data(2 * CHUNK_BYTES))
    outbox.reply(3, None)
    messages = taken(outbox)
    assert messages[2] == Reply(3, None)
    assert [m.payload for m in messages if isinstance(m, Chunk)] == [1, 2, 1, 2]


@pytest.mark.parametrize("has_checksums", [False, True])
def test_chunks_carry_checksums_where_they_were_asked_for(has_checksums: bool) -> None:
    outbox = NativeOutbox(no_fetch, has_checksums=has_checksums)
    outbox.follow(1, data(CHUNK_BYTES))
    outbox.take()
    frame = outbox.take()
    assert isinstance(frame, tuple)
    assert frame[0][1] == has_checksums


def test_more_waiting_answers_than_allowed_are_refused_until_some_were_sent() -> None:
    outbox = NativeOutbox(no_fetch, max_waiting_bytes=100_000)
    for request in (1, 2, 3):
        outbox.reply(request, data(50_000))
    refused = [m for m in taken(outbox) if isinstance(m, Reply) and m.request == 3]
    assert isinstance(refused[0].value, QuotaExceeded)
    assert "150,000 would, 100,000 are allowed" in str(refused[0].value)
    outbox.reply(4, data(100_000))
    assert isinstance(taken(outbox)[0].value, TensorSpec)  # type: ignore[attr-defined]


def test_one_answer_alone_is_never_too_much() -> None:
    outbox = NativeOutbox(no_fetch, max_waiting_bytes=10)
    outbox.reply(1, data(50_000))
    assert isinstance(taken(outbox)[0].value, TensorSpec)  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_resumable", [True, False])
def test_elements_are_kept_after_sending_only_where_they_may_be_sent_again(
    is_resumable: bool,
) -> None:
    outbox = NativeOutbox(no_fetch, is_resumable=is_resumable)
    array = np.zeros(50_000, np.uint8)
    alive = weakref.ref(array)
    outbox.follow(1, TensorData(array.data, array.shape, U8))
    del array
    taken(outbox)
    gc.collect()
    assert (alive() is not None) == is_resumable
    outbox.window.acknowledge(outbox.window.sent)
    gc.collect()
    assert alive() is None


def test_giving_up_one_of_two_equal_downloads_leaves_the_other() -> None:
    outbox = NativeOutbox(no_fetch)
    for request in (1, 2):
        outbox.follow(request, data(2 * CHUNK_BYTES))
    outbox.abandon(2)
    assert {message.payload for message in taken(outbox) if isinstance(message, Chunk)} == {1}
