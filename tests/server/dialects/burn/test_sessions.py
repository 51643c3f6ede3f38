"""A Burn session ends once and does not affect another with the same id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from burn_remote_server.access.admission import NOBODY
from burn_remote_server.backends import open_backends
from burn_remote_server.dialects.burn.sessions import BurnSessions
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
    newer = sessions.join(device, 7, "/request", NOBODY)
    sessions.leave(device, 7, older)  # the other socket of the older session
    assert older.ended.is_set()
    assert not newer.ended.is_set()
    assert sessions.join(device, 7, "/response", NOBODY) is newer
    assert [*host.sessions] == [newer.session]
    sessions.leave(device, 7, newer)
    assert len(host.sessions) == 0
