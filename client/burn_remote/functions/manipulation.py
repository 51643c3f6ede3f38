"""Reshaping, transposing, joining and splitting.

The dtype does not change, except where tensors of different dtypes are joined. Negative axes count
from the end. All raise ``ShapeMismatch``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from burn_remote.arguments.axes import Axes, normal_axes, normal_axis, normal_shape
from burn_remote.arguments.numbers import whole_number
from burn_remote.diagnostics.invalid_calls import explained, no_tensor
from burn_remote.dispatch.operators import Operator, reshaped, with_rank
from burn_remote.functions.casting import distinct
from burn_remote.functions.operands import all_alike, sent
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import ArgumentMismatch, ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import base
from burn_remote_protocol.operations.shape_rules.checks import broadcast_shapes
from burn_remote_protocol.tensors import MAX_ELEMENTS, Slice

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "broadcast_arrays",
    "broadcast_to",
    "concat",
    "expand_dims",
    "flatten",
    "flip",
    "matrix_transpose",
    "moveaxis",
    "part",
    "permute_dims",
    "reshape",
    "split",
    "squeeze",
    "stack",
    "swapaxes",
    "transpose",
    "unfold",
    "unstack",
]

SWAP_DIMS: Final = Operator(base.SWAP_DIMS)
PERMUTE: Final = Operator(base.PERMUTE)
FLIP: Final = Operator(base.FLIP)
EXPAND: Final = Operator(base.EXPAND)
UNFOLD: Final = Operator(base.UNFOLD)
SLICE: Final = Operator(base.SLICE)
# A list in a message has at most 4,096 entries. More tensors are joined in several steps, which
# copies their elements more than once.
JOINED_AT_ONCE: Final = 2048

CAT: Final = Operator(base.CAT)


@explained
def reshape(
    x: Tensor, /, shape: int | Sequence[int], *sizes: int, copy: bool | None = None
) -> Tensor:
    """Return the elements, in C order, in another shape.

    One size may be -1 and is then inferred. ``x.reshape(2, -1)`` is the same as
    ``x.reshape((2, -1))``. ``copy`` changes nothing, because elements are never written.
    """
    if isinstance(shape, str | DType):
        raise ArgumentMismatch(
            f"the elements cannot be reinterpreted as {shape}; write x.astype(dtype) to convert "
            "them, or burn_remote.tensor(x.numpy().view(dtype), device=x.device)"
        )
    target = normal_shape((shape, *sizes) if sizes else shape)  # type: ignore[arg-type]
    if -1 in target:
        known = math.prod(size for size in target if size != -1)
        if target.count(-1) > 1 or not known or x.size % known:
            reason = (
                "only one size may be -1"
                if target.count(-1) > 1
                else f"no size in place of -1 gives {x.size:,} elements"
                if known
                else "beside a size of 0, -1 could be any size"
            )
            raise ShapeMismatch(f"{x.handle.spec} cannot be reshaped to {list(target)}: {reason}")
        target = tuple([x.size // known if size == -1 else size for size in target])
    return distinct(x, reshaped(x, target))


@explained
def flatten(x: Tensor, /, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Return the elements, in C order, with shape ``[size]``; or join some axes, as PyTorch does.

    Shapes: ``[a…, b…, c…]`` to ``[a…, product of b, c…]``, where ``b…`` are the axes from
    ``start_dim`` to ``end_dim``, which is included. A 0-d tensor gets one axis.
    """
    shape = x.shape
    if not shape:
        return distinct(x, reshaped(x, (1,)))
    first, last = normal_axis(start_dim, len(shape)), normal_axis(end_dim, len(shape))
    if last < first:
        raise UsageError(f"start_dim {start_dim} comes after end_dim {end_dim}")
    joined = (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])
    return distinct(x, reshaped(x, joined))


@explained
def squeeze(x: Tensor, /, axis: Axes = None) -> Tensor:
    """Remove axes of size 1: the given ones, or all."""
    shape = x.shape
    if axis is None:
        return distinct(x, reshaped(x, tuple([size for size in shape if size != 1])))
    axes = normal_axes(axis, len(shape))
    if any(shape[place] != 1 for place in axes):
        raise ShapeMismatch(f"{x.handle.spec} does not have size 1 along axis {axis}")
    kept = tuple([size for place, size in enumerate(shape) if place not in axes])
    return distinct(x, reshaped(x, kept))


