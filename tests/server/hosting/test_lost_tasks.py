"""Tasks whose wake-ups were lost end with an error, and so do those who wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from burn_remote_protocol.errors import SessionLost
from burn_remote_server.hosting.lost_tasks import LostTasks
from support.waiting import PATIENCE_SECONDS

Work = Callable[[asyncio.Future[None]], Coroutine[Any, Any, object]]


def lose_callbacks(future: asyncio.Future[Any]) -> None:
    """Remove the callbacks of a future, as a failed allocation does."""
    for callback, _ in future._callbacks or ():
        future.remove_done_callback(callback)


async def examine(lost: LostTasks, times: int = 1) -> None:
    for _ in range(times):
        lost.examine()
        for _ in range(6):
            await asyncio.sleep(0)


async def test_a_lost_task_ends_after_its_cleanup() -> None:
    lost, waited = LostTasks(), asyncio.get_running_loop().create_future()
    done: list[str] = []

    async def work() -> None:
        try:
            await waited
        finally:
            await asyncio.sleep(0)
            done.append("cleaned up")

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    lose_callbacks(waited)
    waited.set_result(None)
    await examine(lost)
    with pytest.raises(SessionLost, match="lacked memory"):
        await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert done == ["cleaned up"]


async def test_the_cleanup_of_a_lost_task_is_left_alone_while_it_runs() -> None:
    lost, waited = LostTasks(), asyncio.get_running_loop().create_future()
    done: list[int] = []

    async def work() -> None:
        try:
            await waited
        finally:
            for number in range(20):
                await asyncio.sleep(0)
                done.append(number)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    lose_callbacks(waited)
    waited.set_result(None)
    await examine(lost, 5)
    with pytest.raises(SessionLost):
        await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert done == [*range(20)]


async def test_a_cancelled_task_that_was_lost_ends() -> None:
    lost, waited = LostTasks(), asyncio.get_running_loop().create_future()

    async def work() -> None:
        await waited

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    lose_callbacks(waited)
    waited.set_result(None)
    task.cancel()
    await examine(lost)
    with pytest.raises(SessionLost):
        await asyncio.wait_for(task, PATIENCE_SECONDS)


async def test_a_lost_task_that_two_examinations_find_at_once_ends_once() -> None:
    lost, waited = LostTasks(), asyncio.get_running_loop().create_future()
    errors: list[SessionLost] = []

    async def work() -> None:
        try:
            await waited
        except SessionLost as error:
            errors.append(error)
            await asyncio.sleep(0)
            raise

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    lose_callbacks(waited)
    waited.set_result(None)
    # The iterations in which the calls of two queued examinations run.
    lost._look(task)
    lost._look(task)
    for _ in range(6):
        await asyncio.sleep(0)
    with pytest.raises(SessionLost) as ended:
        await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert errors == [ended.value]


async def grouped(child: asyncio.Future[None]) -> None:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(_wait_for(child))
        tasks.create_task(_lose_later(task))


async def waiting(child: asyncio.Future[None]) -> None:
    task = asyncio.create_task(_wait_for(child))
    losing = asyncio.create_task(_lose_later(task))
    await asyncio.wait((task,))
    await losing


async def gathered(child: asyncio.Future[None]) -> None:
    task = asyncio.create_task(_wait_for(child))
    losing = asyncio.create_task(_lose_later(task))
    await asyncio.gather(task)
    await losing


async def _wait_for(child: asyncio.Future[None]) -> None:
    await child


async def _lose_later(task: asyncio.Task[None]) -> None:
    await asyncio.sleep(0)
    lose_callbacks(task)


@pytest.mark.parametrize("work", [grouped, waiting, gathered])
async def test_a_task_that_was_not_told_of_the_end_of_others_ends(work: Work) -> None:
    lost, child = LostTasks(), asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(work(child))
    for _ in range(4):
        await asyncio.sleep(0)
    await examine(lost)
    assert not task.done()
    child.set_result(None)
    for _ in range(4):
        await asyncio.sleep(0)
    assert not task.done()  # it waits forever
    await examine(lost)
    with pytest.raises(SessionLost):
        await asyncio.wait_for(task, PATIENCE_SECONDS)


async def test_tasks_that_run_or_wait_are_left_alone() -> None:
    lost, waited = LostTasks(), asyncio.get_running_loop().create_future()

    async def spin() -> None:
        while True:  # noqa: ASYNC110 - a task that always runs
            await asyncio.sleep(0)

    async def wait() -> None:
        await waited

    tasks = [asyncio.create_task(spin()), asyncio.create_task(wait())]
    await examine(lost, 20)
    assert not any(task.done() for task in tasks)
    waited.set_result(None)
    await asyncio.wait_for(tasks[1], PATIENCE_SECONDS)
    tasks[0].cancel()
