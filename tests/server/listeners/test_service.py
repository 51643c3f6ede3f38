"""A server routes its connections and ends in order, whatever its clients do meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dialects.native import VERSIONS, decode_frame, encode_frame
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import ConnectionFailed, ConnectionLost, SessionLost, UsageError
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.links.transport_interface import Request
from burn_remote_protocol.links.transport_registry import connect_async
from burn_remote_protocol.loop_calls import Signal
from burn_remote_protocol.messages import (
    Closing,
    FetchRequest,
    Hello,
    Read,
    Reply,
    Sync,
    Upload,
    Welcome,
)
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.dialects.native import session_handler
from burn_remote_server.execution.sessions import Session
from burn_remote_server.hosting.host import Host
from burn_remote_server.listeners.service import OPENING_BYTES, _Service, serve
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.tensors.exposed_tensors import Exposed
from support.native_clients import batch, until
from support.scripted import ScriptedLink
from support.waiting import PATIENCE_SECONDS

SPEC = TensorSpec((4,), F32)
DATA = TensorData(np.arange(4, dtype=np.float32).tobytes(), SPEC.shape, SPEC.dtype)
ID = b"t" * 32


@pytest.fixture(autouse=True)
def switch_interval() -> Iterator[None]:
    """Restore the interval that a server sets for its process."""
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


class Running:
    """A server in a task of this event loop."""

    def __init__(self, **settings: Any) -> None:
        self.drain = Signal()
        ready: asyncio.Future[Host] = asyncio.get_running_loop().create_future()
        self.ready = ready
        self.serving = asyncio.ensure_future(
            serve(Settings(port=0, **settings), drain=self.drain, ready=ready.set_result)
        )

    @property
    def host(self) -> Host:
        return self.ready.result()

    @property
    def session(self) -> Session:
        """The only session."""
        (session,) = self.host.sessions
        return session

    async def dial(self, route: str = "/session", device: str = "") -> AsyncLink:
        return await connect_async(f"ws://127.0.0.1:{self.host.port}{device}", route)

    async def open(self, route: str = "/session", device: str = "") -> tuple[AsyncLink, Welcome]:
        """Open a connection and return it with the server's welcome."""
        link = await self.dial(route, device)
        await link.send(encode_frame(Hello(VERSIONS)))
        welcome = await hear(link)
        assert isinstance(welcome, Welcome)
        return link, welcome

    async def get(self, path: str) -> tuple[str, str]:
        """Return the status line and the body of a GET request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.host.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        async with asyncio.timeout(PATIENCE_SECONDS):
            head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        return head.splitlines()[0], body

    async def stopped(self) -> None:
        """Wait until the server has ended."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.serving


@contextlib.asynccontextmanager
async def server(**settings: Any) -> AsyncIterator[Running]:
    async with asyncio.timeout(4 * PATIENCE_SECONDS):
        running = Running(**settings)
        starting: list[asyncio.Future[Any]] = [running.ready, running.serving]
        await asyncio.wait(starting, return_when=asyncio.FIRST_COMPLETED)
        if running.serving.done():
            running.serving.result()  # raises why it did not start
        try:
            yield running
        finally:
            running.drain.set()
            await running.serving


async def hear(link: AsyncLink) -> Any:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return decode_frame(await link.receive())


@contextlib.contextmanager
def held(session: Session) -> Iterator[None]:
    """Keep a session's worker inside a call."""
    leave = threading.Event()
    session.submit(lambda: assert_set(leave))
    try:
        yield
    finally:
        leave.set()


def assert_set(event: threading.Event) -> None:
    assert event.wait(PATIENCE_SECONDS)


