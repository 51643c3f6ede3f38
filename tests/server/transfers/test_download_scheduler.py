"""Every waiting operation learns the outcome of its fetch; no fetch outlives its session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from burn_remote_protocol.dialects.native import CHUNK_BYTES, chunk_head, decode_frame, encode_frame
from burn_remote_protocol.dtypes import U8
from burn_remote_protocol.errors import TransferFailed
from burn_remote_protocol.messages import Chunk, Fetch, FetchRequest, Hello, Reply, Welcome
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends import open_backends
from burn_remote_server.dialects.native.peer_handler import serve_peer
from burn_remote_server.execution.native_outbox import NativeOutbox
from burn_remote_server.execution.sessions import Session
from burn_remote_server.hosting.host import NATIVE_TRANSFERS, Host
from burn_remote_server.hosting.local import LocalLink
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.tensors.exposed_tensors import Exposed
from burn_remote_server.tensors.slots import InFlight
from burn_remote_server.transfers.download_scheduler import (
    FAILED_AT_ONCE,
    RUNNING_AT_ONCE,
    STARTED_AT_ONCE,
    DownloadScheduler,
)
from support.scripted import ScriptedLink
from support.source_sockets import SourceSocket
from support.waiting import PATIENCE_SECONDS

SPEC = TensorSpec((1000,), U8)
GOOD = bytes(range(200)) * 5
WELCOME = encode_frame(Welcome(1, 0, b"", 0.0, {}, {}, "ws://source:1"))


class Source:
    """A peer that sends half of each tensor, and the rest on request."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[FetchRequest] = asyncio.Queue()
        self.address = ""
        self.connections: list[SourceSocket] = []
        self.is_dead = False
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def serve(self, plain: ServerConnection) -> None:
        connection = SourceSocket(plain)
        if self.is_dead:
            connection.abort()
            return
        self.connections.append(connection)
        assert plain.request is not None
        with contextlib.suppress(ConnectionClosed):
            if plain.request.path == "/data":
                await plain.recv()
                await self._say_nothing(plain)
            else:
                await self._answer(connection)

    async def _answer(self, connection: SourceSocket) -> None:
        await connection.recv()
        await connection.send(WELCOME)
        while True:
            request = decode_frame(await connection.recv())
            assert isinstance(request, FetchRequest)
            self.asked.set()
            await self.may_answer.wait()
            if not request.offset:
                await connection.send(encode_frame(Reply(request.request, SPEC)))
                await self.say(request, 0)
            self.heard.put_nowait(request)

    async def _say_nothing(self, connection: ServerConnection) -> None:
        self.heard.put_nowait(FetchRequest(0, b""))
        await connection.wait_closed()
        self.heard.put_nowait(FetchRequest(1, b""))

    async def say(self, request: FetchRequest, offset: int) -> None:
        data = GOOD[offset : offset + 500]
        await self.connections[0].send(chunk_head(request.request, offset) + data)


