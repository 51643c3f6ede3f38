"""The thread of a session runs its calls in order and survives what they raise."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from burn_remote_protocol.errors import SessionLost
from burn_remote_server.access.quota import Pool
from burn_remote_server.execution.worker import Worker
from support.waiting import PATIENCE_SECONDS


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, ValueError])
def test_a_call_that_raises_is_reported_and_the_next_one_runs(raised: type[BaseException]) -> None:
    events: queue.Queue[object] = queue.Queue()

    def call() -> None:
        raise raised

    worker = Worker(
        "test", nothing, lambda: events.put("done"), lambda error: events.put(type(error))
    )
    worker.submit(call)
    worker.submit(lambda: events.put("called"))
    worker.stop()
    seen = [events.get(timeout=PATIENCE_SECONDS) for _ in range(4)]
    assert seen == [raised, "done", "called", "done"]
    assert not worker.queued


def test_a_failed_preparation_is_reported_and_calls_still_run() -> None:
    events: queue.Queue[object] = queue.Queue()

    def prepare() -> None:
        raise KeyboardInterrupt

    worker = Worker(
        "test", prepare, lambda: events.put("done"), lambda error: events.put(type(error))
    )
    worker.submit(nothing)
    worker.stop()
    assert [events.get(timeout=PATIENCE_SECONDS) for _ in range(2)] == [KeyboardInterrupt, "done"]


def test_calls_run_in_order_on_one_thread_after_its_preparation() -> None:
    seen: list[tuple[str, int]] = []
    done = threading.Event()

    def note(name: str) -> Callable[[], None]:
        return lambda: seen.append((name, threading.get_ident()))

    worker = Worker("test", note("prepared"), nothing, raise_again)
    for number in range(5):
        worker.submit(note(str(number)))
    worker.submit(done.set)
    worker.stop()
    assert done.wait(PATIENCE_SECONDS)
    names, threads = zip(*seen, strict=True)
    assert names == ("prepared", "0", "1", "2", "3", "4")
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


def test_calls_queued_before_the_stop_run_and_none_after_it() -> None:
    started, go, ended = threading.Event(), threading.Event(), threading.Event()
    seen: list[int] = []

    def block() -> None:
        started.set()
        assert go.wait(PATIENCE_SECONDS)

    worker = Worker("test", nothing, nothing, raise_again)
    worker.submit(block)
    for number in range(3):
        worker.submit(partial(seen.append, number))
    worker.submit(ended.set)
    worker.stop()
    worker.submit(lambda: seen.append(99))
    assert started.wait(PATIENCE_SECONDS)
    assert not seen
    assert worker.queued == 6
    go.set()
    assert ended.wait(PATIENCE_SECONDS)
    assert worker._thread is not None
    worker._thread.join(PATIENCE_SECONDS)
    assert not worker._thread.is_alive()
    assert seen == [0, 1, 2]
    assert worker.queued == 1  # the call after the stop


def test_a_worker_without_calls_has_no_thread() -> None:
    worker = Worker("test", raise_again, raise_again, raise_again)
    worker.stop()
    assert worker._thread is None


def test_a_stop_before_the_first_call_has_no_effect() -> None:
    worker = Worker("test", nothing, nothing, raise_again)
    worker.stop()
    done = [threading.Event(), threading.Event()]
    for event in done:
        worker.submit(event.set)
    worker.stop()
    assert all(event.wait(PATIENCE_SECONDS) for event in done)


def test_the_thread_has_the_name_of_its_session_and_does_not_keep_the_process_alive() -> None:
    threads: queue.Queue[threading.Thread] = queue.Queue()
    worker = Worker("session 7", nothing, nothing, raise_again)
    worker.submit(lambda: threads.put(threading.current_thread()))
    worker.stop()
    thread = threads.get(timeout=PATIENCE_SECONDS)
    assert thread.name == "session 7"
    assert thread.daemon


def test_a_worker_is_busy_since_the_first_of_the_calls_that_run_without_a_pause() -> None:
    go = threading.Event()
    progress: queue.Queue[None] = queue.Queue()
    worker = Worker("test", nothing, lambda: progress.put(None), raise_again)
    assert worker.busy_since is None
    before = time.monotonic()
    worker.submit(partial(wait, go))
    first = worker.busy_since
    assert first is not None
    assert before <= first <= time.monotonic()
    worker.submit(nothing)
    assert worker.busy_since == first
    go.set()
    for _ in range(2):
        progress.get(timeout=PATIENCE_SECONDS)
    assert worker.busy_since is None
    go.clear()
    later = time.monotonic()
    worker.submit(partial(wait, go))
    assert worker.busy_since is not None
    assert worker.busy_since >= later
    go.set()
    worker.stop()


def test_a_slow_call_does_not_delay_another_session() -> None:
    go, blocked, other_done = threading.Event(), threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        assert go.wait(PATIENCE_SECONDS)

    slow = Worker("slow", nothing, nothing, raise_again)
    other = Worker("other", nothing, nothing, raise_again)
    slow.submit(block)
    assert blocked.wait(PATIENCE_SECONDS)
    other.submit(other_done.set)
    assert other_done.wait(PATIENCE_SECONDS)
    assert slow.queued == 1
    go.set()
    slow.stop()
    other.stop()


def test_waiting_bytes_count_in_the_pool_until_their_call_has_ended() -> None:
    pool = Pool(100)
    started, go = threading.Event(), threading.Event()
    progress: queue.Queue[None] = queue.Queue()

    def block() -> None:
        started.set()
        assert go.wait(PATIENCE_SECONDS)

    worker = Worker("test", nothing, lambda: progress.put(None), raise_again, pool)
    worker.submit(block, 10)
    worker.submit(nothing, 5)
    worker.submit(nothing)
    assert started.wait(PATIENCE_SECONDS)
    assert (worker.queued, worker.queued_bytes, pool.taken) == (3, 15, 15)
    go.set()
    worker.stop()
    for _ in range(3):
        progress.get(timeout=PATIENCE_SECONDS)
    assert (worker.queued, worker.queued_bytes, pool.taken) == (0, 0, 0)


def test_a_call_that_raises_gives_its_bytes_back() -> None:
    pool = Pool(100)
    errors: queue.Queue[BaseException] = queue.Queue()
    progress: queue.Queue[None] = queue.Queue()
    worker = Worker("test", nothing, lambda: progress.put(None), errors.put, pool)
    worker.submit(lambda: [][0], 10)
    worker.stop()
    assert isinstance(errors.get(timeout=PATIENCE_SECONDS), IndexError)
    progress.get(timeout=PATIENCE_SECONDS)
    assert pool.taken == 0


def test_the_arrays_of_a_call_are_freed_when_it_has_ended() -> None:
    class Held:
        """An object that a call holds."""

    progress: queue.Queue[None] = queue.Queue()
    worker = Worker("test", nothing, lambda: progress.put(None), raise_again)
    held = Held()
    gone = threading.Event()
    weakref.finalize(held, gone.set)
    worker.submit(partial(discard, held))
    del held
    progress.get(timeout=PATIENCE_SECONDS)
    assert gone.wait(PATIENCE_SECONDS)
    worker.stop()


def raise_again(*errors: BaseException) -> None:
    raise AssertionError("this must not be called") from (errors or (None,))[0]


def wait(event: threading.Event) -> None:
    assert event.wait(PATIENCE_SECONDS)


def discard(held: object) -> None:
    """Do nothing with an object."""


def nothing() -> None:
    """Do nothing."""


def test_the_thread_goes_on_if_telling_the_event_loop_or_reporting_fails_for_memory() -> None:
    events: queue.Queue[object] = queue.Queue()
    pool = Pool(100)
    lacks = {"progress": 2, "failed": 2}

    def use_memory(name: str) -> None:
        if lacks[name]:
            lacks[name] -= 1
            raise MemoryError

    def progress() -> None:
        use_memory("progress")
        events.put("done")

    def failed(error: BaseException) -> None:
        use_memory("failed")
        events.put(type(error))

    worker = Worker("test", nothing, progress, failed, pool)
    worker.submit(raise_a_value_error, size=40)
    worker.submit(nothing, size=10)
    worker.stop()
    assert [events.get(timeout=PATIENCE_SECONDS) for _ in range(3)] == [ValueError, "done", "done"]
    assert (worker.queued, worker.completed, worker.queued_bytes, pool.taken) == (0, 2, 0, 0)


def raise_a_value_error() -> None:
    raise ValueError


def test_calls_of_a_thread_that_died_before_its_first_call_are_counted_as_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool(1000)
    monkeypatch.setattr(Worker, "_work", lambda self: None)  # Python could not register the thread
    worker = Worker("test", nothing, nothing, raise_again, pool)
    worker.submit(nothing, 100)
    assert worker._thread is not None
    worker._thread.join(PATIENCE_SECONDS)
    assert worker.is_dead
    worker.discard_calls()
    assert not worker.queued
    assert not worker.queued_bytes
    assert pool.has_room(1000)
    with pytest.raises(SessionLost, match="thread has ended"):
        worker.submit(nothing)


def test_a_call_that_could_not_be_queued_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(1000)
    worker = Worker("test", nothing, nothing, raise_again, pool)
    worker.submit(nothing)

    class Full:
        def put(self, item: object) -> None:
            raise MemoryError

    calls = worker._queue
    monkeypatch.setattr(worker, "_queue", Full())
    with pytest.raises(MemoryError):
        worker.submit(nothing, 100)
    monkeypatch.setattr(worker, "_queue", calls)
    worker.stop()
    assert worker._thread is not None
    worker._thread.join(PATIENCE_SECONDS)
    assert not worker.queued
    assert pool.has_room(1000)
