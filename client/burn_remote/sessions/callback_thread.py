"""A thread that calls a program's callbacks, separate from the threads that receive."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

from burn_remote.runner.pending import Pending

__all__ = ["CallbackThread"]

Callback = Callable[[Pending[Any]], object]
Calls = queue.SimpleQueue[tuple[Callback, Pending[Any]] | None]

_logger: Final = logging.getLogger("burn_remote")


class CallbackThread:
    """Calls callbacks one at a time, in the order in which their values arrived.

    A callback may wait for other values, close the device, or block: values continue to arrive
    meanwhile. The thread starts with the first callback.
    """

    def __init__(self) -> None:
        self._calls: Final[Calls] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._is_started = False
        # The first thread that takes the element makes the calls. An interrupt of a start may have
        # come before or after the thread began, so there may be a second thread.
        self._unclaimed: Final = [True]
        self._is_closed = False

    def deferred(self, callback: Callback) -> Callback:
        """Return a function that never blocks: it queues ``callback`` for the thread."""
        with self._starting:
            if not self._is_started:
                threading.Thread(
                    target=_call_until_closed,
                    args=(self._calls, self._unclaimed),
                    name="burn-remote-callbacks",
                    daemon=True,
                ).start()
                self._is_started = True

        def defer(pending: Pending[Any]) -> None:
            self._calls.put((callback, pending))
            if self._is_closed:  # the thread may have ended before it came to this call
                _call_remaining(self._calls)

        return defer

    def close(self) -> None:
        """End the thread once it has made all queued calls. Does not wait."""
        self._is_closed = True
        self._calls.put(None)


def _call_until_closed(calls: Calls, unclaimed: list[bool]) -> None:
    try:
        unclaimed.pop()
    except IndexError:  # another thread makes the calls
        return
    while (call := calls.get()) is not None:
        # SystemExit and CancelledError must not end the thread, because callbacks that are queued
        # behind this one wait for it.
        _call(call, BaseException)
        call = None  # frees the elements while the thread waits


def _call_remaining(calls: Calls) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            call = calls.get_nowait()
            if call is not None:
                _call(call, Exception)
    calls.put(None)  # this loop may have removed the end mark before the thread saw it


def _call(call: tuple[Callback, Pending[Any]], caught: type[BaseException]) -> None:
    callback, pending = call
    try:
        callback(pending)
    except caught:
        _logger.exception("a callback of %r raised", pending)
