"""Sequences of operations and drops that a client repeats, prepared for one loop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

from burn_remote_server.programs.plans import Plan
from burn_remote_server.tensors.allocations import memory_bytes

__all__ = [
    "ONE_INPUT",
    "OperationSequence",
    "SequenceStep",
    "can_contain",
    "drop_step",
    "operation_step",
]

# An operation, or without a plan the drop of tensors: its place among the messages, its plan, the
# shapes and dtypes of its inputs in one tuple, the places of the first input, the second input and
# the output among the numbers of the messages, and the tensors that it frees: the place and the
# bytes of each. The bytes are 0 for a drop, which has no signature.
# A plain tuple, because Python unpacks it in a third of the time of a ``NamedTuple``.
SequenceStep = tuple[int, Plan | None, tuple[Any, ...], int, int, int, tuple[tuple[int, int], ...]]

# In the place of the second input: the operation has only one, or neither one nor two.
ONE_INPUT: Final = 0
OTHER_INPUTS: Final = -1

_NONE: Final = -1


class OperationSequence(NamedTuple):
    """The steps of a sequence, and the bytes and the number of all results.

    ``stored_bytes`` has the bytes of the results of the first operations, by their number.
    """

    steps: tuple[SequenceStep, ...]
    stored_bytes: tuple[int, ...]
    output_bytes: int
    output_count: int

    @classmethod
    def of(cls, steps: Sequence[SequenceStep]) -> OperationSequence:
        """Return the sequence of some steps."""
        sizes = [step[1].output_bytes for step in steps if step[1] is not None]
        stored_bytes = (*accumulate(sizes, initial=0),)
        return cls(tuple(steps), stored_bytes, stored_bytes[-1], len(sizes))

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
    count, uses = plan.input_count, plan.signature.input_uses
    dying = tuple([(start + at, memory_bytes(uses[at].spec)) for at in plan.last_uses])
    seen = tuple(chain.from_iterable(plan.expected))
    second = start + 1 if count == 2 else ONE_INPUT if count == 1 else OTHER_INPUTS
    return place, plan, seen, start, second, start + count, dying


def drop_step(place: int, start: int, stop: int) -> SequenceStep:
    """Return the step that frees the tensors between two places among the numbers."""
    dying = tuple([(number, 0) for number in range(start, stop)])
    return place, None, (), _NONE, _NONE, _NONE, dying
