"""The pulse of the event loop, by which the threads of sessions notice that it is late.

The event loop needs the interpreter lock dozens of times in one iteration. Threads of sessions hold
it for up to 0.5 ms each time, and longer if the system interrupts the thread that holds it, or
provides memory meanwhile. So an iteration of 10 ms of work took 60 to 210 ms. While the event loop
is late, the threads therefore wait before they begin more work, and it catches up alone.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from burn_remote_protocol.loop_calls import register

__all__ = ["LATE_SECONDS", "PATIENCE_SECONDS", "LoopPulse"]

# The time between two beats, while several sessions work: 0.2 % of a core.
BEAT_SECONDS: Final = 0.005
# The event loop is late if the last beat was longer ago than this. Iterations of usual programs are
# shorter, so their threads do not wait. With 30 ms, the attack ``small_answers`` of
# ``tests/endurance/memory.py`` held up the event loop for as long as without these pauses.
LATE_SECONDS: Final = 0.015
# How long threads wait for a beat. An event loop that works for longer, or that waits for a core,
# must not stop them.
PATIENCE_SECONDS: Final = 0.03
# If there was no beat for this time, the event loop had no memory to schedule the next one.
LOST_SECONDS: Final = 1.0


class LoopPulse:
    """Beats on an event loop while ``is_needed``, and wakes those that wait for the next beat.

    Uses only operations that are atomic in CPython, because the end of a ``with`` block may fail
    for lack of memory, and a lock would then stay locked.
    """

    def __init__(self, is_needed: Callable[[], bool]) -> None:
        self._is_needed: Final = is_needed
        # Wake functions of threads that wait.
        self._waiting: Final[deque[Callable[[], None]]] = deque()
        self._last = math.inf  # ``time.monotonic`` of the last beat; infinite without a pulse
        self._is_registered = False

    @property
    def is_late(self) -> bool:
        """Whether the event loop is late. Any thread may ask."""
        return time.monotonic() - self._last > LATE_SECONDS

    def start(self) -> None:
        """Beat from now on, while it is needed. Call this on the event loop."""
        if self._last != math.inf:
            return
        if not self._is_registered:
            register(self)
            self._is_registered = True
        self._schedule()
        self._last = time.monotonic()

    def recover(self) -> None:
        """Beat again if the next beat was lost."""
        if time.monotonic() - self._last > LOST_SECONDS:
            self._schedule()
            self._last = time.monotonic()

    def wake_at_next_beat(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` at the next beat. Any thread may call this."""
        self._waiting.append(wake)

    def give_up(self) -> None:
        """Count a beat, because a thread has waited for too long."""
        if self._last != math.inf:
            self._last = time.monotonic()

    def _schedule(self) -> None:
        asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        if self._is_needed():
            self._last = time.monotonic()
            self._schedule()
        else:
            self._last = math.inf
        while self._waiting:
            self._waiting.popleft()()
