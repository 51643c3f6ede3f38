"""Parts of a program that a client repeats: operations and drops of consecutive messages.

A part becomes a graph. Its *numbers* are the ids of the tensors in its messages, in their order.
They differ each time, but the places of equal numbers stay the same. All functions are pure, except
for a cache of signatures (``relative_graphs``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from burn_remote_protocol.dialects.burn_0_22 import Bindings
from burn_remote_protocol.messages import DefineGraph
from burn_remote_protocol.operations.row import Signature
from burn_remote_server.programs.plans import Plan
from burn_remote_server.programs.relative_graphs import bound_signature

__all__ = ["PartDefinition", "PartStep", "can_join", "definition_of", "picked"]

# An operation, or without a plan the drop of tensors, and the range of its numbers.
PartStep = tuple[Plan | None, int, int]

# A part is undone and its messages run one by one if a step fails. These operations cannot be
# repeated: they use random numbers, or they are functions of the server's administrator.
_NOT_REPEATABLE: Final = frozenset({"Random", "IntRandom", "Custom"})

_NO_VALUES: Final = Bindings((), (), (), ())


class PartDefinition(NamedTuple):
    """A part as a graph, whose steps refer to ``signatures`` by index, and places of its numbers.

    ``equal`` has, for each number, the first place of an equal one. ``distinct`` has these first
    places. ``inputs`` and ``outputs`` are those of the graph. ``made`` has the results of all
    operations, and ``consumed`` the other tensors that the part drops or uses for the last time.
    """

    task: DefineGraph
    signatures: list[Signature]
    equal: tuple[int, ...]
    distinct: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    made: tuple[int, ...]
    consumed: tuple[int, ...]


def can_join(plan: Plan) -> bool:
    """Whether a part may contain an operation. Those that a fuser takes run in their windows."""
    return (
        plan.error is None
        and plan.gives_one
        and not plan.is_fusible
        and plan.signature.row.name not in _NOT_REPEATABLE
    )


def definition_of(steps: Sequence[PartStep], numbers: Sequence[int]) -> PartDefinition | None:
    """Return the definition of a part; ``None`` if it cannot be a graph.

    It cannot if a tensor is made twice or used after its end.
    """
    first: dict[int, int] = {}
    equal = tuple([first.setdefault(number, place) for place, number in enumerate(numbers)])
    inputs: dict[int, int] = {}  # slots by the places of numbers
    operations: list[tuple[Plan, list[int], int]] = []
    made: dict[int, None] = {}
    ended: dict[int, None] = {}
    used: set[int] = set()
    for plan, start, stop in steps:
        places = equal[start:stop]
        taken = places if plan is None else places[: plan.input_count]
        if not ended.keys().isdisjoint(taken):
            return None
        used.update(taken)
        if plan is None:
            ended |= dict.fromkeys(taken)
            continue
        for place in taken:
            if place not in made:
                inputs.setdefault(place, len(inputs))
        (output,) = places[plan.input_count :]
        if output in made or output in used:
            return None
        operations.append((plan, [*taken], output))
        ended |= dict.fromkeys([taken[position] for position in plan.last_uses])
        made[output] = None
    slots = inputs | {place: len(inputs) + slot for slot, place in enumerate(made)}
    outputs = tuple([place for place in made if place not in ended])
    task = DefineGraph(
        0,
        len(inputs),
        tuple(
            [
                (step, *[slots[place] for place in taken])
                for step, (_, taken, _) in enumerate(operations)
            ]
        ),
        tuple([slots[place] for place in outputs]),
        (),
    )
    return PartDefinition(
        task,
        [bound_signature(plan.signature, _NO_VALUES, reads_only=True) for plan, _, _ in operations],
        equal,
        tuple(first.values()),
        tuple(inputs),
        outputs,
        tuple(made),
        tuple([place for place in ended if place not in made]),
    )


def picked(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return a function that returns the items at some places."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: tuple([items[place] for place in places])
