"""A session's thread does its work in order, and outlives whatever its work raises."""

from __future__ import annotations

import queue

import pytest

from burn_remote_server.execution.worker import Worker


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, ValueError])
def test_a_call_that_raises_is_told_and_the_next_one_runs(raised: type[BaseException]) -> None:
    events: queue.Queue[object] = queue.Queue()

    def call() -> None:
        raise raised

    worker = Worker(
        "test", nothing, lambda: events.put("done"), lambda error: events.put(type(error))
    )
    worker.submit(call)
    worker.submit(lambda: events.put("called"))
    worker.stop()
    seen = [events.get(timeout=5) for _ in range(4)]
    assert seen == [raised, "done", "called", "done"]
    assert not worker.queued


def test_a_thread_that_cannot_be_prepared_is_told_and_ends_its_calls() -> None:
    events: queue.Queue[object] = queue.Queue()

    def prepare() -> None:
        raise KeyboardInterrupt

    worker = Worker(
        "test", prepare, lambda: events.put("done"), lambda error: events.put(type(error))
    )
    worker.submit(nothing)
    worker.stop()
    assert [events.get(timeout=5) for _ in range(2)] == [KeyboardInterrupt, "done"]


def nothing() -> None:
    """Do nothing."""
