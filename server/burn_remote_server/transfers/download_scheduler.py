"""The scheduler of all downloads of a process.

An operation waits without a time limit for a tensor that is being downloaded. So this module must
complete the slot of every tensor: if the download succeeds, fails or raises, if it is cancelled
before its first step, if its session ends before or during the download, and if the event loop has
closed.

A session runs ``RUNNING_AT_ONCE`` downloads at a time, in the order in which it began them. That
cannot deadlock a program: a tensor depends only on downloads that the program began before it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from burn_remote_protocol.errors import TransferFailed
from burn_remote_server.telemetry.logs import get_logger
from burn_remote_server.tensors.slots import InFlight
from burn_remote_server.transfers.event_loop_queues import BatchedCalls, CallQueue

__all__ = ["RUNNING_AT_ONCE", "DownloadScheduler"]

logger = get_logger(__name__)

# Downloads of one session that run at once. A session may begin 16,384, and a running download has
# a task with some 20 objects. When a peer ends, the tasks of all its downloads run in one iteration
# of the event loop, about 30 µs each.
RUNNING_AT_ONCE: Final = 64
# Downloads started in one iteration of the event loop, about 3 ms.
STARTED_AT_ONCE: Final = 64
# Slots of an ended session that fail in one iteration of the event loop, about 1 ms.
FAILED_AT_ONCE: Final = 128


class _Download(NamedTuple):
    slot: InFlight
    fetch: Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class _Session:
    """A session's downloads."""

    waiting: deque[_Download] = field(default_factory=deque)
    # The value is None until the download's task has been created.
    running: dict[InFlight, asyncio.Task[None] | None] = field(default_factory=dict)


class DownloadScheduler:
    """The downloads of all sessions of a process.

    ``begin`` is thread-safe; the other methods belong to the event loop's thread.
    """

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks: Final = tasks
        loop = asyncio.get_running_loop()
        self._starts: Final = CallQueue(loop, STARTED_AT_ONCE)
        self._failures: Final = BatchedCalls(loop, FAILED_AT_ONCE)
        # Session threads begin downloads; none may be added after its session has ended.
        self._lock: Final = threading.Lock()
        self._sessions: Final[dict[object, _Session]] = {}

    def open(self, owner: object) -> None:
        """Allow a session to begin downloads."""
        with self._lock:
            self._sessions[owner] = _Session()

    def begin(
        self, owner: object, slot: InFlight, fetch: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Run ``fetch``, which completes ``slot``, unless the session ends first."""
        with self._lock:
            session = self._sessions.get(owner)
            if session is not None:
                session.waiting.append(_Download(slot, fetch))
        if session is None:
            slot.fail(_session_ended())
        else:
            self._start_waiting(owner, session)

    def end(self, owner: object) -> None:
        """Cancel the downloads of a session that has ended."""
        with self._lock:
            session = self._sessions.pop(owner, None)
        if session is None:
            return
        for slot, running in session.running.items():
            # Before the task is cancelled: the session's thread may be waiting for this slot.
            slot.fail(_session_ended())
            if running is not None:
                running.cancel()
        self._failures.call(_fail, session.waiting)

    def close(self) -> None:
        """Cancel the downloads of all sessions immediately."""
        for owner in [*self._sessions]:
            self.end(owner)
        self._failures.finish()

    def _start_waiting(self, owner: object, session: _Session) -> None:
        """Start the next downloads of a session, up to ``RUNNING_AT_ONCE``. Thread-safe."""
        while True:
            with self._lock:
                if not session.waiting or len(session.running) >= RUNNING_AT_ONCE:
                    return
                if self._sessions.get(owner) is not session:
                    return  # ``end`` completes the slots
                download = session.waiting.popleft()
                session.running[download.slot] = None
            try:
                self._starts.add(partial(self._start, owner, session, download))
            except RuntimeError:  # the loop has closed
                download.slot.fail(_session_ended())

    def _start(self, owner: object, session: _Session, download: _Download) -> None:
        if self._sessions.get(owner) is not session:
            return  # completed when its session ended
        coroutine = _logged(download)
        try:
            task = self._tasks.create_task(coroutine)
        except RuntimeError:  # the task group has ended, because the server stops
            coroutine.close()
            self._forget(owner, session, download.slot)
            return
        session.running[download.slot] = task
        # A callback, because a task that is cancelled before its first step runs none of its code.
        task.add_done_callback(partial(self._forget, owner, session, download.slot))

    def _forget(self, owner: object, session: _Session, slot: InFlight, _: object = None) -> None:
        slot.fail(_session_ended())  # no effect if the slot is completed, the usual case
        with self._lock:
            session.running.pop(slot, None)
        self._start_waiting(owner, session)


def _fail(download: _Download) -> None:
    download.slot.fail(_session_ended())


def _session_ended() -> TransferFailed:
    return TransferFailed("the session ended before the tensor arrived")


async def _logged(download: _Download) -> None:
    """Run a download; after an unexpected exception only its tensor fails."""
    try:
        await download.fetch()
    except Exception as error:  # a defect: whoever waits for the tensor needs its failure
        logger.exception("fetch failed unexpectedly")
        download.slot.fail(TransferFailed(f"the server failed: {type(error).__name__}: {error}"))
