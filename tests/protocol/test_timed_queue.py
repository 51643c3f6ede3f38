"""The queue with a reliable timeout: order, timeouts, and what comes while its consumer waits."""

from __future__ import annotations

import itertools
import threading
from queue import Empty

import pytest

from burn_remote_protocol.timed_queue import TimedQueue
from support.waiting import PATIENCE_SECONDS


def test_items_come_in_their_order() -> None:
    queue: TimedQueue[int] = TimedQueue()
    assert queue.empty()
    for item in range(3):
        queue.put(item)
    assert not queue.empty()
    assert [queue.get(), queue.get(PATIENCE_SECONDS), queue.get_nowait()] == [0, 1, 2]
    with pytest.raises(Empty):
        queue.get_nowait()


@pytest.mark.parametrize("has_been_used", [False, True])
def test_a_thread_that_did_not_run_for_longer_than_the_timeout_does_not_wait(
    has_been_used: bool,
) -> None:
    # Each look at the clock is ten seconds later, as if the thread had stood still between them.
    # ``queue.SimpleQueue`` waits forever there.
    queue: TimedQueue[int] = TimedQueue(map(float, itertools.count(0, 10)).__next__)
    if has_been_used:
        queue.put(1)
        assert queue.get(1.0) == 1
    raised = threading.Event()

    def consume() -> None:
        with pytest.raises(Empty):
            queue.get(1.0)
        raised.set()

    threading.Thread(target=consume, daemon=True).start()
    assert raised.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("timeout_seconds", [None, PATIENCE_SECONDS])
def test_a_waiting_consumer_gets_an_item_at_once(timeout_seconds: float | None) -> None:
    queue: TimedQueue[int] = TimedQueue()
    answers: TimedQueue[int] = TimedQueue()

    def consume() -> None:
        while item := queue.get(timeout_seconds):
            answers.put(-item)

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    for item in range(1, 100):
        queue.put(item)
        assert answers.get(PATIENCE_SECONDS) == -item
    queue.put(0)
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_no_item_of_several_producers_is_lost() -> None:
    queue: TimedQueue[int] = TimedQueue()

    def produce(first: int) -> None:
        for item in range(first, first + 1000):
            queue.put(item)

    threads = [threading.Thread(target=produce, args=(1000 * place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    found = [queue.get(PATIENCE_SECONDS) for _ in range(4000)]
    assert sorted(found) == list(range(4000))
    assert queue.empty()


def test_a_wait_for_an_item_leaves_it_in_the_queue() -> None:
    queue: TimedQueue[int] = TimedQueue()
    assert not queue.wait(0.0)
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(queue.wait(PATIENCE_SECONDS)))
    waiting.start()
    queue.put(7)
    waiting.join(PATIENCE_SECONDS)
    assert found == [True]
    assert queue.wait(0.0)
    assert queue.get_nowait() == 7
    assert not queue.wait(0.0)


def test_a_wait_of_a_thread_that_did_not_run_for_longer_than_the_timeout_ends() -> None:
    queue: TimedQueue[int] = TimedQueue(map(float, itertools.count(0, 10)).__next__)
    ended = threading.Event()

    def wait() -> None:
        assert not queue.wait(1.0)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    assert ended.wait(PATIENCE_SECONDS)
