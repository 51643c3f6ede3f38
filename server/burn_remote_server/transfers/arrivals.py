"""The fetches of all sessions of a process, from begin to end.

Whoever needs a tensor that is being fetched waits for its slot without a time limit. So every slot
is settled here, whatever becomes of its fetch: it succeeds, fails, breaks, or is cancelled before
its first step; its session ends while it runs or before it begins; the event loop has closed.

A session runs ``RUNNING_AT_ONCE`` downloads at a time, in the order in which it began them. That
cannot deadlock a program: a tensor's source needs at most what the program asked for before it.
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
from burn_remote_server.execution.slots import InFlight
from burn_remote_server.telemetry.logs import get_logger
from burn_remote_server.transfers.turns import Slices, TurnQueue

__all__ = ["RUNNING_AT_ONCE", "Arrivals"]

logger = get_logger(__name__)

# Downloads of one session that run at once. A session may have 16,384, and one that runs takes a
# task with some 20 objects; when a peer dies, all tasks that wait for it continue in one turn of
# the event loop, which takes about 30 µs for each.
RUNNING_AT_ONCE: Final = 64
# Downloads started in one turn of the event loop, about 3 ms.
STARTED_AT_ONCE: Final = 64
# Slots of an ended session that fail in one turn of the event loop, about 1 ms.
FAILED_AT_ONCE: Final = 128


class _Download(NamedTuple):
    slot: InFlight
    fetch: Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class _Session:
    """A session's downloads."""

    waiting: deque[_Download] = field(default_factory=deque)
    # Without a task between the decision to start it and its start.
    running: dict[InFlight, asyncio.Task[None] | None] = field(default_factory=dict)


class Arrivals:
    """The downloads of all sessions of a process. Belongs to the event loop's thread."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks: Final = tasks
        loop = asyncio.get_running_loop()
        self._turns: Final = TurnQueue(loop, STARTED_AT_ONCE)
        self._slices: Final = Slices(loop, FAILED_AT_ONCE)
        # Sessions' threads begin downloads; nothing may be added once its session has ended.
        self._lock: Final = threading.Lock()
        self._sessions: Final[dict[object, _Session]] = {}

    def open(self, owner: object) -> None:
        """Let a session begin downloads."""
        with self._lock:
            self._sessions[owner] = _Session()

    def begin(
        self, owner: object, slot: InFlight, fetch: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Run what downloads a tensor into ``slot``, while its session lasts. Any thread."""
        with self._lock:
            session = self._sessions.get(owner)
            if session is not None:
                session.waiting.append(_Download(slot, fetch))
        if session is None:
            slot.fail(_session_ended())
        else:
            self._start_waiting(owner, session)

    def end(self, owner: object) -> None:
        """Cancel what a session downloads: it has ended."""
        with self._lock:
            session = self._sessions.pop(owner, None)
        if session is None:
            return
        for slot, running in session.running.items():
            # Before the task has heard: the session's thread may wait for this to free the rest.
            slot.fail(_session_ended())
            if running is not None:
                running.cancel()
        self._slices.call(_fail, session.waiting)

    def close(self) -> None:
        """Cancel what all sessions download, at once."""
        for owner in [*self._sessions]:
            self.end(owner)
        self._slices.finish()

    def _start_waiting(self, owner: object, session: _Session) -> None:
        """Start the next downloads of a session if fewer run than may. Any thread."""
        while True:
            with self._lock:
                if not session.waiting or len(session.running) >= RUNNING_AT_ONCE:
                    return
                if self._sessions.get(owner) is not session:
                    return  # its end settles them
                download = session.waiting.popleft()
                session.running[download.slot] = None
            try:
                self._turns.add(partial(self._start, owner, session, download))
            except RuntimeError:  # the loop has closed
                download.slot.fail(_session_ended())

    def _start(self, owner: object, session: _Session, download: _Download) -> None:
        if self._sessions.get(owner) is not session:
            return  # settled when its session ended
        coroutine = _logged(download)
        try:
            task = self._tasks.create_task(coroutine)
        except RuntimeError:  # the group has ended: the server stops
            coroutine.close()
            self._forget(owner, session, download.slot)
            return
        session.running[download.slot] = task
        # Not by the task itself: one that is cancelled before its first step runs none of its code.
        task.add_done_callback(partial(self._forget, owner, session, download.slot))

    def _forget(self, owner: object, session: _Session, slot: InFlight, _: object = None) -> None:
        slot.fail(_session_ended())  # nothing where it was settled, as almost always
        with self._lock:
            session.running.pop(slot, None)
        self._start_waiting(owner, session)


def _fail(download: _Download) -> None:
    download.slot.fail(_session_ended())


def _session_ended() -> TransferFailed:
    return TransferFailed("the session ended before the tensor arrived")


async def _logged(download: _Download) -> None:
    """Run a download to its end. A defect of ours fails the tensor, and the server continues."""
    try:
        await download.fetch()
    except Exception as error:
        logger.exception("fetch broke")
        download.slot.fail(TransferFailed(f"the server failed: {type(error).__name__}: {error}"))
