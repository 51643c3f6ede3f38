"""How are elements picked by tensors of positions, and how are others put there?

Positions are integers from 0, of any integer dtype. The device looks at them, not this program: a
position outside fails the operation, and the read of its result raises ``OperationFailed``.

``update`` says how an old element and a new one become one: ``"assign"``, ``"add"``, ``"mul"``,
``"min"`` or ``"max"``. A position that is named several times is updated as often; which of
several assignments wins is not specified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

from burn_remote.arguments.arrays import Array, as_array
from burn_remote.arguments.axes import normal_axis
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, reshaped, upload
from burn_remote.functions.index_parser import checked_positions
from burn_remote.functions.manipulation import broadcast_to
from burn_remote.functions.value import is_tensor
from burn_remote_protocol.errors import ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import base

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "Update",
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
    """Replace an axis by the elements at these positions of it.

    Shapes: ``[…, n, …]`` and positions ``[p…]`` to ``[…, p…, …]``. ``axis`` may be left out for a
    tensor of one axis. Positions that this program has may count from the end, and are checked; one
    on the device that names nothing fails the operation, and so the read.
    """
    if axis is None and x.ndim != 1:
        raise ShapeMismatch(f"name an axis: {x.handle.spec} has {x.ndim} of them")
    place = normal_axis(axis or 0, x.ndim)
    given = positions if is_tensor(positions) else as_array(positions, None)
    picker = checked_positions(given, x.shape[place])
    places = picker if is_tensor(picker) else upload(x, picker)
    taken = SELECT.apply((x, reshaped(places, (places.size,))), (place,))
    return reshaped(taken, (*x.shape[:place], *places.shape, *x.shape[place + 1 :]))


@explained
def update_along(
    x: Tensor, axis: int, positions: Tensor, value: Tensor, /, *, update: Update = "assign"
) -> Tensor:
    """Return ``x`` with ``value`` at these positions of an axis: what ``take`` would have taken.

    Shapes: ``[…, n, …]``, positions ``[p]``, value ``[…, p, …]``.
    """
    place = normal_axis(axis, x.ndim)
    return SELECT_ASSIGN.apply((x, positions, value), (place, update_name(update)))


@explained
def gather(x: Tensor, axis: int, indices: Tensor, /) -> Tensor:
    """Pick along an axis, one element for each index, as ``torch.gather`` does.

    ``indices`` has as many axes as ``x`` and is nowhere longer, except along ``axis``. The result
    has its shape.
    """
    return GATHER.apply((x, indices), (normal_axis(axis, x.ndim),))


@explained
def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Pick along an axis, one element for each index; other axes broadcast, as NumPy's do."""
    place = normal_axis(axis, x.ndim)
    if indices.ndim != x.ndim:
        raise ShapeMismatch(
            f"indices {indices.handle.spec} must have as many axes as {x.handle.spec}"
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
    """Return ``x`` with ``value`` where ``gather`` with the same indices would have picked.

    ``value`` has the shape of ``indices`` and the dtype of ``x``.
    """
    return SCATTER.apply((x, indices, value), (normal_axis(axis, x.ndim), update_name(update)))


@explained
def gather_nd(x: Tensor, coordinates: Tensor, /) -> Tensor:
    """Pick an element, or a sub-tensor, for each row of coordinates of the leading axes.

    Shapes: ``[n…, r…]`` and coordinates ``[p…, k]`` with one number for each of ``k`` axes ``n``,
    to ``[p…, r…]``.
    """
    return GATHER_ND.apply((x, coordinates))


@explained
def scatter_nd(
    x: Tensor, coordinates: Tensor, value: Tensor, /, *, update: Update = "assign"
) -> Tensor:
    """Return ``x`` with ``value`` where ``gather_nd`` with these coordinates would have picked."""
    return SCATTER_ND.apply((x, coordinates, value), (update_name(update),))


def update_name(update: Update) -> str:
    """Return the name that the wire has for a way to update. Raises ``UsageError`` for others."""
    name = _UPDATES.get(update)
    if name is None:
        raise UsageError(f"update={update!r} is none of {', '.join(_UPDATES)}")
    return name
