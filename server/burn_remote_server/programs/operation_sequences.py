"""Sequences of operations and drops that a client repeats, prepared for one loop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from burn_remote_server.programs.plans import Plan

__all__ = ["OperationSequence", "SequenceStep", "can_contain", "drop_step", "operation_step"]

# An operation, or without a plan the drop of tensors: its place among the messages, its plan, the
# shapes and dtypes of its inputs in one tuple, the number of its inputs, the places of the first
# input, the second input and the output among the numbers of the messages, and the places of the
# tensors that it frees.
# A plain tuple, because Python unpacks it in a third of the time of a ``NamedTuple``.
SequenceStep = tuple[int, Plan | None, tuple[Any, ...], int, int, int, int, tuple[int, ...]]

# The place of a tensor that an operation does not have.
_NONE: Final = -1


class OperationSequence(NamedTuple):
    """The steps of a sequence, and the bytes and the number of all results."""

    steps: tuple[SequenceStep, ...]
    output_bytes: int
    output_count: int

    @classmethod
    def of(cls, steps: Sequence[SequenceStep]) -> OperationSequence:
        """Return the sequence of some steps."""
        plans = [step[1] for step in steps if step[1] is not None]
        return cls(tuple(steps), sum(plan.output_bytes for plan in plans), len(plans))

    def done_until(self, place: int) -> int:
        """Return the number of steps up to the message at ``place``, with its own."""
        return sum(step[0] <= place for step in self.steps)


def can_contain(plan: Plan) -> bool:
    """Whether a sequence may contain an operation.

    One with large results may reuse the memory of an input, and decides that for itself.
    """
    return plan.error is None and plan.gives_one and not plan.is_large


def operation_step(place: int, plan: Plan, start: int) -> SequenceStep:
    """Return the step of an operation whose tensors begin at ``start`` among the numbers."""
    count = plan.input_count
    dying = tuple([start + position for position in plan.last_uses])
    seen = tuple(chain.from_iterable(plan.expected))
    return place, plan, seen, count, start, start + 1 if count > 1 else _NONE, start + count, dying


def drop_step(place: int, start: int, stop: int) -> SequenceStep:
    """Return the step that frees the tensors between two places among the numbers."""
    return place, None, (), 0, _NONE, _NONE, _NONE, tuple(range(start, stop))
