"""Nested arguments and results of compiled functions, taken apart and put together.

Tensors and numbers are *leaves*. Tuples, lists, dictionaries and named tuples are taken apart;
everything else is *static*: part of the structure, and compared by equality.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, final

import numpy as np

from burn_remote.functions.tensor import Tensor
from burn_remote_protocol.errors import ArgumentMismatch

__all__ = ["NUMBER", "TENSOR", "Template", "rebuilt", "take_apart"]

# Marks of leaves in a structure.
TENSOR: Final = "tensor"
NUMBER: Final = "number"

# Deeper nesting is a mistake, such as a list that contains itself.
MAX_DEPTH: Final = 32

# In place of a source: a container in a container, and a value that stays the same.
_NESTED: Final = -1
_SAME: Final = -2


def take_apart(value: Any, tensors: list[Tensor], numbers: list[Any], depth: int = 0) -> Hashable:
    """Append the leaves of ``value`` to the lists and return its structure, a hashable key.

    Raises ``ArgumentMismatch`` for an array, for something unhashable, and for nesting deeper than
    ``MAX_DEPTH``.
    """
    kind = type(value)
    if kind is Tensor:
        tensors.append(value)
        return TENSOR
    if kind is float or kind is int or isinstance(value, np.number):
        numbers.append(value)
        return NUMBER, kind
    if depth > MAX_DEPTH:
        raise ArgumentMismatch(f"arguments are nested deeper than {MAX_DEPTH} levels")
    parts: list[Any]
    items: Iterable[Any]
    if isinstance(value, tuple | list):
        parts, items = [kind], value
    elif isinstance(value, dict):
        parts, items = [kind, tuple(value)], value.values()
    else:
        return _static(value)
    for one in items:
        # Tensors without a call each: a call takes as long as the rest.
        if type(one) is Tensor:
            tensors.append(one)
            parts.append(TENSOR)
        else:
            parts.append(take_apart(one, tensors, numbers, depth + 1))
    return tuple(parts)


def _static(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):
        raise ArgumentMismatch(
            f"an array of shape {list(value.shape)} is an argument of a compiled function; pass "
            "burn_remote.tensor(array), because the function would keep the first array"
        )
    kind = type(value)
    try:
        hash(value)
    except TypeError:
        raise ArgumentMismatch(
            f"an argument of a compiled function is an unhashable {kind.__name__}; pass tensors, "
            "numbers, and tuples, lists and dictionaries of them"
        ) from None
    return "static", kind, value


def rebuilt(value: Any, replace: Callable[[Any], Any]) -> Any:
    """Return a copy of nested containers with each leaf and static value replaced."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[rebuilt(one, replace) for one in value])
    if isinstance(value, tuple | list):
        return type(value)([rebuilt(one, replace) for one in value])
    if isinstance(value, dict):
        return type(value)((key, rebuilt(one, replace)) for key, one in value.items())
    return replace(value)


@final
class Template:
    """A nested container that is built many times, with other leaves each time.

    ``place_of`` returns the source and the place of a leaf's values, or ``None`` for a value that
    stays the same. ``build(sources)`` puts ``sources[source][place]`` in its place.
    """

    __slots__ = ("_make", "_parts")

    def __init__(self, value: Any, place_of: Callable[[Any], tuple[int, int] | None]) -> None:
        kind = type(value)
        items: Iterable[Any] = value
        self._make: Callable[[list[Any]], Any] = kind
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            self._make = lambda values: kind(*values)
        elif isinstance(value, dict):
            keys, items = tuple(value), value.values()
            self._make = lambda values: kind(zip(keys, values, strict=True))
        elif not isinstance(value, tuple | list):
            items, self._make = (value,), operator.itemgetter(0)
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
        if isinstance(value, tuple | list | dict):
            return _NESTED, Template(value, place_of)
        place = place_of(value)
        return (_SAME, value) if place is None else place
