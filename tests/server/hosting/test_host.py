"""What one process does for all of its sessions: ids, fetches, counters and periodic work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dialects.native import Batch
from burn_remote_protocol.dtypes import BOOL, BOOL_U8, F32, I32
from burn_remote_protocol.errors import (
    HandshakeRefused,
    OperationFailed,
    QuotaExceeded,
    TransferFailed,
)
from burn_remote_protocol.messages import Fetch, Upload
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access import name_lookups
from burn_remote_server.access.admission import NOBODY, Grant
from burn_remote_server.backends.interface import Backend
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.sessions import SESSION_BYTES, Session
from burn_remote_server.fusion.counts import KernelCounts
from burn_remote_server.fusion.cpu.runtime import NumpyFusionRuntime
from burn_remote_server.fusion.fusing_backend import Fusion
from burn_remote_server.hosting import host as module
from burn_remote_server.hosting.host import (
    NATIVE_TRANSFERS,
    NEVER_REFUSED_SESSIONS,
    hand_over,
)
from burn_remote_server.tensors.exposed_tensors import Exposed
from burn_remote_server.tensors.slots import InFlight
from support.engines import RecordingOutbox, floats, undecoded
from support.hosts import ARRAY, KEY, SPEC, expose, hosting
from support.native_clients import turns, until
from support.waiting import PATIENCE_SECONDS


class Watched(NumpyBackend):
    """A backend that counts the calls of ``expire_memory``, some of which raise."""

    def __init__(self, errors: int = 0) -> None:
        super().__init__()
        self.asked = 0
        self._errors = errors

    def expire_memory(self) -> None:
        super().expire_memory()
        self.asked += 1
        if self.asked <= self._errors:
            raise RuntimeError("a defect of the backend")


class Copying(NumpyBackend):
    """A backend that records the threads that copy tensors of other devices."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []

    def import_shared(self, shared: Any, spec: TensorSpec, source: Backend) -> Any:
        self.threads.append(threading.current_thread())
        return super().import_shared(shared, spec, source)


class OnDevice(NumpyBackend):
    """A backend whose tensors are not in the memory of the host."""

    reads_in_place = False


class Poor(NumpyBackend):
    """A backend that has no memory for tensors of other devices."""

    def import_shared(self, shared: Any, spec: TensorSpec, source: Backend) -> Any:
        raise MemoryError


async def test_the_memory_pools_are_those_of_replies_and_of_devices_on_the_host() -> None:
    for backends in ([NumpyBackend()], [NumpyBackend(), OnDevice()]):
        async with hosting(*backends) as host:
            assert {*host.memory_pools} == {host.reply_pool, host.devices[0].pool}
            assert len(host.memory_pools) == 2


async def test_the_counters_have_the_compiled_kernels_of_all_devices() -> None:
    class Compiler:
        def __init__(self, *counts: Any) -> None:
            self.counts = KernelCounts(*counts)

    shared, own = Compiler(3, 2, 1.5), Compiler(4, 0, 0.25)
    compilers: list[Any] = [shared, shared, own, None]
    devices = [Fusion(NumpyBackend(), NumpyFusionRuntime(each)) for each in compilers]
    async with hosting(*devices) as host:
        total = host.total()
    assert total.kernels_compiled == 7
    assert total.kernels_evicted == 2
    assert total.kernel_compile_seconds == 1.75


# -- periodic work --------------------------------------------------------------------------------


