"""``x[index]`` and ``x.set(index, value)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from burn_remote.arguments.numbers import Number
from burn_remote.diagnostics.pytorch_pairs import check_subscript
from burn_remote.diagnostics.tracebacks import shorten
from burn_remote.dispatch.operators import Operator, filled, reshaped, upload
from burn_remote.functions.arithmetic import add, multiply
from burn_remote.functions.casting import astype, distinct
from burn_remote.functions.gathering import (
    Update,
    from_start,
    gather_nd,
    scatter_nd,
    take,
    update_along,
    update_name,
)
from burn_remote.functions.index_parser import Selection, check_mask_tensors, selection_of
from burn_remote.functions.manipulation import broadcast_to, concat, moveaxis
from burn_remote.functions.nonzero_elements import boolean_mask, nonzero
from burn_remote.functions.operands import elements_for
from burn_remote.functions.selection import mask_fill, maximum, minimum, where
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.dtypes import I64
from burn_remote_protocol.errors import BurnRemoteError, ShapeMismatch
from burn_remote_protocol.operations.families import base
from burn_remote_protocol.operations.shape_rules.checks import broadcast_shapes
from burn_remote_protocol.tensors import Shape, TensorSpec

if TYPE_CHECKING:
    from burn_remote.arguments.arrays import Array
    from burn_remote.functions.tensor import Tensor

__all__ = ["get_item", "set_item"]

SLICE: Final = Operator(base.SLICE)
SLICE_ASSIGN: Final = Operator(base.SLICE_ASSIGN)


def get_item(x: Tensor, index: Any, /) -> Tensor:
    """Return the elements that an index selects, as NumPy does: ``x[1:3, ..., None, ::-1]``.

    An index consists of integers, slices with any step, ``...``, ``None``, lists, arrays and
    tensors of integers, and NumPy masks. Negative indices count from the end. A tensor of indices
    is checked on the device: reading the result raises ``OperationFailed`` if an index is out of
    range. A mask that is a tensor of bools selects as many elements as are true: such a call waits
    for one round trip, because only the device knows their number (``boolean_mask``). Raises
    ``IndexOutOfRange``, ``ShapeMismatch``, ``DTypeMismatch``, and ``UsageError`` for ``True`` and
    ``False``. Warns of ``x.max(1)[1]``, which are the indices in PyTorch.
    """
    try:
        if is_tensor(index) and index.handle.spec.dtype.is_bool:
            return boolean_mask(x, index)
        if index.__class__ is tuple and any(_is_mask(item) for item in index):
            index = _without_mask_tensors(x.shape, index)
        selection = selection_of(index, x.shape)
        if index.__class__ is int and 0 <= index <= 1:
            check_subscript(x.handle.spec)
        given = x
        if selection.ranges:
            x = SLICE.apply((x,), (selection.ranges,))
        selected = reshaped(x, selection.shape)
        return _picked(selected, selection) if selection.pickers else distinct(given, selected)
    except BurnRemoteError as error:
        shorten(error)
        raise


def set_item(
    x: Tensor,
    index: Any,
    value: Tensor | Array | Sequence[Any] | Number,
    /,
    *,
    update: Update = "assign",
) -> Tensor:
    """Return a copy of ``x`` with ``value`` at the elements that an index selects.

    ``value`` is a number, or a tensor, an array or a list that broadcasts to the shape of
    ``x[index]``; arrays and lists are converted to the dtype of ``x``. The index may also be a mask
    tensor of bools with the shape of the leading axes of ``x``; ``value`` then broadcasts to ``x``.
    ``update`` combines the old element with the new one: ``"assign"``, ``"add"``, ``"mul"``,
    ``"min"`` or ``"max"``. A repeated index is updated repeatedly; which of several assignments
    wins is unspecified. Raises as ``x[index]`` does.
    """
    update_name(update)  # raises UsageError for an unknown update
    value = cast("Tensor | Number", elements_for(x, value))
    if is_tensor(index) and index.dtype.is_bool:
        return _set_masked(x, index, value, update)
    selection = selection_of(index, x.shape)
    ranges = selection.ranges
    if update == "assign" and not selection.pickers:
        shape = selection.shape if is_tensor(value) else selection.sliced
        new = reshaped(_as_value(x, value, shape), selection.sliced)
        return SLICE_ASSIGN.apply((x, new), (ranges,))
    if not ranges:
        return _set_sliced(x, selection, value, update)
    new = _set_sliced(SLICE.apply((x,), (ranges,)), selection, value, update)
    return SLICE_ASSIGN.apply((x, new), (ranges,))


def _is_mask(item: Any) -> bool:
    return is_tensor(item) and item.dtype.is_bool and bool(item.ndim)


def _without_mask_tensors(shape: Shape, index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace each mask tensor by the positions of its true elements. Waits for their number."""
    check_mask_tensors(index, shape)
    parts = [nonzero(item) if _is_mask(item) else (item,) for item in index]
    return tuple([part for some in parts for part in some])


