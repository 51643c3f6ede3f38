"""Return of freed memory from the C library to the operating system.

glibc maps large blocks separately and unmaps them when they are freed. Smaller blocks, below
128 KiB at first and up to 32 MiB once such blocks have been freed, come from heaps. A heap returns
only memory at its end. So a few live tensors keep all freed memory below them resident. For
example, a session limited to 128 MiB dropped small tensors and made large ones; the server grew by
235 MiB.
``malloc_trim`` returns whole free pages anywhere in the heaps, at about 0.3 ms per MiB. While it
works on a heap, allocations in that heap wait.

glibc has separate heaps for threads, and memory that one thread freed is not available to another.
The event loop receives elements and a session's thread copies them into tensors. With separate
heaps, both grew to the size of all waiting frames: a server limited to 128 MiB grew by 199 MiB on a
busy machine. So all threads share one heap (``share_one_heap``). They rarely wait for each other,
because nearly every allocation is made under Python's interpreter lock.

By default, glibc itself trims the end of a heap much earlier: as soon as 128 KiB are free there, or
twice the size of the largest block that was mapped and freed. A program that repeats its steps then
unmaps and maps the same pages in each step. A training step of a small transformer had 5,000 page
faults, and took 1.25 times as long as with ``keep_freed_memory``.

So the heaps are trimmed only when resident memory has grown much more than the memory that the
limits count. A thread checks this after tensors were freed. Memory that trimming does not return,
such as that of the linear algebra library, counts as expected from then on. Some of it may only
have been in use at that moment, such as a message that a thread was decoding. So the heaps are
trimmed again after more memory was freed, but less and less often if that returns nothing.
"""

from __future__ import annotations

import ctypes
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from burn_remote_protocol.timed_queue import TimedQueue
from burn_remote_server.access.quota import Pool

__all__ = ["HeapTrimmer", "keep_freed_memory", "malloc_trim", "share_one_heap", "trims_after"]

MIB: Final = 2**20

# The heaps are trimmed when the uncounted bytes exceed an eighth of the limit, because resident
# memory should stay within 1.25 times the limit. With a lower minimum, trimming would return memory
# that is about to be used again. At the maximum, trimming takes 80 ms.
LIMIT_DIVISOR: Final = 8
MIN_TRIMMED_BYTES: Final = 8 * MIB
MAX_TRIMMED_BYTES: Final = 256 * MIB
# Pause after trimming, as a multiple of its processor time. Mapping the memory again takes twice as
# long as trimming it. So trimming and mapping take at most 3 % of a core, and 60 % while resident
# memory is above the limits.
PAUSE: Final = 100.0
PAUSE_ABOVE_LIMIT: Final = 5.0
# Tensors are counted as freed before their worker has freed them all, so memory is examined again.
EXAMINE_AGAIN_SECONDS: Final = 1.0
# After how many reports of freed memory to trim memory again that an earlier trimming did not
# return: so much as is tolerated. Each time that this returns nothing, the number is doubled.
REPORTS_BEFORE_RETRY: Final = 2

# Numbers of the parameters of ``mallopt``, from glibc's malloc.h.
M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8
# glibc's own maximum for the size of blocks that come from heaps. It reaches it after a block of
# this size has been freed.
LARGEST_HEAP_BLOCK: Final = 32 * MIB


