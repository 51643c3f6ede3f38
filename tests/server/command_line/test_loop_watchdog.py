"""A thread has the event loop examine itself, and ends a server that does not stop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable

from burn_remote_server.command_line.loop_watchdog import TOO_LATE_EXIT_CODE, LoopWatchdog
from support.waiting import PATIENCE_SECONDS


class Ends:
    """Records how the watchdog ends the process."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.came = threading.Event()

    def __call__(self, code: int) -> None:
        self.codes.append(code)
        self.came.set()


def nothing() -> None:
    """Do nothing."""


def watchdog(
    ends: Ends,
    *,
    examine: Callable[[], None] = nothing,
    drain: Callable[[], None] = nothing,
    stop_seconds: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> LoopWatchdog:
    loop = asyncio.get_running_loop()
    return LoopWatchdog(loop, examine, drain, stop_seconds, ends, every_seconds=0.001, clock=clock)


async def test_the_loop_examines_itself_again_and_again() -> None:
    examined = asyncio.Semaphore(0)
    watching = watchdog(Ends(), examine=examined.release)
    watching.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        for _ in range(3):
            await examined.acquire()
    watching.end()


async def test_a_loop_that_was_blocked_examines_itself_once() -> None:
    examined: list[int] = []
    asked = threading.Semaphore(0)

    def clock() -> float:
        asked.release()
        return 0.0

    watching = watchdog(Ends(), examine=lambda: examined.append(1), clock=clock)
    watching.start()
    for _ in range(5):  # blocks the loop
        assert asked.acquire(timeout=PATIENCE_SECONDS)
    watching.end()
    for thread in threading.enumerate():
        if thread.name == "loop-watchdog":
            thread.join(PATIENCE_SECONDS)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert examined == [1]


async def test_a_server_that_does_not_stop_ends_though_its_loop_is_stuck() -> None:
    ends = Ends()
    watching = watchdog(ends)
    watching.start()
    watching.begin_stop()
    assert ends.came.wait(PATIENCE_SECONDS)  # blocks the loop
    assert ends.codes == [TOO_LATE_EXIT_CODE]


async def test_a_request_to_drain_that_the_loop_lost_is_repeated() -> None:
    drained = asyncio.Event()
    watching = watchdog(Ends(), drain=drained.set, stop_seconds=1000.0)
    watching.start()
    watching.begin_stop()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await drained.wait()
    watching.end()


async def test_a_server_that_was_suspended_while_it_stops_gets_the_rest_of_its_time() -> None:
    ends, drained = Ends(), asyncio.Semaphore(0)
    times = iter((0.0, 1.0))
    watching = watchdog(
        ends, drain=drained.release, stop_seconds=1000.0, clock=lambda: next(times, 1e6)
    )
    watching.begin_stop()
    watching.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        for _ in range(3):
            await drained.acquire()
    watching.end()
    assert not ends.codes


async def test_sigterm_begins_the_stop_and_still_reaches_the_loop() -> None:
    loop, terminated, ends = asyncio.get_running_loop(), asyncio.Event(), Ends()
    previous = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGTERM, terminated.set)
    watching = watchdog(ends)
    try:
        watching.watch_signals()
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await terminated.wait()
        watching.start()
        assert await asyncio.to_thread(ends.came.wait, PATIENCE_SECONDS)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGINT, previous)
