"""Limits on the number of threads that multiply matrices on a CPU.

NumPy's BLAS divides all but the smallest products among all cores, and its threads spin while they
wait for each other. On a machine whose cores are busy (with a client, another session or the event
loop) a product of a quarter of a millisecond then takes many times as long as on one thread.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import threadpoolctl

from burn_remote_server.backends.interface import Run

__all__ = ["on_one_thread", "pays_for_threads"]

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
    libraries = _libraries()
    if not libraries:
        return run

    def run_alone(*inputs: Any) -> Any:
        for library, _ in libraries:
            library.set_num_threads(1)
        try:
            return run(*inputs)
        finally:
            for library, threads in libraries:
                library.set_num_threads(threads)

    return run_alone


@cache
def _libraries() -> tuple[tuple[Any, int], ...]:
    """Return the multi-threaded BLAS libraries of this process and their numbers of threads."""
    found = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    return tuple((library, library.num_threads) for library in found if library.num_threads > 1)
