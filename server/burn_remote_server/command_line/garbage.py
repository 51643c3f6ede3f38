"""Garbage collection in bounded steps.

Reference counts free nearly everything that a server makes. The rest, mainly closed connections, is
left to Python's cyclic collector, which stops all threads while it runs, for about 0.4 µs per
object that it examines. Python's own full collections examine all objects: 16,000 fetches in flight
made one take 0.25 s.

Here a full collection examines only what was made since the one before. What survives it is frozen:
later collections do not examine it, and it is freed by its reference counts as always. Now and then
everything is examined once more, while that is little.
"""

from __future__ import annotations

import gc
from typing import Final

__all__ = ["BoundedCollector"]

# Container objects made before a collection of the first generation: Python's default.
YOUNG_OBJECTS: Final = 700
# Collections of one generation before one of the next. A full collection thus examines some 16,000
# objects, in 5 to 20 ms.
MIDDLE_COLLECTIONS: Final = 10
FULL_COLLECTIONS: Final = 2

# Objects made since start-up that are always examined again. With those of the start-up, this takes
# some 100 ms.
EXAMINED_OBJECTS: Final = 100_000
# More than that are examined only where their number has grown by this factor since the last time:
# otherwise the garbage among them could grow without bound.
GROWTH: Final = 4


class BoundedCollector:
    """Freezes what survives a full collection. One per process.

    The caller calls ``examine_all`` every minute or so. Needs a start-up that has ended: what
    exists then is counted as permanent.
    """

    def __init__(self) -> None:
        self._permanent = 0
        self._survivors = EXAMINED_OBJECTS

    def install(self) -> None:
        """Collect once, and take over all further collections."""
        gc.collect()
        gc.freeze()
        self._permanent = gc.get_freeze_count()
        gc.set_threshold(YOUNG_OBJECTS, MIDDLE_COLLECTIONS, FULL_COLLECTIONS)
        gc.callbacks.append(_freeze_survivors)

    def examine_all(self) -> bool:
        """Examine also what is frozen, unless that is too much; return whether it was done."""
        made = gc.get_freeze_count() - self._permanent
        if EXAMINED_OBJECTS < made < GROWTH * self._survivors:
            return False
        gc.unfreeze()
        gc.collect()  # freezes what survives
        made = gc.get_freeze_count() - self._permanent
        self._survivors = max(EXAMINED_OBJECTS, made)
        return True


def _freeze_survivors(phase: str, about: dict[str, int]) -> None:
    if phase == "stop" and about["generation"] == 2:
        gc.freeze()
