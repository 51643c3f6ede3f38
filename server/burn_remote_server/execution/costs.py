"""What does a batch cost, as far as that can be told before it runs?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from burn_remote_protocol.dialects.native import DEFINE_TASK, DROP_TASK, SLOW_TASKS, Batch
from burn_remote_server.execution.plans import Plan

__all__ = ["TASK_COST", "batch_cost"]

# What one task costs beside its arithmetic, in the unit of the table's estimates (one element of
# one operation, about a nanosecond): dispatch in Python takes about a microsecond.
TASK_COST: Final = 1_000

# What it costs to free one tensor, in the same unit.
DROPPED_COST: Final = 200


def batch_cost(batch: Batch, numbered: Mapping[int, Plan], *, binds_slowly: bool) -> int | None:
    """Estimate what a batch costs, in elements; ``None`` where it cannot be told beforehand."""
    defined: set[int] = set()
    total = 0
    for task in batch.tasks:
        try:
            number = task[0]
            if number >= 0:
                if number in defined:  # what stands there now is what had the number before
                    return None
                total += numbered[number].cost + TASK_COST
            elif number == DROP_TASK:
                total += TASK_COST + DROPPED_COST * len(task[1])
            elif number == DEFINE_TASK:
                if binds_slowly:
                    return None
                defined.add(task[1])
                total += TASK_COST
            elif number not in SLOW_TASKS:
                total += TASK_COST
            else:
                return None
        except (TypeError, IndexError, KeyError):
            return None
    return total
