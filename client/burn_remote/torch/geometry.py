"""Sizes, strides and offsets of views: which elements of a storage a tensor shows.

Pure functions of shapes. The rules are PyTorch's, so a view here shows what the same view shows on
the CPU, ``view`` refuses the same strides, and ``reshape`` copies in the same cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

__all__ = [
    "VIEWS",
    "Geometry",
    "Metadata",
    "Selection",
    "is_contiguous",
    "metadata_of",
    "order_of_dense",
    "row_major",
    "selection_of",
]

Sizes = tuple[int, ...]


class Geometry(NamedTuple):
    """Element ``[i, j, …]`` is element ``offset + i * stride[0] + j * stride[1] + …``."""

    size: Sizes
    stride: Sizes
    offset: int

    @property
    def end(self) -> int:
        """The position after the last element."""
        if 0 in self.size:
            return self.offset
        axes = zip(self.size, self.stride, strict=True)
        return self.offset + 1 + sum((n - 1) * step for n, step in axes)


class Metadata:
    """Geometry and dtype of a tensor. Equal metadata are one object, a key that is hashed fast.

    ``slices`` has the shapes of storages of which the geometry is a slice, or ``False`` for shapes
    from which elements must be gathered.
    """

    __slots__ = ("dtype", "geometry", "is_contiguous", "slices")

    def __init__(self, geometry: Geometry, dtype: Any) -> None:
        self.geometry: Final = geometry
        self.dtype: Final = dtype
        self.is_contiguous: Final = is_contiguous(geometry.size, geometry.stride)
        self.slices: Final[dict[Sizes, bool]] = {}

    def is_slice_of(self, shape: Sizes) -> bool:
        """Return whether a slice of a contiguous array of this shape has the elements."""
        found = self.slices.get(shape)
        if found is None:
            found = self.slices[shape] = self._is_slice_of(shape)
        return found

    def _is_slice_of(self, shape: Sizes) -> bool:
        size, stride, offset = self.geometry
        count = math.prod(size)
        if not count:
            return False
        if self.is_contiguous and offset == 0 and count == math.prod(shape):
            return True
        once = tuple([1 if step == 0 else n for n, step in zip(size, stride, strict=True)])
        return selection_of(shape, Geometry(once, stride, offset)) is not None


# The metadata that the program has used. Most programs use few. A full table is cleared, which only
# costs time.
_LIMIT: Final = 65_536
_metadata: Final[dict[tuple[Geometry, Any], Metadata]] = {}


def metadata_of(geometry: Geometry, dtype: Any) -> Metadata:
    """Return the metadata of tensors with a geometry and a dtype."""
    key = (geometry, dtype)
    found = _metadata.get(key)
    if found is None:
        if len(_metadata) >= _LIMIT:
            _metadata.clear()
        found = _metadata.setdefault(key, Metadata(geometry, dtype))
    return found


class Selection(NamedTuple):
    """A geometry as a slice of a reshaped array whose axes are then permuted and broadcast."""

    # Shape to which the array is reshaped first.
    shape: Sizes
    ranges: tuple[slice, ...]
    # Shape of the slice, without axes of size 1.
    kept: Sizes
    # Axis ``i`` of the view, without axes of size 1, is axis ``order[i]`` of the slice.
    order: Sizes


def row_major(size: Sequence[int]) -> Sizes:
    """Return the strides of a contiguous tensor."""
    strides = [1] * len(size)
    for at in range(len(size) - 2, -1, -1):
        strides[at] = strides[at + 1] * max(size[at + 1], 1)
    return tuple(strides)


def is_contiguous(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether the elements lie one after the other, in row-major order."""
    expected = 1
    for count, step in zip(reversed(size), reversed(stride), strict=True):
        if count == 0:
            return True
        if count != 1:
            if step != expected:
                return False
            expected *= count
    return True


def order_of_dense(size: Sequence[int], stride: Sequence[int]) -> Sizes | None:
    """Return the axes in the order in which they lie in memory, outermost first.

    ``None`` if the elements do not lie one after the other: there are gaps or repetitions.
    """
    if 0 in size:
        return None
    order = sorted(range(len(size)), key=lambda axis: (size[axis] > 1, -stride[axis]))
    expected = 1
    for axis in reversed(order):
        if size[axis] != 1:
            if stride[axis] != expected:
                return None
            expected *= size[axis]
    return tuple(order)


