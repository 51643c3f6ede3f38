"""Gather and scatter: reading and writing elements by tensors of indices.

Indices have any integer dtype. They count from 0; where a function says so, negative ones count
from the end. The device checks them: an index that is out of range fails the operation, and reading
its result raises ``OperationFailed``.

``update`` combines the old element with the new one: ``"assign"``, ``"add"``, ``"mul"``, ``"min"``
or ``"max"``. A repeated index is updated repeatedly; which of several assignments wins is
unspecified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

from burn_remote.arguments.arrays import Array, as_array
from burn_remote.arguments.axes import normal_axis
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, reshaped, upload
from burn_remote.functions.arithmetic import add
from burn_remote.functions.casting import astype
from burn_remote.functions.index_parser import checked_positions
from burn_remote.functions.logic import less
from burn_remote.functions.manipulation import broadcast_to
from burn_remote.functions.selection import where
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.dtypes import I32, I64, Category
from burn_remote_protocol.errors import ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import base

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "Update",
    "from_start",
    "gather",
    "gather_nd",
    "scatter",
    "scatter_nd",
    "take",
    "take_along_axis",
    "update_along",
    "update_name",
]

Update = Literal["assign", "add", "mul", "min", "max"]

SELECT: Final = Operator(base.SELECT)
SELECT_ASSIGN: Final = Operator(base.SELECT_ASSIGN)
GATHER: Final = Operator(base.GATHER)
SCATTER: Final = Operator(base.SCATTER)
GATHER_ND: Final = Operator(base.GATHER_ND)
SCATTER_ND: Final = Operator(base.SCATTER_ND)

_UPDATES: Final = {"assign": "Assign", "add": "Add", "mul": "Mul", "min": "Min", "max": "Max"}


@explained
def take(
    x: Tensor, positions: Tensor | Array | Sequence[int] | int, /, *, axis: int | None = None
) -> Tensor:
    """Select elements along an axis by index.

    Shapes: ``[…, n, …]`` and indices ``[p…]`` to ``[…, p…, …]``. ``axis`` may be omitted for a
    tensor of one axis. Negative indices count from the end. Integers, lists and arrays are checked
    here; a tensor of indices is checked on the device.
    """
    if axis is None and x.ndim != 1:
        raise ShapeMismatch(f"axis is required for {x.handle.spec}, which has {x.ndim} axes")
    place = normal_axis(axis or 0, x.ndim)
    given = positions if is_tensor(positions) else as_array(positions, None)
    picker = checked_positions(given, x.shape[place])
    places = from_start(picker, x.shape[place]) if is_tensor(picker) else upload(x, picker)
    taken = SELECT.apply((x, reshaped(places, (places.size,))), (place,))
    return reshaped(taken, (*x.shape[:place], *places.shape, *x.shape[place + 1 :]))


@explained
def update_along(
    x: Tensor, axis: int, positions: Tensor, value: Tensor, /, *, update: Update = "assign"
) -> Tensor:
    """Return ``x`` with ``value`` at the elements that ``take(x, positions, axis=axis)`` selects.

    Shapes: ``[…, n, …]``, positions ``[p]``, value ``[…, p, …]``.
    """
    place = normal_axis(axis, x.ndim)
    return SELECT_ASSIGN.apply((x, positions, value), (place, update_name(update)))


@explained
def gather(x: Tensor, axis: int, indices: Tensor, /) -> Tensor:
    """Select one element along an axis for each index, as ``torch.gather`` does.

    ``indices`` has as many axes as ``x``, and no axis other than ``axis`` may be longer than in
    ``x``. The result has the shape of ``indices``.
    """
    return GATHER.apply((x, indices), (normal_axis(axis, x.ndim),))


@explained
def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Select one element along an axis for each index; other axes broadcast, as in NumPy.

    Negative indices count from the end.
    """
    place = normal_axis(axis, x.ndim)
    indices = from_start(indices, x.shape[place])
    if indices.ndim != x.ndim:
        raise ShapeMismatch(
            f"indices {indices.handle.spec} must have as many axes as x {x.handle.spec}"
        )
    pairs = list(zip(x.shape, indices.shape, strict=True))
    common = [max(pair) if 1 in pair else pair[1] for pair in pairs]
    wanted = [*common[:place], indices.shape[place], *common[place + 1 :]]
    source = [*common[:place], x.shape[place], *common[place + 1 :]]
    return GATHER.apply((broadcast_to(x, source), broadcast_to(indices, wanted)), (place,))


@explained
def scatter(
    x: Tensor, axis: int, indices: Tensor, value: Tensor, /, *, update: Update = "assign"
) -> Tensor:
    """Return ``x`` with ``value`` at the elements that ``gather(x, axis, indices)`` selects.

    ``value`` has the shape of ``indices`` and the dtype of ``x``.
    """
    return SCATTER.apply((x, indices, value), (normal_axis(axis, x.ndim), update_name(update)))


@explained
def gather_nd(x: Tensor, coordinates: Tensor, /) -> Tensor:
    """Select an element or a sub-tensor for each vector of coordinates.

    Shapes: ``[n…, r…]`` and coordinates ``[p…, k]``, one index for each of the ``k`` leading axes
    ``n…``, to ``[p…, r…]``.
    """
    return GATHER_ND.apply((x, coordinates))


@explained
def scatter_nd(
    x: Tensor, coordinates: Tensor, value: Tensor, /, *, update: Update = "assign"
) -> Tensor:
    """Return ``x`` with ``value`` at the elements that ``gather_nd(x, coordinates)`` selects.

    ``value`` has the shape of ``gather_nd(x, coordinates)`` and the dtype of ``x``.
    """
    return SCATTER_ND.apply((x, coordinates, value), (update_name(update),))


def from_start(positions: Tensor, size: int) -> Tensor:
    """Convert negative indices along an axis of ``size`` elements to nonnegative ones.

    Indices that are out of range stay so, and the device refuses them.
    """
    dtype = positions.handle.spec.dtype
    if dtype.category is not Category.INT:
        return positions
    if dtype.itemsize < I32.itemsize:  # it may not hold the size
        positions = astype(positions, I64)
    return where(less(positions, 0), add(positions, size), positions)


def update_name(update: Update) -> str:
    """Return the name of an update on the wire. Raises ``UsageError`` for an unknown update."""
    name = _UPDATES.get(update)
    if name is None:
        raise UsageError(f"update must be one of {', '.join(_UPDATES)}, not {update!r}")
    return name
