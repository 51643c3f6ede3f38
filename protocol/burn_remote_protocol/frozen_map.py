"""Unpacked MessagePack maps that are hashable and immutable."""

from __future__ import annotations

from typing import Any, final

__all__ = ["FrozenMap"]


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
