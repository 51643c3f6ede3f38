"""An event between threads happens once, and holds no lock that a failed allocation could leak."""

from __future__ import annotations

import threading
from types import FunctionType

import pytest

from burn_remote_protocol.bounded_threads import BoundedThread
from burn_remote_protocol.latches import Latch
from support.interrupts import InterruptAfterCall, Walk
from support.waiting import PATIENCE_SECONDS


def test_all_threads_that_wait_are_woken() -> None:
    latch, woken = Latch(), threading.Semaphore(0)

    def wait() -> None:
        if latch.wait(PATIENCE_SECONDS):
            woken.release()

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    latch.set()
    latch.set()
    for _ in threads:
        assert woken.acquire(timeout=PATIENCE_SECONDS)
    assert latch.is_set()
    assert latch.wait()


def test_a_wait_ends_at_its_limit() -> None:
    latch = Latch()
    assert not latch.wait(0)
    assert not latch.is_set()


class InterruptedLock:
    """A lock whose ``acquire`` is interrupted directly after it, as by Ctrl-C."""

    def __init__(self, latch: Latch) -> None:
        self._lock = latch._closed
        self._set = latch.set
        self.release = self._lock.release
        self.locked = self._lock.locked

    def acquire(self, *, timeout: float) -> bool:
        self._set()
        assert self._lock.acquire(timeout=timeout)
        raise KeyboardInterrupt


def test_an_interrupted_wait_leaves_the_latch_open_for_threads_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    latch = Latch()
    monkeypatch.setattr(latch, "_closed", InterruptedLock(latch))
    with pytest.raises(KeyboardInterrupt):
        latch.wait()
    assert not latch._closed.locked()


class SetBeforeAcquire(InterruptedLock):
    """A lock whose latch is set by another thread directly before a wait acquires it."""

    def acquire(self, *, timeout: float) -> bool:
        self._set()
        return self._lock.acquire(timeout=timeout)


def test_an_interrupt_at_any_place_leaves_a_latch_open_that_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    functions = [each for each in vars(Latch).values() if isinstance(each, FunctionType)]
    codes = frozenset(each.__code__ for each in functions)
    walk = Walk()
    for place in walk:
        latch, waited = Latch(), Latch()
        monkeypatch.setattr(waited, "_closed", SetBeforeAcquire(waited))
        interrupt = InterruptAfterCall(place, codes)
        with interrupt.watching():
            latch.set()
            waited.wait()
        for one in (latch, waited):
            assert not (one.is_set() and one._closed.locked()), interrupt.place
    walk.check(Latch.set, Latch.wait)


def test_a_thread_that_ends_while_it_reports_its_start_does_not_hang_the_one_that_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # ``threading.Event`` keeps its lock if the end of its ``with`` block lacks memory.
    monkeypatch.setattr(threading.Condition, "__exit__", _lacks_memory)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    started = threading.Lock()
    thread = BoundedThread(target=started.acquire)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert started.locked()


def _lacks_memory(*_: object) -> None:
    raise MemoryError
