"""The frame writer sends in slices, acknowledgements first, and stops when told to."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import cast

import pytest

from burn_remote_protocol.dialects.native import decode_frame
from burn_remote_protocol.dtypes import U8
from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.messages import Acknowledged, Chunk, Reply
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.dialects.native.frame_writer import SENT_AT_ONCE, FrameWriter
from burn_remote_server.execution.native_outbox import NativeOutbox
from support.memory_links import async_memory_pair
from support.native_clients import turns
from support.scripted import ScriptedLink
from support.waiting import PATIENCE_SECONDS


async def test_frames_to_a_client_that_reads_as_fast_are_sent_in_several_turns() -> None:
    count = 10 * SENT_AT_ONCE
    link = ScriptedLink([])
    outbox = NativeOutbox(lambda task, slot: None)
    for request in range(count):
        outbox.reply(request, None)
    writer = FrameWriter(cast("AsyncLink", link), outbox, lambda size: None)
    sending = asyncio.create_task(writer.flush())
    sent = [0]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while sent[-1] < count:
            await asyncio.sleep(0)
            sent.append(len(link.sent))
        await sending
    assert max(after - before for before, after in pairwise(sent)) <= SENT_AT_ONCE


async def test_a_writer_that_is_stopped_between_slices_takes_nothing_more() -> None:
    link = ScriptedLink([])
    outbox = NativeOutbox(lambda task, slot: None)
    for request in range(3 * SENT_AT_ONCE):
        outbox.reply(request, None)
    writer = FrameWriter(cast("AsyncLink", link), outbox, lambda size: None)
    sending = asyncio.create_task(writer.flush())
    await asyncio.sleep(0)
    writer.stop()
    await sending
    assert 0 < len(link.sent) < 3 * SENT_AT_ONCE
    assert len(link.sent) + len(outbox) == 3 * SENT_AT_ONCE


def writing(
    link: object, *requests: int, sent: list[int] | None = None
) -> tuple[FrameWriter, NativeOutbox]:
    """Return a writer over a link, and its outbox with replies to these requests."""
    outbox = NativeOutbox(lambda task, slot: None)
    for request in requests:
        outbox.reply(request, None)
    sizes = [] if sent is None else sent
    return FrameWriter(cast("AsyncLink", link), outbox, sizes.append), outbox


async def test_an_idle_writer_sends_a_reply_at_once_and_in_order() -> None:
    link = ScriptedLink([])
    writer, outbox = writing(link)
    running = asyncio.create_task(writer.run())
    await turns(3)
    for request in (1, 2):
        outbox.reply(request, None)
        writer.wake()
        assert decode_frame(link.sent[-1]) == Reply(request, None)  # no other task has run
    outbox.reply(3, None)
    outbox.reply(4, None)
    writer.wake()
    await turns(3)
    assert [decode_frame(frame).request for frame in link.sent] == [1, 2, 3, 4]
    running.cancel()


async def test_a_writer_that_has_not_begun_sends_nothing_at_once() -> None:
    link = ScriptedLink([])
    writer, _ = writing(link, 1)
    writer.wake()  # the handshake is still to be sent
    assert link.sent == []


async def test_a_reply_to_a_slow_client_waits_for_room() -> None:
    link = ScriptedLink([])
    writer, outbox = writing(link)
    running = asyncio.create_task(writer.run())
    await turns(3)
    link.hold()
    outbox.reply(1, None)
    writer.wake()
    await link.wait_held()
    assert link.sent == []
    link.let_go()
    await turns(3)
    assert decode_frame(link.sent[0]) == Reply(1, None)
    running.cancel()


async def test_an_acknowledgement_is_sent_before_queued_replies_and_replaces_an_older_one() -> None:
    link = ScriptedLink([])
    writer, _ = writing(link, 1)
    for count in (16, 32, 48):
        writer.acknowledge(Acknowledged(count))
    await writer.flush()
    assert [decode_frame(frame) for frame in link.sent] == [Acknowledged(48), Reply(1, None)]


async def test_the_bytes_of_session_frames_are_counted_but_not_those_of_acknowledgements() -> None:
    link, sent = ScriptedLink([]), list[int]()
    writer, outbox = writing(link, 1, sent=sent)
    writer.acknowledge(Acknowledged(16))
    outbox.follow(2, TensorData(bytes(100_000), (100_000,), U8))
    await writer.flush()
    messages = [decode_frame(frame) for frame in link.sent]
    assert [type(message) for message in messages] == [Acknowledged, Reply, Reply, Chunk]
    assert sent == [len(link.sent[1]), len(link.sent[2]), 100_000]


async def test_a_running_writer_sends_what_comes_and_reports_progress() -> None:
    link = ScriptedLink([])
    writer, outbox = writing(link)
    running = asyncio.create_task(writer.run())
    async with asyncio.timeout(PATIENCE_SECONDS):
        for request in range(3):
            progress = asyncio.create_task(writer.progress())
            await turns(2)  # the writer and the reader wait
            assert not progress.done()
            outbox.reply(request, None)
            writer.wake()
            await progress
            await link.wait_sent(request + 1)
        writer.acknowledge(Acknowledged(16))
        await link.wait_sent(4)
    running.cancel()


async def test_a_reader_that_waits_for_room_continues_after_a_frame_was_sent() -> None:
    link = ScriptedLink([])
    writer, _ = writing(link, 1, 2)
    link.hold()
    sending = asyncio.create_task(writer.flush())
    await link.wait_held()
    progress = asyncio.create_task(writer.progress())
    await turns(3)
    assert not progress.done()
    link.let_go()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await progress
        await sending


async def test_finished_work_lets_the_reader_continue_although_nothing_is_sent() -> None:
    writer, _ = writing(ScriptedLink([]))
    progress = asyncio.create_task(writer.progress())
    await turns(2)
    writer.wake()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await progress


async def test_a_writer_that_is_stopped_while_its_link_is_full_sends_the_frame_it_has_only() -> (
    None
):
    link = ScriptedLink([])
    writer, outbox = writing(link, 1, 2)
    link.hold()
    sending = asyncio.create_task(writer.flush())
    await link.wait_held()
    writer.stop()
    link.let_go()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await sending
    assert len(link.sent) == 1
    assert len(outbox) == 1
    assert [*outbox.window.frames()] == link.sent  # sent again over the next link


async def test_a_lost_link_ends_the_writer_and_its_frame_is_kept_for_the_next_one() -> None:
    near, far = async_memory_pair()
    await far.close()
    writer, outbox = writing(near, 1)
    with pytest.raises(ConnectionLost):
        await writer.run()
    assert len(outbox.window) == 1