# -- routes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["", "/", "/0", "/1", "/0001"])
async def test_a_session_opens_on_the_device_of_its_path(device: str) -> None:
    async with server(device_count=2) as running:
        link, welcome = await running.open(device=device)
        assert welcome.device["index"] == int(device.strip("/") or 0)
        await link.close()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/2/session", "421"),
        ("/9999/session", "421"),
        ("/99999/session", "404|426"),
        ("/-1/session", "404|426"),
        ("/sessions", "404|426"),
        ("/session/1", "404|426"),
        ("///session", "404|426"),
        ("/token/%/session", "404|426"),
    ],
)
async def test_a_path_that_leads_nowhere_is_refused_and_the_server_goes_on(
    path: str, reason: str
) -> None:
    async with server(device_count=2) as running:
        with pytest.raises(ConnectionFailed, match=reason):
            await connect_async(f"ws://127.0.0.1:{running.host.port}", path)
        link, _ = await running.open()
        await link.close()


async def test_the_port_answers_health_checks_and_says_when_it_drains() -> None:
    async with server() as running:
        assert await running.get("/healthz") == ("HTTP/1.1 200 OK", "ok\n")
        assert await running.get("/readyz") == ("HTTP/1.1 200 OK", "ready\n")
        status, metrics = await running.get("/metrics")
        assert "200" in status
        assert "burn_remote_sessions 0.0" in metrics
        running.host.draining.set()
        assert await running.get("/readyz") == (
            "HTTP/1.1 503 Service Unavailable",
            "draining\n",
        )


async def test_an_address_with_a_slash_at_its_end_leads_to_the_same_routes() -> None:
    async with server() as running:
        for path in ("/session", "//session", "/0//request"):
            status, _ = await running.get(path)
            assert "426" in status
        status, _ = await running.get("///session")
        assert "404" in status


async def test_a_connection_that_has_ended_leaves_nothing_behind() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(Settings(), [NumpyBackend()], tasks)
        service = _Service(host)
        link = ScriptedLink([encode_frame(Hello(VERSIONS))])
        link.end()
        await asyncio.create_task(service._handle(link, Request("/session", {})))
        assert isinstance(decode_frame(link.sent[0]), Welcome)
        assert service._running == {}
        host.draining.set()


async def test_messages_are_small_until_the_client_is_admitted() -> None:
    async with server() as running:
        stranger = await running.dial()
        large = batch(*[Upload(number, DATA) for number in range(3000)])
        assert len(large) > OPENING_BYTES
        with contextlib.suppress(ConnectionLost):
            await stranger.send(large)
        with pytest.raises(ConnectionLost, match="1009"):
            await hear(stranger)
        link, _ = await running.open()
        await link.send(large)
        await link.send(batch(Sync(1)))
        assert await hear(link) == Reply(1, None)
        await link.close()


async def test_a_defect_in_a_handler_ends_its_connection_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> Any:
        raise RuntimeError("a defect of the server")

    async with server() as running:
        good, _ = await running.open()
        with monkeypatch.context() as patch:
            patch.setattr(session_handler, "_welcome", fail)
            bad = await running.dial()
            await bad.send(encode_frame(Hello(VERSIONS)))
            with pytest.raises(ConnectionLost, match="1011"):
                await hear(bad)
        await until(lambda: len(running.host.sessions) == 1)
        await good.send(batch(Sync(1)))
        assert await hear(good) == Reply(1, None)
        await good.close()


async def test_connections_over_the_limit_are_refused_with_the_reason() -> None:
    async with server(max_connections_per_address=1) as running:
        link, _ = await running.open()
        with pytest.raises(ConnectionFailed, match="429"):
            await running.dial()
        await link.close()


async def test_a_port_in_use_is_an_error_that_leaves_nothing_running() -> None:
    async with server() as running:
        other = Settings(port=running.host.port)
        with pytest.raises((OSError, BaseExceptionGroup)) as caught:
            await serve(other, drain=Signal(), ready=lambda host: None)
        error = caught.value
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
        assert isinstance(error, OSError)


# -- shutdown -------------------------------------------------------------------------------------


async def test_an_idle_server_ends_and_its_port_is_free() -> None:
    async with server() as running:
        port = running.host.port
        running.drain.set()
        await running.stopped()
        with pytest.raises(ConnectionFailed):
            await connect_async(f"ws://127.0.0.1:{port}", "/session")


