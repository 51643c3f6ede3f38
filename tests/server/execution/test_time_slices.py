"""A thread gets a long time slice and keeps its nice value and its policy."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from burn_remote_server.execution.time_slices import (
    LONG_SLICE_SECONDS,
    lengthen_slice,
    restore_slice,
)
from support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="slices are Linux's")


T = TypeVar("T")


def in_thread(call: Callable[[], T]) -> T:
    """Return what a function returns in a thread of its own."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join(PATIENCE_SECONDS)
    (result,) = results
    return result


def slice_nanoseconds() -> int | None:
    """Return the slice of the calling thread; ``None`` if the system does not tell it."""
    path = Path(f"/proc/self/task/{threading.get_native_id()}/sched")
    if not path.exists():
        return None
    lines = [line for line in path.read_text().splitlines() if line.startswith("se.slice")]
    return int(lines[0].split()[-1]) if lines else None


def test_a_thread_gets_a_long_slice_and_others_keep_theirs() -> None:
    def lengthened() -> tuple[bool, int | None]:
        return lengthen_slice(), slice_nanoseconds()

    before = slice_nanoseconds()
    is_accepted, found = in_thread(lengthened)
    if not is_accepted or found is None:
        pytest.skip("the system has no slices of single threads")
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    assert found == round(LONG_SLICE_SECONDS * 1e9) or release < (6, 12)
    assert slice_nanoseconds() == before


def test_a_thread_gets_its_usual_slice_back() -> None:
    def restored() -> tuple[int | None, int | None]:
        before = slice_nanoseconds()
        lengthen_slice()
        restore_slice()
        return before, slice_nanoseconds()

    before, after = in_thread(restored)
    assert before == after


def test_a_thread_keeps_its_nice_value() -> None:
    def nice_values() -> tuple[int, int]:
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + 1)
        before = os.getpriority(os.PRIO_PROCESS, 0)
        lengthen_slice()
        return before, os.getpriority(os.PRIO_PROCESS, 0)

    before, after = in_thread(nice_values)
    assert before == after


def test_a_thread_with_another_policy_keeps_it() -> None:
    def policy() -> tuple[bool, int]:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        return lengthen_slice(), os.sched_getscheduler(0)

    assert in_thread(policy) == (False, os.SCHED_BATCH)
