"""MessagePack values in which something else stands in the place of one array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack

__all__ = ["without_one_array"]


def without_one_array(packed: bytes, *, is_outermost_included: bool = True) -> Iterator[Any]:
    """Iterate over copies of a value that have a map, a text or bytes in the place of an array.

    Empty arrays stay, and so do those inside maps.
    """
    value = msgpack.unpackb(packed, strict_map_key=False)
    yield from _copies(value) if is_outermost_included else _copies_of_parts(value)


def _copies(value: Any) -> Iterator[Any]:
    if isinstance(value, list) and value:
        yield dict(enumerate(value))
        if not any(isinstance(part, list | dict) for part in value):
            yield dict.fromkeys(value)
        yield "a" * len(value)
        yield bytes([1] * len(value))
        yield from _copies_of_parts(value)


def _copies_of_parts(value: list[Any]) -> Iterator[Any]:
    for place, part in enumerate(value):
        for copy in _copies(part):
            yield [*value[:place], copy, *value[place + 1 :]]
