"""Nested containers of tensors and numbers: iteration over leaves, and copies with other leaves.

Containers are tuples, named tuples, lists, dictionaries, slices and instances of data classes. Any
other value is a *leaf*. Compiled functions, gradients, optimizers and checkpoints share this code.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from burn_remote_protocol.errors import ArgumentMismatch

__all__ = [
    "CONTAINERS",
    "MAX_DEPTH",
    "check_depth",
    "constructor",
    "is_container",
    "is_data_class",
    "leaves",
    "mapped",
    "members",
    "named_leaves",
    "names",
    "rebuilt",
]

# Deeper nesting is a mistake, such as a list that contains itself.
MAX_DEPTH: Final = 32

CONTAINERS: Final = frozenset({tuple, list, dict, OrderedDict, slice})

# Data classes of these packages, such as ``QuantScheme``, are values and not containers.
_OURS: Final = frozenset({"burn_remote", "burn_remote_protocol"})

# The number of classes whose field names are cached.
MAX_CLASSES: Final = 256


def is_container(value: Any) -> bool:
    """Return whether a value is a container and not a leaf."""
    return (
        type(value) in CONTAINERS
        or (isinstance(value, tuple) and hasattr(value, "_fields"))
        or is_data_class(value)
    )


def is_data_class(value: Any) -> bool:
    """Return whether a value is an instance of a data class of the program."""
    kind: Any = type(value)
    return bool(_fields(kind))


def names(value: Any) -> Sequence[Any]:
    """Return the keys, field names or positions of a container's members."""
    if isinstance(value, dict):
        return [*value]
    if type(value) is slice:
        return ("start", "stop", "step")
    if is_data_class(value):
        kind: Any = type(value)
        return _fields(kind)
    return getattr(value, "_fields", None) or range(len(value))


def members(value: Any) -> Iterable[Any]:
    """Return the members of a container, in the order of ``names``.

    Raises ``ArgumentMismatch`` for a data class one of whose fields has no value.
    """
    if isinstance(value, dict):
        return value.values()
    if type(value) is slice:
        return (value.start, value.stop, value.step)
    if isinstance(value, tuple | list):
        return value
    kind: Any = type(value)
    try:
        return [getattr(value, name) for name in _fields(kind)]
    except AttributeError as error:
        raise ArgumentMismatch(f"a field of a {kind.__name__} has no value: {error}") from None


def constructor(value: Any) -> Callable[[Iterable[Any]], Any]:
    """Return a function that makes a container like this one from other members.

    It calls no ``__init__`` or ``__post_init__`` of a data class: those may check or convert
    values, and a new instance has to have exactly the given members.
    """
    kind: Any = type(value)
    if isinstance(value, dict):
        keys = tuple(value)
        return lambda values: kind(zip(keys, values, strict=True))
    if kind is tuple or kind is list:
        return kind
    if is_data_class(value):
        return functools.partial(_instance, kind, _fields(kind))
    return lambda values: kind(*values)


def rebuilt(value: Any, replace: Callable[[Any], Any]) -> Any:
    """Return a copy of nested containers with each leaf replaced."""
    if not is_container(value):
        return replace(value)
    return constructor(value)([rebuilt(one, replace) for one in members(value)])


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of nested containers in order, without those that are ``None``."""
    return [leaf for _, leaf in named_leaves(tree)]


def named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over the leaves that are not ``None``, with their dotted names.

    The name of ``tree["layers"][0].weight`` is ``"layers.0.weight"``, as PyTorch names it; that of
    a leaf that is in no container is ``""``. Raises ``ArgumentMismatch`` for containers nested
    deeper than ``MAX_DEPTH``.
    """
    yield from _named(tree, "", 0)


def mapped(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Return nested containers like ``tree``, with ``function`` of each leaf.

    The function also gets the value at the leaf's place in each of ``rest``; this value may be of
    any type. ``None`` in ``tree`` stays ``None``. Raises ``ArgumentMismatch`` with the place if one
    of ``rest`` has other containers.
    """
    return _mapped(function, tree, rest, None, 0)


def check_depth(depth: int) -> None:
    """Raise ``ArgumentMismatch`` if a container is nested too deep."""
    if depth > MAX_DEPTH:
        raise ArgumentMismatch(f"containers are nested deeper than {MAX_DEPTH} levels")


@functools.lru_cache(maxsize=MAX_CLASSES)
def _fields(kind: Any) -> tuple[str, ...]:
    """Return the names of a data class's fields, and ``()`` for any other class."""
    known = getattr(kind, "__dataclass_fields__", None)
    is_other = issubclass(kind, tuple | list | dict)
    if known is None or is_other or kind.__module__.partition(".")[0] in _OURS:
        return ()
    return tuple([field.name for field in dataclasses.fields(kind)])


def _instance(kind: Any, fields: Sequence[str], values: Iterable[Any]) -> Any:
    made = kind.__new__(kind)
    for name, value in zip(fields, values, strict=True):
        object.__setattr__(made, name, value)  # the class may be frozen
    return made


def _named(value: Any, place: str, depth: int) -> Iterator[tuple[str, Any]]:
    if not is_container(value):
        if value is not None:
            yield place, value
        return
    check_depth(depth)
    for name, one in zip(names(value), members(value), strict=True):
        yield from _named(one, f"{place}.{name}" if place else f"{name}", depth + 1)


# A place in nested containers: the place of the container and the name of the member. It is written
# out only in errors.
_Place = tuple["_Place | None", Any]


def _mapped(
    function: Callable[..., Any],
    value: Any,
    rest: Sequence[Any],
    place: _Place | None,
    depth: int,
) -> Any:
    if not is_container(value):
        return None if value is None else function(value, *rest)
    check_depth(depth)
    known = names(value)
    others = [_matching(value, known, one, place) for one in rest]
    return constructor(value)(
        [
            _mapped(
                function,
                one,
                [other[number] for other in others],
                (place, known[number]),
                depth + 1,
            )
            for number, one in enumerate(members(value))
        ]
    )


def _matching(value: Any, known: Sequence[Any], other: Any, place: _Place | None) -> list[Any]:
    """Return the members of another container in the order of the first one's."""
    if type(other) is not type(value):
        seen = f"expected {type(value).__name__}, not {type(other).__name__}"
        raise ArgumentMismatch(f"the containers differ{_where(place)}: {seen}")
    if isinstance(value, dict):
        missing = [key for key in known if key not in other]
        unknown = [key for key in other if key not in value]
        if missing or unknown:
            seen = f"{missing[0]!r} is missing" if missing else f"{unknown[0]!r} is unexpected"
            raise ArgumentMismatch(f"the containers differ{_where(place)}: the key {seen}")
        return [other[key] for key in known]
    found = [*members(other)]
    if len(found) != len(known):
        seen = f"expected a {type(value).__name__} of {len(known)}, not of {len(found)}"
        raise ArgumentMismatch(f"the containers differ{_where(place)}: {seen}")
    return found


def _where(place: _Place | None) -> str:
    listed: list[str] = []
    while place is not None:
        listed.append(str(place[1]))
        place = place[0]
    return f" at {'.'.join(reversed(listed))}" if listed else ""
