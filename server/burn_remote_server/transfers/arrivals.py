"""Which fetches have begun and not ended, and what becomes of a session's when that ends?

Whoever needs a tensor that is on its way waits for its slot without a bound of its own. So every
slot is settled here, whatever becomes of its fetch: it succeeds, fails, breaks, or is cancelled
before it took a step; its session ends while it runs or before it begins; the event loop is gone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from burn_remote_protocol.errors import TransferFailed
from burn_remote_server.execution.slots import InFlight
from burn_remote_server.telemetry.logs import get_logger
from burn_remote_server.transfers.turns import TurnQueue

__all__ = ["Arrivals"]

logger = get_logger(__name__)

# Fetches started or cancelled in one turn of the event loop, about 3 ms: a session may have 16,384.
STARTED_AT_ONCE: Final = 64


class Arrivals:
    """The fetches of all sessions of a process. Belongs to the event loop's thread."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks: Final = tasks
        self._loop: Final = asyncio.get_running_loop()
        self._turns: Final = TurnQueue(self._loop, STARTED_AT_ONCE)
        # Sessions' threads begin fetches; nothing may be added once its session has ended.
        self._lock: Final = threading.Lock()
        self._begun: Final[dict[object, dict[InFlight, asyncio.Task[None] | None]]] = {}

    def open(self, owner: object) -> None:
        """Let a session begin fetches."""
        with self._lock:
            self._begun[owner] = {}

    def begin(
        self, owner: object, slot: InFlight, fetch: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Run what fetches a tensor into ``slot``, while its session lasts. Any thread."""
        with self._lock:
            slots = self._begun.get(owner)
            if slots is not None:
                slots[slot] = None
        if slots is None:
            slot.fail(_session_ended())
            return
        try:
            self._turns.add(partial(self._start, owner, slot, fetch))
        except RuntimeError:  # the loop has closed
            slot.fail(_session_ended())

    def end(self, owner: object) -> None:
        """Cancel what a session fetches: it has ended, and nobody wants that any more."""
        with self._lock:
            slots = self._begun.pop(owner, {})
        for slot, running in slots.items():
            # Before the task has heard: the session's thread may wait for this to free the rest.
            slot.fail(_session_ended())
            if running is not None:
                self._turns.add(running.cancel)

    def close(self) -> None:
        """Cancel what all sessions fetch."""
        for owner in [*self._begun]:
            self.end(owner)

    def _start(
        self, owner: object, slot: InFlight, fetch: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        slots = self._begun.get(owner)
        if slots is None:
            return  # settled when its session ended
        coroutine = _logged(fetch, slot)
        try:
            running = self._tasks.create_task(coroutine)
        except RuntimeError:  # the group has ended: the server stops
            coroutine.close()
            self._forget(owner, slot)
            return
        with self._lock:
            slots[slot] = running
        # Not by the task itself: one that is cancelled before its first step runs none of its code.
        running.add_done_callback(partial(self._forget, owner, slot))

    def _forget(self, owner: object, slot: InFlight, _: object = None) -> None:
        slot.fail(_session_ended())  # nothing where it was settled, as almost always
        with self._lock:
            self._begun.get(owner, {}).pop(slot, None)


def _session_ended() -> TransferFailed:
    return TransferFailed("the session ended before the tensor arrived")


async def _logged(fetch: Callable[[], Coroutine[Any, Any, None]], slot: InFlight) -> None:
    """Run a fetch to its end, whatever that is: one that breaks must not take the server along."""
    try:
        await fetch()
    except Exception as error:  # a defect of ours: the tensor fails, the server lives on
        logger.exception("fetch broke")
        slot.fail(TransferFailed(f"the server failed: {type(error).__name__}: {error}"))