async def test_unused_memory_is_returned_periodically(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXPIRE_EVERY_SECONDS", 0.001)
    backend = Watched()
    async with hosting(backend):
        await until(lambda: backend.asked > 2)


async def test_periodic_work_goes_on_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXPIRE_EVERY_SECONDS", 0.001)
    backend = Watched(errors=0)
    reported: list[Any] = []
    async with hosting(backend):
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        backend._errors = backend.asked + 2
        await until(lambda: backend.asked > backend._errors)
    assert [str(error) for error in reported] == ["a defect of the backend"] * 2


async def test_periodic_work_that_is_late_has_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosting() as host:
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []
        call_later = loop.call_later

        def noted(*arguments: Any) -> asyncio.TimerHandle:
            timers.append(call_later(*arguments))
            return timers[-1]

        monkeypatch.setattr(loop, "call_later", noted)
        for _ in range(3):
            host._expired_at -= 3600.0  # as after the suspension of the process
            host.examine_loop()
        assert len(timers) == 3
        assert sum(not timer.cancelled() for timer in timers) == 1


async def test_expired_exposes_are_freed_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXPIRE_EVERY_SECONDS", 0.001)
    async with hosting() as host:
        exposed = Exposed(ARRAY, SPEC, host.devices[0].backend)
        host.transfers.expose(KEY, exposed, owner=host, count=1, expires_seconds=0.001)
        await until(lambda: len(host.transfers) == 0)
        assert host.total().transfers_expired == 1


# -- sessions -------------------------------------------------------------------------------------


async def test_a_token_may_open_only_so_many_sessions_and_others_are_not_affected() -> None:
    async with hosting() as host:
        alice = Grant("alice", {"max_sessions": 1})
        device = host.devices[0]
        session = device.open_session(
            host.draw_session_id(alice), RecordingOutbox(), NATIVE_TRANSFERS, alice
        )
        with pytest.raises(HandshakeRefused, match="'alice': 1 are open, 1 are allowed"):
            host.draw_session_id(alice)
        host.draw_session_id(Grant("bob", {"max_sessions": 1}))
        host.end_session(session)
        host.draw_session_id(alice)


async def test_all_tokens_together_may_open_only_so_many_sessions() -> None:
    async with hosting(max_sessions=2) as host:
        for _ in range(2):
            host.devices[0].open_session(
                host.draw_session_id(NOBODY), RecordingOutbox(), NATIVE_TRANSFERS
            )
        with pytest.raises(HandshakeRefused, match="2 open sessions"):
            host.draw_session_id(NOBODY)


async def test_sessions_beyond_the_first_ones_are_refused_while_memory_is_full() -> None:
    async with hosting(max_total_bytes=2**20) as host:
        device = host.devices[0]

        def open_session() -> Session:
            identifier = host.draw_session_id(NOBODY)
            return device.open_session(identifier, RecordingOutbox(), NATIVE_TRANSFERS)

        sessions = [open_session() for _ in range(NEVER_REFUSED_SESSIONS)]
        assert device.pool.taken == NEVER_REFUSED_SESSIONS * SESSION_BYTES
        device.pool.add(device.pool.max_bytes - device.pool.taken - SESSION_BYTES)
        sessions.append(open_session())
        refusal = "no memory for another session: .* raise max_total_bytes on the server"
        with pytest.raises(HandshakeRefused, match=refusal):
            open_session()
        host.end_session(sessions.pop())
        sessions.append(open_session())
        host.end_session(sessions.pop(0))
        host.end_session(sessions.pop(0))
        device.pool.add(2**20)
        open_session()  # one of the first ones again


async def test_a_session_has_the_limits_of_its_token() -> None:
    async with hosting() as host:
        grant = Grant("alice", {"max_session_tensors": 1})
        outbox = RecordingOutbox()
        session = host.devices[0].open_session(1, outbox, NATIVE_TRANSFERS, grant)
        quota = session.interpreter.quota
        quota.take(16, 1)
        with pytest.raises(QuotaExceeded):
            quota.take(16, 1)


async def test_totals_include_the_counts_of_ended_sessions() -> None:
    async with hosting() as host:
        session = host.devices[0].open_session(1, RecordingOutbox(), NATIVE_TRANSFERS)
        session.counters.batches = 3
        session.submit_batch(Batch(0, (undecoded(Upload(1, floats(1, 2))),)))
        assert host.total().tensors == 1
        assert host.total().batches == 3
        host.end_session(session)
        total = host.total()
        assert (total.batches, total.sessions_opened, total.sessions_closed) == (3, 1, 1)
        assert (total.tensors, total.tensor_bytes, len(host.sessions)) == (0, 0, 0)
        assert len(host.counter_registry._open) == 1  # those of the host


# -- fetches from this process --------------------------------------------------------------------


async def test_a_fetch_from_an_own_address_is_handed_over_without_a_connection() -> None:
    async with hosting(port=3001) as host:
        expose(host)
        slot, owner = InFlight(SPEC), RecordingOutbox()
        host.open_fetches(owner)
        task = Fetch(KEY[1], "ws://127.0.0.1:3001/", 1, SPEC)
        host.start_fetch(owner, host.devices[0].backend, task, slot)
        assert slot.array() is ARRAY


async def test_a_fetch_from_another_device_of_the_process_is_copied_in_a_thread() -> None:
    copying = Copying()
    async with hosting(copying, NumpyBackend(), port=3001) as host:
        assert host.is_own("ws://127.0.0.1:3001/1")
        assert not host.is_own("ws://127.0.0.1:3001/2")
        assert not host.is_own("ws://127.0.0.2:3001")
        expose(host, device=1)
        slot, owner = InFlight(SPEC), RecordingOutbox()
        host.open_fetches(owner)
        task = Fetch(KEY[1], "ws://127.0.0.1:3001/1", 1, SPEC)
        host.start_fetch(owner, host.devices[0].backend, task, slot)
        await until(slot.arrived)
        assert np.array_equal(slot.array(), ARRAY)
        (thread,) = copying.threads
        assert thread is not threading.current_thread()


async def test_without_tokens_a_silent_name_server_delays_only_the_session_that_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = threading.Event()

    def addresses_of(host: str, port: int) -> list[str]:
        if host == "silent":
            answers.wait(PATIENCE_SECONDS)
        return ["192.0.2.7"]

    monkeypatch.setattr(name_lookups, "addresses_of", addresses_of)
    async with hosting(port=3001) as host:
        slots: list[InFlight] = []
        for name in ("silent", "node-b"):
            session, slot = RecordingOutbox(), InFlight(SPEC)
            host.devices[0].open_session(len(slots) + 1, session, NATIVE_TRANSFERS)
            task = Fetch(KEY[1], f"ws://{name}:3000", 1, SPEC)
            host.start_fetch(session, host.devices[0].backend, task, slot)
            slots.append(slot)
        waiting, refused = slots
        await until(refused.arrived)
        assert not waiting.arrived()
        answers.set()
        await until(waiting.arrived)
        for slot in slots:
            with pytest.raises(TransferFailed, match="this server may not fetch from"):
                slot.array()


async def test_the_end_of_a_session_fails_the_fetches_that_it_waits_for() -> None:
    async with hosting(port=3001) as host:
        slot, owner = InFlight(SPEC), RecordingOutbox()
        host.open_fetches(owner)
        task = Fetch(KEY[1], "ws://127.0.0.1:3001", 1, SPEC)
        host.start_fetch(owner, host.devices[0].backend, task, slot)
        host.end_fetches(owner)
        await until(slot.arrived)
        with pytest.raises(TransferFailed, match="the session ended"):
            slot.array()
        late = InFlight(SPEC)
        host.start_fetch(owner, host.devices[0].backend, task, late)
        with pytest.raises(TransferFailed, match="the session ended"):
            late.array()


async def test_a_server_that_stops_fails_all_fetches_at_once() -> None:
    async with hosting(port=3001) as host:
        slots = [InFlight(SPEC) for _ in range(300)]
        owner = RecordingOutbox()
        host.open_fetches(owner)
        task = Fetch(KEY[1], "ws://127.0.0.1:3001", 1, SPEC)
        for slot in slots:
            host.start_fetch(owner, host.devices[0].backend, task, slot)
        host.close_fetches()
        assert all(slot.arrived() for slot in slots)


def handed_over(exposed: Exposed, spec: TensorSpec | None, backend: Backend) -> Any:
    slot = InFlight(spec)
    hand_over(exposed, Fetch(KEY[1], "ws://source:1", 1, spec), slot, backend)
    return slot.array()


def test_a_tensor_is_handed_over_only_with_the_expected_spec() -> None:
    backend = NumpyBackend()
    exposed = Exposed(ARRAY, SPEC, backend)
    assert handed_over(exposed, SPEC, backend) is ARRAY
    assert handed_over(exposed, None, backend) is ARRAY
    for wrong in (TensorSpec((2, 2), F32), TensorSpec((4,), I32)):
        with pytest.raises(TransferFailed, match="the source exposed"):
            handed_over(exposed, wrong, backend)


def test_all_bool_dtypes_are_equal_to_a_fetch() -> None:
    backend = NumpyBackend()
    exposed = Exposed(np.zeros(4, np.bool_), TensorSpec((4,), BOOL), backend)
    assert handed_over(exposed, TensorSpec((4,), BOOL_U8), backend) is exposed.array


def test_the_failure_of_an_exposed_tensor_is_that_of_the_fetched_one() -> None:
    backend = NumpyBackend()
    failure = OperationFailed("it failed before", operation="Matmul")
    with pytest.raises(OperationFailed, match="it failed before"):
        handed_over(Exposed(None, SPEC, backend, failure), SPEC, backend)


def test_a_device_without_memory_fails_the_fetch() -> None:
    exposed = Exposed(ARRAY, SPEC, NumpyBackend())
    with pytest.raises(TransferFailed, match="not have enough memory"):
        handed_over(exposed, SPEC, Poor())


# -- reloading ------------------------------------------------------------------------------------


async def test_tokens_that_cannot_be_read_leave_the_old_ones_valid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("alice alice-has-this-token-1\n")
    tokens.chmod(0o600)
    async with hosting(token_file=tokens) as host:
        assert host.access.admit("alice-has-this-token-1").name == "alice"
        tokens.write_text("alice short\n")
        host.reload()
        await until(lambda: "not reloaded" in caplog.messages)
        assert host.access.admit("alice-has-this-token-1").name == "alice"
        tokens.write_text("bob bob-has-this-other-one\n")
        host.reload()
        await until(lambda: host.access.names == {"bob"})
        assert host.access.admit("bob-has-this-other-one").name == "bob"
        with pytest.raises(HandshakeRefused):
            host.access.admit("alice-has-this-token-1")


def _opened_by_a_reader(pipe: Path, writers: list[int]) -> bool:
    """Open a pipe for writing if a reader has opened it, and add the descriptor."""
    with contextlib.suppress(OSError):
        writers.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    return bool(writers)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
async def test_a_reload_whose_file_blocks_delays_nobody_and_gives_way_to_a_later_one(
    tmp_path: Path,
) -> None:
    tokens, pipe = tmp_path / "tokens", tmp_path / "pipe"
    tokens.write_text("alice alice-has-this-token-1\n")
    tokens.chmod(0o600)
    async with hosting(token_file=tokens) as host:
        tokens.unlink()
        os.mkfifo(pipe, 0o600)
        pipe.rename(tokens)
        host.reload()  # returns, although reading the pipe blocks
        # Once a thread has opened the pipe, and not whatever has its name later.
        writers: list[int] = []
        await until(lambda: _opened_by_a_reader(tokens, writers))
        assert host.access.names == {"alice"}
        tokens.rename(pipe)
        tokens.write_text("bob bob-has-this-other-one\n")
        tokens.chmod(0o600)
        host.reload()
        await until(lambda: host.access.names == {"bob"})
        os.write(writers[0], b"carol carol-had-this-old-token\n")
        os.close(writers[0])
        await until(lambda: not any(one.name == "reload" for one in threading.enumerate()))
        await turns(2)
        assert host.access.names == {"bob"}
