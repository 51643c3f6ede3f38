"""Burn's routes open a session's two sockets and let strangers send small messages only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import SecretStr

from burn_remote_protocol.dialects.burn_0_21 import encode_init
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.dialects.burn_0_21.routes import burn_0_21_routes
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings
from support.native_clients import until
from support.scripted import ScriptedLink
from support.waiting import PATIENCE_SECONDS

TOKEN = "alice-has-this-token-1"
INIT = encode_init(7)


class Configured(ScriptedLink):
    """A scripted link that records how it was configured."""

    def __init__(self, *frames: bytes) -> None:
        super().__init__(frames)
        self.limits: list[int] = []
        self.counted: list[object] = []
        self.pings = 0

    def limit_messages(self, max_message_bytes: int, allocate: object = None) -> None:
        self.limits.append(max_message_bytes)

    def count_received(
        self, memory: object, stall_seconds: float, urgent_bytes: int | None = None
    ) -> None:
        self.counted.append(memory)

    def keep_alive(self, interval_seconds: float) -> None:
        self.pings += 1


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(Settings(tokens=SecretStr(f"alice:{TOKEN}")), [NumpyBackend()], tasks)
        yield host
        host.draining.set()


def test_peers_outlive_sessions_and_clients_do_not() -> None:
    routes = burn_0_21_routes()
    assert {name: route.is_for_peers for name, route in routes.items()} == {
        "request": False,
        "response": False,
        "data": True,
    }


async def test_both_routes_serve_one_session_without_pings(host: Host) -> None:
    routes, device = burn_0_21_routes(), host.devices[0]
    links = {name: Configured(INIT) for name in ("request", "response")}
    serving = [
        asyncio.ensure_future(routes[name].serve(link, device, TOKEN, "ws://x"))
        for name, link in links.items()
    ]
    await until(lambda: len(host.sessions) == 1 and not any(link.frames for link in links.values()))
    for link in links.values():
        link.end()
    await asyncio.gather(*serving)
    assert not host.sessions
    assert [link.pings for link in links.values()] == [0, 0]  # Burn's client must not be pinged


async def test_a_client_with_a_token_may_send_large_messages_from_the_start(host: Host) -> None:
    link = Configured(INIT)
    link.end()
    await burn_0_21_routes()["request"].serve(link, host.devices[0], TOKEN, "ws://x")
    assert link.limits[0] == host.settings.max_message_bytes
    assert link.counted == [host.devices[0].host_memory]


@pytest.mark.parametrize("route", ["request", "response"])
async def test_a_stranger_s_link_stays_as_the_listener_made_it(host: Host, route: str) -> None:
    link: Any = Configured(INIT)
    await burn_0_21_routes()[route].serve(link, host.devices[0], "a-guess-of-the-token", "ws://x")
    assert (link.limits, link.counted) == ([], [])
    assert link.closed_with[0] == 1008
    assert not host.sessions


async def test_processes_do_not_share_sessions(host: Host) -> None:
    device = host.devices[0]
    request, response = Configured(INIT), Configured(INIT)
    serving = [
        asyncio.ensure_future(
            burn_0_21_routes()["request"].serve(request, device, TOKEN, "ws://x")
        ),
        asyncio.ensure_future(
            burn_0_21_routes()["response"].serve(response, device, TOKEN, "ws://x")
        ),
    ]
    await until(lambda: len(host.sessions) == 2)
    for link in (request, response):
        link.end()
    await asyncio.gather(*serving)
