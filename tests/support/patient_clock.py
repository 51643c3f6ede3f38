"""A clock for tests of timeouts: it stands still while the machine runs something else."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

__all__ = ["patient_clock"]

TICK_SECONDS = 0.01
# The most that passes between two ticks. On a busy machine, they are up to seconds apart.
LONGEST_TICK_SECONDS = 2 * TICK_SECONDS


@contextlib.contextmanager
def patient_clock() -> Iterator[None]:
    """Let time pass only while this process gets the processor, and its running event loop if any.

    It replaces ``time.monotonic``, which event loops read too. So a thread or a peer in this
    process that got no processor time has not missed a timeout.
    """
    loop, read = _running_loop(), time.monotonic
    now = last = read()
    is_queued, ended = threading.Event(), threading.Event()

    def tick() -> None:
        nonlocal now, last
        is_queued.clear()
        before, last = last, read()
        now += min(last - before, LONGEST_TICK_SECONDS)

    def drive() -> None:
        while not ended.wait(TICK_SECONDS):
            if loop is None:
                tick()
            elif not is_queued.is_set():
                is_queued.set()
                loop.call_soon_threadsafe(tick)

    thread = threading.Thread(target=drive, name="patient-clock")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: now)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
