"""The frame writer sends in slices."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import cast

from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_server.dialects.native.frame_writer import SENT_AT_ONCE, FrameWriter
from burn_remote_server.execution.outbox import NativeOutbox
from support.scripted import ScriptedLink


async def test_frames_to_a_client_that_reads_as_fast_are_sent_in_several_turns() -> None:
    count = 10 * SENT_AT_ONCE
    link = ScriptedLink([])
    outbox = NativeOutbox(lambda task, slot: None)
    for request in range(count):
        outbox.reply(request, None)
    writer = FrameWriter(cast("AsyncLink", link), outbox, lambda size: None)
    sending = asyncio.create_task(writer.flush())
    sent = [0]
    async with asyncio.timeout(5):
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
