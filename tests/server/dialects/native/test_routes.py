"""The native routes apply the settings to each link before and after its client is admitted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import SecretStr

from burn_remote_protocol.dialects.native import VERSIONS, decode_frame, encode_frame
from burn_remote_protocol.messages import Hello, Refused, Resume, Welcome
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.dialects.native.routes import native_routes
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings
from support.native_clients import turns
from support.scripted import ScriptedLink
from support.waiting import PATIENCE_SECONDS

TOKEN = "alice-has-this-token-1"
HELLO = encode_frame(Hello(VERSIONS))
SETTINGS = {"heartbeat_seconds": 7.0, "fetch_timeout_seconds": 3.0, "max_message_bytes": 2**21}


class Configured(ScriptedLink):
    """A scripted link that records how it was configured."""

    def __init__(self, *frames: bytes) -> None:
        super().__init__(frames)
        self.configured: dict[str, Any] = {}

    def limit_messages(self, max_message_bytes: int, allocate: object = None) -> None:
        self.configured["limit"] = max_message_bytes

    def count_received(
        self, memory: object, stall_seconds: float, urgent_bytes: int | None = None
    ) -> None:
        self.configured["count"] = (memory, stall_seconds)

    def keep_alive(self, interval_seconds: float) -> None:
        self.configured["keep alive"] = interval_seconds


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        tokens = SecretStr(f"alice:{TOKEN}")
        host = Host(Settings(tokens=tokens, **SETTINGS), [NumpyBackend()], tasks)
        yield host
        host.draining.set()


def test_peers_outlive_sessions_and_clients_do_not() -> None:
    routes = native_routes()
    assert {name: route.is_for_peers for name, route in routes.items()} == {
        "session": False,
        "transfer": True,
    }


async def test_an_admitted_client_may_send_large_messages_and_is_kept_alive(host: Host) -> None:
    link = Configured(HELLO)
    link.end()
    device = host.devices[0]
    await native_routes()["session"].serve(link, device, TOKEN, "ws://x")
    assert isinstance(decode_frame(link.sent[0]), Welcome)
    assert link.configured == {
        "limit": 2**21,
        "count": (device.host_memory, 3.0),
        "keep alive": 7.0,
    }


async def test_a_stranger_s_link_stays_as_the_listener_made_it(host: Host) -> None:
    link = Configured(HELLO)
    await native_routes()["session"].serve(link, host.devices[0], None, "ws://x")
    assert isinstance(decode_frame(link.sent[0]), Refused)
    assert link.configured == {}


async def test_a_session_can_be_resumed_over_the_same_routes_only(host: Host) -> None:
    routes, device = native_routes(), host.devices[0]
    first = Configured(HELLO)
    first.end()
    await routes["session"].serve(first, device, TOKEN, "ws://x")
    welcome = decode_frame(first.sent[0])
    hello = encode_frame(Hello(VERSIONS, resume=Resume(welcome.session, welcome.secret, 0)))
    stranger, again = Configured(hello), Configured(hello)
    await native_routes()["session"].serve(stranger, device, TOKEN, "ws://x")
    assert isinstance(decode_frame(stranger.sent[0]), Refused)
    again.end()
    await routes["session"].serve(again, device, TOKEN, "ws://x")
    assert decode_frame(again.sent[0]).session == welcome.session


async def test_a_peer_s_link_is_kept_alive_and_takes_small_messages_only(host: Host) -> None:
    link = Configured(HELLO)
    serving = asyncio.ensure_future(
        native_routes()["transfer"].serve(link, host.devices[0], None, "ws://x")
    )
    await turns(3)
    # Half of the time after which a fetch is given up, so that a dead link is noticed before.
    assert link.configured == {"keep alive": 1.5}
    link.end()
    await serving
