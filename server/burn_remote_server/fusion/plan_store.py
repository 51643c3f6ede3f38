"""The execution plans of the windows of a stream of operations."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from burn_remote_server.fusion.counts import FusionCounts

__all__ = ["MAX_EXPLORATIONS", "MAX_PLANS", "ExecutionPlanStore"]

# Windows that a session remembers, a few KiB each. A training step has fewer.
MAX_PLANS: Final = 256
# Bounds the time that a session spends on windows that never repeat.
MAX_EXPLORATIONS: Final = 1000

P = TypeVar("P")


class ExecutionPlanStore(Generic[P]):
    """Execution plans by window, the least recently used of which are evicted.

    A window is explored when it is seen for the second time. So windows that a program does not
    repeat are never explored.
    """

    def __init__(self, counts: FusionCounts) -> None:
        self._plans: OrderedDict[Hashable, P | None] = OrderedDict()
        self._counts: Final = counts

    def __len__(self) -> int:
        return len(self._plans)

    def found(self, window: Hashable, explore: Callable[[], P]) -> P | None:
        """Return the plan of a window; call ``explore`` for it when it is seen the second time."""
        self._counts.windows += 1
        if window not in self._plans:
            self._plans[window] = None
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
                self._counts.plans_evicted += 1
            return None
        self._plans.move_to_end(window)
        plan = self._plans[window]
        if plan is not None:
            self._counts.plans_found += 1
        elif self._counts.plans_explored < MAX_EXPLORATIONS:
            self._counts.plans_explored += 1
            started = time.perf_counter()
            plan = self._plans[window] = explore()
            self._counts.compile_seconds += time.perf_counter() - started
        return plan

    def clear(self) -> None:
        """Forget all windows."""
        self._plans.clear()
