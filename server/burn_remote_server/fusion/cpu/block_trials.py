"""The choice of a block size by the processor time of the first runs.

Blocks gain where intermediate results would otherwise leave the cache of a core. Where a larger
cache is as fast for them, as on processors whose third-level cache holds all operands, the calls of
functions for each block cost more than blocks gain. No size of caches that the system reports says
which is the case, and other work shares the caches. All sizes give the same bits.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["BlockTrial"]

# Runs of each candidate. The shortest one counts, because other work only makes runs longer.
ROUNDS: Final = 3


class BlockTrial:
    """The candidates in turn, then the one with the shortest run.

    ``candidate`` is the place of the one to use for the next run, and ``is_decided`` whether it is
    the final one. Of equal candidates, the first is taken.
    """

    __slots__ = ("_runs", "_shortest", "candidate", "is_decided")

    def __init__(self, candidates: int) -> None:
        self._shortest = [math.inf] * candidates
        self._runs = 0
        self.candidate = 0
        self.is_decided = candidates == 1

    def note(self, seconds: float) -> None:
        """Take the processor time of a complete run of the candidate."""
        shortest = self._shortest
        shortest[self.candidate] = min(seconds, shortest[self.candidate])
        self._runs += 1
        self.is_decided = self._runs == ROUNDS * len(shortest)
        if self.is_decided:
            self.candidate = shortest.index(min(shortest))
        else:
            self.candidate = self._runs % len(shortest)
