"""Garbage collection in bounded steps.

Reference counting frees nearly all objects of a server. Python's cyclic garbage collector frees the
rest, mainly closed connections. While it runs it stops all threads, for about 0.4 µs per object
that it examines. By default, a full collection examines all objects: with 16,000 fetches in
progress it took 0.25 s.

Here, a full collection examines only objects created since the previous one. It freezes the
survivors: later collections skip them, but reference counting still frees them. From time to time,
frozen objects are examined too, if they are few enough.
"""

from __future__ import annotations

import gc
from typing import Final

__all__ = ["BoundedCollector"]

# Container objects created before a collection of the first generation: Python's default.
YOUNG_OBJECTS: Final = 700
# Collections of one generation before one of the next generation. So a full collection examines at
# most about 26,000 objects (counted with Python 3.11), in 5 to 20 ms.
MIDDLE_COLLECTIONS: Final = 10
FULL_COLLECTIONS: Final = 2

# Frozen objects are examined too if at most this number of objects has been created since the
# startup. Together with the objects of the startup, this takes about 100 ms.
EXAMINED_OBJECTS: Final = 100_000
# If there are more, frozen objects are examined only if their number has grown by this factor since
# the last time. If they were never examined, garbage among them could grow without limit.
GROWTH: Final = 4


class BoundedCollector:
    """Freezes the objects that survive a full collection. One per process.

    Create it after the startup: the objects that exist at that time count as permanent. The caller
    must call ``examine_all`` about every minute.
    """

    def __init__(self) -> None:
        self._permanent = 0
        self._survivors = EXAMINED_OBJECTS

    def install(self) -> None:
        """Collect once, enable collections, and freeze the survivors of each full one."""
        gc.collect()
        gc.freeze()
        self._permanent = gc.get_freeze_count()
        gc.set_threshold(YOUNG_OBJECTS, MIDDLE_COLLECTIONS, FULL_COLLECTIONS)
        gc.callbacks.append(_freeze_survivors)
        gc.enable()

    def examine_all(self) -> bool:
        """Examine frozen objects too, unless they are too many; return whether it was done."""
        made = gc.get_freeze_count() - self._permanent
        if EXAMINED_OBJECTS < made < GROWTH * self._survivors:
            return False
        gc.unfreeze()
        gc.collect()  # the callback freezes the survivors
        made = gc.get_freeze_count() - self._permanent
        self._survivors = max(EXAMINED_OBJECTS, made)
        return True


def _freeze_survivors(phase: str, about: dict[str, int]) -> None:
    if phase == "stop" and about["generation"] == 2:
        gc.freeze()
