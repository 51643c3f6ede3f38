"""Parts of a program that a client repeats, compiled to graphs, and their calls.

A call of a part has the effects of its messages. It either does all of them, or none: then its
messages run one by one, so each failure has the reason and the place that it has without parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation, SessionLost
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.programs.graphs import GraphPlan
from burn_remote_server.programs.instructions import StepFailed
from burn_remote_server.programs.operation_parts import (
    PartDefinition,
    PartStep,
    definition_of,
    picked,
)
from burn_remote_server.programs.plans import PLAN_BYTES

__all__ = ["JoinedOperations", "JoinedPart"]

# Compiled parts of a session. A training step gives up to ten.
PARTS_KEPT: Final = 64
# Parts take at most a session's quota divided by this, so that the rest is left for its tensors.
QUOTA_DIVISOR: Final = 64

# A part that failed so often runs as messages from then on.
FAILURES_ALLOWED: Final = 3


class JoinedPart:
    """A compiled part, which ``JoinedOperations.run`` runs."""

    def __init__(self, plan: GraphPlan, found: PartDefinition) -> None:
        self.plan: Final = plan
        self.equal: Final = picked(found.equal)
        self.distinct: Final = picked(found.distinct)
        self.distinct_count: Final = len(found.distinct)
        self.inputs: Final = picked(found.inputs)
        self.outputs: Final = picked(found.outputs)
        self.made: Final = picked(found.made)
        self.consumed: Final = picked(found.consumed)
        self.made_count: Final = len(found.made)
        self.made_bytes: Final = sum([step.plan.output_bytes for step in plan.steps])
        self.failures = 0


class JoinedOperations:
    """The compiled parts of one session. Not thread-safe: only the session's worker calls it."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter: Final = interpreter
        self._most_bytes: Final = interpreter.reply_quota.max_bytes // QUOTA_DIVISOR
        self._count = self._bytes = 0

    @property
    def are_useful(self) -> bool:
        """Whether parts save time: not on a device that captures runs, which computes meanwhile."""
        return not self._interpreter.session.captures_runs

    def compiled(self, steps: Sequence[PartStep], numbers: tuple[int, ...]) -> JoinedPart | None:
        """Return a new part; ``None`` if it cannot be compiled, or the session has enough parts."""
        found = definition_of(steps, numbers)
        size = PLAN_BYTES * len(steps)
        if found is None or self._count >= PARTS_KEPT or self._bytes + size > self._most_bytes:
            return None
        plans = self._interpreter.plans
        try:
            numbered = dict(enumerate(map(plans.plan_of, found.signatures)))
            plan = plans.compile_graph(found.task, numbered)
        except (LimitExceeded, ProtocolViolation, SessionLost):
            return None  # such as one that does not fit into the quota
        self._count += 1
        self._bytes += size
        return JoinedPart(plan, found)

    def run(self, part: JoinedPart, numbers: tuple[int, ...]) -> bool:
        """Run a part, or do nothing; return whether it ran.

        It does not run if a step fails, if its tensors are not those that its messages expect, or
        if the results of all steps do not fit into what the session has reserved: a larger
        reservation could take memory from other sessions.
        """
        interpreter, plan = self._interpreter, part.plan
        quota = interpreter.quota
        try:
            values = self._inputs(part, numbers)
        except MemoryError:
            values = None
        if values is None or not quota.take_reserved(part.made_bytes, part.made_count):
            return False
        try:
            results = plan.run(values, ())
        except (StepFailed, MemoryError) as failed:
            if isinstance(failed, StepFailed):
                failed.registers.clear()  # they refer to dead values
                part.failures += 1
            quota.give_back(part.made_bytes, part.made_count)
            return False
        except BaseException:  # the end of the session
            quota.give_back(part.made_bytes, part.made_count)
            raise
        quota.give_back(part.made_bytes - plan.output_bytes, part.made_count - plan.output_count)
        interpreter.store_joined(plan, part.outputs(numbers), results, values)
        values.clear()
        results.clear()
        interpreter.tensors.drop(part.consumed(numbers))
        return True

    def _inputs(self, part: JoinedPart, numbers: tuple[int, ...]) -> list[Any] | None:
        """Return the inputs of a part; ``None`` if its tensors are not as its messages expect."""
        interpreter = self._interpreter
        tensors = interpreter.tensors
        arrays = tensors.arrays
        if (
            tensors.slots
            or interpreter.is_stopped
            or tensors.lost is not None
            or part.failures >= FAILURES_ALLOWED
            or part.equal(numbers) != numbers
            or len({*part.distinct(numbers)}) != part.distinct_count
            or not arrays.keys().isdisjoint(part.made(numbers))
        ):
            return None
        try:
            values = [arrays[tensor] for tensor in part.inputs(numbers)]
        except KeyError as error:
            pass_on_of_signal_handler(error)
            return None
        for array, (shape, dtype) in zip(values, part.plan.expected):  # noqa: B905 - equal lengths
            if array.shape != shape or array.dtype != dtype:
                return None
        return values
