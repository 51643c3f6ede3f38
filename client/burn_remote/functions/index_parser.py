"""What does an index between square brackets mean for a tensor of some shape?

Pure: an index becomes a ``Selection``, which says which slices to take, which axes appear and
vanish, and which axes tensors or arrays of positions pick from.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from burn_remote.arguments.arrays import Array
from burn_remote.functions.value import is_tensor
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch, UsageError, shown
from burn_remote_protocol.tensors import Shape, Slice

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

    # Positions along one axis: a tensor of integers, or an int64 array that lies within the axis.
    Picker: TypeAlias = Tensor | Array

__all__ = ["Selection", "checked_positions", "select", "selection_of"]


@dataclass(frozen=True, slots=True)
class Selection:
    """What an index selects.

    First ``ranges`` are sliced (of the leading axes; empty when nothing is cut away), which gives
    ``sliced``. Then axes of size 1 vanish and appear, which gives ``shape``. Then each of
    ``pickers`` picks from one of its axes; where the picked axes stand side by side in the index,
    ``place`` says where their positions' own axes go, and otherwise they go in front.
    """

    ranges: tuple[Slice, ...]
    sliced: Shape
    shape: Shape
    pickers: tuple[tuple[int, Picker], ...]
    place: int


# Larger: a program that slices at ever new places keeps that many selections, about 1 KiB each.
# Smaller: one that cycles through more places works them out anew (6 µs instead of 1).
SELECTIONS: Final = 4096

_selections: dict[tuple[Any, Shape], Selection] = {}


def selection_of(index: Any, shape: Shape) -> Selection:
    """Say what an index selects from a tensor of a shape; basic indices are remembered.

    Raises as ``select`` does.
    """
    key = _key(index)
    if key is None:
        return select(index, shape)
    found = _selections.get((key, shape))
    if found is None:
        found = select(index, shape)
        if len(_selections) >= SELECTIONS:
            _selections.clear()
        _selections[key, shape] = found
    return found


def select(index: Any, shape: Shape) -> Selection:
    """Say what an index selects from a tensor of a shape.

    Raises ``ShapeMismatch`` for too many or too large indices, ``DTypeMismatch`` for tensors that
    are no integers, and ``UsageError`` for a mask on the device: the shape of what it selects
    depends on its elements.
    """
    items = _expanded(index, shape)
    ranges: list[Slice] = []
    sliced: list[int] = []
    result: list[int] = []
    pickers: list[tuple[int, Picker]] = []
    # Integers count as positions, too, when NumPy asks whether positions stand side by side.
    picking: list[int] = []
    for position, item in enumerate(items):
        if item is None:
            result.append(1)
            continue
        size = shape[len(ranges)]
        if isinstance(item, slice):
            taken = _range(item, size)
            ranges.append(taken)
            sliced.append(_length(taken))
            result.append(sliced[-1])
        elif is_tensor(item) or isinstance(item, np.ndarray):
            pickers.append((len(result), checked_positions(item, size)))
            picking.append(position)
            ranges.append(Slice(0, size, 1))
            sliced.append(size)
            result.append(size)
        else:
            start = _place(item, size)
            picking.append(position)
            ranges.append(Slice(start, start + 1, 1))
            sliced.append(1)
    while ranges and ranges[-1] == Slice(0, shape[len(ranges) - 1], 1):
        ranges.pop()
    together = bool(picking) and picking[-1] - picking[0] == len(picking) - 1
    place = pickers[0][0] if pickers and together else 0
    whole = (*sliced, *shape[len(sliced) :])
    return Selection(tuple(ranges), whole, tuple(result), tuple(pickers), place)


def _key(index: Any) -> Any:
    """Return what tells a basic index from others, or nothing for an index of another kind."""
    kind = index.__class__
    if kind is int:
        return index
    if kind is slice:
        bounds = (index.start, index.stop, index.step)
        # A tensor as a bound would live as long as what is remembered.
        plain = all(bound is None or bound.__class__ is int for bound in bounds)
        return (slice, *bounds) if plain else None
    if index is Ellipsis:
        return index
    if kind is not tuple:
        return None
    keys = [item if item is None else _key(item) for item in index]
    # A tuple in a tuple is no basic index, None neither: it would look like an inserted axis.
    for item, key in zip(index, keys, strict=True):
        if item is not None and (key is None or item.__class__ is tuple):
            return None
    return (tuple, *keys)


def _expanded(index: Any, shape: Shape) -> list[Any]:
    """Return one entry per axis, and ``None`` per inserted axis."""
    items = [_array_of(item) for item in (index if isinstance(index, tuple) else (index,))]
    used = sum(_axes_used(item) for item in items)
    if used > len(shape):
        raise ShapeMismatch(f"{used} indices for a tensor of shape {list(shape)}")
    dots = [position for position, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise ShapeMismatch("an index has at most one ellipsis (...)")
    place = dots[0] if dots else len(items)
    items[place : place + 1] = [slice(None)] * (len(shape) - used)
    return list(_without_masks(items, shape))


def _array_of(item: Any) -> Any:
    if isinstance(item, bool | np.bool_):
        raise UsageError("True and False are no indices; insert an axis with None")
    if isinstance(item, list | tuple | range):
        array = np.asarray(item)
        return array.astype(np.int64) if not array.size else array
    if is_tensor(item) and item.dtype.is_bool:
        raise UsageError(
            "how many elements a mask selects is known only to the device; choose with "
            "where(mask, x, other), write with x.set(mask, value), or index with mask.numpy()"
        )
    return item


def _axes_used(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if _is_mask(item) else 1


def _is_mask(item: Any) -> bool:
    return isinstance(item, np.ndarray) and item.dtype == np.bool_


def _without_masks(items: list[Any], shape: Shape) -> Iterator[Any]:
    axis = 0
    for item in items:
        if _is_mask(item):
            expected = shape[axis : axis + item.ndim]
            if item.shape != expected:
                raise ShapeMismatch(
                    f"a mask of shape {list(item.shape)} for axes of shape {list(expected)}"
                )
            yield from item.nonzero()
        else:
            yield item
        axis += _axes_used(item)


def checked_positions(positions: Picker, size: int) -> Picker:
    """Return positions in an axis: those that this program has are checked, and counted from 0.

    Raises ``ShapeMismatch`` for one outside, and ``DTypeMismatch`` for what are no integers.
    """
    if is_tensor(positions):
        if not positions.dtype.is_integer:
            raise DTypeMismatch(f"{positions.handle.spec} is no index; convert it to integers")
        return positions
    if positions.size and positions.dtype.kind not in "iu":
        raise DTypeMismatch(f"an array of {positions.dtype} is no index; convert it to integers")
    outside = (positions < -size) | (positions >= size)
    if outside.any():
        raise ShapeMismatch(f"index {positions[outside][0]} is outside an axis of size {size}")
    wide = positions.astype(np.int64)  # the size of an axis need not fit into the array's dtype
    return np.where(wide < 0, wide + size, wide)


def _place(item: Any, size: int) -> int:
    try:
        position = operator.index(item)
    except TypeError:
        raise DTypeMismatch(
            f"a tensor is indexed by integers, slices, ..., None, and integer tensors or arrays, "
            f"not by {type(item).__name__}"
        ) from None
    if not -size <= position < size:
        raise ShapeMismatch(f"index {shown(position)} is outside an axis of size {size}")
    return position % size


def _range(item: slice, size: int) -> Slice:
    """Return Python's slice in Burn's form: bounds in ascending order, whatever the direction."""
    try:
        taken = range(*item.indices(size))
    except ValueError as error:
        raise ShapeMismatch(str(error)) from None
    if not taken:
        return Slice(0, 0, 1)
    if taken.step > 0:
        return Slice(taken.start, min(taken.stop, size), taken.step)
    return Slice(taken[-1], taken.start + 1, taken.step)


def _length(item: Slice) -> int:
    assert item.end is not None  # _range always gives one
    return len(range(item.start, item.end, abs(item.step)))
