"""The outbox of a native session: order, turns, limits and replay of its frames."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from burn_remote_protocol.dialects.native import CHUNK_BYTES, INLINE_BYTES, decode_frame
from burn_remote_protocol.dtypes import U8
from burn_remote_protocol.errors import OperationFailed, QuotaExceeded, SessionLost
from burn_remote_protocol.messages import Chunk, Failed, Fetch, Lent, Reply, Waiting
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.access.quota import FREE_OVERHEAD_BYTES, OverheadAccount, Quota
from burn_remote_server.execution.native_outbox import NativeOutbox
from burn_remote_server.tensors.slots import InFlight


def no_fetch(task: Fetch, slot: InFlight) -> None:
    raise AssertionError("nothing here fetches")


def data(size: int) -> TensorData:
    return TensorData(np.zeros(size, np.uint8).data, (size,), U8)


def taken(outbox: NativeOutbox) -> list[object]:
    messages = []
    while (frame := outbox.take()) is not None:
        messages.append(decode_frame(frame if isinstance(frame, bytes) else b"".join(frame)))
    return messages


def test_a_large_reply_is_a_spec_followed_by_chunks_in_order() -> None:
    outbox = NativeOutbox(no_fetch)
    outbox.reply(1, data(2 * CHUNK_BYTES + 1))
    first, *chunks = taken(outbox)
    assert first == Reply(1, TensorSpec((2 * CHUNK_BYTES + 1,), U8))
    assert [(c.offset, len(c.data)) for c in chunks if isinstance(c, Chunk)] == [
        (0, CHUNK_BYTES), (CHUNK_BYTES, CHUNK_BYTES), (2 * CHUNK_BYTES, 1)
    ]  # fmt: skip


def test_an_abandoned_read_sends_nothing_more() -> None:
    outbox = NativeOutbox(no_fetch, max_waiting_bytes=3 * CHUNK_BYTES)
    outbox.reply(1, data(2 * CHUNK_BYTES))
    outbox.reply(2, data(CHUNK_BYTES))
    assert [outbox.take() is not None for _ in range(3)]  # two shapes and the first chunk
    outbox.abandon(1)
    outbox.reply(3, data(2 * CHUNK_BYTES))  # there is space again
    payloads = [message.payload for message in taken(outbox) if isinstance(message, Chunk)]
    assert payloads == [2, 3, 3]
    assert len(outbox) == 0


def test_the_bytes_that_an_abandoned_read_has_sent_are_not_freed_again() -> None:
    outbox = NativeOutbox(no_fetch, max_waiting_bytes=3 * CHUNK_BYTES)
    outbox.reply(1, data(2 * CHUNK_BYTES))
    outbox.take()
    outbox.take()  # the shape and the first chunk
    outbox.abandon(1)
    for request in (2, 3):
        outbox.reply(request, data(2 * CHUNK_BYTES))
    values = [message.value for message in taken(outbox) if isinstance(message, Reply)]
    assert [type(value) for value in values] == [TensorSpec, QuotaExceeded]


def test_a_loan_is_a_spec_followed_by_the_handle() -> None:
    outbox = NativeOutbox(no_fetch)
    outbox.lend(1, TensorSpec((3,), U8), b"handle")
    assert taken(outbox) == [Reply(1, TensorSpec((3,), U8)), Lent(1, b"handle")]


def test_large_replies_take_turns_and_small_ones_go_first() -> None:
    outbox = NativeOutbox(no_fetch)
    outbox.reply(1, data(2 * CHUNK_BYTES))
    outbox.reply(2, data(2 * CHUNK_BYTES))
    outbox.reply(3, None)
    messages = taken(outbox)
    assert messages[2] == Reply(3, None)
    assert [m.payload for m in messages if isinstance(m, Chunk)] == [1, 2, 1, 2]


@pytest.mark.parametrize("has_checksums", [False, True])
def test_chunks_carry_checksums_on_request(has_checksums: bool) -> None:
    outbox = NativeOutbox(no_fetch, has_checksums=has_checksums)
    outbox.follow(1, data(CHUNK_BYTES))
    outbox.take()
    frame = outbox.take()
    assert isinstance(frame, tuple)
    assert frame[0][1] == has_checksums


def test_large_replies_beyond_the_limit_are_refused_until_some_are_sent() -> None:
    outbox = NativeOutbox(no_fetch, max_waiting_bytes=100_000)
    for request in (1, 2, 3):
        outbox.reply(request, data(50_000))
    refused = [m for m in taken(outbox) if isinstance(m, Reply) and m.request == 3]
    assert isinstance(refused[0].value, QuotaExceeded)
    assert "150,000 would be queued, 100,000 are allowed" in str(refused[0].value)
    assert refused[0].value.operation == "Read"
    outbox.reply(4, data(100_000))
    assert isinstance(taken(outbox)[0].value, TensorSpec)  # type: ignore[attr-defined]


def test_a_single_large_reply_is_never_refused() -> None:
    outbox = NativeOutbox(no_fetch, max_waiting_bytes=10)
    outbox.reply(1, data(50_000))
    assert isinstance(taken(outbox)[0].value, TensorSpec)  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_resumable", [True, False])
def test_sent_elements_are_kept_only_for_a_resumable_session(
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


def test_abandoning_one_of_two_equal_reads_keeps_the_other() -> None:
    outbox = NativeOutbox(no_fetch)
    for request in (1, 2):
        outbox.follow(request, data(2 * CHUNK_BYTES))
    outbox.abandon(2)
    assert {message.payload for message in taken(outbox) if isinstance(message, Chunk)} == {1}


def test_replies_and_failures_leave_in_the_order_in_which_they_were_made() -> None:
    outbox = NativeOutbox(no_fetch)
    failure = OperationFailed("in the kernel", operation="Numeric.Add", tensor=2)
    outbox.reply(1, None)
    outbox.failed((2, 3), failure)
    outbox.reply(4, 7)
    outbox.reply(5, QuotaExceeded("full"))
    first, failed, number, refused = taken(outbox)
    assert [first, number] == [Reply(1, None), Reply(4, 7)]
    assert isinstance(failed, Failed)
    assert (failed.tensors, failed.error.reason) == ((2, 3), "in the kernel")
    assert isinstance(refused, Reply)
    assert isinstance(refused.value, QuotaExceeded)


def test_failures_are_counted_by_their_code() -> None:
    outbox = NativeOutbox(no_fetch)
    for error in (OperationFailed("a"), QuotaExceeded("b"), OperationFailed("c")):
        outbox.failed((1,), error)
    assert outbox.failures == {OperationFailed.code: 2, QuotaExceeded.code: 1}


def test_an_empty_outbox_has_nothing_to_send() -> None:
    outbox = NativeOutbox(no_fetch)
    assert outbox.take() is None
    outbox.reply(1, None)
    assert len(outbox) == 1
    assert taken(outbox) == [Reply(1, None)]
    assert len(outbox) == 0


def test_a_replay_sends_unacknowledged_frames_before_new_ones_and_once() -> None:
    outbox = NativeOutbox(no_fetch)
    for request in (1, 2, 3):
        outbox.reply(request, None)
    taken(outbox)
    outbox.window.acknowledge(1)
    outbox.reply(4, None)
    outbox.replay()
    assert taken(outbox) == [Reply(request, None) for request in (2, 3, 4)]
    assert outbox.window.sent == 4
    outbox.replay()
    outbox.replay()
    assert taken(outbox) == [Reply(request, None) for request in (2, 3, 4)]


def test_a_replay_repeats_the_chunks_of_a_read_that_was_interrupted() -> None:
    outbox = NativeOutbox(no_fetch)
    array = np.arange(2 * CHUNK_BYTES + 5, dtype=np.uint8)
    outbox.reply(1, TensorData(array.data, array.shape, U8))
    outbox.take()
    outbox.take()  # the spec and the first of three chunks
    outbox.window.acknowledge(1)
    outbox.replay()
    chunks = [message for message in taken(outbox) if isinstance(message, Chunk)]
    assert [chunk.offset for chunk in chunks] == [0, CHUNK_BYTES, 2 * CHUNK_BYTES]
    assert b"".join(bytes(chunk.data) for chunk in chunks) == array.tobytes()


def test_a_continued_read_starts_at_its_offset() -> None:
    outbox = NativeOutbox(no_fetch)
    outbox.follow(1, data(100), start=60)
    outbox.follow(2, data(100), start=100)
    chunks = [message for message in taken(outbox) if isinstance(message, Chunk)]
    assert [(chunk.payload, chunk.offset, len(chunk.data)) for chunk in chunks] == [(1, 60, 40)]


def test_a_continued_read_counts_only_the_bytes_that_it_sends() -> None:
    outbox = NativeOutbox(no_fetch, max_waiting_bytes=100_000)
    outbox.follow(1, data(100_000), start=90_000)
    outbox.reply(2, data(90_000))
    outbox.reply(3, data(20_000))
    values = [message.value for message in taken(outbox) if isinstance(message, Reply)]
    assert [type(value) for value in values] == [TensorSpec, TensorSpec, QuotaExceeded]


def test_a_fetched_tensor_without_elements_is_followed_by_an_empty_chunk() -> None:
    outbox = NativeOutbox(no_fetch)
    outbox.follow(1, data(0))
    reply, chunk = taken(outbox)
    assert reply == Reply(1, TensorSpec((0,), U8))
    assert isinstance(chunk, Chunk)
    assert (chunk.payload, chunk.offset, len(chunk.data)) == (1, 0, 0)


@pytest.mark.parametrize(
    ("size", "is_inline"), [(0, True), (INLINE_BYTES, True), (INLINE_BYTES + 1, False)]
)
def test_small_elements_are_in_the_reply_itself(size: int, is_inline: bool) -> None:
    outbox = NativeOutbox(no_fetch)
    outbox.reply(1, data(size))
    reply, *chunks = taken(outbox)
    assert reply == Reply(1, bytes(size) if is_inline else TensorSpec((size,), U8))
    assert len(chunks) == (not is_inline)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, []),
        ({"tells_hops": True}, []),
        ({"tells_waiting": True}, [Waiting(7)]),
        ({"tells_waiting": True, "tells_hops": True}, [Waiting(7, 3)]),
    ],
)
def test_a_target_is_told_to_wait_only_in_frames_that_it_understands(
    options: dict[str, bool], told: list[Waiting]
) -> None:
    outbox = NativeOutbox(no_fetch, **options)
    outbox.wait(7, 3)
    assert taken(outbox) == told


def test_the_length_counts_frames_to_repeat_replies_and_unfinished_reads() -> None:
    outbox = NativeOutbox(no_fetch)
    for request in (1, 2):
        outbox.reply(request, None)
    taken(outbox)
    outbox.replay()
    assert len(outbox) == 2
    outbox.reply(3, data(2 * CHUNK_BYTES))
    lengths = []
    while outbox.take() is not None:
        lengths.append(len(outbox))
    assert lengths == [3, 2, 1, 1, 0]  # one read has two chunks


def test_the_replay_window_counts_frames_and_the_elements_of_chunks() -> None:
    outbox = NativeOutbox(no_fetch)
    outbox.reply(1, data(CHUNK_BYTES + 1))
    frame = outbox.take()
    assert isinstance(frame, bytes)
    assert outbox.window.bytes == len(frame)
    taken(outbox)
    assert outbox.window.bytes == len(frame) + CHUNK_BYTES + 1


def test_a_fetch_is_passed_on_with_its_slot() -> None:
    started: list[object] = []
    outbox = NativeOutbox(lambda task, slot: started.extend((task, slot)))
    task, slot = Fetch(bytes(32), "burn://peer", 1, None), InFlight(None)
    outbox.fetch(task, slot)
    assert started == [task, slot]
    assert len(outbox) == 0


def test_a_small_reply_beyond_the_quota_is_refused_in_its_place() -> None:
    outbox, quota = NativeOutbox(no_fetch), Quota(0, 1)
    outbox.count_in(OverheadAccount(quota))
    count = 0
    while True:
        outbox.reply(count, data(INLINE_BYTES))
        if len(outbox._frames[-1]) < INLINE_BYTES:
            break
        count += 1
    last = taken(outbox)[-1]
    assert isinstance(last, Reply)
    assert isinstance(last.value, QuotaExceeded)
    assert (last.value.operation, last.value.shapes) == ("Read", str(data(INLINE_BYTES).spec))
    assert count > 0


def test_a_session_whose_waiting_failures_fill_its_quota_is_ended() -> None:
    outbox, quota = NativeOutbox(no_fetch), Quota(0, 1)
    outbox.count_in(OverheadAccount(quota))
    long = OperationFailed("x" * 10_000)
    with pytest.raises(SessionLost, match=r"report of a failure .* raise max_session_bytes"):
        for tensor in range(1000):
            outbox.failed((tensor,), long)
    assert len(outbox) < 1000


@pytest.mark.parametrize("unacknowledged", [0, 48, 96])
def test_small_frames_count_only_beyond_many_that_are_queued_or_unacknowledged(
    unacknowledged: int,
) -> None:
    outbox, account = NativeOutbox(no_fetch), OverheadAccount(Quota(2**20, 1))
    outbox.count_in(account)
    for request in range(96):
        outbox.reply(request, None)
    for _ in range(unacknowledged):
        outbox.take()
    assert account.bytes == 0
    outbox.reply(96, None)
    assert account.bytes > 0


def test_counted_frames_are_freed_when_they_are_acknowledged() -> None:
    outbox, quota = NativeOutbox(no_fetch), Quota(2**20, 1)
    outbox.count_in(OverheadAccount(quota))
    for tensor in range(60):
        outbox.failed((tensor,), OperationFailed("x" * 10_000))
    held = quota.held
    # Each frame takes 256 bytes more, and the heap's fragmentation an eighth.
    assert held >= 60 * (10_000 + 10_000 // 8 + 256) - FREE_OVERHEAD_BYTES
    taken(outbox)
    assert quota.held == held
    outbox.window.acknowledge(60)
    gc.collect()
    assert quota.held == 0
