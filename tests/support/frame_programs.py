"""Messages of Burn 0.22 before they are packed, and random programs of them."""

from __future__ import annotations

from random import Random
from typing import Any

__all__ = [
    "added",
    "drawn_step",
    "dropped",
    "read",
    "registered",
    "selected",
    "shifted",
    "sync",
    "tensor",
]

S = [1]


def tensor(number: int, status: str = "ReadOnly", size: int = 2) -> Any:
    return [[number], [[size]], status, "F32"]


def registered(operation: Any) -> Any:
    return {"Task": {"RegisterOperation": [S, operation]}}


def added(first: int, second: int, out: int, status: str = "ReadOnly", size: int = 2) -> Any:
    uses = [tensor(first, size=size), tensor(second, status, size), tensor(out, "NotInit", size)]
    return registered({"NumericFloat": ["F32", {"Add": uses}]})


def reshaped(number: int, out: int, size: int = 2) -> Any:
    """Return an operation whose result shares the memory of its input."""
    wide = [[out], [[1, size]], "NotInit", "F32"]
    return registered({"BaseFloat": {"Reshape": [tensor(number, size=size), wide]}})


def sliced(number: int, out: int) -> Any:
    """Return an operation whose result shares half of the memory of its input."""
    uses = [tensor(number), [[0, 1, 1]], tensor(out, "NotInit", 1)]
    return registered({"BaseFloat": {"Slice": uses}})


def wide_dropped(number: int, size: int = 2) -> Any:
    return registered({"Drop": [[number], [[1, size]], "ReadWrite", "F32"]})


def selected(source: int, indices: int, out: int) -> Any:
    """Return an operation that fails if an index is too large."""
    uses = [tensor(source), 0, [[indices], [[1]], "ReadOnly", "I32"], tensor(out, "NotInit", 1)]
    return registered({"BaseFloat": {"Select": uses}})


def dropped(number: int, size: int = 2) -> Any:
    return registered({"Drop": tensor(number, "ReadWrite", size)})


def read(request: int, number: int, status: str = "ReadOnly", size: int = 2) -> Any:
    return {"Task": {"ReadTensor": [request, S, tensor(number, status, size)]}}


def sync(request: int) -> Any:
    return {"Task": {"SyncBackend": [request, S]}}


def drawn_step(random: Random, first: int = 100) -> list[tuple[Any, ...]]:
    """Return the messages of a step as a function and its arguments.

    Ids from 98 on are new in each repetition; those of results begin at ``first``.
    """
    step: list[tuple[Any, ...]] = []
    made = [1]
    # Views of the tensors, which may outlive them.
    views: list[tuple[Any, ...]] = []
    for out in range(first, first + random.randrange(4, 20)):
        match random.randrange(10):
            case 0:
                step.append((reshaped, random.choice(made), out))
                views.append((wide_dropped, out))
                continue
            case 5:
                step.append((sliced, random.choice(made), out))
                views.append((dropped, out, 1))
                continue
            case 1:
                step.append((selected, random.choice(made), random.choice([3, 4]), out))
                step.append((dropped, out, 1))
                continue
            case 2 if len(made) > 1:
                step.append((dropped, made.pop(random.randrange(1, len(made)))))
                continue
            case 3:
                step.append((read, out, random.choice(made)))
                continue
            case 4:  # an unknown tensor, one of another shape, or an id in use
                step.append((added, 1, random.choice([99, 2]), random.choice([out, 1])))
                step.append((dropped, out))
                continue
        status = random.choice(["ReadOnly", "ReadWrite"])
        second = made.pop() if status == "ReadWrite" and len(made) > 1 else 1
        step.append(
            (added, random.choice(made), second, out, "ReadOnly" if second == 1 else status)
        )
        made.append(out)
    drops = views + [(dropped, out) for out in made[1:]]
    random.shuffle(drops)
    step += drops
    step.append((read, 98, 1))
    return step


def shifted(step: list[tuple[Any, ...]], by: int) -> list[Any]:
    """Return the messages of a repetition, with new ids in place of those from 98 on."""
    return [
        message(*[each + by if type(each) is int and each >= 98 else each for each in arguments])
        for message, *arguments in step
    ]
