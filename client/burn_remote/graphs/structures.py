"""Nested arguments and results of compiled functions, taken apart and put together.

Tensors and numbers are *leaves*. Containers (``arguments/containers.py``) are taken apart; anything
else is *static*: part of the structure. Static values are compared by equality, or by identity if
their class does not define equality.
"""

from __future__ import annotations

import operator
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, final

import numpy as np

from burn_remote.arguments.containers import (
    CONTAINERS,
    check_depth,
    constructor,
    is_container,
    members,
)
from burn_remote.functions.tensor import Tensor
from burn_remote_protocol.errors import ArgumentMismatch, type_name

__all__ = ["NUMBER", "TENSOR", "Template", "exact", "is_compared_by_identity", "take_apart"]

# Marks of leaves in a structure.
TENSOR: Final = "tensor"
NUMBER: Final = "number"

# Members that come from no source: a nested container, and a value that is always the same.
_NESTED: Final = -1
_SAME: Final = -2


def is_compared_by_identity(value: Any) -> bool:
    """Return whether the class of a value defines no equality."""
    kind: Any = type(value)
    return kind.__hash__ is object.__hash__ and kind.__eq__ is object.__eq__


def take_apart(
    value: Any, tensors: list[Tensor], numbers: list[Any], statics: list[Any], depth: int = 0
) -> Hashable:
    """Append the parts of ``value`` to the lists and return its structure, a hashable key.

    The key does not keep objects alive that are compared by identity. Raises ``ArgumentMismatch``
    for an array, for something unhashable, for subclasses of containers other than named tuples,
    and for containers nested too deep.
    """
    kind = type(value)
    if kind is Tensor:
        tensors.append(value)
        return TENSOR
    if kind is float or kind is int:
        numbers.append(value)
        return NUMBER, kind
    if kind not in CONTAINERS:
        if isinstance(value, np.number):
            numbers.append(value)
            return NUMBER, kind
        if not is_container(value):
            return _static(value, statics)
    check_depth(depth)
    parts: list[Any] = [kind]
    if kind is dict or kind is OrderedDict:
        parts.append(tuple([key if type(key) is str else exact(key) for key in value]))
    for one in members(value):
        # No recursive call for a tensor, because the call takes as long as the rest.
        if type(one) is Tensor:
            tensors.append(one)
            parts.append(TENSOR)
        else:
            parts.append(take_apart(one, tensors, numbers, statics, depth + 1))
    return tuple(parts)


def _static(value: Any, statics: list[Any]) -> Hashable:
    if isinstance(value, tuple | list | dict):
        raise ArgumentMismatch(
            f"an argument of a compiled function is of type {type_name(value)}; pass tensors, "
            "numbers, and tuples, lists, dictionaries and data classes of them"
        )
    if isinstance(value, np.ndarray):
        raise ArgumentMismatch(
            f"an array of shape {list(value.shape)} is an argument of a compiled function; pass "
            "burn_remote.tensor(array, device=…), because the function would keep the first array"
        )
    statics.append(value)
    return exact(value)


def exact(value: Any) -> Hashable:
    """Return a key of a static value that distinguishes 1, True and 1.0, and 0.0 and -0.0.

    Raises ``ArgumentMismatch`` for something unhashable.
    """
    kind = type(value)
    if isinstance(value, float | complex):
        return kind, repr(value)
    if isinstance(value, frozenset):
        return kind, frozenset([exact(one) for one in value])
    if isinstance(value, tuple):
        return kind, tuple([exact(one) for one in value])
    if isinstance(value, range):
        return kind, value.start, value.stop, value.step
    if is_compared_by_identity(value):
        try:
            return kind, weakref.ref(value)
        except TypeError:  # an object of __slots__ without __weakref__
            return kind, value
    try:
        hash(value)
    except TypeError:
        raise ArgumentMismatch(
            f"an argument of a compiled function is an unhashable {kind.__name__}; pass tensors, "
            "numbers, and tuples, lists, dictionaries and data classes of them"
        ) from None
    return kind, value


@final
class Template:
    """A nested container that is built many times, with other leaves each time.

    ``place_of`` returns the source and the place of a leaf's values, or ``None`` for a value that
    stays the same. ``build(sources)`` puts ``sources[source][place]`` in its place.
    """

    __slots__ = ("_make", "_parts")

    def __init__(self, value: Any, place_of: Callable[[Any], tuple[int, int] | None]) -> None:
        items: Iterable[Any] = members(value) if is_container(value) else (value,)
        self._make: Callable[[list[Any]], Any] = (
            constructor(value) if is_container(value) else operator.itemgetter(0)
        )
        self._parts = tuple([self._part(one, place_of) for one in items])

    def build(self, sources: Sequence[Sequence[Any]]) -> Any:
        """Return a new container."""
        values = []
        for source, part in self._parts:
            if source == _NESTED:
                values.append(part.build(sources))
            elif source == _SAME:
                values.append(part)
            else:
                values.append(sources[source][part])
        return self._make(values)

    @staticmethod
    def _part(value: Any, place_of: Callable[[Any], tuple[int, int] | None]) -> tuple[int, Any]:
        if is_container(value):
            return _NESTED, Template(value, place_of)
        place = place_of(value)
        return (_SAME, value) if place is None else place
