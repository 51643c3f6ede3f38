"""Tests of threads that wait for a change."""

from __future__ import annotations

import threading

from burn_remote_protocol.waiters import Waiters
from support.interrupts import InterruptAfterCall, Walk
from support.waiting import PATIENCE_SECONDS


class Flag:
    """A state with waiting threads."""

    def __init__(self) -> None:
        self.is_set = False
        self.waiters = Waiters()

    def set(self) -> None:
        self.is_set = True
        self.waiters.wake()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        return self.waiters.wait_until(lambda: self.is_set, timeout_seconds)


def test_every_waiting_thread_is_woken() -> None:
    flag, seen = Flag(), list[bool]()
    threads = [threading.Thread(target=lambda: seen.append(flag.wait())) for _ in range(5)]
    for thread in threads:
        thread.start()
    flag.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert seen == [True] * 5


def test_a_wait_for_what_is_true_returns_at_once() -> None:
    flag = Flag()
    flag.set()
    assert flag.wait(0)


def test_a_wait_ends_at_its_timeout() -> None:
    flag = Flag()
    assert not flag.wait(0)
    assert not flag.wait(0.001)


def test_a_wake_without_a_change_ends_no_wait() -> None:
    flag = Flag()
    looks = iter([False, False, True])

    def is_true() -> bool:
        flag.waiters.wake()  # before the wait, so it does not block
        return next(looks)

    assert flag.waiters.wait_until(is_true)


def test_an_interrupted_wake_wakes_all_waiting_threads_or_none() -> None:
    walk = Walk()
    for place in walk:
        waiters, waiting = Waiters(), [threading.Lock() for _ in range(3)]
        for each in waiting:
            each.acquire()
            waiters._waiting.add(each)
        interrupt = InterruptAfterCall(place, frozenset({Waiters.wake.__code__}))
        with interrupt.watching():
            waiters.wake()
        assert len({each.locked() for each in waiting}) == 1, interrupt.place
    walk.check(Waiters.wake)


def test_an_interrupted_wait_or_wake_keeps_no_other_thread_from_waiting_and_waking() -> None:
    codes = frozenset({Waiters.wait_until.__code__, Waiters.wake.__code__})
    walk = Walk()
    for place in walk:
        flag = Flag()
        other = threading.Thread(target=flag.wait, daemon=True)
        other.start()
        interrupt = InterruptAfterCall(place, codes)
        with interrupt.watching():
            flag.wait(0.001)
            flag.set()
            flag.wait()
        flag.set()
        other.join(PATIENCE_SECONDS)
        assert not other.is_alive(), interrupt.place
        assert flag.wait(PATIENCE_SECONDS), interrupt.place
        assert not flag.waiters._waiting, interrupt.place
    walk.check(Waiters.wait_until, Waiters.wake)
