"""Which axes of a shape does a program mean when it counts from the end, or names several?"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from burn_remote_protocol.errors import ArgumentMismatch, LimitExceeded, ShapeMismatch, shown
from burn_remote_protocol.tensors import Shape, checked_shape

__all__ = ["Axes", "normal_axes", "normal_axis", "normal_shape", "sendable_shape"]

# One axis, several, or all of them.
Axes = int | Sequence[int] | None


def normal_axis(axis: int, rank: int) -> int:
    """Return an axis counted from the start. Raises ``ShapeMismatch`` when there is none such."""
    try:
        place = operator.index(axis)
    except TypeError:
        raise ArgumentMismatch(f"an axis is a whole number, not {axis!r}") from None
    if not -rank <= place < rank:
        raise ShapeMismatch(f"axis {shown(place)} is none of a shape with {rank} axes")
    return place + rank if place < 0 else place


def normal_axes(axes: Axes, rank: int) -> tuple[int, ...]:
    """Return axes counted from the start, in the order they were named; all of them for ``None``.

    Raises ``ShapeMismatch`` for an axis that does not exist or is named twice.
    """
    if axes is None:
        return tuple(range(rank))
    if not isinstance(axes, Sequence):
        return (normal_axis(axes, rank),)
    places = tuple([normal_axis(axis, rank) for axis in axes])
    if len(set(places)) != len(places):
        raise ShapeMismatch(f"axes {list(axes)} name one of {rank} axes twice")
    return places


def normal_shape(shape: int | Sequence[int]) -> Shape:
    """Return a shape as a tuple of integers; a single size is a shape of one axis.

    Raises ``ArgumentMismatch`` for what is no shape; truths are no sizes.
    """
    sizes = shape if isinstance(shape, Sequence) else (shape,)
    try:
        if bool not in map(type, sizes):
            return tuple([operator.index(size) for size in sizes])
    except TypeError:
        pass
    raise ArgumentMismatch(f"a shape is a whole number or a tuple of them, not {shape!r}")


def sendable_shape(shape: Shape) -> Shape:
    """Return the shape of data that a tensor can have, or raise ``ShapeMismatch``."""
    try:
        return checked_shape(shape)
    except LimitExceeded as error:
        raise ShapeMismatch(f"data of a tensor: {error}") from None
