"""Drops that a batch has after tasks that do not use the dropped tensors.

A client sends its drops with the next batch, mostly at its end. If an operation does not fit into
the quota, the session frees the tensors that later drops of the batch free, and that no task in
between uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from burn_remote_protocol.dialects.native import (
    DEFINE_GRAPH_TASK,
    DEFINE_TASK,
    DROP_TASK,
    READ_TASK,
)
from burn_remote_protocol.messages import Drop, Read, Sync
from burn_remote_protocol.operations.row import Operation

__all__ = ["EarlyDrops"]

_INTEGER: Final = frozenset({int})


class EarlyDrops:
    """The tensors that the rest of a batch drops, by the place of their last use.

    The search ends at the first task of a rare kind, and at a malformed task. It visits each task
    once.
    """

    def __init__(self, tasks: Sequence[Any], start: int) -> None:
        used: dict[int, int] = {}
        found: list[tuple[int, int]] = []
        for place in range(start, len(tasks)):
            known = _uses(tasks[place])
            if known is None:
                break
            tensors, is_drop = known
            if not _INTEGER.issuperset(map(type, tensors)):
                break
            if is_drop:
                found += [(used.get(tensor, -1), tensor) for tensor in tensors]
            else:
                used.update(dict.fromkeys(tensors, place))
        # The last uses that come first are at the end.
        self._waiting: Final = sorted(found, reverse=True)

    def before(self, place: int) -> list[int]:
        """Remove and return the tensors that no task from ``place`` on uses before their drop."""
        waiting = self._waiting
        free = []
        while waiting and waiting[-1][0] < place:
            free.append(waiting.pop()[1])
        return free


def _uses(task: Any) -> tuple[Sequence[Any], bool] | None:
    """Return the tensors of a task, and whether it drops them; ``None`` for other tasks."""
    match task:
        case Operation(signature, tensors):
            return tensors, signature.row.family == "Drop"
        case Drop(tensors):
            return tensors, True
        case Read():
            return (task.tensor,), False
        case Sync():
            return (), False
        case (int() as number, *_) if type(task) is tuple:
            return _uses_of_undecoded(number, task)
    return None


def _uses_of_undecoded(number: int, task: tuple[Any, ...]) -> tuple[Sequence[Any], bool] | None:
    if number >= 0:
        # The last argument of a graph may be a list of numbers.
        return (task[1:-1] if type(task[-1]) is tuple else task[1:]), False
    if number in (DEFINE_TASK, DEFINE_GRAPH_TASK):
        return (), False
    match task:
        case (_, tuple() as tensors) if number == DROP_TASK:
            return tensors, True
        case (_, _, tensor, _) if number == READ_TASK:
            return (tensor,), False
    return None