async def test_work_in_flight_is_answered_before_the_server_ends() -> None:
    async with server(inline_cost_limit=0) as running:
        link, _ = await running.open()
        session = running.session
        with held(session):
            await link.send(batch(Upload(1, DATA), Read(1, 1, SPEC)))
            await until(lambda: session.queued == 2)
            running.drain.set()
            await until(running.host.draining.is_set)
            with pytest.raises(ConnectionFailed):
                await running.dial()
            assert not running.serving.done()
        assert await hear(link) == Reply(1, bytes(DATA.bytes))
        closing = await hear(link)
        assert isinstance(closing, Closing)
        assert isinstance(closing.error, SessionLost)
        await running.stopped()
        assert not running.host.sessions


async def test_a_session_that_does_not_end_in_time_is_ended() -> None:
    async with server(drain_seconds=0.01, inline_cost_limit=0) as running:
        link, _ = await running.open()
        session = running.session
        with held(session):
            await link.send(batch(Sync(1)))
            await until(lambda: session.queued == 2)
            running.drain.set()
            await running.stopped()
            assert not running.host.sessions
        with pytest.raises(ConnectionLost):
            while True:
                await hear(link)


async def test_a_client_that_says_nothing_does_not_delay_the_end_beyond_the_drain_time() -> None:
    async with server(drain_seconds=0.01, handshake_timeout_seconds=3600) as running:
        await running.dial()
        await until(lambda: len(asyncio.all_tasks()) > 2)
        running.drain.set()
        await running.stopped()


async def test_a_session_under_its_lease_does_not_delay_the_end() -> None:
    async with server(lease_seconds=3600) as running:
        link, _ = await running.open()
        session = running.session
        await link.close()
        await until(lambda: session.notify is not None and not session.queued)
        running.drain.set()
        await running.stopped()


async def test_peers_receive_their_tensors_after_the_last_session_has_ended() -> None:
    async with server() as running:
        host = running.host
        exposed = Exposed(np.zeros(4, np.float32), SPEC, host.devices[0].backend)
        host.transfers.expose(("native", ID), exposed, owner=host, count=1, expires_seconds=60)
        peer, _ = await running.open("/transfer")
        client, _ = await running.open()
        await peer.send(encode_frame(FetchRequest(1, ID, 0)))
        assert await hear(peer) == Reply(1, SPEC)
        await hear(peer)  # its elements
        running.drain.set()
        assert isinstance(await hear(client), Closing)
        await until(host.sessions_ended.is_set)
        assert not running.serving.done()  # the peer has not confirmed the tensor
        await peer.send(encode_frame(FetchRequest(1, ID, SPEC.nbytes)))
        with pytest.raises(ConnectionLost):
            await hear(peer)
        await running.stopped()


async def test_fetches_of_sessions_are_failed_when_the_server_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[Host] = []
    original = Host.close_fetches

    def note(host: Host) -> None:
        closed.append(host)
        original(host)

    monkeypatch.setattr(Host, "close_fetches", note)
    async with server() as running:
        running.drain.set()
        await running.stopped()
        assert closed == [running.host]


async def test_a_server_that_is_cancelled_closes_everything() -> None:
    running = Running()
    async with asyncio.timeout(4 * PATIENCE_SECONDS):
        await running.ready
        link, _ = await running.open()
        running.serving.cancel()
        await asyncio.wait([running.serving])
        assert running.serving.cancelled()
        with pytest.raises(ConnectionLost):
            await hear(link)
        with pytest.raises(ConnectionFailed):
            await running.dial()


async def test_a_server_whose_memory_is_too_small_for_a_session_does_not_start() -> None:
    with pytest.raises(UsageError, match="max_total_bytes: 10 bytes are too few"):
        await serve(Settings(port=0, max_total_bytes=10), drain=Signal(), ready=lambda host: None)


async def test_a_server_without_nccl_does_not_start_with_the_setting_nccl() -> None:
    with pytest.raises(UsageError, match="'numpy' has no NCCL: use the backend 'cupy'"):
        await serve(Settings(port=0, nccl=True), drain=Signal(), ready=lambda host: None)
