"""A session that its server has lost ends every waiting call, and a new one can be opened."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote_protocol.ids import new_transfer_id
from support.faults import FaultyProxy, faulty_proxy
from support.servers import RunningServer, server
from support.waiting import PATIENCE_SECONDS, wait_until

THREADS = 64
LARGE = np.zeros(2**21, np.float32)  # 8 MiB


class Lost:
    """A server behind a proxy, and a way to lose the sessions of the proxy's clients."""

    def __init__(self, running: RunningServer, proxy: FaultyProxy) -> None:
        self.running = running
        self.address = proxy.address
        self._proxy = proxy

    def restart(self, other: RunningServer) -> None:
        """Replace the server by another process, which knows no session."""
        self._proxy._target_port = other.port
        self.running.kill()
        self._proxy.cut_all()

    def end_lease(self, others: int = 0) -> None:
        """Cut the connections, and let no client back before its lease has ended.

        ``others`` is the number of sessions that do not use the proxy.
        """
        self._proxy.open.clear()
        self._proxy.cut_all()
        wait_until(lambda: self.running.metric("burn_remote_sessions") == others)
        self._proxy.open.set()


@pytest.fixture(params=["restarted", "lease ended"])
def losing(request: pytest.FixtureRequest) -> Iterator[tuple[Lost, Callable[[], None]]]:
    """Return a server, and a function that loses its sessions and lets clients connect again."""
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(server("--lease-seconds", "0.3"))
        lost = Lost(running, stack.enter_context(faulty_proxy(running.port)))
        if request.param == "restarted":
            other = stack.enter_context(server())
            yield lost, lambda: lost.restart(other)
        else:
            yield lost, lost.end_lease


class Calls:
    """Threads that repeat a call until it raises, and what they raised."""

    def __init__(self, calls: list[Callable[[], object]]) -> None:
        self.errors: list[BaseException] = []
        self._rounds = [0] * len(calls)
        self._threads = [
            threading.Thread(target=self._repeat, args=(place, call), daemon=True)
            for place, call in enumerate(calls)
        ]
        for thread in self._threads:
            thread.start()
        wait_until(lambda: all(self._rounds))

    def _repeat(self, place: int, call: Callable[[], object]) -> None:
        try:
            while True:
                call()
                self._rounds[place] += 1
        except BaseException as error:
            self.errors.append(error)

    def join(self) -> list[BaseException]:
        """Wait for the end of all threads; return their errors."""
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "a call hangs"
        return self.errors


def check_typed(errors: list[BaseException]) -> None:
    for error in errors:
        assert isinstance(error, br.SessionLost), repr(error)
        assert "open the device again" in str(error)


def check_new_session(address: str) -> None:
    with br.RemoteDevice(address) as device:
        assert (br.ones((3,), device=device) + 1).tolist() == [2, 2, 2]


def read(device: br.Device) -> Callable[[], object]:
    x = br.ones((64,), device=device)
    return lambda: (x + 1).numpy()


def upload(device: br.Device) -> Callable[[], object]:
    return lambda: br.tensor(LARGE, device=device)


def download(device: br.Device) -> Callable[[], object]:
    x = br.tensor(LARGE, device=device)
    return lambda: x.numpy()


def issue(device: br.Device) -> Callable[[], object]:
    x = br.ones((64,), device=device)

    def add() -> None:
        x + 1
        device.sync()

    return add


def call_compiled(device: br.Device) -> Callable[[], object]:
    function = br.compile(lambda x: (x * 2 + 1).sum())
    x = br.ones((64,), device=device)
    return lambda: function(x).numpy()


