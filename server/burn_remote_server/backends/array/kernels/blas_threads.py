"""The number of threads on which NumPy multiplies matrices.

Its BLAS shares all but the smallest products among all cores, and its threads spin while they wait
for each other. On a machine whose cores are busy (with a client, another session, the event loop)
a product of a quarter of a millisecond then takes many times as long as it would alone.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import threadpoolctl

from burn_remote_server.backends.interface import Run

__all__ = ["on_one_thread", "pays_for_threads"]

# Multiplications of one product from which on it is shared among cores, about half a millisecond's
# work for one. Larger: a product on an idle machine takes up to as many times longer as there are
# cores. Smaller: on a busy one, small products wait for cores.
SHARED_MULTIPLICATIONS: Final = 2**24
# Products that the BLAS shares with nobody by itself; setting its threads takes 2 µs.
SMALL_MULTIPLICATIONS: Final = 2**17


def pays_for_threads(multiplications: int) -> bool:
    """Whether a product should be left to the BLAS, which shares it or is quick anyway."""
    return not SMALL_MULTIPLICATIONS <= multiplications < SHARED_MULTIPLICATIONS


def on_one_thread(run: Run) -> Run:
    """Return a kernel that multiplies on the calling thread alone.

    How many threads there are belongs to the process: a large product of another session that
    starts meanwhile is on one thread as well, and no result depends on it.
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
    """Return the BLAS libraries of this process that share work, and their numbers of threads."""
    found = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    return tuple((library, library.num_threads) for library in found if library.num_threads > 1)