@explained
def expand_dims(x: Tensor, /, axis: int | Sequence[int] = 0) -> Tensor:
    """Insert axes of size 1; ``axis`` is their position in the result."""
    count = len(axis) if isinstance(axis, Sequence) else 1
    axes = normal_axes(axis, x.ndim + count)
    sizes = iter(x.shape)
    places = range(x.ndim + count)
    shape = tuple([1 if place in axes else next(sizes) for place in places])
    return distinct(x, reshaped(x, shape))


@explained
def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """Permute the axes: axis ``i`` of the result is axis ``axes[i]`` of ``x``."""
    places = normal_axes(axes, x.ndim)
    if places == tuple(range(x.ndim)):
        return distinct(x)
    return PERMUTE.apply((x,), (places,))


@explained
def transpose(x: Tensor, /, axes: int | Sequence[int] | None = None, *others: int) -> Tensor:
    """Permute the axes; without ``axes``, reverse them, as NumPy does.

    ``x.transpose(2, 0, 1)`` is the same as ``x.transpose((2, 0, 1))``. Raises ``ArgumentMismatch``
    for two integers, which NumPy understands as all axes, and PyTorch as two axes to swap.
    """
    if isinstance(axes, int) and len(others) == 1:
        raise ArgumentMismatch(
            f"transpose({axes}, {others[0]}) means different things in NumPy and PyTorch; write "
            f"x.swapaxes({axes}, {others[0]}) to exchange two axes, "
            f"x.transpose(({axes}, {others[0]})) to order all"
        )
    if axes is None:
        return permute_dims(x, tuple(reversed(range(x.ndim))))
    return permute_dims(x, (axes, *others) if isinstance(axes, int) else axes)


@explained
def swapaxes(x: Tensor, /, axis1: int, axis2: int) -> Tensor:
    """Swap two axes."""
    rank = x.ndim
    return SWAP_DIMS.apply((x,), (normal_axis(axis1, rank), normal_axis(axis2, rank)))


@explained
def matrix_transpose(x: Tensor, /) -> Tensor:
    """Swap the last two axes."""
    if x.ndim < 2:
        raise ShapeMismatch(f"{x.handle.spec} is not a matrix; at least 2 axes are required")
    return swapaxes(x, -2, -1)


@explained
def moveaxis(x: Tensor, source: int | Sequence[int], destination: int | Sequence[int], /) -> Tensor:
    """Move axes to the given positions in the result; the others keep their order."""
    rank = x.ndim
    moved, places = normal_axes(source, rank), normal_axes(destination, rank)
    if len(moved) != len(places):
        raise ShapeMismatch(f"{len(moved)} source axes do not match {len(places)} destinations")
    by_place = dict(zip(places, moved, strict=True))
    others = iter([axis for axis in range(rank) if axis not in moved])
    order = [by_place[place] if place in by_place else next(others) for place in range(rank)]
    return permute_dims(x, order)


@explained
def broadcast_to(x: Tensor, /, shape: int | Sequence[int]) -> Tensor:
    """Broadcast to a shape: prepend axes and repeat axes of size 1."""
    target = normal_shape(shape)
    spec = x.handle.spec
    if target == spec.shape:
        return distinct(x)
    return EXPAND.into(with_rank(x, len(target)), target)


@explained
def broadcast_arrays(*tensors: Tensor) -> list[Tensor]:
    """Broadcast tensors to their common shape."""
    shape = broadcast_shapes(*[x.shape for x in tensors])
    return [broadcast_to(x, shape) for x in tensors]


@explained
def flip(x: Tensor, /, axis: Axes = None) -> Tensor:
    """Reverse the elements along the given axes, or along all."""
    return FLIP.apply((x,), (normal_axes(axis, x.ndim),))