@pytest.mark.parametrize(
    "work, threads",
    [(read, THREADS), (upload, 2), (download, 2), (issue, 8), (call_compiled, 8)],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_every_thread_gets_session_lost_and_a_new_session_works(
    work: Callable[[br.Device], Callable[[], object]],
    threads: int,
    losing: tuple[Lost, Callable[[], None]],
) -> None:
    lost, lose = losing
    device = br.RemoteDevice(lost.address)
    calls = Calls([work(device)] * threads)
    lose()
    errors = calls.join()
    assert len(errors) == threads
    check_typed(errors)
    check_new_session(lost.address)
    device.close()


def test_a_device_that_is_opened_after_a_loss_does_not_share_the_lost_session(
    losing: tuple[Lost, Callable[[], None]],
) -> None:
    lost, lose = losing
    device = br.RemoteDevice(lost.address)
    br.ones((3,), device=device).numpy()
    lose()
    # The program has not used the first device meanwhile.
    check_new_session(lost.address)
    with pytest.raises(br.SessionLost):
        device.sync()


def test_a_device_that_is_opened_during_a_break_shares_the_resumed_session() -> None:
    with server() as running, faulty_proxy(running.port) as proxy:
        device = br.RemoteDevice(proxy.address)
        x = br.ones((3,), device=device)
        x.numpy()
        proxy.cut_all()
        with br.RemoteDevice(proxy.address) as another:
            assert another.session is device.session
            assert (x + 1).tolist() == [2, 2, 2]


def test_every_outstanding_read_gets_session_lost(losing: tuple[Lost, Callable[[], None]]) -> None:
    lost, lose = losing
    device = br.RemoteDevice(lost.address)
    x = br.ones((2**16,), device=device)
    x.numpy()
    pending = [(x + number).read() for number in range(500)]
    called: list[object] = []
    lose()
    for one in pending:
        one.when_done(called.append)
    errors: list[BaseException] = []
    for number, one in enumerate(pending):
        try:
            assert one.result(PATIENCE_SECONDS).tolist() == [1 + number] * 2**16
        except br.BurnRemoteError as error:
            errors.append(error)
    assert errors
    check_typed(errors)
    wait_until(lambda: len(called) == len(pending))
    check_new_session(lost.address)
    device.close()


def test_every_await_gets_session_lost(losing: tuple[Lost, Callable[[], None]]) -> None:
    lost, lose = losing
    device = br.RemoteDevice(lost.address)
    x = br.ones((64,), device=device)
    begun, all_begun = {*range(THREADS)}, asyncio.Event()

    async def repeat(place: int) -> None:
        while True:
            if place % 8:
                await (x + place).read()
            else:
                await br.aio.tensor(LARGE[: 2**18], device=device)
            begun.discard(place)
            if not begun:
                all_begun.set()

    async def program() -> list[Any]:
        tasks = [asyncio.create_task(repeat(place)) for place in range(THREADS)]
        await all_begun.wait()
        losing_it = asyncio.create_task(asyncio.to_thread(lose))
        async with asyncio.timeout(PATIENCE_SECONDS):
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            await losing_it
        return ended

    check_typed(asyncio.run(program()))
    check_new_session(lost.address)
    device.close()


def test_a_move_whose_source_has_lost_its_session_fails_at_once() -> None:
    """The source's server would wait for an hour for somebody to expose the tensor."""
    with contextlib.ExitStack() as stack:
        flags = "--fetch-timeout-seconds", "3600", "--lease-seconds", "0.3"
        source, target = (stack.enter_context(server(*flags)) for _ in range(2))
        proxy = stack.enter_context(faulty_proxy(source.port))
        device = br.RemoteDevice(proxy.address)
        other = stack.enter_context(br.RemoteDevice(target.address))
        x = br.ones((3,), device=device)
        x.numpy()
        # As if the move's expose had been on its way when the connection broke.
        moves = [
            br.Tensor(
                at.runners.fetch(
                    new_transfer_id(device.session.number),
                    device.session.peer_address,
                    x.handle.spec,
                )
            )
            for at in (other, stack.enter_context(br.RemoteDevice(source.address)))
        ]
        pending = [moved.read() for moved in moves]
        for one in pending:
            one.attend()
        Lost(source, proxy).end_lease(others=1)
        for one in pending:
            with pytest.raises(br.TransferFailed, match="has ended on its server"):
                one.result(PATIENCE_SECONDS)
        with pytest.raises(br.SessionLost):
            device.sync()


@pytest.mark.parametrize("is_source", [True, False], ids=["source lost", "target lost"])
def test_moves_with_a_server_that_lost_the_session_end_with_errors(
    is_source: bool, losing: tuple[Lost, Callable[[], None]]
) -> None:
    lost, lose = losing
    device = br.RemoteDevice(lost.address)
    # A target waits so long for a tensor that its source has not exposed.
    with (
        server("--fetch-timeout-seconds", "1") as second,
        br.RemoteDevice(second.address) as other,
    ):
        source, target = (device, other) if is_source else (other, device)
        x = br.ones((2**18,), device=source)
        calls = Calls([lambda: x.to(target).numpy()] * 4)
        lose()
        for error in calls.join():
            # A move that was under way when its source was lost fails by itself.
            assert isinstance(error, br.SessionLost | br.TransferFailed), repr(error)
        check_new_session(lost.address)
        assert (br.ones((3,), device=other) + 1).tolist() == [2, 2, 2]
    with contextlib.suppress(br.BurnRemoteError):  # failures of moves that nobody read
        device.close()
