"""A background sender flushes after each wake, and its thread ends when nothing is left to do."""

from __future__ import annotations

import threading

import pytest

from burn_remote_protocol.links.websocket import background_sender
from burn_remote_protocol.links.websocket.background_sender import BackgroundSender
from support.missing_threads import no_thread
from support.waiting import PATIENCE_SECONDS


def test_each_wake_is_followed_by_a_flush() -> None:
    flushed = threading.Semaphore(0)
    sender = BackgroundSender(flushed.release)
    for _ in range(3):
        assert sender.wake()
        assert flushed.acquire(timeout=PATIENCE_SECONDS)
    sender.stop()


def test_the_thread_ends_when_it_is_idle_and_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_sender, "IDLE_SECONDS", 0.01)
    threads: list[threading.Thread] = []
    flushed = threading.Semaphore(0)

    def flush() -> None:
        threads.append(threading.current_thread())
        flushed.release()

    sender = BackgroundSender(flush)
    for _ in range(2):
        assert sender.wake()
        assert flushed.acquire(timeout=PATIENCE_SECONDS)
        threads[-1].join(PATIENCE_SECONDS)
        assert not threads[-1].is_alive()
    assert threads[0] is not threads[1]


def test_a_stopped_sender_says_that_nothing_will_be_flushed() -> None:
    flushed = threading.Semaphore(0)
    threads: list[threading.Thread] = []

    def flush() -> None:
        threads.append(threading.current_thread())
        flushed.release()

    sender = BackgroundSender(flush)
    assert sender.wake()
    assert flushed.acquire(timeout=PATIENCE_SECONDS)
    sender.stop()
    threads[0].join(PATIENCE_SECONDS)
    assert not threads[0].is_alive()
    assert not sender.wake()


def test_a_wake_that_comes_while_the_thread_ends_is_followed_by_a_flush(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background_sender, "IDLE_SECONDS", 0.01)
    flushed = threading.Semaphore(0)
    sender = BackgroundSender(flushed.release)
    assert sender.wake()
    assert flushed.acquire(timeout=PATIENCE_SECONDS)
    put = sender._wakes.put

    def put_late(wake: None) -> None:
        # The thread ends first, if it can.
        thread = sender._thread
        if thread is not None and not sender._lock.locked():
            thread.join(PATIENCE_SECONDS)
        put(wake)

    monkeypatch.setattr(sender._wakes, "put", put_late)
    assert sender.wake()
    assert flushed.acquire(timeout=PATIENCE_SECONDS)
    sender.stop()


def test_a_process_without_threads_is_told_to_flush_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    sender = BackgroundSender(lambda: None)
    assert not sender.wake()
