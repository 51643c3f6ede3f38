"""A thread that does not start in time is given up for good."""

from __future__ import annotations

import threading

import pytest

from burn_remote_protocol import bounded_threads
from burn_remote_protocol.bounded_threads import BoundedThread
from burn_remote_protocol.latches import Latch
from support.waiting import PATIENCE_SECONDS


class _LateThread(BoundedThread):
    """A thread that begins when ``may_begin`` is set, as on a machine without free memory."""

    def __init__(self, called: list[str]) -> None:
        super().__init__(target=called.append, args=("called",))
        self.may_begin, self.has_ended = threading.Event(), threading.Event()

    def _bootstrap(self) -> None:
        assert self.may_begin.wait(PATIENCE_SECONDS)
        try:
            super()._bootstrap()  # type: ignore[misc]
        finally:
            self.has_ended.set()


def test_a_thread_that_begins_after_its_start_was_given_up_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded_threads, "START_SECONDS", 0.0)
    called: list[str] = []
    thread = _LateThread(called)
    with pytest.raises(RuntimeError, match="did not start"):
        thread.start()
    thread.may_begin.set()
    assert thread.has_ended.wait(PATIENCE_SECONDS)
    assert not called


def test_a_thread_that_begins_when_its_start_is_given_up_counts_as_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []
    thread = _LateThread(called)

    def begins_too_late(*_: object) -> bool:
        thread.may_begin.set()
        assert thread.has_ended.wait(PATIENCE_SECONDS)
        return False

    monkeypatch.setattr(Latch, "wait", begins_too_late)
    thread.start()
    assert called == ["called"]


def test_a_thread_that_starts_in_time_calls_its_function() -> None:
    called: list[str] = []
    thread = _LateThread(called)
    thread.may_begin.set()
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert called == ["called"]