def trims_after(limit_bytes: int) -> int:
    """Return how many uncounted bytes to tolerate at a limit."""
    return min(max(MIN_TRIMMED_BYTES, limit_bytes // LIMIT_DIVISOR), MAX_TRIMMED_BYTES)


def malloc_trim() -> Callable[[], None] | None:
    """Return a function that returns free memory to the system; ``None`` if there is no glibc."""
    if sys.platform != "linux":
        return None
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    # The call releases Python's interpreter lock.
    return lambda: trim(ctypes.c_size_t(0))


def keep_freed_memory(kept_bytes: int) -> bool:
    """Let each heap of the C library keep this much free memory at its end.

    Returns whether that was possible. It is not possible without glibc, or if the environment sets
    these thresholds.
    """
    # Setting either threshold ends glibc's own adjustment of both.
    thresholds = {M_MMAP_THRESHOLD: LARGEST_HEAP_BLOCK, M_TRIM_THRESHOLD: kept_bytes}
    names = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}
    return _configure(thresholds, names, tunable="_threshold")


def share_one_heap() -> bool:
    """Let all threads of this process allocate from one heap.

    Call it before threads start. Returns whether that was possible. It is not possible without
    glibc, or if the environment sets the number of heaps.
    """
    return _configure({M_ARENA_MAX: 1}, {"MALLOC_ARENA_MAX", "MALLOC_ARENA_TEST"}, tunable="arena_")


def _configure(parameters: dict[int, int], variables: set[str], *, tunable: str) -> bool:
    """Set parameters of glibc's allocator, unless the environment does.

    ``tunable`` is the common part of their names in the variable ``GLIBC_TUNABLES``.
    """
    is_configured = tunable in os.environ.get("GLIBC_TUNABLES", "") or variables & os.environ.keys()
    if is_configured or sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(parameter, value) for parameter, value in parameters.items())


class HeapTrimmer:
    """A thread that trims the heaps when resident memory exceeds what the pools count.

    ``resident`` returns the resident bytes of the process. Create the trimmer after the startup:
    the memory that is resident at that time counts as expected.
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        trim: Callable[[], None],
        resident: Callable[[], int],
    ) -> None:
        self._pools: Final = pools
        self._trim: Final = trim
        self._resident: Final = resident
        self._limit_bytes: Final = min(pool.max_bytes for pool in pools)
        self._tolerated: Final = trims_after(self._limit_bytes)
        # Resident bytes that no pool counts and trimming does not return.
        self._expected = self._uncounted()
        self._at_start: Final = self._expected
        self._next_trim = 0.0  # time.monotonic()
        # Reports of freed memory since the last trimming, and after how many to trim again.
        self._reports = 0
        self._retry_after = REPORTS_BEFORE_RETRY
        # A queue, because a finalizer may free memory inside ``put`` of the same thread.
        self._freed: Final[TimedQueue[None]] = TimedQueue()

    def start(self) -> None:
        """Examine the memory from now on, each time enough bytes were returned to the pools."""
        threading.Thread(target=self._work, name="heap-trimmer", daemon=True).start()
        for pool in self._pools:
            pool.on_given_back(self._tolerated // 2, self._report)

    def _report(self) -> None:
        """Have the memory examined, because some was returned to a pool. Any thread may call."""
        self._reports += 1
        self._freed.put(None)

    def examine(self) -> float:
        """Trim the heaps if necessary; if that must wait, return for how many seconds, else 0."""
        uncounted = self._uncounted()
        is_retry = uncounted - self._expected < self._tolerated
        if is_retry:
            self._expected = min(self._expected, uncounted)
            is_above_start = uncounted - self._at_start >= self._tolerated
            if not is_above_start or self._reports < self._retry_after:
                return 0.0
        now = time.monotonic()
        pause = self._next_trim - now
        if self._resident() - self._at_start > self._limit_bytes:
            pause *= PAUSE_ABOVE_LIMIT / PAUSE
        if pause > 0:
            return pause
        used = time.thread_time()  # elapsed time would make the pause longer on a busy machine
        self._trim()
        self._next_trim = time.monotonic() + PAUSE * (time.thread_time() - used)
        self._expected = self._uncounted()
        has_returned = uncounted - self._expected >= self._tolerated // 2
        if is_retry and not has_returned:
            self._retry_after *= 2
        else:
            self._retry_after = REPORTS_BEFORE_RETRY
        self._reports = 0
        return 0.0

    def _uncounted(self) -> int:
        return self._resident() - sum(pool.taken for pool in self._pools)

    def _work(self) -> None:
        wait: float | None = None
        while True:
            try:
                try:
                    self._freed.get(wait)
                    wait = EXAMINE_AGAIN_SECONDS
                except queue.Empty:
                    wait = None
                pause = self.examine()
                if pause:
                    wait = min(pause, EXAMINE_AGAIN_SECONDS)
            except Exception:  # without memory or descriptors, CPython raises errors of many kinds
                wait = EXAMINE_AGAIN_SECONDS
