"""Polling for messages that arrive soon, in place of a blocked thread.

A thread that blocks for 50 µs loses more than these: an idle core has to be woken, and the caches
no longer have the thread's code and data. If both ends poll, a small round trip takes 0.6 times as
long on two quiet cores, for the same processor time (docs/performance/engine.md).

Each end polls only while all of these hold:

- The last messages came within ``SHORT_SECONDS``. A peer that is far away or computes for longer is
  never polled for.
- A poll finds its message within ``POLL_SECONDS``.
- This process may use at least two cores (``usable_cores.py``), and no more threads are runnable on
  this machine than that. Otherwise polls take a core from a thread that has work to do, perhaps
  from the peer itself. Where the system does not tell, nothing is polled.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Callable
from typing import Final, final

from burn_remote_protocol.links.websocket.usable_cores import usable_cores
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = ["LoopPolling", "ThreadPolling", "is_crowded", "loop_polling"]

# The longest poll. A small round trip keeps each end waiting for 30 to 60 µs.
POLL_SECONDS: Final = 100e-6
# A wait shorter than this might be shorter than ``POLL_SECONDS`` if both ends polled.
SHORT_SECONDS: Final = 200e-6
# Polling begins after this many short waits in a row.
SHORT_WAITS: Final = 8
# Runnable threads are counted before polling begins, and again after each so many messages. A count
# takes 5 µs.
CHECK_MESSAGES: Final = 64
# Threads of a crowded machine are counted again after ``FIRST_CROWDED_MESSAGES``. If it is still
# crowded, the pause grows by a factor of four each time, up to ``CROWDED_MESSAGES``. If all pauses
# were long, polling would seldom begin on two quiet cores, where a third thread is often runnable
# for a moment. If all were short, polls would cost time on two busy cores: pauses of 128 messages
# gave 1.15 times the median.
FIRST_CROWDED_MESSAGES: Final = 16
CROWDED_MESSAGES: Final = 2048
# How many messages pass after a long wait before waits are measured again.
LONG_MESSAGES: Final = 16
# An event loop whose turn takes longer than this has other work, or waits for the interpreter.
LATE_SECONDS: Final = 50e-6

# The cores that polls of both ends take on one machine, or in one container.
BOTH_ENDS: Final = 2

_LOAD: Final = "/proc/loadavg"


def is_crowded() -> bool:
    """Return whether more threads are runnable than this process may use cores.

    Also ``True`` if it may use less than two, because the peer may need one, and if the system does
    not tell.
    """
    try:
        descriptor = os.open(_LOAD, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Such as b"0.20 0.18 0.12 1/80 11206\n": 1 of 80 threads is runnable.
            runnable = int(os.read(descriptor, 256).split()[3].split(b"/")[0])
        finally:
            os.close(descriptor)
        cores = usable_cores()
        # Some sandboxes always report 0, although this thread runs.
        return cores < BOTH_ENDS or not 1 <= runnable <= cores
    except (OSError, AttributeError, ValueError, IndexError) as error:
        pass_on_of_signal_handler(error)
        return True


class _Messages:
    """The messages of the past that tell whether to poll for the next one."""

    __slots__ = ("_clock", "_crowded_pause", "_is_crowded", "_polled", "_short", "pause")

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        is_crowded: Callable[[], bool] = is_crowded,
    ) -> None:
        self._clock: Final = clock
        self._is_crowded: Final = is_crowded
        self._short = 0  # short waits in a row; at ``SHORT_WAITS``, polling is worthwhile
        self._crowded_pause = FIRST_CROWDED_MESSAGES
        self._polled = 0  # messages found by polls since runnable threads were counted
        # How many messages pass before the next is measured. The caller counts it down, because a
        # call for each message would take longer.
        self.pause = 0

    def _note_short(self) -> None:
        self._short += 1
        if self._short == SHORT_WAITS:
            self._check()

    def _note_polled(self) -> None:
        self._polled += 1
        if self._polled >= CHECK_MESSAGES:
            self._check()

    def _check(self) -> None:
        self._polled = 0
        if self._is_crowded():
            self._short, self.pause = 0, self._crowded_pause
            self._crowded_pause = min(4 * self._crowded_pause, CROWDED_MESSAGES)
        else:
            self._crowded_pause = FIRST_CROWDED_MESSAGES

    def _note_long(self) -> None:
        self._short, self.pause = 0, LONG_MESSAGES


@final
class ThreadPolling(_Messages):
    """Polling by a thread that reads a socket. Used by one thread at a time."""

    __slots__ = ()

    def wait(self, poll: Callable[[int], object]) -> None:
        """Wait until ``poll`` finds something, or until waiting here is not worthwhile.

        ``poll`` takes the most milliseconds that it blocks, and releases the interpreter meanwhile.
        Call this only while ``pause`` is 0.
        """
        start = self._clock()
        if self._short < SHORT_WAITS:
            if poll(1) and self._clock() - start < SHORT_SECONDS:
                self._note_short()
            else:
                self._note_long()
            return
        end = start + POLL_SECONDS
        while not poll(0):
            if self._clock() > end:
                self._note_long()
                return
        self._note_polled()


@final
class LoopPolling(_Messages):
    """Polling by an event loop, which all its connections share.

    While it polls, the loop calls a function in each iteration, so that it does not block. It polls
    only while all messages come from one connection.
    """

    __slots__ = ("_call_soon", "_is_polling", "_last_turn", "_replied_at", "_source", "_until")

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.perf_counter,
        is_crowded: Callable[[], bool] = is_crowded,
    ) -> None:
        super().__init__(clock, is_crowded)
        self._call_soon: Final = call_soon
        self._source = 0  # the ``id`` of the connection that the last message came from
        self._replied_at = 0.0  # 0 if the last reply was not noted, because of a pause
        self._until = 0.0
        self._last_turn = 0.0
        self._is_polling = False

    def note_arrival(self, source: object) -> None:
        """Note that a small message arrived alone. Call this only while ``pause`` is 0."""
        if id(source) != self._source:
            self._source, self._short = id(source), 0
        elif self._short >= SHORT_WAITS:
            self._note_polled()
        elif self._clock() - self._replied_at < SHORT_SECONDS:
            self._note_short()
        elif self._replied_at:
            self._note_long()

    def note_reply(self) -> None:
        """Note that the message was answered; poll for the next one if that is worthwhile.

        Do not call this if the answer comes later: a thread that computes it needs the interpreter.
        """
        self._last_turn = now = self._clock()
        self._replied_at = 0.0 if self.pause else now
        if self._short >= SHORT_WAITS:
            self._until = now + POLL_SECONDS
            if not self._is_polling:
                self._is_polling = True
                self._call_soon(self._turn)

    def _turn(self) -> None:
        now = self._clock()
        if (
            self._short >= SHORT_WAITS
            and now < self._until
            and now - self._last_turn < LATE_SECONDS
        ):
            self._last_turn = now
            self._call_soon(self._turn)
            return
        self._is_polling = False
        if self._short:
            self._note_long()
            self._replied_at = 0.0


# By event loop, because a process may run several, each in its own thread.
_loops: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPolling]] = (
    weakref.WeakKeyDictionary()
)


def loop_polling(loop: asyncio.AbstractEventLoop) -> LoopPolling:
    """Return the polling of an event loop."""
    polling = _loops.get(loop)
    if polling is None:
        # Weakly, or the loop would never be freed.
        reference = weakref.ref(loop)

        def call_soon(function: Callable[[], None]) -> None:
            alive = reference()
            if alive is not None:
                alive.call_soon(function)

        polling = _loops[loop] = LoopPolling(call_soon)
    return polling
