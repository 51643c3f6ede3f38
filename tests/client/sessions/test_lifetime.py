"""Each session is flushed in time by its own thread, and ends when it is garbage-collected."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

import burn_remote as br
from burn_remote.sessions.lifetime import Flusher

PATIENCE_SECONDS = 5.0


class FakeSession:
    """Blocks in each flush until the test releases it."""

    def __init__(self) -> None:
        self.is_flushing = threading.Event()
        self.may_go_on = threading.Event()

    def flush_waiting(self) -> None:
        self.is_flushing.set()
        assert self.may_go_on.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        """Do nothing."""

    def abandon_after_fork(self) -> None:
        """Do nothing."""


def test_a_session_that_cannot_send_delays_no_flush_of_another() -> None:
    stuck, other = FakeSession(), FakeSession()
    flushers = [Flusher(lambda: None) for _ in range(2)]
    for flusher, session in zip(flushers, (stuck, other), strict=True):
        flusher.start(session)
    other.may_go_on.set()
    try:
        flushers[0].schedule(stuck)
        assert stuck.is_flushing.wait(PATIENCE_SECONDS)
        flushers[1].schedule(other)
        assert other.is_flushing.wait(PATIENCE_SECONDS)
    finally:
        stuck.may_go_on.set()
        for flusher in flushers:
            flusher.stop()


def test_the_connection_of_a_session_that_nobody_refers_to_is_ended() -> None:
    ended = threading.Event()
    flusher = Flusher(ended.set)
    session = FakeSession()
    session.may_go_on.set()
    flusher.start(session)
    flusher.schedule(session)
    assert session.is_flushing.wait(PATIENCE_SECONDS)
    del session
    assert ended.wait(PATIENCE_SECONDS)


def threads_of_sessions() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("burn-remote")]


@pytest.mark.parametrize("count", [20])
def test_forgotten_local_devices_leave_no_thread_and_no_session(count: int) -> None:
    before = set(threads_of_sessions())
    sessions = []
    for _ in range(count):
        device = br.LocalDevice()
        assert br.ones((4,), device=device).sum().item() == 4
        sessions.append(weakref.ref(device.session))
        del device
    gc.collect()
    deadline = time.monotonic() + PATIENCE_SECONDS
    for thread in set(threads_of_sessions()) - before:
        while thread.is_alive() and time.monotonic() < deadline:
            gc.collect()  # a thread may have been flushing its session a moment ago
            thread.join(0.01)
        assert not thread.is_alive(), thread
    assert [session() for session in sessions] == [None] * count


def test_a_tensor_keeps_the_session_of_a_device_that_was_forgotten() -> None:
    x = br.ones((4,), device=br.LocalDevice())
    gc.collect()
    assert (x + 1).tolist() == [2] * 4
    assert repr(x.device) == "LocalDevice('numpy')"


def test_a_local_device_that_computes_delays_no_flush_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with br.LocalDevice() as busy, br.LocalDevice() as other, ThreadPoolExecutor(1) as pool:
        is_computing, may_finish = threading.Event(), threading.Event()
        flush = busy.session.flush_waiting

        def compute() -> None:
            is_computing.set()
            assert may_finish.wait(PATIENCE_SECONDS)
            flush()

        monkeypatch.setattr(busy.session, "flush_waiting", compute)
        x = br.ones((4,), device=busy)
        assert is_computing.wait(PATIENCE_SECONDS)
        was_flushed = threading.Event()
        flush_other = other.session.flush_waiting

        def flushed() -> None:
            flush_other()
            was_flushed.set()

        monkeypatch.setattr(other.session, "flush_waiting", flushed)
        pool.submit(br.ones, (4,), device=other)
        try:
            assert was_flushed.wait(PATIENCE_SECONDS)
        finally:
            may_finish.set()
        assert x.tolist() == [1] * 4
