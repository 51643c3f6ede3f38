"""A peer learns why a tensor cannot be sent, and a stopping server does not wait for it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr

from burn_remote_protocol.dialects.native import VERSIONS, decode_frame, encode_frame
from burn_remote_protocol.dtypes import F32, DType
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionLost,
    DeviceLost,
    ProtocolViolation,
)
from burn_remote_protocol.links.addresses import parse_address
from burn_remote_protocol.links.checksummed_links import CheckedAsyncLink, Checks
from burn_remote_protocol.messages import (
    Acknowledged,
    Chunk,
    Closing,
    FetchRequest,
    Hello,
    Reply,
    Welcome,
)
from burn_remote_protocol.peer_proofs import peer_key
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access.peer_authentication import prove_to_source
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.dialects.native import peer_handler
from burn_remote_server.dialects.native.peer_handler import serve_peer
from burn_remote_server.hosting import host as host_module
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.tensors.exposed_tensors import Exposed
from support.memory_links import async_memory_pair
from support.native_clients import turns, until
from support.scripted import ScriptedLink
from support.waiting import PATIENCE_SECONDS

ID = b"t" * 32
OTHER_ID = b"u" * 32
TOKEN = "what-servers-show-each-other"
SPEC = TensorSpec((4,), F32)


class LostBackend(NumpyBackend):
    """A device that was lost after a tensor had been exposed."""

    def to_bytes(self, array: Any, dtype: DType) -> memoryview:
        raise DeviceLost("GPU 0 is lost")


async def test_a_fetch_from_a_lost_device_fails_and_does_not_delay_shutdown() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        backend = LostBackend()
        host = Host(Settings(), [backend], tasks)
        exposed = Exposed(np.zeros(4, np.float32), SPEC, backend)
        host.transfers.expose(("native", ID), exposed, owner=host, count=1, expires_seconds=60)
        frames = [Hello(VERSIONS), FetchRequest(1, ID, 0)]
        link = ScriptedLink(map(encode_frame, frames))
        serving = asyncio.create_task(serve_peer(link, host))
        await link.wait_sent(2)  # the welcome, and the answer
        answer = decode_frame(link.sent[1])
        assert isinstance(answer, Reply)
        assert isinstance(answer.value, DeviceLost)

        host.sessions_ended.set()
        await serving
        assert len(host.transfers) == 0


async def test_a_peer_that_leaves_after_its_hello_is_no_error() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(Settings(), [NumpyBackend()], tasks)
        near, far = async_memory_pair()
        await near.send(encode_frame(Hello(VERSIONS)))
        await near.close()
        await serve_peer(far, host)
        assert not host.outgoing_transfers
        host.draining.set()


@pytest.mark.parametrize(
    "frame",
    [encode_frame(Hello(VERSIONS)), encode_frame(Reply(1, None)), b"", b"\x99"],
    ids=["Hello", "Reply", "empty", "unknown"],
)
async def test_a_peer_that_violates_the_protocol_is_told_and_its_tensors_are_exposed_again(
    frame: bytes,
) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(Settings(), [NumpyBackend()], tasks)
        exposed = Exposed(np.zeros(4, np.float32), SPEC, host.devices[0].backend)
        host.transfers.expose(("native", ID), exposed, owner=host, count=1, expires_seconds=60)
        link = ScriptedLink(map(encode_frame, [Hello(VERSIONS), FetchRequest(1, ID, 0)]))
        serving = asyncio.create_task(serve_peer(link, host))
        await link.wait_sent(3)  # the welcome, the reply and its chunk
        assert len(host.transfers) == 0
        link.say([frame])
        await serving
        closing = decode_frame(link.sent[-1])
        assert isinstance(closing, Closing)
        assert isinstance(closing.error, ProtocolViolation)
        assert link.closed_with[0] == 1008
        assert len(host.transfers) == 1
        host.draining.set()


async def test_a_confirmed_tensor_is_sent_once_and_a_stopping_server_then_leaves() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(Settings(), [NumpyBackend()], tasks)
        exposed = Exposed(np.zeros(4, np.float32), SPEC, host.devices[0].backend)
        host.transfers.expose(("native", ID), exposed, owner=host, count=1, expires_seconds=60)
        link = ScriptedLink(map(encode_frame, [Hello(VERSIONS), FetchRequest(1, ID, 0)]))
        serving = asyncio.create_task(serve_peer(link, host))
        await link.wait_sent(3)
        host.sessions_ended.set()
        await turns(5)
        assert not serving.done()  # the peer has not confirmed the tensor
        link.say([encode_frame(FetchRequest(1, ID, SPEC.nbytes))])
        await serving
        assert len(host.transfers) == 0
        assert host.counters.peer_sent_bytes > SPEC.nbytes
        host.draining.set()


async def test_a_fetch_forged_by_a_relay_ends_the_connection() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        settings = Settings(peer_token=SecretStr(TOKEN))
        host = Host(settings, [NumpyBackend()], tasks)
        exposed = Exposed(np.zeros(4, np.float32), SPEC, host.devices[0].backend)
        for transfer in (ID, OTHER_ID):
            host.transfers.expose(
                ("native", transfer), exposed, owner=host, count=1, expires_seconds=60
            )
        near, far = async_memory_pair()
        serving = asyncio.create_task(serve_peer(far, host))
        address = parse_address(host.devices[0].peer_address)
        signer = await prove_to_source(near, address, Hello(VERSIONS), peer_key(TOKEN))
        assert signer is not None

        tag = signer.tag(1, ID, 0)
        await near.send(encode_frame(FetchRequest(1, ID, 0, tag)))
        answer = decode_frame(await near.receive())
        assert isinstance(answer, Reply)
        assert not isinstance(answer.value, BurnRemoteError)

        await near.send(encode_frame(FetchRequest(2, OTHER_ID, 0, tag)))
        while not isinstance(answer := decode_frame(await near.receive()), Closing):
            pass
        assert "signature" in str(answer.error)
        await serving
        host.sessions_ended.set()


async def test_a_peer_with_the_most_fetches_under_way_is_not_read_until_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_handler, "MAX_PEER_FETCHES", 2)
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(Settings(), [NumpyBackend()], tasks)
        ids = [bytes([number]) * 32 for number in range(6)]
        requests = [FetchRequest(number, transfer, 0) for number, transfer in enumerate(ids)]
        link = ScriptedLink(map(encode_frame, [Hello(VERSIONS), *requests]))
        serving = asyncio.create_task(serve_peer(link, host))
        await link.wait_sent(1)
        await turns(50)
        # Two wait for their tensors, a third was read and waits for its turn.
        assert len(link.frames) == 3
        for number, transfer in enumerate(ids):
            exposed = Exposed(np.zeros(4, np.float32), SPEC, host.devices[0].backend)
            key = ("native", transfer)
            host.transfers.expose(key, exposed, owner=host, count=1, expires_seconds=60)
            await link.wait_sent(1 + 2 * (number + 1))  # the welcome, replies and chunks
        assert not link.frames
        link.end()
        await serving
        host.draining.set()


async def test_the_fetches_of_a_lost_connection_end_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_module, "CANCELLED_AT_ONCE", 3)
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(Settings(), [NumpyBackend()], tasks)
        requests = [FetchRequest(number, bytes([number]) * 32, 0) for number in range(30)]
        link = ScriptedLink(map(encode_frame, [Hello(VERSIONS), *requests]))
        serving = asyncio.create_task(serve_peer(link, host))
        await until(lambda: len(host.waiting_peers._waiting.items()) == 30)
        link.end()
        left = [30]
        while not serving.done():
            await turns(1)
            left.append(len(host.waiting_peers._waiting.items()))
        await serving
        assert left[-1] == 0
        assert max(before - after for before, after in pairwise(left)) <= 3
        host.draining.set()


# -- checked frames -------------------------------------------------------------------------------


def exposing(tasks: asyncio.TaskGroup, **settings: Any) -> Host:
    """Return a host that exposes a tensor as ``ID``."""
    host = Host(Settings(**settings), [NumpyBackend()], tasks)
    exposed = Exposed(np.zeros(4, np.float32), SPEC, host.devices[0].backend)
    host.transfers.expose(("native", ID), exposed, owner=host, count=1, expires_seconds=60)
    return host


async def test_a_target_whose_first_frame_is_checked_gets_checked_frames() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = exposing(tasks)
        near, far = async_memory_pair()
        serving = asyncio.create_task(serve_peer(far, host))
        link = CheckedAsyncLink(near)
        await link.send(encode_frame(Hello(VERSIONS)))
        assert isinstance(decode_frame(await link.receive()), Welcome)
        await link.send(encode_frame(Acknowledged(0)))  # a heartbeat
        await link.send(encode_frame(FetchRequest(1, ID, 0)))
        assert isinstance(decode_frame(await link.receive()), Reply)
        assert isinstance(decode_frame(await link.receive()), Chunk)
        await link.close()
        await serving
        host.draining.set()


@pytest.mark.parametrize("byte", range(12))
async def test_a_garbled_fetch_closes_the_connection_without_a_message(byte: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = exposing(tasks)
        near, far = async_memory_pair()
        serving = asyncio.create_task(serve_peer(far, host))
        checks = Checks()
        await near.send(checks.seal(encode_frame(Hello(VERSIONS))))
        await near.receive()
        sealed = bytearray(checks.seal(encode_frame(FetchRequest(1, ID, 0))))
        sealed[byte] ^= 1
        await near.send(bytes(sealed))
        await serving
        await far.close()  # as the listener does
        with pytest.raises(ConnectionLost):
            await near.receive()
        assert len(host.transfers) == 1
        host.draining.set()


async def test_a_checked_target_receives_a_frame_each_interval() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = exposing(tasks, heartbeat_seconds=0.01)
        near, far = async_memory_pair()
        serving = asyncio.create_task(serve_peer(far, host))
        link = CheckedAsyncLink(near)
        await link.send(encode_frame(Hello(VERSIONS)))
        assert isinstance(decode_frame(await link.receive()), Welcome)
        for _ in range(3):
            assert isinstance(decode_frame(await link.receive()), Acknowledged)
        await link.close()
        await serving
        host.draining.set()
