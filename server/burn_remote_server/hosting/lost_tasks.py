"""The search for tasks of the event loop that nothing will ever continue.

``asyncio`` continues a task by a callback. If no memory is left for that callback, it reports a
``MemoryError`` and forgets the task: the task never runs again, and cancelling it has no effect. A
session, or the end of the server, would wait for it forever. A lost task is recognized by its
state: what it waits for is done, or it waits for nothing, and it makes no progress while the event
loop runs all callbacks that were scheduled before. The futures that ``gather``, ``wait`` and
``TaskGroup`` await are found in the objects of ``asyncio``.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Generator, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from burn_remote_protocol.errors import SessionLost
from burn_remote_server.telemetry.logs import get_logger
from burn_remote_server.transfers.event_loop_queues import BatchedCalls

__all__ = ["LostTasks"]

logger = get_logger(__name__)

# Tasks examined in one iteration of the event loop, at about 2 µs each.
EXAMINED_AT_ONCE: Final = 256

_REASON: Final = (
    "the server ended this work, because it lacked memory to continue a task of its event loop"
)

_Task = asyncio.Task[Any]

# Where asyncio.wait and TaskGroup wait for others.
_WAIT: Final[types.CodeType | None] = getattr(
    getattr(asyncio.tasks, "_wait", None), "__code__", None
)
_WAITING: Final = {
    code
    for code in (
        _WAIT,
        *(
            getattr(getattr(asyncio.TaskGroup, name, None), "__code__", None)
            for name in ("__aexit__", "_aexit")
        ),
    )
    if code is not None
}


class _Place(NamedTuple):
    """Where a task is suspended: the future that it awaits, if any, and the innermost awaitable.

    Each ``await`` has a new awaitable, so equal places mean that the task did not run.
    """

    waiter: asyncio.Future[Any] | None
    innermost: object


class LostTasks:
    """Finds the lost tasks of the running event loop, and ends each by raising ``SessionLost``.

    ``examine`` has to be called regularly, on the event loop.
    """

    def __init__(self) -> None:
        self._loop: Final = asyncio.get_running_loop()
        # Tasks that run the rest of lost ones, which release what these hold.
        self._endings: Final[dict[_Task, _Task]] = {}
        self._examined: Final[BatchedCalls] = BatchedCalls(self._loop, EXAMINED_AT_ONCE)

    def examine(self) -> None:
        """Look for tasks that seem lost; end those that still seem lost two iterations later."""
        for task in [task for task in self._endings if task.done()]:
            del self._endings[task]
        self._examined.call(self._look, asyncio.all_tasks(self._loop))

    def _look(self, task: _Task) -> None:
        if task.done() or task in self._endings:
            return
        place = _stuck_place(task)
        if place is not None:
            # In the next iteration, callbacks run that were scheduled before this call.
            self._loop.call_soon(self._loop.call_soon, self._confirm, task, place)

    def _confirm(self, task: _Task, place: _Place) -> None:
        # A busy loop may run two examinations in one iteration, which both find the task.
        now = None if task.done() or task in self._endings else _stuck_place(task)
        if now is not None and all(a is b for a, b in zip(now, place, strict=True)):
            self._end(task)

    def _end(self, task: _Task) -> None:
        coroutine: Any = task.get_coro()
        ending = self._loop.create_task(_raised(coroutine, SessionLost(_REASON)))
        self._endings[task] = ending
        ending.add_done_callback(partial(_settle, task))
        logger.error("task lost", task=getattr(coroutine, "__qualname__", repr(coroutine)))


def _stuck_place(task: _Task) -> _Place | None:
    """Return the place of a task that must be about to continue, or is lost."""
    waiter: asyncio.Future[Any] | None = getattr(task, "_fut_waiter", None)
    found: object = task.get_coro()
    frame: types.FrameType | None = None
    while (inner := _awaited(found)) is not None:
        frame = getattr(found, "cr_frame", None)
        found = inner
    if waiter is None or waiter.done() or _is_forgotten(waiter, frame):
        return _Place(waiter, found)
    return None


def _is_forgotten(waiter: asyncio.Future[Any], frame: types.FrameType | None) -> bool:
    """Return whether nobody will complete a future that ``asyncio`` made to await others.

    ``frame`` is that of the coroutine that awaits it.
    """
    children: Iterable[asyncio.Future[Any]] | None = getattr(waiter, "_children", None)
    if children is not None:
        return all(child.done() for child in children)
    code = None if frame is None else frame.f_code
    if frame is None or code not in _WAITING:
        return False
    names = frame.f_locals
    if code is _WAIT:
        dones = [one.done() for one in names["fs"]]
        is_first = names["return_when"] == asyncio.FIRST_COMPLETED
        return any(dones) if is_first else all(dones)
    group = names["self"]
    return waiter is group._on_completed_fut and all(one.done() for one in group._tasks)


def _awaited(awaitable: object) -> object | None:
    for name in ("cr_await", "gi_yieldfrom", "ag_await"):
        found: object | None = getattr(awaitable, name, None)
        if found is not None:
            return found
    if getattr(awaitable, "gi_code", None) is _rest.__code__:
        frame: types.FrameType | None = getattr(awaitable, "gi_frame", None)
        # It drives the rest of a lost task, and is the same object whatever that awaits.
        return None if frame is None else frame.f_locals["coroutine"]
    return None


async def _raised(coroutine: Any, error: Exception) -> Any:
    return await _rest(coroutine, error)


@types.coroutine
def _rest(coroutine: Any, error: BaseException) -> Generator[Any, Any, Any]:
    """Raise an error in a suspended coroutine, and run the rest of it."""
    try:
        awaited = coroutine.throw(error)
        while True:
            try:
                sent = yield awaited
            except BaseException as raised:  # passed on to the coroutine
                awaited = coroutine.throw(raised)
            else:
                awaited = coroutine.send(sent)
    except StopIteration as ended:
        return ended.value


def _settle(task: _Task, ending: _Task) -> None:
    """Complete a lost task, for those who wait for it, with the outcome of its rest."""
    if task.done():
        return
    future: Any = asyncio.Future  # a task refuses these methods of its base class
    if ending.cancelled():
        future.cancel(task)
    elif (error := ending.exception()) is not None:
        future.set_exception(task, error)
    else:
        future.set_result(task, ending.result())
