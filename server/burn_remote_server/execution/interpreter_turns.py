"""Turns in which the threads of busy sessions run Python code, one thread at a time.

A thread that computes in Python holds the interpreter lock for up to 0.5 ms, and CPython gives the
lock to the waiting threads one after another. The event loop takes it many times for one request,
so eight threads made it wait for 4 ms each time, and for 0.2 to 0.6 s in all.

If more than ``FREE_THREADS`` sessions work, their threads take turns in long calls. Whoever waits
for a turn does not wait for the interpreter lock. A turn ends after ``TURN_COST`` of work, and
before anything that waits or that computes without the lock, such as a large kernel.

The first ``TURN_COST`` of a call needs no turn. The calls of usual programs are shorter, and
between two calls of a session the event loop runs anyway. With turns from the start, eight programs
with small steps took twice the server's processor time.

A turn only limits how many threads compute, and protects no data. So a thread that has waited for
``PATIENCE_SECONDS`` overtakes the one that has the turn: no mistake in ending turns can stop a
session for longer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from burn_remote_server.execution import loop_pulse
from burn_remote_server.execution.loop_pulse import LoopPulse

__all__ = ["FREE_THREADS", "LONG_COST", "TURN_COST", "InterpreterTurn", "InterpreterTurns"]

T = TypeVar("T")

# Number of sessions that may work without turns. With two, the event loop waits for at most 1 ms
# each time, and programs that use two sessions at once compute on two cores as before.
FREE_THREADS: Final = 2

# Estimated cost, in nanoseconds, after which a thread passes its turn on. Larger: other sessions
# wait longer. Smaller: more switches between threads, about 20 µs each.
TURN_COST: Final = 1_000_000

# Operations of a larger estimated cost run without a turn: NumPy computes most of that time without
# the interpreter lock, and the rest takes about 2 µs.
LONG_COST: Final = 5_000

# Tasks between two looks at the event loop, if threads take no turns: 0.1 to 1 ms.
TASKS_AT_ONCE: Final = 32

# How long a thread waits for its turn: several rounds of turns of many sessions.
PATIENCE_SECONDS: Final = 0.2


class InterpreterTurns:
    """The turns of all sessions of a process.

    Uses only operations that are atomic in CPython, because the end of a ``with`` block may fail
    for lack of memory, and a lock would then stay locked.
    """

    def __init__(self) -> None:
        self.working: Final[set[InterpreterTurn]] = set()
        # The thread that has the turn, and those that wait, oldest first.
        self.queue: Final[deque[InterpreterTurn]] = deque()
        self.pulse: Final = LoopPulse(lambda: len(self.working) > 1)

    def wake_first(self) -> None:
        """Let the first thread of the queue continue, if it waits."""
        try:  # noqa: SIM105 - ``suppress`` needs memory
            self.queue[0].wake()
        except IndexError:
            pass  # nobody waits


class InterpreterTurn:
    """The turns of one session. All methods but ``wake`` belong to the session's thread."""

    def __init__(self, turns: InterpreterTurns | None = None) -> None:
        self._turns: Final = InterpreterTurns() if turns is None else turns
        # The work since the turn began, or, without a turn, since the call began.
        self._spent = 0
        self._is_short = True  # the call has not yet done work for which it needs turns
        self._is_working = False
        self._has_turn = False
        # Locked while the thread waits.
        self._gate: Final = threading.Lock()

    @property
    def is_crowded(self) -> bool:
        """Whether the calling thread must take turns, because many sessions work."""
        return self._is_working and len(self._turns.working) > FREE_THREADS

    @property
    def has_turn(self) -> bool:
        """Whether the thread has the turn, unless another one has overtaken it."""
        return self._has_turn

    @property
    def has_company(self) -> bool:
        """Whether the session works, and another one too."""
        return self._is_working and len(self._turns.working) > 1

    def announce(self) -> None:
        """Note on the event loop that the session's thread is about to begin a call."""
        working = self._turns.working
        if working and self not in working:
            self._turns.pulse.start()

    def begin(self) -> None:
        """Note that the session's thread begins a call."""
        self._is_working = True
        self.rest()
        try:  # noqa: SIM105 - ``suppress`` needs memory
            self._turns.working.add(self)
        except MemoryError:
            pass  # it works without turns
        self.let_loop_catch_up()

    def end(self) -> None:
        """Note that the session's thread has ended its work."""
        self.leave()
        self._is_working = False
        self._turns.working.discard(self)

    def enter(self) -> None:
        """Wait for the turn, unless the thread has it, or works without turns."""
        if self._has_turn or self._is_short or not self.is_crowded:
            return
        self._spent = 0
        queue = self._turns.queue
        self._gate.acquire(blocking=False)
        try:
            queue.append(self)
        except MemoryError:
            return  # without the turn
        self._has_turn = True
        deadline = 0.0
        while not self._is_first():
            now = time.monotonic()
            deadline = deadline or now + PATIENCE_SECONDS
            if now < deadline:
                self._gate.acquire(timeout=deadline - now)
            else:
                self._overtake()
                return

    def leave(self) -> None:
        """End the turn, if the thread has it: before it waits, or computes without the lock."""
        if not self._has_turn:
            return
        self._has_turn = False
        try:
            self._turns.queue.remove(self)
        except ValueError:
            return  # another thread has overtaken this one
        self._turns.wake_first()

    def rest(self) -> None:
        """End the turn before the thread waits for new work, which counts as another call."""
        self.leave()
        self._spent = 0
        self._is_short = True

    def spend(self, cost: int) -> None:
        """Count work that the thread is about to do; wait for a turn if necessary.

        If it has had its share, other threads have their turns first.
        """
        if self._spent >= TURN_COST:
            self._spent = 0
            self._is_short = False
            self.leave()
            self.let_loop_catch_up()
        self.enter()
        self._spent += cost

    def paced(self, tasks: Iterable[T], cost_of: Callable[[T], int | None]) -> Iterator[T]:
        """Yield tasks, each in a turn unless ``cost_of`` returns ``None`` for it."""
        for task in tasks:
            cost = cost_of(task)
            if cost is None:
                self.leave()
                self.let_loop_catch_up()
            else:
                self.spend(cost)
            yield task

    def unpaced(self, tasks: Iterable[T]) -> Iterator[T]:
        """Yield tasks without turns, and wait from time to time if the event loop is late."""
        for place, task in enumerate(tasks):
            if not place % TASKS_AT_ONCE:
                self.let_loop_catch_up()
            yield task

    def let_loop_catch_up(self) -> None:
        """Wait, without the turn, while the event loop is late, unless that takes too long."""
        pulse = self._turns.pulse
        if not pulse.is_late:
            return
        self.leave()
        self._gate.acquire(blocking=False)
        try:
            pulse.wake_at_next_beat(self.wake)
        except MemoryError:
            return
        if not self._gate.acquire(timeout=loop_pulse.PATIENCE_SECONDS):
            pulse.give_up()

    def wake(self) -> None:
        """Let the thread look whether it is the first. Any thread may call this."""
        try:  # noqa: SIM105 - ``suppress`` needs memory
            self._gate.release()
        except RuntimeError:
            pass  # it does not wait

    def _is_first(self) -> bool:
        try:
            return self._turns.queue[0] is self
        except IndexError:
            return True

    def _overtake(self) -> None:
        """Take the turn from a thread that has kept it for too long."""
        try:
            if not self._is_first():
                self._turns.queue.popleft()
        except IndexError:
            pass
        self._turns.wake_first()
