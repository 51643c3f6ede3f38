"""Unpacked MessagePack maps that are hashable and immutable, and keys made of unpacked values."""

from __future__ import annotations

import marshal
from typing import Any, Final, final

__all__ = ["FrozenMap", "value_key"]

# Version 2 of marshal writes numbers exactly: it distinguishes -0.0 from 0.0 and True from 1, and a
# NaN equals itself. A comparison of values would do none of this.
KEY_FORMAT: Final = 2

# Operations and calls of graphs have fewer levels. More of them could exceed Python's stack.
MAX_LEVELS: Final = 16


@final
class FrozenMap(tuple[tuple[Any, Any], ...]):
    """The pairs of a map. Differs from the array of the same pairs, which is a plain tuple."""

    __slots__ = ()

    # Unpacked values are keys of caches, in which an array must not stand for a map.
    def __eq__(self, other: object) -> bool:
        return type(other) is FrozenMap and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


def value_key(value: Any) -> bytes:
    """Return bytes that only equal values have; for arrays, lists and tuples are equal.

    Raises ``ValueError`` for values that MessagePack does not have, and for deeply nested ones.
    """
    try:
        return marshal.dumps(value, KEY_FORMAT)
    except ValueError:  # ``marshal`` takes no subclass of ``tuple``, such as ``FrozenMap``
        return marshal.dumps(_plain(value, MAX_LEVELS), KEY_FORMAT)


def _plain(value: Any, levels: int) -> Any:
    """Return a value with a tuple in the place of each map, which begins with ``...``.

    MessagePack has no ``...``, so it cannot be an array.
    """
    kind = type(value)
    if kind is not FrozenMap and kind is not tuple and kind is not list:
        return value
    if not levels:
        raise ValueError("a deeply nested value")
    items = [_plain(item, levels - 1) for item in value]
    return (..., *items) if kind is FrozenMap else tuple(items)
