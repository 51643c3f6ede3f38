"""Limits on the number of threads that multiply matrices on a CPU.

NumPy's BLAS divides all but the smallest products among all cores, and its threads spin while they
wait for each other. On a machine whose cores are busy (with a client, another session or the event
loop) a product of a quarter of a millisecond then takes many times as long as on one thread.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, cast

import threadpoolctl

from burn_remote_server.backends.interface import Run

__all__ = ["Limit", "limits", "on_one_thread", "pays_for_threads"]

# Number of multiplications from which a product may use all cores: half a millisecond on one core.
# A higher limit slows large products on idle machines, a lower one small products on busy machines.
SHARED_MULTIPLICATIONS: Final = 2**24
# The BLAS computes smaller products on one thread anyway; setting its threads takes 2 µs.
SMALL_MULTIPLICATIONS: Final = 2**17


def pays_for_threads(multiplications: int) -> bool:
    """Whether to leave the number of threads to the BLAS: for large and for very small products."""
    return not SMALL_MULTIPLICATIONS <= multiplications < SHARED_MULTIPLICATIONS


def on_one_thread(run: Run) -> Run:
    """Wrap a kernel so that it multiplies on the calling thread alone.

    The number of BLAS threads is a setting of the process: a large product that another session
    starts meanwhile also runs on one thread. No result depends on it.
    """
    found = limits()
    if not found:
        return run

    def run_alone(*inputs: Any) -> Any:
        _enter(found)
        try:
            return run(*inputs)
        finally:
            _leave(found)

    return run_alone


class Limit(NamedTuple):
    """A function that sets a library's number of threads, and the number that it had."""

    set_threads: Callable[[int], Any]
    threads: int


_lock: Final = threading.Lock()
_running = 0  # products that run on one thread


def _enter(found: Sequence[Limit]) -> None:
    global _running
    with _lock:
        _running += 1
        if _running == 1:
            for limit in found:
                limit.set_threads(1)


def _leave(found: Sequence[Limit]) -> None:
    global _running
    with _lock:
        _running -= 1
        if _running == 0:
            for limit in found:
                limit.set_threads(limit.threads)


@cache
def limits() -> tuple[Limit, ...]:
    """Return the limits of the multi-threaded BLAS libraries of this process."""
    found = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    return tuple(
        Limit(_setter(library), library.num_threads) for library in found if library.num_threads > 1
    )


def _setter(library: Any) -> Callable[[int], Any]:
    """Return the function of a library that sets its number of threads.

    threadpoolctl's own method sets that of OpenBLAS only for the first thread that calls it, and
    silently does nothing for the threads of other sessions.
    """
    for prefix, suffix in itertools.product(("", "scipy_"), ("", "64_", "_64")):
        function = getattr(library.dynlib, f"{prefix}openblas_set_num_threads{suffix}", None)
        if function is not None:
            return cast("Callable[[int], Any]", function)
    return cast("Callable[[int], Any]", library.set_num_threads)
