"""Estimates of the cost of a batch, before it runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

from burn_remote_protocol.dialects.bounded_unpacking import unpacked_bytes
from burn_remote_protocol.dialects.native import (
    DEFINE_GRAPH_TASK,
    DEFINE_TASK,
    DROP_TASK,
    EXECUTE_TASK,
    READ_TASK,
    SLOW_TASKS,
    Batch,
)
from burn_remote_protocol.tensors import MAX_RANK
from burn_remote_server.execution.interpreter_turns import LONG_COST
from burn_remote_server.programs.graphs import GRAPH_STEP_COST, GraphPlan
from burn_remote_server.programs.plans import Plan

__all__ = [
    "DEFINITION_BYTE_COST",
    "NEW_SIGNATURE_COST",
    "READ_COST",
    "TASK_COST",
    "batch_cost",
    "cost_of_plan",
    "decoded_bytes",
    "python_cost",
]

# All costs are in nanoseconds. Dispatching one task in Python takes about a microsecond.
TASK_COST: Final = 1_000

# Freeing one tensor.
DROPPED_COST: Final = 200

# Freeing one byte of signatures and graphs; that is 300 ns for a step of a graph.
DEFINITION_BYTE_COST: Final = 0.5

# Checking a definition and binding it to its kernel, in addition to decoding its bytes.
BOUND_COST: Final = 10_000
DECODED_BYTE_COST: Final = 30

# Decoding, checking and binding a signature, and failing or executing its operation once.
NEW_SIGNATURE_COST: Final = 100_000

# Copying one element into the order of the wire.
READ_COST: Final = 1

# Up to this many tasks, a loop takes less time than a ``Counter``.
FEW_TASKS: Final = 16

# In batches with shorter tasks, ``decoded_bytes`` does not look for elements of uploads: the search
# takes longer than a more precise result is worth.
LONG_TASK_BYTES: Final = 256

_INTEGER: Final = frozenset({int})


def decoded_bytes(batch: Batch, frame: bytes | memoryview) -> int:
    """Return a bound for the memory of a batch that was decoded from a frame."""
    total = unpacked_bytes(frame)
    if len(frame) > LONG_TASK_BYTES * len(batch.tasks):
        # The bytes of elements may have any values, so they would count many times.
        for task in batch.tasks:
            match task:
                case (_, _, (bytes() as elements, _, _)):
                    total += len(elements) - unpacked_bytes(elements)
    return total


def batch_cost(
    batch: Batch, numbered: Mapping[int, Plan | GraphPlan], *, size: int, binds_slowly: bool
) -> int | None:
    """Estimate the cost of a batch of ``size`` bytes; return ``None`` if it is unknown."""
    tasks: Sequence[Any] = batch.tasks
    total = size + TASK_COST * len(tasks)
    defined: set[int] = set()
    try:
        if len(tasks) > FEW_TASKS:
            cost, tasks = _cost_of_numbered(tasks, numbered)
            total += cost
        for task in tasks:
            number = task[0]
            if number >= 0:
                if number in defined:
                    return None  # ``numbered`` still has the previous definition
                total += numbered[number].cost
            elif (cost_of := _OTHERS.get(number)) is not None:
                total += cost_of(task)
                if number in _DEFINITIONS:
                    if binds_slowly:
                        return None
                    defined.add(task[1])
            elif number in SLOW_TASKS:
                return None
    except (TypeError, IndexError, KeyError):
        return None
    return total + DECODED_BYTE_COST * size if defined else total


def _cost_of_numbered(
    tasks: Sequence[Any], numbered: Mapping[int, Plan | GraphPlan]
) -> tuple[int, Sequence[Any]]:
    """Return the cost of the tasks that use definitions of earlier batches, and the other tasks.

    Raises ``TypeError``, ``IndexError``, ``KeyError``.
    """
    # Operations repeat, and counting an operation takes a fifth of the time of a loop's iteration.
    numbers = [*map(itemgetter(0), tasks)]
    # Raises ``TypeError`` for anything but numbers, in less time than a check of the types. Those
    # must not be hashed: a client can choose tuples with equal hashes, and counting 4,096 of them
    # took 15 s.
    sum(numbers)
    counts = Counter(numbers)
    if not _DEFINITIONS.keys().isdisjoint(counts):
        return 0, tasks
    cost = sum(count * numbered[number].cost for number, count in counts.items() if number >= 0)
    return cost, [task for task in tasks if task[0] < 0] if min(counts) < 0 else ()


def python_cost(task: Any, numbered: Mapping[int, Plan | GraphPlan]) -> int | None:
    """Estimate the cost of a task of a batch that computes in Python, holding the interpreter lock.

    Returns ``None`` for a task that computes without the lock for longer, or that may wait for
    another session, a disk or a device.
    """
    try:
        number = task[0]
        if number >= 0:
            return cost_of_plan(numbered[number])
        if number in (EXECUTE_TASK, DEFINE_TASK):
            return NEW_SIGNATURE_COST
        cost_of = _OTHERS.get(number)
        if cost_of is None:
            return None
        cost = cost_of(task)
        return None if number == READ_TASK and cost > LONG_COST else TASK_COST + cost
    except (TypeError, IndexError, KeyError):
        return TASK_COST  # a malformed task, which ends the session


def cost_of_plan(plan: Plan | GraphPlan) -> int | None:
    """Estimate the cost of an operation or a graph that computes in Python, or return ``None``."""
    steps = len(plan.steps) if isinstance(plan, GraphPlan) else 1
    return None if plan.cost > LONG_COST * steps else TASK_COST * steps + plan.cost


# Reads repeat. A small cache, because its keys come from clients, who can choose equal hashes.
@lru_cache(64)
def _elements(shape: object) -> int:
    """Count the elements of an undecoded shape. Raises ``TypeError`` for anything else."""
    # The product of thousands of large integers takes milliseconds.
    if type(shape) is not tuple or len(shape) > MAX_RANK:
        raise TypeError(f"a shape must be a list of at most {MAX_RANK} integers")
    # A negative size would make up for the cost of other tasks.
    if not _INTEGER.issuperset(map(type, shape)) or min(shape, default=0) < 0:
        raise TypeError("a shape must be a list of integers that are not negative")
    return math.prod(shape)


_DEFINITIONS: Final[dict[int, Callable[[Any], int]]] = {
    DEFINE_TASK: lambda task: BOUND_COST,
    DEFINE_GRAPH_TASK: lambda task: GRAPH_STEP_COST * len(task[3]),
}

# Tasks whose cost depends on their contents.
_OTHERS: Final[dict[int, Callable[[Any], int]]] = {
    **_DEFINITIONS,
    DROP_TASK: lambda task: DROPPED_COST * len(task[1]),
    READ_TASK: lambda task: READ_COST * _elements(task[3][0]),
}
