"""Replies to a client of Burn 0.21 are queued within limits, and failures are reported once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from burn_remote_protocol.dialects.burn_0_21_responses import BurnReply, decode_reply
from burn_remote_protocol.dtypes import F32, U8
from burn_remote_protocol.errors import (
    BurnRemoteError,
    OperationFailed,
    SessionLost,
)
from burn_remote_protocol.tensors import MAX_RANK, TensorData
from burn_remote_server.access.quota import OverheadAccount, Quota
from burn_remote_server.backends import open_backends
from burn_remote_server.dialects.burn_0_21.outbox import MAX_UNREPORTED, BurnOutbox
from burn_remote_server.dialects.burn_0_22.outbox import Burn22Outbox
from burn_remote_server.execution.engine import COUNTED_REPLY_BYTES
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings
from support.waiting import PATIENCE_SECONDS


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        yield Host(Settings(), open_backends("numpy", 1), tasks)


def queued(outbox: BurnOutbox) -> list[BurnReply]:
    """Take and decode all queued replies."""
    replies = []
    while outbox.frames:
        frame = outbox.frames.popleft()
        outbox.taken(frame)
        replies.append(decode_reply(b"".join(frame)))
    return replies


def tensor(size: int) -> TensorData:
    return TensorData(bytes(size), (size,), U8)


async def test_replies_are_queued_in_order(host: Host) -> None:
    outbox = BurnOutbox(host.devices[0], 2**20)
    data = TensorData(bytes(8), (2,), F32)
    outbox.reply(1, None)
    outbox.reply(2, data)
    first, second = queued(outbox)
    assert (first.request, second.request, second.value) == (1, 2, data)


@pytest.mark.parametrize("kind", [BurnOutbox, Burn22Outbox])
@pytest.mark.parametrize("size", [8, COUNTED_REPLY_BYTES])
async def test_a_small_reply_does_not_keep_a_large_tensor_alive(
    size: int, kind: type[BurnOutbox], host: Host
) -> None:
    outbox = kind(host.devices[0], 2**20)
    shape = (*(1,) * (MAX_RANK - 1), size)
    outbox.reply(2**63 - 1, TensorData(memoryview(bytes(2**20))[:size], shape, U8))
    assert [type(part) for part in outbox.frames[0]] == [bytes]


async def test_replies_beyond_the_waiting_bytes_are_refused_until_some_are_taken(
    host: Host,
) -> None:
    outbox = BurnOutbox(host.devices[0], 150_000)
    outbox.reply(1, tensor(100_000))
    outbox.reply(2, tensor(100_000))
    first, second = queued(outbox)
    assert isinstance(first.value, TensorData)
    assert isinstance(second.value, BurnRemoteError)
    assert "read fewer tensors at once" in str(second.value)
    outbox.reply(3, tensor(1_000_000))  # one reply may have any size
    assert isinstance(queued(outbox)[0].value, TensorData)


async def test_replies_count_in_the_quota_until_they_are_sent(host: Host) -> None:
    outbox = BurnOutbox(host.devices[0], 2**62)
    account = OverheadAccount(Quota(2**30, 0))
    outbox.count_in(account)
    outbox.reply(1, tensor(10_000))
    assert account.bytes > 10_000
    queued(outbox)
    assert account.bytes == 0


async def test_a_session_whose_quota_has_no_room_for_an_error_ends(host: Host) -> None:
    outbox = BurnOutbox(host.devices[0], 2**62)
    outbox.count_in(OverheadAccount(Quota(0, 0)))
    with pytest.raises(SessionLost, match=r"a response .* raise max_session_bytes"):
        for request in range(10_000):
            outbox.reply(request, tensor(10_000))


async def test_a_failure_is_reported_once_by_the_next_sync(host: Host) -> None:
    outbox = BurnOutbox(host.devices[0], 2**20)
    outbox.failed((5,), OperationFailed("first", tensor=5))
    outbox.failed((6,), OperationFailed("second", tensor=6))
    for request in range(2):
        outbox.reply(request, None)
    first, second = queued(outbox)
    assert "first" in str(first.value)
    assert second.value is None
    assert outbox.failures.total() == 2


async def test_a_failure_that_a_read_reported_is_not_reported_again(host: Host) -> None:
    outbox = BurnOutbox(host.devices[0], 2**20)
    failure = OperationFailed("it failed", tensor=5)
    outbox.failed((5,), failure)
    outbox.reply(1, failure)
    outbox.reply(2, None)
    read, sync = queued(outbox)
    assert "it failed" in str(read.value)
    assert sync.value is None


async def test_only_so_many_failures_wait_for_a_report(host: Host) -> None:
    outbox = BurnOutbox(host.devices[0], 2**20)
    for number in range(2 * MAX_UNREPORTED):
        outbox.failed((number,), OperationFailed("it failed", tensor=number))
    assert len(outbox._unreported) == MAX_UNREPORTED
    assert outbox.failures.total() == 2 * MAX_UNREPORTED
