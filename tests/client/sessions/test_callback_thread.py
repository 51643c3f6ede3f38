"""A program's callbacks may wait, close the device, block or raise, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote.runner.pending import Pending
from burn_remote.sessions.callback_thread import CallbackThread
from support.interrupts import InterruptAfterCall, Walk
from support.servers import RunningServer, server
from support.waiting import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with server() as one:
        yield one


@pytest.fixture(params=["native", "burn-0.21", "local"])
def device(request: pytest.FixtureRequest, running: RunningServer) -> Iterator[br.Device]:
    kind = request.param
    opened = br.LocalDevice() if kind == "local" else br.RemoteDevice(running.address, dialect=kind)
    with opened:
        yield opened


class Called:
    """Runs a function as a callback and waits for its outcome."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._is_over = threading.Event()
        self._outcome: object = None

    def __call__(self, pending: Pending[Any]) -> None:
        try:
            self._outcome = self._function()
        except BaseException as error:
            self._outcome = error
        self._is_over.set()

    def outcome(self) -> object:
        assert self._is_over.wait(PATIENCE_SECONDS), "the callback does not return"
        return self._outcome


async def awaited(tensor: br.Tensor) -> list[float]:
    array = await asyncio.wait_for(_read(tensor), PATIENCE_SECONDS)
    return list(array.tolist())


async def _read(tensor: br.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return await tensor.read()


WAITS: dict[str, Callable[[br.Device, br.Tensor], object]] = {
    "reads": lambda device, x: (x + 1).tolist(),
    "syncs": lambda device, x: device.sync(),
    "uploads": lambda device, x: device.tensor(np.ones(600_000, np.float32)).sum().item(),
    "asks": lambda device, x: device.supports_dtype(br.float32),
    "moves": lambda device, x: _moved(x),
}


def _moved(x: br.Tensor) -> list[float]:
    with br.LocalDevice() as other:
        return list(x.to(other).tolist())


@pytest.mark.parametrize("what", WAITS)
@pytest.mark.parametrize("attended", [True, False])
def test_a_callback_may_wait_for_other_values(device: br.Device, what: str, attended: bool) -> None:
    x = br.ones((3,), device=device)
    called = Called(lambda: WAITS[what](device, x))
    pending = (x * 2).read()
    pending.on_done(called)
    if attended:
        pending.attend()
    else:
        pending.result(PATIENCE_SECONDS)
    assert not isinstance(called.outcome(), BaseException)
    assert x.tolist() == [1, 1, 1]


def test_a_callback_may_wait_for_a_value_that_arrives_behind_its_own(device: br.Device) -> None:
    x = br.ones((3,), device=device)
    first, second = x.read(), (x + 1).read()
    called = Called(lambda: second.result(PATIENCE_SECONDS).tolist())
    first.on_done(called)
    first.attend()
    assert called.outcome() == [2, 2, 2]


def test_a_callback_may_close_the_device(device: br.Device) -> None:
    x = br.ones((3,), device=device)
    pending = x.read()
    called = Called(device.close)
    pending.on_done(called)
    assert pending.result(PATIENCE_SECONDS).tolist() == [1, 1, 1]
    assert called.outcome() is None
    with pytest.raises(br.ClosedDevice):
        (x + 1).numpy()


def test_values_arrive_while_a_callback_blocks(device: br.Device) -> None:
    x, may_go_on, blocks = br.ones((3,), device=device), threading.Event(), threading.Event()

    def block(_: object) -> None:
        blocks.set()
        may_go_on.wait(PATIENCE_SECONDS)

    pending = x.read()
    pending.on_done(block)
    pending.attend()
    try:
        assert blocks.wait(PATIENCE_SECONDS)
        assert (x + 1).read().result(PATIENCE_SECONDS).tolist() == [2, 2, 2]
        assert asyncio.run(awaited(x + 2)) == [3, 3, 3]
    finally:
        may_go_on.set()


@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit, asyncio.CancelledError])
def test_values_arrive_after_a_callback_raised(
    device: br.Device, kind: type[BaseException]
) -> None:
    def fail(_: object) -> None:
        raise kind("of the program")

    x = br.ones((3,), device=device)
    reads, called = [x.read(), (x + 1).read()], Called(lambda: 7)
    with contextlib.suppress(kind):  # raised here if the value has come already
        reads[0].on_done(fail)
    reads[1].on_done(called)
    reads[1].attend()
    assert called.outcome() == 7
    assert asyncio.run(awaited(x + 1)) == [2, 2, 2]
    assert asyncio.run(awaited(x + 2)) == [3, 3, 3]


def test_what_a_deferred_callback_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise SystemExit("of the program")

    thread, called = CallbackThread(), Called(lambda: 7)
    with caplog.at_level(logging.ERROR, logger="burn_remote"):
        for callback in (fail, called):
            thread.deferred(callback)(Pending())
        assert called.outcome() == 7
    thread.close()
    assert "of the program" in caplog.text


# CPython 3.11 loses a thread if ``start`` raises an exception after the thread was created.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_start_that_is_interrupted_anywhere_leaves_one_thread_that_the_end_ends() -> None:
    starting: Any = (CallbackThread.deferred, threading.Thread.start)
    codes = frozenset(function.__code__ for function in starting)
    walk = Walk()
    for place in walk:
        before = {*threading.enumerate()}
        thread, called = CallbackThread(), Called(lambda: 7)
        interrupt = InterruptAfterCall(place, codes)
        with contextlib.suppress(KeyError), interrupt.watching():  # of ``Thread.start``
            thread.deferred(called)
        thread.deferred(called)(Pending())
        assert called.outcome() == 7, interrupt.place
        started = [one for one in threading.enumerate() if one.is_alive() and one not in before]
        thread.close()
        for one in started:
            if one.name == "burn-remote-callbacks":
                one.join(PATIENCE_SECONDS)
                assert not one.is_alive(), interrupt.place
    walk.check(*starting)


def test_a_callback_is_called_although_the_device_closes_before_its_value(
    device: br.Device,
) -> None:
    x = br.ones((3,), device=device)
    called = Called(lambda: 7)
    x.read().on_done(called)
    device.close()
    assert called.outcome() == 7


def test_a_callback_that_comes_after_the_end_is_called_by_the_thread_that_delivers() -> None:
    thread, called = CallbackThread(), Called(threading.get_ident)
    late = thread.deferred(called)
    thread.close()
    late(Pending())
    again = Called(threading.get_ident)
    thread.deferred(again)(Pending())
    assert called.outcome()
    assert again.outcome() == threading.get_ident()
