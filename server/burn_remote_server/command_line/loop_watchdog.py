"""The thread that has the event loop recover lost callbacks, and ends a server that hangs.

A failed allocation can lose any callback of an event loop, also the one that handles a signal, and
the timers that would look for lost ones. So a thread asks the loop each second to examine itself.
After SIGTERM or SIGINT, the thread repeats the request to drain, and ends the process if the server
does not stop in time.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from burn_remote_protocol.bounded_threads import BoundedThread
from burn_remote_protocol.latches import Latch
from burn_remote_server.telemetry.logs import get_logger

__all__ = ["GRACE_SECONDS", "TOO_LATE_EXIT_CODE", "LoopWatchdog"]

logger = get_logger(__name__)

# How often the event loop examines itself.
EXAMINE_EVERY_SECONDS: Final = 1.0

# How much longer than ``drain_seconds`` the end of a server may take. Clients that do not read
# delay it: notices take 1 s, and the end of a connection twice CLOSE_TIMEOUT_SECONDS.
GRACE_SECONDS: Final = 15.0

# A wait counts as at most this many intervals. It may take longer than one, because the thread
# continues late on a busy machine.
LONGEST_WAITS: Final = 5

TOO_LATE_EXIT_CODE: Final = 1


class LoopWatchdog:
    """Calls ``examine``, which recovers lost callbacks, on the loop each second.

    Once ``begin_stop`` was called, also calls ``drain`` on the loop each second. ``stop_seconds``
    later, not counting the time for which the process was suspended, it calls ``exit_now`` in its
    thread, unless ``end`` was called before.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        examine: Callable[[], None],
        drain: Callable[[], None],
        stop_seconds: float,
        exit_now: Callable[[int], object],
        *,
        every_seconds: float = EXAMINE_EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop: Final = loop
        self._examine: Final = examine
        self._drain: Final = drain
        self._stop_seconds: Final = stop_seconds
        self._exit_now: Final = exit_now
        self._every_seconds: Final = every_seconds
        self._clock: Final = clock
        self._ends: Final = Latch()
        self._is_stopping = False
        # Numbers of examinations: of the last one that the thread has asked for, and of the last
        # one before the loop examined itself.
        self._asked = 0
        self._examined = 0

    def start(self) -> None:
        """Start the thread; a server whose system has no thread for it goes on without."""
        try:
            BoundedThread(target=self._watch, name="loop-watchdog").start()
        except (RuntimeError, MemoryError) as error:
            logger.warning("event loop not watched", reason=str(error))

    def end(self) -> None:
        """End the thread, because the event loop has ended."""
        self._ends.set()

    def begin_stop(self) -> None:
        """Note that the server shall end. Allocates nothing, so a signal handler may call it."""
        self._is_stopping = True

    def watch_signals(self) -> None:
        """Call ``begin_stop`` at SIGTERM and SIGINT too, before the event loop handles them."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            self._watch_signal(number)

    def _watch_signal(self, number: signal.Signals) -> None:
        of_loop = signal.getsignal(number)

        def handle(number: int, frame: FrameType | None) -> None:
            self.begin_stop()
            if callable(of_loop):
                of_loop(number, frame)

        signal.signal(number, handle)

    def _examine_once(self, number: int) -> None:
        """Examine the loop, unless it has just done so for a later request.

        A loop that was blocked for some seconds runs the requests of all of them at once, and what
        it finds unchanged in several examinations counts as lost.
        """
        if number > self._examined:
            self._examined = self._asked
            self._examine()

    def _watch(self) -> None:
        stopping_seconds, before = 0.0, self._clock()
        while True:
            try:
                if self._ends.wait(self._every_seconds):
                    return
                now = self._clock()
                passed, before = now - before, now
                if self._is_stopping:
                    # The rest of a longer time has passed while the process was suspended: SIGSTOP.
                    stopping_seconds += min(passed, LONGEST_WAITS * self._every_seconds)
                    if stopping_seconds >= self._stop_seconds:
                        break
                    self._loop.call_soon_threadsafe(self._drain)
                self._asked += 1
                self._loop.call_soon_threadsafe(self._examine_once, self._asked)
            except MemoryError:
                pass  # again in a second
            except RuntimeError:
                if self._loop.is_closed():
                    return
        try:
            logger.error("stopping took too long", seconds=self._stop_seconds)
        finally:
            self._exit_now(TOO_LATE_EXIT_CODE)
