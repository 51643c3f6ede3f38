"""Calls and events of an event loop are not lost when an allocation fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from burn_remote_protocol.loop_calls import (
    LoopCall,
    Recoverable,
    Signal,
    TurnLock,
    recover,
    register,
)
from support.waiting import PATIENCE_SECONDS


class Failing:
    """Makes the next calls of a method of an object raise ``MemoryError``."""

    def __init__(self, method: Callable[..., Any], failures: int = 1) -> None:
        self._method = method
        self.failures = failures

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise MemoryError
        return self._method(*arguments, **options)


def fail_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_soon", Failing(loop.call_soon))


async def test_a_call_is_made_once_however_often_it_is_requested() -> None:
    calls: list[int] = []
    call = LoopCall(lambda: calls.append(1), lambda: True)
    call.request()
    call.request()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert calls == [1]


async def test_a_request_that_failed_is_made_again_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    call = LoopCall(lambda: calls.append(1), lambda: True)
    with monkeypatch.context() as patched:
        fail_next_call(patched)
        with pytest.raises(MemoryError):
            call.request()
    call.request()
    await asyncio.sleep(0)
    assert calls == [1]


async def test_a_lost_call_that_is_needed_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    calls: list[int] = []
    call = LoopCall(lambda: calls.append(1), lambda: not calls)
    with monkeypatch.context() as patched:
        patched.setattr(loop, "call_soon", lambda *_: None)  # the loop loses it
        call.request()
    for _ in range(4):
        recover(loop)
        await asyncio.sleep(0)
    assert calls == [1]


async def test_one_that_cannot_recover_keeps_no_other_from_it() -> None:
    recovered: list[str] = []

    class Broken:
        def recover(self) -> None:
            recovered.append("broken")
            raise MemoryError

    class Whole:
        def recover(self) -> None:
            recovered.append("whole")

    objects: list[Recoverable] = [Broken(), Whole(), Broken()]
    for each in objects:
        register(each)
    recover(asyncio.get_running_loop())
    assert sorted(recovered) == ["broken", "broken", "whole"]


async def test_setting_a_signal_again_wakes_a_task_that_the_first_call_did_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signal = Signal()
    waiting = asyncio.ensure_future(signal.wait())
    await asyncio.sleep(0)
    (waiter,) = signal._waiters

    class Unwilling:
        def done(self) -> bool:
            return False

        def set_result(self, result: None) -> None:
            raise MemoryError

    signal._waiters[0] = Unwilling()  # type: ignore[call-overload]
    with pytest.raises(MemoryError):
        signal.set()
    signal._waiters[0] = waiter
    signal.set()
    await asyncio.wait_for(waiting, PATIENCE_SECONDS)


async def test_a_lock_whose_holder_failed_to_wake_the_next_task_goes_on() -> None:
    lock = TurnLock()
    await lock.acquire()
    order: list[int] = []

    async def use(number: int) -> None:
        await lock.acquire()
        order.append(number)
        lock.release()

    tasks = [asyncio.ensure_future(use(number)) for number in range(3)]
    await asyncio.sleep(0)
    # The wake-up of the first task is lost, and the task is ended for that.
    callbacks = [callback for callback, _ in lock._waiters[0]._callbacks]
    for callback in callbacks:
        lock._waiters[0].remove_done_callback(callback)
    lock.release()
    await asyncio.sleep(0)
    coroutine: Any = tasks[0].get_coro()
    with pytest.raises(ValueError, match="lost"):
        coroutine.throw(ValueError("lost"))
    await asyncio.wait_for(asyncio.gather(*tasks[1:]), PATIENCE_SECONDS)
    assert order == [1, 2]
    asyncio.Future.set_result(tasks[0], None)


async def test_a_cancelled_task_leaves_the_lock_to_the_next() -> None:
    lock = TurnLock()
    await lock.acquire()
    tasks = [asyncio.ensure_future(lock.acquire()) for _ in range(2)]
    await asyncio.sleep(0)
    lock.release()  # given to the first task, which is cancelled before it runs
    tasks[0].cancel()
    await asyncio.wait_for(tasks[1], PATIENCE_SECONDS)
    assert tasks[0].cancelled()