class Target:
    """A host with sessions that fetch."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._identifiers = iter(range(1, 99))

    def open(self) -> tuple[Session, Callable[[Fetch], InFlight]]:
        """Open a session; return it and a function that begins a fetch for it."""
        device = self.host.devices[0]

        def fetch(task: Fetch, slot: InFlight) -> None:
            self.host.start_fetch(outbox, device.backend, task, slot)

        def begin(task: Fetch) -> InFlight:
            slot = InFlight(SPEC)
            outbox.fetch(task, slot)
            return slot

        outbox = NativeOutbox(fetch)
        session = device.open_session(next(self._identifiers), outbox, NATIVE_TRANSFERS)
        return session, begin


@contextlib.asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[Target, Source]]:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(Settings(**settings), open_backends("numpy", 1), tasks)
        source = Source()
        async with serve(source.serve, "127.0.0.1", 0) as server:
            source.address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield Target(host), source
            host.close_fetches()
            await host.peers.close()


async def awaited(slot: InFlight) -> bytes:
    """Return a tensor when its slot is completed."""
    return bytes(await asyncio.to_thread(delivered, slot))


def delivered(slot: InFlight) -> Any:
    assert slot._arrived.wait(
        PATIENCE_SECONDS
    )  # bounded, because a waiting thread would block the end of the tests
    return slot.array()


def task(source: Source, name: bytes = b"t") -> Fetch:
    return Fetch(name * 32, source.address, 1, SPEC)


async def test_a_fetch_ends_with_its_session_and_the_source_is_told() -> None:
    async with running() as (target, source):
        session, begin = target.open()
        slot = begin(task(source))
        asked = await source.heard.get()
        target.host.end_session(session)
        with pytest.raises(TransferFailed, match="the session ended"):
            await awaited(slot)
        assert await source.heard.get() == FetchRequest(asked.request, asked.transfer, SPEC.nbytes)
        assert target.host.peers._peers  # over a connection that stays


async def test_a_fetch_that_makes_progress_may_take_any_time() -> None:
    large, piece = TensorSpec((2**25,), U8), bytes(64)
    seconds = 0.3

    async def send_slowly(plain: ServerConnection) -> None:
        connection = SourceSocket(plain)
        await connection.recv()
        await connection.send(WELCOME)
        request = decode_frame(await connection.recv()).request
        await connection.send(encode_frame(Reply(request, large)))
        loop, sent = asyncio.get_running_loop(), 0
        over = loop.time() + 3 * seconds
        while loop.time() < over or sent < large.nbytes:
            data = piece if loop.time() < over else bytes(large.nbytes - sent)
            await connection.send(chunk_head(request, sent) + data)
            sent += len(data)
            await asyncio.sleep(0)
        await connection.wait_closed()

    async with (
        running(fetch_timeout_seconds=seconds) as (target, _),
        serve(send_slowly, "127.0.0.1", 0) as server,
    ):
        address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        session, _ = target.open()
        session.engine.handle(Fetch(b"t" * 32, address, 1, large))
        array = await asyncio.to_thread(session.interpreter.tensors.array, 1)
        assert array.nbytes == large.nbytes


async def test_a_source_stops_sending_a_cancelled_tensor() -> None:
    large, small = TensorSpec((20 * CHUNK_BYTES,), U8), TensorSpec((3,), U8)
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(Settings(), open_backends("numpy", 1), tasks)
        backend = host.devices[0].backend
        for name, spec in ((b"a" * 32, large), (b"b" * 32, small)):
            array = backend.to_device(TensorData(bytes(spec.nbytes), spec.shape, U8))
            host.transfers.expose(
                (NATIVE_TRANSFERS, name),
                Exposed(array, spec, backend),
                owner="session",
                count=1,
                expires_seconds=60,
            )
        begun = [encode_frame(Hello((1,))), encode_frame(FetchRequest(1, b"a" * 32))]
        # Blocks after the welcome, the reply and the first chunk.
        link = ScriptedLink(begun, lambda _: link.hold() if len(link.sent) == 3 else None)
        serving = tasks.create_task(serve_peer(link, host))
        await link.wait_held()
        enough = FetchRequest(1, b"a" * 32, large.nbytes)
        link.say([encode_frame(enough), encode_frame(FetchRequest(2, b"b" * 32))])
        while link.frames:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)
        link.let_go()
        await link.wait_sent(6)  # the frames in transit, the other reply and its elements
        link.end()
        await serving
    chunks = [each for each in map(decode_frame, link.sent) if isinstance(each, Chunk)]
    assert [chunk.payload for chunk in chunks] == [1, 1, 2]


async def test_a_source_that_replies_to_an_ended_fetch_is_told_that_it_ended() -> None:
    async with running() as (target, source):
        source.may_answer.clear()
        session, begin = target.open()
        begin(task(source))
        await source.asked.wait()
        target.host.end_session(session)
        source.may_answer.set()
        asked = await source.heard.get()
        assert await source.heard.get() == FetchRequest(asked.request, asked.transfer, SPEC.nbytes)


async def test_fetches_of_other_sessions_over_the_same_connection_continue() -> None:
    async with running() as (target, source):
        ending, begin_one = target.open()
        _, begin_other = target.open()
        begin_one(task(source, b"a"))
        await source.heard.get()
        slot = begin_other(task(source, b"b"))
        kept = await source.heard.get()
        target.host.end_session(ending)
        await source.heard.get()
        await source.say(kept, 500)
        assert await awaited(slot) == GOOD
        assert len(source.connections) == 1


async def test_a_thread_that_waits_for_a_tensor_is_free_when_its_session_ends() -> None:
    async with running() as (target, source):
        session, begin = target.open()
        slot = begin(task(source))
        await source.heard.get()
        is_waiting, was_freed, heard = threading.Event(), asyncio.Event(), []

        def wait() -> None:
            is_waiting.set()
            try:
                delivered(slot)
            except TransferFailed as error:
                heard.append(str(error))

        session.notify = was_freed.set
        session.submit(wait)
        await asyncio.to_thread(is_waiting.wait, PATIENCE_SECONDS)
        target.host.end_session(session)
        while session.queued:
            was_freed.clear()
            await was_freed.wait()
        assert heard == ["the session ended before the tensor arrived"]


async def test_a_fetch_that_a_thread_begins_after_its_session_has_ended_fails_at_once() -> None:
    async with running() as (target, source):
        session, begin = target.open()
        target.host.end_session(session)
        with pytest.raises(TransferFailed, match="the session ended"):
            delivered(begin(task(source)))
        assert not source.connections


async def test_a_session_that_ends_before_its_fetch_takes_a_step_fetches_nothing() -> None:
    async with running() as (target, source):
        session, begin = target.open()
        slots = [begin(task(source))]
        await asyncio.sleep(0)  # its task is created, and has not run
        slots.append(begin(task(source)))  # not even created
        target.host.end_session(session)
        for slot in slots:
            with pytest.raises(TransferFailed, match="the session ended"):
                await awaited(slot)
        assert not source.connections


async def test_a_fetch_from_a_burn_server_ends_with_its_session_and_its_connection() -> None:
    async with running() as (target, source):
        session, begin = target.open()
        slot = begin(Fetch(3, source.address, 1, SPEC))
        await source.heard.get()
        target.host.end_session(session)
        with pytest.raises(TransferFailed, match="the session ended"):
            await awaited(slot)
        await source.heard.get()


async def test_a_fetch_from_the_same_process_ends_with_its_session_too() -> None:
    async with running() as (target, _):
        session, begin = target.open()
        here = target.host.devices[0].peer_address
        slot = begin(Fetch(b"t" * 32, here, 1, SPEC))
        while not target.host.transfers._waiting:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)
        target.host.end_session(session)
        with pytest.raises(TransferFailed, match="the session ended"):
            await awaited(slot)
        while target.host.transfers._waiting:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)


async def test_closing_a_host_fails_the_fetches_of_its_sessions() -> None:
    async with running() as (target, source):
        _, begin = target.open()
        slot = begin(task(source))
        await source.heard.get()
        target.host.close_fetches()
        with pytest.raises(TransferFailed, match="the session ended"):
            await awaited(slot)


async def test_a_peer_that_dies_fails_the_fetch() -> None:
    async with running() as (target, source):
        _, begin = target.open()
        slot = begin(task(source))
        await source.heard.get()
        source.is_dead = True
        source.connections[0].abort()
        with pytest.raises(TransferFailed, match="cannot reach the source"):
            await awaited(slot)


async def test_a_defect_in_a_fetch_fails_the_tensor_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)

    async def break_down() -> None:
        raise ZeroDivisionError("of ours")

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        arrivals, slot = DownloadScheduler(tasks), InFlight(SPEC)
        arrivals.open("session")
        arrivals.begin("session", slot, break_down)
        with pytest.raises(TransferFailed, match="the server failed: ZeroDivisionError: of ours"):
            await awaited(slot)
        arrivals.end("session")
    assert "fetch failed unexpectedly" in caplog.text


async def test_a_fetch_whose_task_is_cancelled_fails_its_slot() -> None:
    is_running = asyncio.Event()

    async def wait() -> None:
        is_running.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        before = asyncio.all_tasks()
        arrivals, slot = DownloadScheduler(tasks), InFlight(SPEC)
        arrivals.open("session")
        arrivals.begin("session", slot, wait)
        await is_running.wait()
        (running_it,) = asyncio.all_tasks() - before
        running_it.cancel()
        with pytest.raises(TransferFailed):
            await awaited(slot)


async def test_a_fetch_that_begins_when_the_server_has_stopped_fails() -> None:
    async def never() -> None:
        raise AssertionError("nothing is begun")

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        arrivals, slot = DownloadScheduler(tasks), InFlight(SPEC)
        arrivals.open("session")
    arrivals.begin("session", slot, never)
    with pytest.raises(TransferFailed):
        await awaited(slot)


def test_a_fetch_that_begins_when_the_event_loop_has_closed_fails() -> None:
    async def opened() -> DownloadScheduler:
        async with asyncio.TaskGroup() as tasks:
            arrivals = DownloadScheduler(tasks)
            arrivals.open("session")
            return arrivals

    async def never() -> None:
        raise AssertionError("nothing is begun")

    arrivals, slot = asyncio.run(opened()), InFlight(SPEC)
    arrivals.begin("session", slot, never)
    with pytest.raises(TransferFailed):
        delivered(slot)


def test_a_local_device_waits_only_so_long_for_an_expose_that_never_comes() -> None:
    link = LocalLink(open_backends("numpy", 1)[0], Settings(fetch_timeout_seconds=0.01))
    link._engine.handle(Fetch(b"l" * 32, "", 1, SPEC))
    slot = link._interpreter.tensors.slot(1)
    assert isinstance(slot, InFlight)
    with pytest.raises(TransferFailed, match=r"did not arrive within 0\.01 seconds"):
        slot.array()
    assert slot.arrived()
    link.close()


def test_a_local_device_that_closes_fails_what_it_fetches() -> None:
    link = LocalLink(open_backends("numpy", 1)[0], Settings())
    link._engine.handle(Fetch(b"l" * 32, "", 1, SPEC))
    slot = link._interpreter.tensors.slot(1)
    assert isinstance(slot, InFlight)
    link.close()
    with pytest.raises(TransferFailed, match="the session ended"):
        delivered(slot)


def test_only_the_first_delivery_counts() -> None:
    slot = InFlight(SPEC)
    slot.fail(TransferFailed("the session ended"))
    slot.complete("array")
    with pytest.raises(TransferFailed, match="the session ended"):
        slot.array()
    slot = InFlight(SPEC)
    slot.complete("array")
    slot.fail(TransferFailed("too late"))
    assert slot.array() == "array"


async def test_a_session_runs_a_bounded_number_of_downloads_at_a_time_until_all_are_done() -> None:
    running, most, order = 0, 0, []

    async def download(number: int, slot: InFlight) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        order.append(number)
        await asyncio.sleep(0)
        running -= 1
        slot.complete(number)

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        arrivals = DownloadScheduler(tasks)
        arrivals.open("session")
        slots = [InFlight(SPEC) for _ in range(5 * RUNNING_AT_ONCE)]
        for number, slot in enumerate(slots):
            arrivals.begin("session", slot, partial(download, number, slot))
        while not all(slot.arrived() for slot in slots):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)
    assert [slot.array() for slot in slots] == order == [*range(len(slots))]
    assert most == RUNNING_AT_ONCE


async def test_downloads_that_wait_for_others_fail_with_their_session_in_slices() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        arrivals = DownloadScheduler(tasks)
        arrivals.open("session")
        slots = [InFlight(SPEC) for _ in range(RUNNING_AT_ONCE + 5 * FAILED_AT_ONCE)]
        for slot in slots:
            arrivals.begin("session", slot, asyncio.Event().wait)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        arrivals.end("session")
        failed = [0]
        while failed[-1] < len(slots):
            failed.append(sum(slot.arrived() for slot in slots))
            await asyncio.sleep(0)
    assert failed[1] == RUNNING_AT_ONCE
    assert max(after - before for before, after in pairwise(failed)) <= FAILED_AT_ONCE


async def test_the_downloads_of_a_session_run_at_the_same_time() -> None:
    has_begun = asyncio.Event()

    async def wait_for_the_next(slot: InFlight) -> None:
        await has_begun.wait()
        slot.complete("first")

    async def begin(slot: InFlight) -> None:
        has_begun.set()
        slot.complete("second")

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        arrivals, slots = DownloadScheduler(tasks), [InFlight(SPEC), InFlight(SPEC)]
        arrivals.open("session")
        arrivals.begin("session", slots[0], partial(wait_for_the_next, slots[0]))
        arrivals.begin("session", slots[1], partial(begin, slots[1]))
        found = [await asyncio.to_thread(delivered, slot) for slot in slots]
    assert found == ["first", "second"]


async def test_each_iteration_of_the_loop_starts_a_bounded_number_of_downloads() -> None:
    begun, sessions = [0], range(5)

    async def download(slot: InFlight) -> None:
        begun[-1] += 1
        slot.complete("array")

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        arrivals = DownloadScheduler(tasks)
        for session in sessions:
            arrivals.open(session)
            for _ in range(RUNNING_AT_ONCE):
                slot = InFlight(SPEC)
                arrivals.begin(session, slot, partial(download, slot))
        while begun[-1] < len(sessions) * RUNNING_AT_ONCE:
            begun.append(begun[-1])
            await asyncio.sleep(0)
    assert max(after - before for before, after in pairwise(begun)) <= STARTED_AT_ONCE <= 100


async def test_a_download_whose_session_ends_before_it_starts_never_runs() -> None:
    started: list[str] = []

    async def download() -> None:
        started.append("download")

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        arrivals, slot = DownloadScheduler(tasks), InFlight(SPEC)
        arrivals.open("session")
        arrivals.begin("session", slot, download)
        arrivals.end("session")
        for _ in range(5):
            await asyncio.sleep(0)
    assert not started
    with pytest.raises(TransferFailed, match="the session ended"):
        slot.array()


async def test_ending_a_session_twice_has_no_effect() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        arrivals = DownloadScheduler(tasks)
        arrivals.open("session")
        arrivals.end("session")
        arrivals.end("session")


async def test_closing_fails_running_and_waiting_downloads_at_once() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        arrivals = DownloadScheduler(tasks)
        arrivals.open("session")
        slots = [InFlight(SPEC) for _ in range(RUNNING_AT_ONCE + 2 * FAILED_AT_ONCE)]
        for slot in slots:
            arrivals.begin("session", slot, asyncio.Event().wait)  # type: ignore[arg-type]
        arrivals.close()
        assert all(slot.arrived() for slot in slots)
