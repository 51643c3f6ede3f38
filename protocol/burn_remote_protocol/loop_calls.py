"""Calls and events of an event loop that a lack of memory cannot lose.

``loop.call_soon`` and ``Future.set_result`` allocate memory. If an allocation fails, code that
notes that a call is scheduled would never schedule it again, and whoever waits for the call would
wait forever. Whoever runs a loop calls ``recover`` each second, which repeats such calls.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import weakref
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["LoopCall", "Recoverable", "Signal", "TurnLock", "recover", "register"]

_logger: Final = logging.getLogger("burn_remote_protocol.loop_calls")


class Recoverable(Protocol):
    """An object that can detect and repeat lost callbacks of its event loop."""

    def recover(self) -> None:
        """Repeat what was lost. Called on the event loop, each second."""
        ...


# By event loop, because a process may run several, each in its own thread.
_registered: Final[
    weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakSet[Recoverable]]
] = weakref.WeakKeyDictionary()


def register(recoverable: Recoverable) -> None:
    """Let ``recover`` call an object of the running loop, as long as the object is alive."""
    loop = asyncio.get_running_loop()
    _registered.setdefault(loop, weakref.WeakSet()).add(recoverable)


def recover(loop: asyncio.AbstractEventLoop) -> None:
    """Repeat the callbacks that the running loop has lost."""
    for each in [*_registered.get(loop, ())]:
        try:
            each.recover()
        except Exception:  # the others must recover too
            _logger.exception("callbacks of the event loop not repeated")


class LoopCall:
    """A call in the next iteration of an event loop, however often it is requested until then.

    ``is_needed`` returns whether the call has work to do. Belongs to the event loop's thread, but
    may be created without a running loop.
    """

    def __init__(self, call: Callable[[], None], is_needed: Callable[[], bool]) -> None:
        self._call: Final = call
        self._is_needed: Final = is_needed
        self._is_requested = False
        self._requests = 0
        self._requests_seen = -1
        self._is_registered = asyncio._get_running_loop() is not None
        if self._is_registered:
            register(self)

    def request(self) -> None:
        """Make the call in the next iteration."""
        if not self._is_requested:
            self._schedule()

    def recover(self) -> None:
        """Request the call again if an earlier request was lost, and if the call is needed."""
        # A scheduled call would have been made since the last check.
        is_lost = self._is_requested and self._requests == self._requests_seen
        if is_lost or not self._is_requested:
            self._is_requested = False
            if self._is_needed():
                self._schedule()
        self._requests_seen = self._requests

    def _schedule(self) -> None:
        if not self._is_registered:
            register(self)
            self._is_registered = True
        asyncio.get_running_loop().call_soon(self._run)
        self._is_requested = True  # after the allocation, which may fail
        self._requests += 1

    def _run(self) -> None:
        self._is_requested = False
        self._call()


class Signal:
    """An event like ``asyncio.Event``, whose ``set`` can be repeated if it raised ``MemoryError``.

    ``asyncio.Event.set`` does nothing if an earlier call has failed after its first step.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: Final[list[asyncio.Future[None]]] = []

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._is_set

    def clear(self) -> None:
        """Reset the event."""
        self._is_set = False

    def set(self) -> None:
        """Set the event, and wake all tasks that wait for it."""
        self._is_set = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until the event is set."""
        if self._is_set:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)


class TurnLock:
    """A lock like ``asyncio.Lock``, which goes on to the next task if it failed to wake one.

    After a ``MemoryError`` in ``asyncio.Lock.release``, all tasks would wait forever.
    """

    def __init__(self) -> None:
        self._is_locked = False
        self._waiters: Final[collections.deque[asyncio.Future[None]]] = collections.deque()
        self._granting: Final = LoopCall(
            self._grant, lambda: not self._is_locked and bool(self._waiters)
        )

    async def acquire(self) -> None:
        """Wait until all earlier tasks have released the lock, and lock it."""
        if not self._is_locked and not self._waiters:
            self._is_locked = True
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.cancelled():  # the lock was given to this task
                self.release()
            raise

    def release(self) -> None:
        """Unlock the lock, and give it to the task that has waited for longest."""
        self._is_locked = False
        self._grant()

    def _grant(self) -> None:
        while self._waiters and not self._is_locked:
            waiter = self._waiters.popleft()
            if not waiter.done():
                # First, because the task releases the lock when it is found to be lost.
                self._is_locked = True
                waiter.set_result(None)
