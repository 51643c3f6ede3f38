"""Repetition, rotation and differences along axes.

The dtype does not change. Negative axes count from the end. All raise ``ShapeMismatch``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from burn_remote.arguments.axes import Axes, normal_axes, normal_axis, normal_shape
from burn_remote.arguments.numbers import whole_number
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, counted, reshaped, upload, with_rank
from burn_remote.functions.arithmetic import subtract
from burn_remote.functions.casting import astype, distinct
from burn_remote.functions.manipulation import broadcast_to, concat, flatten, part
from burn_remote.functions.statistics import cumulative_sum
from burn_remote.functions.statistics import min as smallest
from burn_remote.functions.tensor_value import is_tensor, read
from burn_remote_protocol.dtypes import I64
from burn_remote_protocol.errors import ArgumentMismatch, ShapeMismatch, UsageError, shown
from burn_remote_protocol.operations.families import base, search_rows
from burn_remote_protocol.tensors import MAX_ELEMENTS

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["diff", "repeat", "roll", "tile"]

REPEAT_DIM: Final = Operator(base.REPEAT_DIM)
SELECT: Final = Operator(base.SELECT)
SEARCH_SORTED: Final = Operator(search_rows.SEARCH_SORTED)


@explained
def repeat(
    x: Tensor, repeats: int | Sequence[int] | Tensor, /, *, axis: int | None = None
) -> Tensor:
    """Repeat each element along an axis; ``axis=None`` flattens the tensor first.

    ``repeats`` is one count for all elements, or one count for each index along the axis. A tensor
    of counts determines the size of the result, so the call waits for one round trip; it raises
    ``UsageError`` for a negative count, and ``Unsupported`` on Burn's own servers.
    """
    if axis is None:
        x, axis = flatten(x), 0
    place = normal_axis(axis, x.ndim)
    shape = x.shape
    if isinstance(repeats, int | np.integer):
        repeats = int(operator.index(repeats))
        single = reshaped(x, (*shape[: place + 1], 1, *shape[place + 1 :]))
        repeated = REPEAT_DIM.apply((single,), (place + 1, repeats))
        return reshaped(repeated, (*shape[:place], shape[place] * repeats, *shape[place + 1 :]))
    if is_tensor(repeats):
        return _repeated(x, repeats, place)
    if len(repeats) != shape[place]:
        raise ShapeMismatch(
            f"{len(repeats)} counts do not match size {shape[place]} along axis {axis}"
        )
    places = np.repeat(np.arange(shape[place]), repeats)
    return SELECT.apply((x, upload(x, places)), (place,))


def _repeated(x: Tensor, counts: Tensor, place: int) -> Tensor:
    if not counts.dtype.is_integer or counts.size not in (1, x.shape[place]) or counts.ndim > 1:
        raise ShapeMismatch(
            f"the counts are {counts.handle.spec}, but must be integers, one for each of the "
            f"{x.shape[place]} indices along axis {place}"
        )
    counts = broadcast_to(reshaped(astype(counts, I64), (counts.size,)), (x.shape[place],))
    if not counts.size:
        return x
    ends = cumulative_sum(counts)
    least, total = read([smallest(counts), part(ends, 0, counts.size - 1, counts.size)])
    if least < 0:
        raise UsageError(f"a count is {int(least)}, but counts must not be negative")
    numbers = counted(x.__class__, x.handle.client, int(total[0]))
    # An index belongs to the first element whose repetitions end behind it.
    return SELECT.apply((x, SEARCH_SORTED.apply((ends, numbers), (True,))), (place,))


@explained
def tile(x: Tensor, repetitions: int | Sequence[int], /) -> Tensor:
    """Repeat the whole tensor along its axes; the last count applies to the last axis."""
    counts = normal_shape(repetitions)
    given = x
    x = with_rank(x, len(counts))
    counts = (1,) * (x.ndim - len(counts)) + counts
    for axis, count in enumerate(counts):
        if count != 1:
            x = REPEAT_DIM.apply((x,), (axis, count))
    return distinct(given, x)


@explained
def roll(x: Tensor, /, shift: int | Sequence[int], axis: Axes = None) -> Tensor:
    """Rotate elements along axes; ``axis=None`` rotates the flattened tensor."""
    if axis is None:
        if isinstance(shift, Sequence | np.ndarray):
            raise ShapeMismatch("several shifts require one axis for each")
        return reshaped(roll(flatten(x), shift, 0), x.shape)
    given = x
    axes = normal_axes(axis, x.ndim)
    given_shifts = shift if isinstance(shift, Sequence | np.ndarray) else (shift,) * len(axes)
    try:
        shifts = [int(operator.index(one)) for one in given_shifts]
    except TypeError:
        raise ArgumentMismatch(f"a shift must be an integer, not {shown(shift)}") from None
    if len(shifts) != len(axes):
        raise ShapeMismatch(f"{len(shifts)} shifts do not match {len(axes)} axes")
    for place, count in zip(axes, shifts, strict=True):
        size = x.shape[place]
        if size and count % size:
            seam = size - count % size
            x = concat([part(x, place, seam, size), part(x, place, 0, seam)], place)
    return distinct(given, x)


@explained
def diff(
    x: Tensor,
    /,
    n: int = 1,
    axis: int = -1,
    *,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """Return the ``n``-th difference of adjacent elements along an axis.

    Each difference shortens the axis by 1, down to 0. ``prepend`` and ``append`` are joined to
    ``x`` along the axis first.
    """
    place = normal_axis(axis, x.ndim)
    joined = [one for one in (prepend, x, append) if one is not None]
    if len(joined) > 1:
        x = concat(joined, axis=place)
    n = whole_number("n", n, 0, MAX_ELEMENTS)
    given = x
    if n >= x.shape[place]:
        x, n = part(x, place, 0, 0), min(n, 1)
    for _ in range(n):
        size = x.shape[place]
        x = subtract(part(x, place, 1, size), part(x, place, 0, max(size - 1, 0)))
    return distinct(given, x)
