"""A thread that does not start in time is given up for good."""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import Future
from typing import Any

import pytest

from burn_remote_protocol import bounded_threads
from burn_remote_protocol.bounded_threads import BoundedThread, BoundedThreadPool
from burn_remote_protocol.latches import Latch
from support.missing_threads import no_thread
from support.waiting import PATIENCE_SECONDS, wait_until


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


# -- the pool -------------------------------------------------------------------------------------


def test_a_pool_starts_a_thread_only_if_all_others_work() -> None:
    pool = BoundedThreadPool(2, "test")
    name = pool.submit(lambda: threading.current_thread().name).result(PATIENCE_SECONDS)
    assert name == "test-0"
    wait_until(lambda: not pool._unfinished)
    opened = threading.Event()
    waiting = [pool.submit(opened.wait, PATIENCE_SECONDS) for _ in range(5)]
    assert len(pool._workers) == 2
    opened.set()
    assert all(each.result(PATIENCE_SECONDS) for each in waiting)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(opened.wait)


def test_a_pool_passes_errors_on_and_keeps_no_results() -> None:
    pool = BoundedThreadPool(1, "test")
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result(PATIENCE_SECONDS)
    result = pool.submit(threading.Event).result(PATIENCE_SECONDS)
    kept = weakref.ref(result)
    wait_until(lambda: not pool._unfinished)
    del result
    assert kept() is None
    pool.shutdown()


def test_a_pool_whose_thread_does_not_start_raises_and_goes_on_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = BoundedThreadPool(2, "test")
    with monkeypatch.context() as patched:
        patched.setattr(BoundedThread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            pool.submit(len, "abc")
    assert pool.submit(len, "abc").result(PATIENCE_SECONDS) == 3
    with monkeypatch.context() as patched:  # the thread that it has runs further calls
        patched.setattr(BoundedThread, "start", no_thread)
        lengths = [pool.submit(len, "abcd") for _ in range(3)]
        assert [each.result(PATIENCE_SECONDS) for each in lengths] == [4, 4, 4]
    pool.shutdown()


def test_the_thread_of_a_pool_goes_on_after_a_lack_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = BoundedThreadPool(1, "test")
    take, lacks = pool._calls.get, ["get", "set_result"]

    class Scarce:
        """Calls whose queue has no memory the first time."""

        put = staticmethod(pool._calls.put)

        def get(self) -> Any:
            if "get" in lacks:
                lacks.remove("get")
                raise MemoryError
            return take()

    def set_result(future: Future[Any], result: object) -> None:
        if "set_result" in lacks:
            lacks.remove("set_result")
            raise MemoryError
        completed(future, result)

    completed: Any = Future.set_result
    monkeypatch.setattr(Future, "set_result", set_result)
    pool._calls = Scarce()  # type: ignore[misc,assignment]
    with pytest.raises(MemoryError):
        pool.submit(len, "abc").result(PATIENCE_SECONDS)
    assert pool.submit(len, "abcd").result(PATIENCE_SECONDS) == 4
    assert not lacks
    pool.shutdown()


def test_a_pool_that_is_shut_down_cancels_waiting_calls() -> None:
    pool = BoundedThreadPool(1, "test")
    opened = threading.Event()
    running, waiting = pool.submit(opened.wait, PATIENCE_SECONDS), pool.submit(len, "abc")
    wait_until(running.running)
    pool.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    opened.set()
    assert running.result(PATIENCE_SECONDS)
    pool.shutdown()


async def test_an_event_loop_uses_the_pool_for_to_thread() -> None:
    asyncio.get_running_loop().set_default_executor(BoundedThreadPool(1, "test"))
    assert await asyncio.to_thread(lambda: threading.current_thread().name) == "test-0"
