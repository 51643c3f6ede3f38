"""Limits on the number of threads that multiply matrices on a CPU.

NumPy's BLAS divides all but the smallest products among all cores, and its threads spin while they
wait for each other. On a machine whose cores are busy (with a client, another session or the event
loop) a product of a quarter of a millisecond then takes many times as long as on one thread.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import threadpoolctl

from burn_remote_protocol.bounded_threads import BoundedThread
from burn_remote_protocol.errors import UsageError
from burn_remote_server.backends.interface import Run

__all__ = ["Limit", "is_small", "limits", "on_one_thread", "start_threads"]

# The BLAS computes smaller products on one thread anyway; setting its threads takes 2 µs.
SMALL_MULTIPLICATIONS: Final = 2**17
# The same for the product of two vectors: from 10,001 elements on, OpenBLAS divides the sum.
SMALL_SUM: Final = 10_000

# How long ``start_threads`` waits for the end of the threads by which it counts free ones.
ENDING_SECONDS: Final = 1.0


def is_small(rows: int, inner: int, columns: int) -> bool:
    """Whether the BLAS computes a product of two matrices on one thread anyway."""
    if rows * inner * columns >= SMALL_MULTIPLICATIONS:
        return False
    return inner <= SMALL_SUM or rows * columns > 1


def on_one_thread(run: Run) -> Run:
    """Wrap a kernel so that it multiplies on the calling thread alone.

    The number of BLAS threads is a setting of the process: what another thread computes meanwhile
    also runs on one thread.
    """
    found = limits()
    if not found:
        return run

    def run_alone(*inputs: Any) -> Any:
        call = object()
        _alone[call] = None
        try:
            _set_threads(found, is_alone=True)
            return run(*inputs)
        finally:
            # First, and without a function call before it, because Ctrl-C may take effect after a
            # function call. An entry that stayed in ``_alone`` would leave the process with one
            # thread.
            del _alone[call]
            try:
                _set_threads(found, is_alone=False)
            except KeyboardInterrupt:
                _set_threads(found, is_alone=False)  # the interrupt may have come halfway
                raise

    return run_alone


class Limit(NamedTuple):
    """A function that sets a library's number of threads, and the number that it had.

    ``is_per_thread``: the function sets the number for products of the calling thread only.
    """

    set_threads: Callable[[int], Any]
    threads: int
    is_per_thread: bool = False


_alone: Final[dict[object, None]] = {}  # the calls that run on one thread now
_lock = threading.Lock()


def start_threads() -> None:
    """Start the threads of the BLAS libraries that do not run yet.

    They start when the library is loaded, but a forked process starts its own at its first product.
    An OpenBLAS that gets no thread for them then raises SIGINT, and crashes in the product. Raises
    ``UsageError`` if the system has too few threads.
    """
    found = [limit for limit in limits() if not limit.is_per_thread]
    missing = sum(limit.threads - 1 for limit in found) - _native_threads()
    if missing <= 0:
        return
    if not _can_start(missing):
        raise UsageError(
            f"the system does not let this process start the {missing} threads that multiply "
            "matrices; allow it more threads (ulimit -u, or the pids limit of its container), or "
            "set OPENBLAS_NUM_THREADS=1"
        )
    for limit in found:
        limit.set_threads(limit.threads)


def _native_threads() -> int:
    """Return the number of threads that Python did not start; very many if it is unknown."""
    try:
        return len(os.listdir("/proc/self/task")) - threading.active_count()
    except OSError:
        return sys.maxsize


def _can_start(count: int) -> bool:
    """Whether the system has so many more threads for this process."""
    ends = threading.Event()
    started = []
    before = _native_threads()
    try:
        for _ in range(count):
            thread = BoundedThread(target=ends.wait, name="probe")
            thread.start()
            started.append(thread)
    except (RuntimeError, MemoryError):
        return False
    finally:
        ends.set()
        for thread in started:
            thread.join()
        # Python's part of a thread ends a little before the system's.
        deadline = time.monotonic() + ENDING_SECONDS
        while _native_threads() > before and time.monotonic() < deadline:
            time.sleep(0.001)
    return True


def _set_threads(found: Sequence[Limit], *, is_alone: bool) -> None:
    """Set the numbers of threads before this thread multiplies alone, or after it has done so."""
    with _lock:
        for limit in found:
            is_limited = is_alone if limit.is_per_thread else bool(_alone)
            limit.set_threads(1 if is_limited else limit.threads)


def _after_fork() -> None:
    # Called in a forked child: other threads of the parent may have held the lock or multiplied.
    global _lock
    _lock = threading.Lock()
    _alone.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@cache
def limits() -> tuple[Limit, ...]:
    """Return the limits of the multi-threaded BLAS libraries of this process."""
    found = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    return tuple(_limit(library) for library in found if library.num_threads > 1)


def _limit(library: Any) -> Limit:
    """Return the limit of a library.

    For an OpenBLAS with its own thread pool, threadpoolctl's method works only in the first thread
    that calls it. In the threads of other sessions, it silently does nothing. An OpenBLAS with
    OpenMP has a separate number for each calling thread, which that method sets.
    """
    threads = library.num_threads
    if getattr(library, "threading_layer", None) == "openmp":
        return Limit(library.set_num_threads, threads, is_per_thread=True)
    for prefix, suffix in itertools.product(("", "scipy_"), ("", "64_", "_64")):
        function = getattr(library.dynlib, f"{prefix}openblas_set_num_threads{suffix}", None)
        if function is not None:
            return Limit(function, threads)
    return Limit(library.set_num_threads, threads)
