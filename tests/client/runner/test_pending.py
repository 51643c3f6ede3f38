"""A pending value reaches every waiter, whatever the callbacks do."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import pickle
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from burn_remote.runner.pending import Pending, sent
from burn_remote_protocol.errors import ArgumentMismatch, ConnectionLost
from support.interrupts import InterruptAt, Walk
from support.link_ends import in_thread
from support.waiting import PATIENCE_SECONDS


def failing(_: Pending[int]) -> None:
    raise ZeroDivisionError("a callback of the program")


def test_an_exception_in_a_callback_is_logged_and_the_others_are_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pending: Pending[int] = Pending()
    got: list[int] = []
    pending.on_done(failing)
    pending.on_done(lambda done: got.append(done.result()))
    with caplog.at_level(logging.ERROR, logger="burn_remote"):
        pending.complete(3)
    assert got == [3]
    assert "a callback of the program" in caplog.text


@pytest.mark.parametrize("copying", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_copy_of_a_pending_value_is_refused_with_what_to_pickle(
    copying: Callable[[Any], Any],
) -> None:
    with pytest.raises(ArgumentMismatch, match=r"pickle what its result\(\) returns"):
        copying(Pending())


def test_an_exception_in_a_late_callback_is_logged_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pending: Pending[int] = Pending()
    pending.complete(3)
    pending.on_done(failing)
    assert "a callback of the program" in caplog.text


def test_an_interrupt_in_a_callback_is_raised_after_the_other_callbacks() -> None:
    pending: Pending[int] = Pending()
    got: list[int] = []

    def interrupted(_: Pending[int]) -> None:
        raise KeyboardInterrupt

    pending.on_done(interrupted)
    pending.on_done(lambda done: got.append(done.result()))
    with pytest.raises(KeyboardInterrupt):
        pending.complete(3)
    assert got == [3]


def test_each_callback_is_called_once() -> None:
    pending: Pending[int] = Pending()
    calls: list[int] = []
    pending.on_done(lambda done: calls.append(done.result()))
    pending.complete(1)
    pending.complete(2)
    pending.on_done(lambda done: calls.append(10 * done.result()))
    assert calls == [1, 10]


# -- outcomes ---------------------------------------------------------------------------------


def test_the_first_outcome_counts() -> None:
    value, error = Pending[int](), Pending[int]()
    value.complete(1)
    value.fail(ConnectionLost("late"))
    value.complete(3)
    error.fail(ConnectionLost("gone"))
    error.complete(2)
    assert value.result() == 1
    with pytest.raises(ConnectionLost, match="gone"):
        error.result()


def test_none_is_a_value() -> None:
    pending: Pending[None] = Pending()
    assert not pending.done()
    assert "not done" in repr(pending)
    pending.complete(None)
    assert pending.done()
    assert "not done" not in repr(pending)
    assert pending.result(0) is None


@pytest.mark.parametrize("timeout_seconds", [0, -1, 0.01])
def test_no_value_in_time_is_a_timeout_and_the_value_may_come_later(timeout_seconds: float) -> None:
    pending: Pending[int] = Pending()
    with pytest.raises(TimeoutError, match=f"no reply within {timeout_seconds} seconds"):
        pending.result(timeout_seconds)
    pending.complete(4)
    assert pending.result(timeout_seconds) == 4


def test_each_waiter_gets_an_error_of_its_own() -> None:
    pending: Pending[int] = Pending()
    pending.fail(ConnectionLost("gone"))
    raised = []
    for _ in range(3):
        with pytest.raises(ConnectionLost, match="gone") as caught:
            pending.result()
        caught.value.add_note("for one waiter")
        raised.append(caught.value)
    assert len({id(error) for error in raised}) == 3
    assert [error.__notes__ for error in raised] == [["for one waiter"]] * 3


# -- waiting ----------------------------------------------------------------------------------


class RecordingSource:
    """Completes a value while a thread waits for it, and counts calls."""

    def __init__(self, value: int | None = None) -> None:
        self.value = value
        self.waits: list[float | None] = []
        self.attended = threading.Semaphore(0)
        self.sends = 0

    def wait(self, pending: Pending[Any], timeout_seconds: float | None) -> None:
        self.waits.append(timeout_seconds)
        if self.value is not None:
            pending.complete(self.value)

    def send(self) -> None:
        self.sends += 1

    def attend(self) -> None:
        self.attended.release()

    def deferred(self, callback: Callable[..., object]) -> Callable[..., object]:
        return callback


def test_a_waiting_thread_helps_its_source() -> None:
    source = RecordingSource(5)
    pending: Pending[int] = Pending(source)
    assert pending.result(2.5) == 5
    assert pending.result(1.0) == 5
    assert source.waits == [2.5]


def test_requests_are_sent_only_for_values_that_have_not_arrived() -> None:
    source = RecordingSource(5)
    values: list[Pending[int]] = [Pending(source) for _ in range(3)]
    values[1].complete(1)
    assert sent(values) is values
    assert (source.sends, source.waits) == (2, [])


def test_a_request_that_cannot_be_sent_raises_where_its_value_is_read() -> None:
    class Lost(RecordingSource):
        def send(self) -> None:
            raise ConnectionLost("gone")

    values: list[Pending[int]] = [Pending(Lost()), Pending(RecordingSource(5))]
    assert sent(values)[1].result() == 5
    values[0].fail(ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        values[0].result()


def test_a_source_that_returns_without_a_value_is_a_timeout() -> None:
    source = RecordingSource()
    with pytest.raises(TimeoutError):
        Pending(source).result(0.5)
    assert source.waits == [0.5]


@pytest.mark.parametrize("has_failed", [False, True])
def test_all_of_many_waiting_threads_are_released(has_failed: bool) -> None:
    pending: Pending[int] = Pending()
    together = threading.Barrier(9)

    def wait() -> int:
        together.wait(PATIENCE_SECONDS)
        return pending.result(PATIENCE_SECONDS)

    waiting = [in_thread(wait) for _ in range(8)]
    together.wait(PATIENCE_SECONDS)
    if has_failed:
        pending.fail(ConnectionLost("gone"))
        errors = [one.exception(PATIENCE_SECONDS) for one in waiting]
        assert all(isinstance(error, ConnectionLost) for error in errors)
        assert len({id(error) for error in errors}) == 8
    else:
        pending.complete(6)
        assert [one.result(PATIENCE_SECONDS) for one in waiting] == [6] * 8


def test_polling_keeps_nothing() -> None:
    pending: Pending[int] = Pending()
    for _ in range(100):
        assert not pending.wait(0)
    assert not pending._wakers
    pending.complete(1)
    assert pending.wait(0)
    assert not pending._wakers


# -- callbacks --------------------------------------------------------------------------------


def test_a_callback_may_add_callbacks_and_deliver_again() -> None:
    pending: Pending[int] = Pending()
    got: list[str] = []

    def first(done: Pending[int]) -> None:
        got.append("first")
        done.complete(9)
        done.on_done(lambda _: got.append("inner"))

    pending.on_done(first)
    pending.on_done(lambda _: got.append("second"))
    pending.complete(1)
    assert sorted(got) == ["first", "inner", "second"]
    assert pending.result() == 1


def note(calls: list[int], number: int, done: Pending[int]) -> None:
    calls.append(number)


def test_callbacks_added_while_a_value_arrives_are_all_called_once() -> None:
    for _ in range(50):
        pending: Pending[int] = Pending()
        together = threading.Barrier(5)
        calls: list[int] = []

        def add(number: int, of: Pending[int], at: threading.Barrier, calls: list[int]) -> None:
            at.wait(PATIENCE_SECONDS)
            for place in range(10):
                of.on_done(partial(note, calls, 10 * number + place))

        adding = [in_thread(add, number, pending, together, calls) for number in range(4)]
        together.wait(PATIENCE_SECONDS)
        pending.complete(0)
        for one in adding:
            one.result(PATIENCE_SECONDS)
        assert sorted(calls) == list(range(40))


CODES = frozenset(
    function.__code__ for _, function in inspect.getmembers(Pending, inspect.isfunction)
)


def test_ctrl_c_at_any_line_of_a_delivery_leaves_nobody_waiting() -> None:
    walk = Walk()
    for place in walk:
        pending: Pending[int] = Pending()
        calls: list[int] = []
        pending.on_done(lambda done, calls=calls: calls.append(done.result()))  # type: ignore[misc]
        waiting = in_thread(pending.result, PATIENCE_SECONDS)
        loop = asyncio.new_event_loop()
        task = loop.create_task(awaited(pending))
        loop.run_until_complete(asyncio.sleep(0))
        interrupt = InterruptAt(place, CODES)
        with interrupt.watching():
            pending.complete(1)
        pending.complete(1)  # as the receiver does after an interrupt
        assert waiting.result(PATIENCE_SECONDS) == 1, interrupt.place
        assert loop.run_until_complete(task) == 1, interrupt.place
        assert len(calls) <= 1, interrupt.place
        loop.close()
    walk.check(Pending.complete, Pending._finish, Pending._call_back)


async def awaited(pending: Pending[int]) -> int:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await pending


def test_ctrl_c_at_any_line_of_a_wait_keeps_nothing() -> None:
    walk = Walk()
    for place in walk:
        pending: Pending[int] = Pending()
        interrupt = InterruptAt(place, CODES)
        with interrupt.watching():
            pending.wait(0)
        assert not pending._wakers, interrupt.place
    walk.check(Pending.wait)


# -- await ------------------------------------------------------------------------------------


async def test_a_value_from_another_thread_wakes_its_event_loop() -> None:
    source = RecordingSource()
    pending: Pending[int] = Pending(source)

    def deliver() -> None:
        assert source.attended.acquire(timeout=PATIENCE_SECONDS)
        pending.complete(7)

    delivering = in_thread(deliver)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await pending == 7
        assert await pending == 7  # done already
    delivering.result(PATIENCE_SECONDS)
    assert not source.waits, "the event loop was blocked"


async def test_an_error_is_raised_where_it_is_awaited() -> None:
    pending: Pending[int] = Pending()
    pending.fail(ConnectionLost("gone"))
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="gone"):
            await pending


async def test_many_tasks_and_a_thread_wait_for_one_value() -> None:
    pending: Pending[int] = Pending()

    async def wait() -> int:
        return await pending

    tasks = [asyncio.create_task(wait()) for _ in range(8)]
    waiting = in_thread(pending.result, PATIENCE_SECONDS)
    await asyncio.sleep(0)
    in_thread(pending.complete, 8).result(PATIENCE_SECONDS)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await asyncio.gather(*tasks) == [8] * 8
    assert waiting.result(PATIENCE_SECONDS) == 8


async def test_a_cancelled_task_leaves_the_value_to_others_and_keeps_nothing() -> None:
    pending: Pending[int] = Pending()

    async def wait() -> int:
        return await pending

    cancelled, other = asyncio.create_task(wait()), asyncio.create_task(wait())
    await asyncio.sleep(0)
    assert len(pending._wakers) == 2
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert len(pending._wakers) == 1
    pending.complete(9)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await other == 9


async def test_a_task_that_is_cancelled_as_the_value_arrives_is_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pending: Pending[int] = Pending()

    async def wait() -> int:
        return await pending

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    pending.complete(1)  # wakes the task in the next turn of the loop
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await pending == 1
    assert not caplog.records


def test_two_event_loops_wait_for_one_value() -> None:
    source = RecordingSource()
    pending: Pending[int] = Pending(source)

    async def wait() -> int:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await pending

    waiting = [in_thread(asyncio.run, wait()) for _ in range(2)]
    for _ in waiting:
        assert source.attended.acquire(timeout=PATIENCE_SECONDS)
    pending.complete(2)
    assert [one.result(PATIENCE_SECONDS) for one in waiting] == [2, 2]


def test_a_value_that_arrives_after_its_event_loop_was_closed_disturbs_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pending: Pending[int] = Pending()
    loop = asyncio.new_event_loop()
    awaiting = pending.__await__()

    async def begin() -> None:
        next(awaiting)

    loop.run_until_complete(begin())
    loop.close()
    got: list[int] = []
    pending.on_done(lambda done: got.append(done.result()))
    pending.complete(3)
    assert got == [3]
    assert not caplog.records
    awaiting.close()
