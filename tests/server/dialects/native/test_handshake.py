"""The first and the last messages of a native connection."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from burn_remote_protocol.dialects.native import VERSIONS, decode_frame, encode_frame
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionLost,
    GarbledBytes,
    HandshakeRefused,
    ProtocolViolation,
    SessionLost,
    VersionMismatch,
)
from burn_remote_protocol.messages import Closing, Hello, Refused, Sync
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.dialects.native.handshake import (
    read_hello,
    receive_first,
    refuse,
    send_closing,
)
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings
from support.memory_links import async_memory_pair
from support.native_clients import batch
from support.scripted import ScriptedLink
from support.waiting import PATIENCE_SECONDS


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(Settings(handshake_timeout_seconds=0.01), [NumpyBackend()], tasks)
        yield host
        host.draining.set()


def test_the_highest_common_version_is_chosen() -> None:
    hello = Hello((max(VERSIONS) + 1, *VERSIONS), client="a test")
    assert read_hello(encode_frame(hello)) == (hello, max(VERSIONS))


def test_versions_that_the_server_does_not_speak_are_refused_with_both_lists() -> None:
    with pytest.raises(VersionMismatch, match=r"the client speaks versions 98, 99 .* server"):
        read_hello(encode_frame(Hello((98, 99))))


def test_the_first_message_must_be_a_hello() -> None:
    with pytest.raises(ProtocolViolation, match="must be Hello, not Batch"):
        read_hello(batch(Sync(1)))


async def test_the_wait_for_the_first_frame_is_bounded(host: Host) -> None:
    with pytest.raises(ProtocolViolation, match=r"no Hello arrived within 0\.01 seconds"):
        await receive_first(ScriptedLink([]), host)


async def test_a_client_that_leaves_before_its_first_frame_is_lost(host: Host) -> None:
    link = ScriptedLink([])
    link.end()
    with pytest.raises(ConnectionLost):
        await receive_first(link, host)


async def test_a_refusal_has_its_reason_and_closes_the_connection() -> None:
    link = ScriptedLink([])
    await refuse(link, HandshakeRefused("no room"))
    (frame,) = link.sent
    refused = decode_frame(frame)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, HandshakeRefused)
    assert "no room" in str(refused.error)
    assert link.closed_with == (1008, "refused")


async def test_garbled_bytes_are_not_answered_but_the_connection_is_closed() -> None:
    link = ScriptedLink([])
    await refuse(link, GarbledBytes("a flipped bit"))
    assert link.sent == []
    assert link.closed_with == (1008, "refused")


async def test_a_lost_connection_is_neither_answered_nor_closed_again() -> None:
    link = ScriptedLink([])
    await refuse(link, ConnectionLost("it hung up"))
    assert link.sent == []
    assert link.closed_with == (0, "")


async def test_a_session_that_is_unknown_is_refused_although_its_error_is_a_lost_connection() -> (
    None
):
    link = ScriptedLink([])
    await refuse(link, SessionLost("unknown"))
    assert isinstance(decode_frame(link.sent[0]), Refused)


@pytest.mark.parametrize(
    ("error", "code"),
    [(SessionLost("shutting down"), 1001), (ProtocolViolation("a bad frame"), 1008)],
)
async def test_a_goodbye_has_its_reason_and_the_close_code_for_it(
    error: BurnRemoteError, code: int
) -> None:
    link = ScriptedLink([])
    await send_closing(link, error)
    closing = decode_frame(link.sent[0])
    assert isinstance(closing, Closing)
    assert type(closing.error) is type(error)
    assert link.closed_with == (code, error.code)


async def test_a_goodbye_to_a_client_that_has_left_raises_nothing() -> None:
    near, far = async_memory_pair()
    await near.close()
    await refuse(far, HandshakeRefused("no room"))
    await send_closing(far, SessionLost("shutting down"))


class Decoded:
    """What was decoded of a message before it turned out to be malformed."""


@pytest.mark.parametrize("end", [refuse, send_closing])
async def test_a_client_that_delays_closing_keeps_nothing_of_its_malformed_message(
    end: Callable[[Any, BurnRemoteError], Awaitable[None]],
) -> None:
    seen: list[weakref.ref[Decoded]] = []

    def decode() -> None:
        decoded = Decoded()
        seen.append(weakref.ref(decoded))
        raise ProtocolViolation("malformed")

    async def serve() -> None:
        try:
            decode()
        except BurnRemoteError as error:
            await end(link, error)

    link: Any = ScriptedLink([])
    link.hold()
    serving = asyncio.create_task(serve())
    await link.wait_held()
    assert seen[0]() is None
    link.let_go()
    await serving