@explained
def concat(tensors: Iterable[Tensor], /, axis: int | None = 0) -> Tensor:
    """Join tensors along an existing axis; their other axes must have equal sizes.

    Tensors of different dtypes are converted to their common dtype. ``axis=None`` flattens the
    tensors first. Raises ``ShapeMismatch``, ``DTypeMismatch`` or ``DeviceMismatch``.
    """
    if is_tensor(axis):
        raise ArgumentMismatch("the tensors must be one list; write concat([x, y])")
    listed = _tensors_in(tensors)
    if not listed:
        raise ShapeMismatch("at least one tensor is required")
    if axis is None:
        listed, axis = [flatten(x) for x in listed], 0
    place = normal_axis(axis, listed[0].ndim)
    listed = all_alike(listed)
    while len(listed) > JOINED_AT_ONCE:
        starts = range(0, len(listed), JOINED_AT_ONCE)
        parts = [listed[start : start + JOINED_AT_ONCE] for start in starts]
        listed = [CAT.apply_to_list(part, (place,)) for part in parts]
    return CAT.apply_to_list(listed, (place,))


@explained
def stack(tensors: Iterable[Tensor], /, axis: int = 0) -> Tensor:
    """Join tensors of equal shape along a new axis."""
    if is_tensor(axis):
        raise ArgumentMismatch("the tensors must be one list; write stack([x, y])")
    listed = _tensors_in(tensors)
    if len({x.shape for x in listed}) > 1:
        shapes = ", ".join(str(x.handle.spec) for x in listed)
        raise ShapeMismatch(f"tensors to be stacked must have equal shapes, not {shapes}")
    return concat([expand_dims(x, axis) for x in listed], axis=axis)


@explained
def unstack(x: Tensor, /, axis: int = 0) -> tuple[Tensor, ...]:
    """Split a tensor into its slices along an axis; the slices do not have this axis."""
    place = normal_axis(axis, x.ndim)
    shape = (*x.shape[:place], *x.shape[place + 1 :])
    parts = [part(x, place, start, start + 1) for start in range(x.shape[place])]
    return tuple([reshaped(part, shape) for part in parts])


@explained
def split(x: Tensor, /, sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Split a tensor along an axis into ``sections`` equal parts, or at the given positions."""
    place = normal_axis(axis, x.ndim)
    size = x.shape[place]
    if not isinstance(sections, Sequence | np.ndarray) and not is_tensor(sections):
        count = whole_number("sections", sections, 1, MAX_ELEMENTS)
        if size % count:
            raise ShapeMismatch(
                f"{x.handle.spec} cannot be split into {count} equal parts along axis {axis}; "
                "burn_remote.array_split allows parts that differ by one, and for parts of "
                f"{count} elements, give their positions, range({count}, {size}, {count})"
            )
        step = size // count
        ends = [step * place for place in range(1, count + 1)]
    else:
        ends = [*sections, size]
    return [part(x, place, *ends) for ends in zip([0, *ends[:-1]], ends, strict=True)]


@explained
def unfold(x: Tensor, /, axis: int, size: int, step: int) -> Tensor:
    """Extract windows of ``size`` elements, ``step`` apart, along an axis; append them as an axis.

    Shapes: ``[…, n, …]`` to ``[…, (n - size) // step + 1, …, size]``.
    """
    return UNFOLD.apply((x,), (normal_axis(axis, x.ndim), size, step))


def part(x: Tensor, axis: int, start: int, end: int) -> Tensor:
    """Return the elements from ``start`` up to, but excluding, ``end`` along an axis."""
    everything = tuple([Slice(0, size, 1) for size in x.shape[:axis]])
    return SLICE.apply((x,), ((*everything, Slice(int(start), int(end), 1)),))


def _tensors_in(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return a list of the tensors; small arrays are sent to the device of the first one.

    Raises ``ArgumentMismatch`` for any other element.
    """
    listed = list(tensors)
    first = next((one for one in listed if is_tensor(one)), None)
    if first is not None:
        listed = [sent(first, one) if isinstance(one, np.ndarray) else one for one in listed]
    for place, one in enumerate(listed):
        if not is_tensor(one):
            raise ArgumentMismatch(no_tensor(f"tensors[{place}]", one))
    return listed