def _picked(x: Tensor, selection: Selection) -> Tensor:
    axes = [axis for axis, _ in selection.pickers]
    positions = [positions for _, positions in selection.pickers]
    if len(axes) == 1:
        picked = take(x, positions[0], axis=axes[0])
        return _moved(picked, positions[0].ndim, axes[0], selection.place)
    leading = moveaxis(x, axes, range(len(axes)))
    coordinates = _coordinates(leading, positions)
    return _moved(gather_nd(leading, coordinates), coordinates.ndim - 1, 0, selection.place)


def _moved(x: Tensor, block: int, source: int, destination: int) -> Tensor:
    """Move ``block`` adjacent axes from position ``source`` to ``destination``."""
    if source == destination:
        return x
    return moveaxis(x, range(source, source + block), range(destination, destination + block))


def _set_sliced(x: Tensor, selection: Selection, value: Tensor | Number, update: Update) -> Tensor:
    """Update the elements of the sliced tensor that the pickers select, or all of them."""
    if not selection.pickers:
        new = _as_value(x, value, selection.shape)
        return _updated(x, reshaped(new, selection.sliced), update)
    shaped = reshaped(x, selection.shape)
    return reshaped(_set_picked(shaped, selection, value, update), selection.sliced)


def _set_picked(x: Tensor, selection: Selection, value: Tensor | Number, update: Update) -> Tensor:
    axes = [axis for axis, _ in selection.pickers]
    positions = [positions for _, positions in selection.pickers]
    place = selection.place
    if len(axes) == 1:
        (axis,) = axes
        places = _as_positions(x, positions[0], x.shape[axis])
        rest = (*x.shape[:axis], *x.shape[axis + 1 :])
        picked = (*rest[:place], *places.shape, *rest[place:])
        new = _moved(_as_value(x, value, picked), places.ndim, place, axis)
        flat = reshaped(new, (*rest[:axis], places.size, *rest[axis:]))
        return update_along(x, axis, reshaped(places, (places.size,)), flat, update=update)
    order = range(len(axes))
    leading = moveaxis(x, axes, order)
    coordinates = _coordinates(leading, positions)
    rest = leading.shape[len(axes) :]
    picked = (*rest[:place], *coordinates.shape[:-1], *rest[place:])
    new = _moved(_as_value(x, value, picked), coordinates.ndim - 1, place, 0)
    return moveaxis(scatter_nd(leading, coordinates, new, update=update), order, axes)


def _set_masked(x: Tensor, mask: Tensor, value: Tensor | Number, update: Update) -> Tensor:
    shape = x.shape
    if mask.shape != shape[: mask.ndim]:
        raise ShapeMismatch(
            f"a mask {mask.handle.spec} does not match the leading axes of {x.handle.spec}"
        )
    mask = reshaped(mask, mask.shape + (1,) * (len(shape) - mask.ndim))
    if update == "assign" and not is_tensor(value):
        return mask_fill(x, mask, value)
    return where(mask, _updated(x, _as_value(x, value, shape), update), x)


def _updated(old: Tensor, new: Tensor, update: Update) -> Tensor:
    match update:
        case "add":
            return add(old, new)
        case "mul":
            return multiply(old, new)
        case "min":
            return minimum(old, new)
        case "max":
            return maximum(old, new)
        case _:
            return new


def _as_value(x: Tensor, value: Tensor | Number, shape: Shape) -> Tensor:
    if is_tensor(value):
        # NumPy ignores leading axes of size 1.
        while value.ndim > len(shape) and value.shape[0] == 1:
            value = reshaped(value, value.shape[1:])
        try:
            return broadcast_to(value, shape)
        except ShapeMismatch:
            raise ShapeMismatch(
                f"the value {value.handle.spec} does not broadcast to {list(shape)}, the shape "
                "that the index selects"
            ) from None
    return x.__class__(filled(x.handle.client, TensorSpec(shape, x.dtype), value))


def _as_positions(x: Tensor, positions: Any, size: int) -> Tensor:
    return from_start(positions, size) if is_tensor(positions) else upload(x, positions)


def _coordinates(x: Tensor, positions: list[Any]) -> Tensor:
    """Stack the indices of the leading axes, broadcast to a common shape, into ``[…, axes]``."""
    shape = broadcast_shapes(*[one.shape for one in positions])
    if not any(is_tensor(one) for one in positions):
        return upload(x, np.stack(np.broadcast_arrays(*positions), axis=-1))
    pairs = zip(positions, x.shape, strict=False)
    tensors = [astype(_as_positions(x, one, size), I64) for one, size in pairs]
    return concat([reshaped(broadcast_to(one, shape), (*shape, 1)) for one in tensors], -1)