def selection_of(shape: Sizes, geometry: Geometry) -> Selection | None:
    """Return the geometry as a slice of a contiguous array of this shape, or ``None``.

    ``None`` says that it needs a gather: no shape of the array has an axis for each axis of the
    view.
    """
    found = _slice_of(shape, geometry)
    if found is None:
        split = _split_shape(math.prod(shape), geometry)
        found = None if split is None else _slice_of(split, geometry)
    return found


def _split_shape(count: int, geometry: Geometry) -> Sizes | None:
    """Return the shape of a contiguous array that has one axis for each stride of a view."""
    axes = zip(geometry.size, geometry.stride, strict=True)
    steps = sorted({step for n, step in axes if n > 1 and step}, reverse=True)
    shape = []
    for step in steps:
        if count % step:
            return None
        shape.append(count // step)
        count = step
    return (*shape, count)


def _slice_of(shape: Sizes, geometry: Geometry) -> Selection | None:
    steps = row_major(shape)
    starts = [(geometry.offset // step) % count for count, step in zip(shape, steps, strict=True)]
    if sum(at * step for at, step in zip(starts, steps, strict=True)) != geometry.offset:
        return None
    used: dict[int, int] = {}
    index = [slice(start, start + 1, 1) for start in starts]
    axes = [(n, s) for n, s in zip(geometry.size, geometry.stride, strict=True) if n > 1]
    for place, (count, stride) in enumerate(axes):
        if stride == 0:
            return None
        axis = next(
            (
                at
                for at, step in enumerate(steps)
                if shape[at] > 1 and step <= stride and at not in used
            ),
            None,
        )
        if axis is None or stride % steps[axis]:
            return None
        pace = stride // steps[axis]
        last = starts[axis] + (count - 1) * pace
        if last >= shape[axis]:
            return None
        index[axis] = slice(starts[axis], last + 1, pace)
        used[axis] = place
    places = [used[axis] for axis in sorted(used)]
    order = tuple([places.index(place) for place in range(len(axes))])
    kept = tuple([axes[place][0] for place in places])
    return Selection(shape, tuple(index), kept, order)


def _axis(axis: int, rank: int) -> int:
    limit = max(rank, 1)
    if not -limit <= axis < limit:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], "
            f"but got {axis})"
        )
    return axis % limit


def _view(g: Geometry, size: Sequence[int]) -> Geometry:
    count = math.prod(g.size)
    wanted = tuple(size)
    if -1 in wanted:
        known = math.prod(one for one in wanted if one != -1)
        if wanted.count(-1) > 1 or not known or count % known:
            raise RuntimeError(f"shape '{list(wanted)}' is invalid for input of size {count}")
        wanted = tuple([count // known if one == -1 else one for one in wanted])
    if math.prod(wanted) != count:
        raise RuntimeError(f"shape '{list(wanted)}' is invalid for input of size {count}")
    stride = viewed_stride(g.size, g.stride, wanted)
    if stride is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one "
            "dimension spans across two contiguous subspaces). Use .reshape(...) instead."
        )
    return Geometry(wanted, stride, g.offset)


def viewed_stride(size: Sizes, stride: Sizes, wanted: Sizes) -> Sizes | None:
    """Return the strides of a view of another shape, ``None`` if it needs a copy."""
    if is_contiguous(size, stride):
        return row_major(wanted)
    if not math.prod(size):
        return stride if size == wanted else row_major(wanted)
    # Runs of axes whose elements are evenly spaced: (number of elements, innermost stride).
    runs: list[tuple[int, int]] = []
    for count, step in zip(size, stride, strict=True):
        if count == 1:
            continue
        if runs and runs[-1][1] == count * step:
            runs[-1] = (runs[-1][0] * count, step)
        else:
            runs.append((count, step))
    result = [0] * len(wanted)
    at = len(wanted) - 1
    for total, step in reversed(runs):
        filled = 1
        while at >= 0 and (filled < total or wanted[at] == 1):
            result[at] = step * filled
            filled *= wanted[at]
            at -= 1
        if filled != total:
            return None
    for rest in range(at, -1, -1):
        result[rest] = result[rest + 1] * wanted[rest + 1] if rest + 1 < len(wanted) else 1
    return tuple(result)


def _permute(g: Geometry, dims: Sequence[int]) -> Geometry:
    axes = [_axis(dim, len(g.size)) for dim in dims]
    if sorted(axes) != list(range(len(g.size))):
        raise RuntimeError(f"permute: {list(dims)} is no permutation of {len(g.size)} axes")
    sizes = tuple([g.size[axis] for axis in axes])
    return Geometry(sizes, tuple([g.stride[axis] for axis in axes]), g.offset)


def _transpose(g: Geometry, dim0: int, dim1: int) -> Geometry:
    first, second = _axis(dim0, len(g.size)), _axis(dim1, len(g.size))
    if not g.size:
        return g
    size, stride = list(g.size), list(g.stride)
    size[first], size[second] = size[second], size[first]
    stride[first], stride[second] = stride[second], stride[first]
    return Geometry(tuple(size), tuple(stride), g.offset)


def _t(g: Geometry) -> Geometry:
    if len(g.size) > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {len(g.size)}D")
    return g if len(g.size) < 2 else _transpose(g, 0, 1)


def _expand(g: Geometry, size: Sequence[int], *, implicit: bool = False) -> Geometry:
    added = len(size) - len(g.size)
    if added < 0:
        raise RuntimeError(
            f"expand(torch.FloatTensor{{{list(g.size)}}}, size={list(size)}): the number of sizes "
            f"provided ({len(size)}) must be greater or equal to the number of dimensions in the "
            f"tensor ({len(g.size)})"
        )
    sizes: list[int] = []
    strides: list[int] = []
    for at in range(len(size) - 1, -1, -1):
        own = at - added
        count = size[at]
        if own < 0:
            if count < 0:
                raise RuntimeError("expand: the size of a new axis must not be negative")
            here, step = 1, (strides[-1] * sizes[-1] if sizes else 1)
        else:
            here, step = g.size[own], g.stride[own]
        count = here if count == -1 else count
        if count != here:
            if here != 1:
                raise RuntimeError(
                    f"The expanded size of the tensor ({count}) must match the existing size "
                    f"({here}) at non-singleton dimension {at}.  Target sizes: {list(size)}.  "
                    f"Tensor sizes: {list(g.size)}"
                )
            step = 0
        sizes.append(count)
        strides.append(step)
    return Geometry(tuple(reversed(sizes)), tuple(reversed(strides)), g.offset)


def _slice(
    g: Geometry,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Geometry:
    if not g.size:
        raise IndexError("slice() cannot be applied to a 0-dim tensor.")
    if step <= 0:
        raise RuntimeError("slice step must be positive")
    axis = _axis(dim, len(g.size))
    count = g.size[axis]
    first = 0 if start is None else start + count if start < 0 else start
    last = count if end is None else end + count if end < 0 else end
    first = min(max(first, 0), count)
    last = min(max(last, first), count)
    size, stride = list(g.size), list(g.stride)
    size[axis] = -(-(last - first) // step)
    stride[axis] *= step
    return Geometry(tuple(size), tuple(stride), g.offset + first * g.stride[axis])


def _select(g: Geometry, dim: int, index: int) -> Geometry:
    if not g.size:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    axis = _axis(dim, len(g.size))
    count = g.size[axis]
    if not -count <= index < count:
        raise IndexError(f"index {index} is out of bounds for dimension {axis} with size {count}")
    at = index % count
    size = (*g.size[:axis], *g.size[axis + 1 :])
    stride = (*g.stride[:axis], *g.stride[axis + 1 :])
    return Geometry(size, stride, g.offset + at * g.stride[axis])


def _squeeze(g: Geometry, dim: int | Sequence[int] | None = None) -> Geometry:
    rank = len(g.size)
    dims = range(rank) if dim is None else (dim,) if isinstance(dim, int) else dim
    axes = {_axis(one, rank) for one in dims}
    kept = [at for at in range(rank) if g.size[at] != 1 or at not in axes]
    return Geometry(
        tuple([g.size[at] for at in kept]), tuple([g.stride[at] for at in kept]), g.offset
    )


def _unsqueeze(g: Geometry, dim: int) -> Geometry:
    axis = _axis(dim, len(g.size) + 1)
    step = g.size[axis] * g.stride[axis] if axis < len(g.size) else 1
    return Geometry(
        (*g.size[:axis], 1, *g.size[axis:]), (*g.stride[:axis], step, *g.stride[axis:]), g.offset
    )


def _diagonal(g: Geometry, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Geometry:
    first, second = _axis(dim1, len(g.size)), _axis(dim2, len(g.size))
    if first == second:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    rows, columns = g.size[first], g.size[second]
    count = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    start = g.offset
    if count:
        start += max(offset, 0) * g.stride[second] + max(-offset, 0) * g.stride[first]
    kept = [at for at in range(len(g.size)) if at not in (first, second)]
    return Geometry(
        (*[g.size[at] for at in kept], count),
        (*[g.stride[at] for at in kept], g.stride[first] + g.stride[second]),
        start,
    )


def _unfold(g: Geometry, dimension: int, size: int, step: int) -> Geometry:
    axis = _axis(dimension, len(g.size))
    count = g.size[axis] if g.size else 1
    stride = g.stride[axis] if g.size else 1
    if size > count:
        raise RuntimeError(
            f"maximum size for tensor at dimension {axis} is {count} but size is {size}"
        )
    if step <= 0:
        raise RuntimeError(f"step is {step} but must be > 0")
    if not g.size:
        return Geometry((size,), (1,), g.offset)
    windows = (count - size) // step + 1
    return Geometry(
        (*g.size[:axis], windows, *g.size[axis + 1 :], size),
        (*g.stride[:axis], stride * step, *g.stride[axis + 1 :], stride),
        g.offset,
    )


def _as_strided(
    g: Geometry, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Geometry:
    return Geometry(
        tuple(size), tuple(stride), g.offset if storage_offset is None else storage_offset
    )


def _check_has_axes(g: Geometry, name: str) -> None:
    if not g.size:
        raise RuntimeError(f"{name} expects at least a 1-dimensional tensor")


def _split(g: Geometry, split_size: int, dim: int = 0) -> list[Geometry]:
    _check_has_axes(g, "split")
    if split_size < 0:
        raise RuntimeError(
            f"split expects split_size be non-negative, but got split_size={split_size}"
        )
    axis = _axis(dim, len(g.size))
    if not split_size:
        return [g]
    starts = range(0, max(g.size[axis], 1), split_size)
    return [_slice(g, axis, start, start + split_size) for start in starts]


def _split_with_sizes(g: Geometry, split_sizes: Sequence[int], dim: int = 0) -> list[Geometry]:
    _check_has_axes(g, "split_with_sizes")
    axis = _axis(dim, len(g.size))
    if sum(split_sizes) != g.size[axis]:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {g.size[axis]} (input "
            f"tensor's size at dimension {axis}), but got split_sizes={list(split_sizes)}"
        )
    parts, start = [], 0
    for size in split_sizes:
        parts.append(_slice(g, axis, start, start + size))
        start += size
    return parts


def _unbind(g: Geometry, dim: int = 0) -> list[Geometry]:
    if not g.size:
        raise IndexError("Dimension specified as 0 but tensor has no dimensions")
    axis = _axis(dim, len(g.size))
    return [_select(g, axis, index) for index in range(g.size[axis])]


def _same(g: Geometry) -> Geometry:
    return g


# Name of an aten overload -> function of the geometry and the overload's further arguments.
VIEWS: Final[dict[str, Callable[..., Any]]] = {
    "alias": _same,
    "as_strided": _as_strided,
    "detach": _same,
    "diagonal": _diagonal,
    "expand": _expand,
    "lift_fresh": _same,
    "permute": _permute,
    "select.int": _select,
    "slice.Tensor": _slice,
    "split.Tensor": _split,
    "split_with_sizes": _split_with_sizes,
    "squeeze": _squeeze,
    "squeeze.dim": _squeeze,
    "squeeze.dims": _squeeze,
    "t": _t,
    "transpose.int": _transpose,
    "unbind.int": _unbind,
    "unfold": _unfold,
    "unsqueeze": _unsqueeze,
    "view": _view,
    "_unsafe_view": _view,
    "_reshape_alias": lambda g, size, stride: Geometry(tuple(size), tuple(stride), g.offset),
}
