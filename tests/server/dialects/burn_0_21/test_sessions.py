"""Burn sessions have two sockets and end once; their replies are queued within limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from burn_remote_protocol.dialects.burn_0_21_responses import BurnReply, decode_reply
from burn_remote_protocol.dtypes import F32, U8
from burn_remote_protocol.errors import (
    BurnRemoteError,
    HandshakeRefused,
    OperationFailed,
    ProtocolViolation,
    SessionLost,
)
from burn_remote_protocol.messages import Sync, Upload
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.access.admission import NOBODY, Grant
from burn_remote_server.access.quota import OverheadAccount, Quota
from burn_remote_server.backends import open_backends
from burn_remote_server.dialects.burn_0_21.sessions import MAX_UNREPORTED, BurnOutbox, BurnSessions
from burn_remote_server.execution.sessions import DECODED_SIZE
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        yield Host(Settings(), open_backends("numpy", 1), tasks)


async def test_leaving_twice_does_not_end_a_newer_session_of_the_same_id(host: Host) -> None:
    device, sessions = host.devices[0], BurnSessions()
    older = sessions.join(device, 7, "/request", NOBODY)
    assert sessions.join(device, 7, "/response", NOBODY) is older
    sessions.leave(device, 7, older)
    assert older.ended.is_set()
    newer = sessions.join(device, 7, "/request", NOBODY)
    sessions.leave(device, 7, older)  # the other socket of the older session
    assert older.ended.is_set()
    assert not newer.ended.is_set()
    assert sessions.join(device, 7, "/response", NOBODY) is newer
    assert [*host.sessions] == [newer.session]
    sessions.leave(device, 7, newer)
    assert len(host.sessions) == 0


async def test_a_socket_of_a_kind_joins_once_and_with_the_token_of_the_other(host: Host) -> None:
    device, sessions = host.devices[0], BurnSessions()
    found = sessions.join(device, 7, "/request", Grant("alice"))
    with pytest.raises(ProtocolViolation, match="already has a /request socket"):
        sessions.join(device, 7, "/request", Grant("alice"))
    with pytest.raises(HandshakeRefused, match="the same token"):
        sessions.join(device, 7, "/response", Grant("bob"))
    assert not found.complete.is_set()
    assert sessions.join(device, 7, "/response", Grant("alice")) is found
    assert found.complete.is_set()


async def test_sessions_of_several_devices_may_have_the_same_id() -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        host = Host(Settings(device_count=2), open_backends("numpy", 2), tasks)
        sessions = BurnSessions()
        first, second = (sessions.join(device, 7, "/request", NOBODY) for device in host.devices)
        assert first is not second
        sessions.leave(host.devices[0], 7, first)
        assert not second.ended.is_set()
        assert first.wake.is_set()  # so that its handlers see the end
        host.draining.set()


async def test_a_session_over_the_limit_leaves_no_entry_that_a_later_one_could_join() -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        host = Host(Settings(max_sessions=1), open_backends("numpy", 1), tasks)
        device, sessions = host.devices[0], BurnSessions()
        first = sessions.join(device, 1, "/request", NOBODY)
        with pytest.raises(HandshakeRefused):
            sessions.join(device, 2, "/request", NOBODY)
        sessions.leave(device, 1, first)
        second = sessions.join(device, 2, "/request", NOBODY)
        assert not second.complete.is_set()
        host.draining.set()


async def test_waiting_tasks_count_as_decoded_and_elements_once(host: Host) -> None:
    session = BurnSessions().join(host.devices[0], 7, "/request", NOBODY)
    release = threading.Event()

    def block() -> None:
        release.wait(10)

    session.session._worker.submit(block)
    try:
        session.submit([Sync(1)], 10_000)
        assert session.session.queued_bytes == DECODED_SIZE * 10_000
        session.submit([Upload(1, tensor(2**20))], 2**20 + 100)
        assert session.session.queued_bytes == DECODED_SIZE * 10_100 + 2**20
    finally:
        release.set()
        host.draining.set()
        host.end_session(session.session)


# -- replies --------------------------------------------------------------------------------------


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


async def test_a_small_reply_does_not_keep_a_large_tensor_alive(host: Host) -> None:
    outbox = BurnOutbox(host.devices[0], 2**20)
    outbox.reply(1, TensorData(memoryview(bytes(2**20))[:8], (8,), U8))
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
