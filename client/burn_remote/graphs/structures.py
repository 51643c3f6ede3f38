"""Nested arguments and results of compiled functions, taken apart and put together.

Tensors and numbers are *leaves*. Tuples, lists, dictionaries and named tuples are taken apart;
everything else is *static*: part of the structure, and compared by equality.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final

import numpy as np

from burn_remote.functions.tensor import Tensor
from burn_remote_protocol.errors import ArgumentMismatch

__all__ = ["NUMBER", "TENSOR", "rebuilt", "take_apart"]

# Marks of leaves in a structure.
TENSOR: Final = "tensor"
NUMBER: Final = "number"

# Deeper nesting is a mistake, such as a list that contains itself.
MAX_DEPTH: Final = 32


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
    if isinstance(value, tuple | list):
        parts = [take_apart(one, tensors, numbers, depth + 1) for one in value]
        return kind, tuple(parts)
    if isinstance(value, dict):
        parts = [take_apart(one, tensors, numbers, depth + 1) for one in value.values()]
        return kind, tuple(value), tuple(parts)
    if isinstance(value, np.ndarray):
        raise ArgumentMismatch(
            f"an array of shape {list(value.shape)} is an argument of a compiled function; pass "
            "burn_remote.tensor(array), because the function would keep the first array"
        )
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


def leaves(value: Any) -> Iterator[Any]:
    """Iterate over the leaves and static values of nested containers."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for one in value:
            yield from leaves(one)
    else:
        yield value
