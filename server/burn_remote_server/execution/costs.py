"""Estimates of the cost of a batch, before it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from burn_remote_protocol.dialects.native import (
    DEFINE_GRAPH_TASK,
    DEFINE_TASK,
    DROP_TASK,
    READ_TASK,
    SLOW_TASKS,
    Batch,
)
from burn_remote_protocol.tensors import MAX_RANK
from burn_remote_server.execution.graphs import GRAPH_STEP_COST, GraphPlan
from burn_remote_server.execution.plans import Plan

__all__ = ["DEFINITION_BYTE_COST", "TASK_COST", "batch_cost"]

# All costs are in nanoseconds. Dispatching one task in Python takes about a microsecond.
TASK_COST: Final = 1_000

# Freeing one tensor.
DROPPED_COST: Final = 200

# Freeing one byte of signatures and graphs: 250 ns for a step of a graph.
DEFINITION_BYTE_COST: Final = 0.5

# Checking a definition and binding it to its kernel, in addition to decoding its bytes.
BOUND_COST: Final = 10_000
DECODED_BYTE_COST: Final = 30

# Copying one element into the order of the wire.
READ_COST: Final = 1

_INTEGER: Final = frozenset({int})


def batch_cost(
    batch: Batch, numbered: Mapping[int, Plan | GraphPlan], *, size: int, binds_slowly: bool
) -> int | None:
    """Estimate the cost of a batch of ``size`` bytes; return ``None`` if it is unknown."""
    defined: set[int] = set()
    total = size
    for task in batch.tasks:
        try:
            number = task[0]
            if number >= 0:
                if number in defined:  # ``numbered`` still has the previous definition
                    return None
                total += numbered[number].cost + TASK_COST
            elif number == DROP_TASK:
                total += TASK_COST + DROPPED_COST * len(task[1])
            elif number in _DEFINITIONS:
                if binds_slowly:
                    return None
                defined.add(task[1])
                total += TASK_COST + _DEFINITIONS[number](task)
            elif number == READ_TASK:
                total += TASK_COST + READ_COST * _elements(task[3][0])
            elif number not in SLOW_TASKS:
                total += TASK_COST
            else:
                return None
        except (TypeError, IndexError, KeyError):
            return None
    return total + DECODED_BYTE_COST * size if defined else total


_DEFINITIONS: Final[dict[int, Callable[[Any], int]]] = {
    DEFINE_TASK: lambda task: BOUND_COST,
    DEFINE_GRAPH_TASK: lambda task: GRAPH_STEP_COST * len(task[3]),
}


def _elements(shape: object) -> int:
    """Count the elements of an undecoded shape. Raises ``TypeError`` for anything else."""
    # The product of thousands of large integers takes milliseconds.
    if type(shape) is not tuple or len(shape) > MAX_RANK:
        raise TypeError(f"a shape must be a list of at most {MAX_RANK} integers")
    if not _INTEGER.issuperset(map(type, shape)):
        raise TypeError("a shape must be a list of integers")
    return math.prod(shape)
