"""Sessions of Burn 0.21 have two sockets and end once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from burn_remote_protocol.dtypes import U8
from burn_remote_protocol.errors import (
    HandshakeRefused,
    ProtocolViolation,
)
from burn_remote_protocol.messages import Sync, Upload
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.access.admission import NOBODY, Grant
from burn_remote_server.backends import open_backends
from burn_remote_server.dialects.burn_0_21.two_socket_sessions import DECODED_SIZE, BurnSessions
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings
from support.waiting import PATIENCE_SECONDS


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        yield Host(Settings(), open_backends("numpy", 1), tasks)


def tensor(size: int) -> TensorData:
    return TensorData(bytes(size), (size,), U8)


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
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(Settings(device_count=2), open_backends("numpy", 2), tasks)
        sessions = BurnSessions()
        first, second = (sessions.join(device, 7, "/request", NOBODY) for device in host.devices)
        assert first is not second
        sessions.leave(host.devices[0], 7, first)
        assert not second.ended.is_set()
        assert first.wake.is_set()  # so that its handlers see the end
        host.draining.set()


async def test_a_session_over_the_limit_leaves_no_entry_that_a_later_one_could_join() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
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
        release.wait(PATIENCE_SECONDS)

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
