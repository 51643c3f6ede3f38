"""Arguments and results of a call of a function that is being recorded."""

from __future__ import annotations

import enum
import operator
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from burn_remote.arguments.containers import is_container, members, rebuilt
from burn_remote.arguments.traced_numbers import NumberProgram, TracedNumber
from burn_remote.functions.tensor import Tensor
from burn_remote.graphs.structures import take_apart
from burn_remote.runner.interface import TensorHandle
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import UsageError, type_name

__all__ = [
    "ARGUMENT",
    "NUMBER",
    "OUTPUT",
    "ResultLeaf",
    "check_unchanged",
    "contents_of",
    "leaf_of",
    "place_of",
    "with_handles",
]

# The sources of the values in a function's result.
ARGUMENT, OUTPUT, NUMBER = range(3)

# Values of a result, besides tensors and numbers, that are the same in each call.
_CONSTANTS: Final = (
    types.NoneType | bool | int | float | complex | str | bytes | np.generic | np.dtype | DType
    | enum.Enum | type
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResultLeaf:
    """A leaf of a function's result: the source of its value, and the position in that source."""

    kind: int
    place: int


def place_of(leaf: Any) -> tuple[int, int] | None:
    """Return the source and the place of a result's leaf, as ``Template`` takes them."""
    return (leaf.kind, leaf.place) if type(leaf) is ResultLeaf else None


def leaf_of(leaf: Any, program: NumberProgram, of_tensor: Callable[[Any], ResultLeaf]) -> Any:
    """Return the entry of a result's template for a leaf; ``of_tensor`` makes that of a tensor.

    Raises ``UsageError`` for a value that a graph cannot return.
    """
    if type(leaf) is Tensor:
        return of_tensor(leaf)
    if type(leaf) is TracedNumber:
        if leaf.program is not program:
            raise UsageError(
                "a compiled function returns a number that was recorded in another call; return "
                "numbers that this call computes"
            )
        return ResultLeaf(NUMBER, leaf.place)
    if isinstance(leaf, _CONSTANTS):
        return leaf
    raise UsageError(
        f"a compiled function returns an object of type {type_name(leaf)}; it may return "
        "tensors, numbers, strings, and tuples, lists, dictionaries and data classes of them"
    )


def with_handles(
    call: Any, handles: Sequence[TensorHandle], program: NumberProgram
) -> tuple[Any, list[Any]]:
    """Return a call's arguments with other handles and traced numbers.

    Also returns weak references to the new tensors.
    """
    given = iter(handles)
    traced = iter(program.inputs)
    lent: list[Any] = []
    found: list[Tensor] = []
    values: list[Any] = []

    def replaced(leaf: Any) -> Any:
        # The same test as for the structure, so that both agree on what is a leaf.
        take_apart(leaf, found, values, [])
        if found:
            found.clear()
            tensor = Tensor(next(given))
            lent.append(weakref.ref(tensor))
            return tensor
        if values:
            values.clear()
            return next(traced)
        return leaf

    return rebuilt(call, replaced), lent


def contents_of(call: Any) -> list[tuple[Any, list[Any]]]:
    """Return the lists, dictionaries and data classes in arguments, each with its contents."""
    return [(container, _contents(container)) for container in _mutable(call)]


def _mutable(value: Any) -> Iterator[Any]:
    """Iterate over the lists, dictionaries and data classes in nested containers."""
    if is_container(value):
        if not isinstance(value, tuple | slice):
            yield value
        for member in members(value):
            yield from _mutable(member)


def _contents(container: Any) -> list[Any]:
    if isinstance(container, dict):
        return [*container, *container.values()]
    return [*members(container), *getattr(container, "__dict__", ())]


def check_unchanged(before: list[tuple[Any, list[Any]]]) -> None:
    """Raise ``UsageError`` unless containers have the contents that they had before."""
    for container, contents in before:
        now = _contents(container)
        if len(now) != len(contents) or not all(map(operator.is_, now, contents)):
            raise UsageError(
                f"the compiled function changes a {type(container).__name__} that is an "
                "argument, and later calls would not; return the new one"
            )
