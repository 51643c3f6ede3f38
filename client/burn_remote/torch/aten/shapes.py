"""Functions that rearrange elements: views as values, joining, padding, repetition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import burn_remote as br
import burn_remote.functional as F
from burn_remote.dispatch.operators import reshaped
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.promotion import filled_like, in_common
from burn_remote.torch.aten.table import aten, implement

__all__ = ["slice_bounds", "strided_positions"]

Tensor = br.Tensor


def _axis(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


def slice_bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Return the bounds of a slice as PyTorch limits them: ``0 ≤ start ≤ end ≤ size``."""
    first = 0 if start is None else start + size if start < 0 else start
    last = size if end is None else end + size if end < 0 else end
    first = min(max(first, 0), size)
    return first, min(max(last, first), size)


@aten("view", "_unsafe_view", "reshape", "_reshape_alias")
def view(x: Tensor, size: Sequence[int], *strides: Any) -> Tensor:
    return reshaped(x, tuple(size)) if -1 not in size else br.reshape(x, tuple(size))


@aten("t")
def t(x: Tensor) -> Tensor:
    return x if x.ndim < 2 else br.swapaxes(x, 0, 1)


@aten("transpose.int")
def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    return br.swapaxes(x, dim0, dim1) if x.ndim else x


@aten("permute")
def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    return br.permute_dims(x, tuple(dims))


@aten("expand")
def expand(x: Tensor, size: Sequence[int], *, implicit: bool = False) -> Tensor:
    added = len(size) - x.ndim
    wanted = [x.shape[at - added] if one == -1 else one for at, one in enumerate(size)]
    return br.broadcast_to(x, wanted)


@aten("unsqueeze")
def unsqueeze(x: Tensor, dim: int) -> Tensor:
    at = _axis(dim, x.ndim + 1)
    return reshaped(x, (*x.shape[:at], 1, *x.shape[at:]))


@aten("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    dims = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    axes = {_axis(one, x.ndim) for one in dims}
    kept = [size for at, size in enumerate(x.shape) if size != 1 or at not in axes]
    return reshaped(x, tuple(kept))


@aten("slice.Tensor")
def slice_(
    x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    dim = _axis(dim, x.ndim)
    first, last = slice_bounds(x.shape[dim], start, end)
    if first == 0 and last == x.shape[dim] and step == 1:
        return x
    return x[(*[slice(None)] * dim, slice(first, last, step))]


@aten("slice_scatter")
def slice_scatter(
    x: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    dim = _axis(dim, x.ndim)
    first, last = slice_bounds(x.shape[dim], start, end)
    return x.set((*[slice(None)] * dim, slice(first, last, step)), converted_to(src, x.dtype))


@aten("select.int")
def select(x: Tensor, dim: int, index: int) -> Tensor:
    return x[(*[slice(None)] * _axis(dim, x.ndim), index)]


@aten("select_scatter")
def select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    place = (*[slice(None)] * _axis(dim, x.ndim), index)
    return x.set(place, converted_to(src, x.dtype))


@aten("select_backward")
def select_backward(grad: Tensor, sizes: Sequence[int], dim: int, index: int) -> Tensor:
    nothing = br.zeros(tuple(sizes), dtype=grad.dtype, device=grad.device)
    return select_scatter(nothing, grad, dim, index)


@aten("slice_backward")
def slice_backward(
    grad: Tensor, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Tensor:
    nothing = br.zeros(tuple(sizes), dtype=grad.dtype, device=grad.device)
    return slice_scatter(nothing, grad, dim, start, end, step)


def _diagonal_places(
    x: Tensor, offset: int, dim1: int, dim2: int
) -> tuple[list[int], int, Tensor, Tensor]:
    """Return the order of axes with the matrix last, the length, and the positions."""
    first, second = _axis(dim1, x.ndim), _axis(dim2, x.ndim)
    order = [at for at in range(x.ndim) if at not in (first, second)] + [first, second]
    rows, columns = x.shape[first], x.shape[second]
    length = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    places = br.arange(length, dtype=br.int64, device=x.device)
    return order, length, places + max(-offset, 0), places + max(offset, 0)


@aten("diagonal")
def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    order, length, rows, columns = _diagonal_places(x, offset, dim1, dim2)
    moved = br.permute_dims(x, order)
    width = moved.shape[-1]
    flat = br.reshape(moved, (*moved.shape[:-2], moved.shape[-2] * width))
    return br.take(flat, rows * width + columns, axis=flat.ndim - 1) if length else flat[..., :0]


@aten("diagonal_scatter")
def diagonal_scatter(
    x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    order, length, rows, columns = _diagonal_places(x, offset, dim1, dim2)
    moved = br.permute_dims(x, order)
    width = moved.shape[-1]
    flat = br.reshape(moved, (*moved.shape[:-2], moved.shape[-2] * width))
    if length:
        src = converted_to(src, x.dtype)
        flat = br.update_along(flat, flat.ndim - 1, rows * width + columns, src)
    back = sorted(range(x.ndim), key=order.__getitem__)
    return br.permute_dims(br.reshape(flat, moved.shape), back)


@aten("split.Tensor")
def split(x: Tensor, split_size: int, dim: int = 0) -> list[Tensor]:
    size = x.shape[dim]
    if split_size == 0:
        return [x]
    starts = range(0, max(size, 1), split_size)
    return [slice_(x, dim, start, start + split_size) for start in starts]


@aten("split_with_sizes")
def split_with_sizes(x: Tensor, split_sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    parts, start = [], 0
    for size in split_sizes:
        parts.append(slice_(x, dim, start, start + size))
        start += size
    return parts


@aten("unbind.int")
def unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    return [select(x, dim, index) for index in range(x.shape[dim])]


@aten("unfold")
def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    if x.ndim == 0:
        return br.reshape(x, (1,))[:size]
    return br.unfold(x, _axis(dimension, x.ndim), size, step)


for _name in ("alias", "detach"):
    implement(_name, lambda x: x)


@aten("cat")
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    tensors = in_common(*tensors)
    for place, x in enumerate(tensors):
        if not x.ndim:
            raise RuntimeError(
                f"zero-dimensional tensor (at position {place}) cannot be concatenated"
            )
    # A legacy rule of PyTorch: tensors of shape (0,) are left out.
    kept = [x for x in tensors if x.shape != (0,)] or tensors[:1]
    return kept[0] if len(kept) == 1 else br.concat(kept, axis=dim)


@aten("stack")
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return br.stack(in_common(*tensors), axis=dim)


@aten("constant_pad_nd")
def constant_pad_nd(x: Tensor, pad: Sequence[int], value: Any = 0) -> Tensor:
    cuts = [slice(None)] * x.ndim
    borders: list[int] = []
    for at in range(0, len(pad), 2):
        left, right = pad[at], pad[at + 1]
        axis = x.ndim - 1 - at // 2
        size = x.shape[axis]
        cuts[axis] = slice(max(-left, 0), size - max(-right, 0))
        borders += [max(left, 0), max(right, 0)]
    if any(one < 0 for one in pad):
        x = x[tuple(cuts)]
    value = bool(value) if x.dtype.is_bool else int(value) if x.dtype.is_integer else value
    return F.pad(x, borders, value=value) if any(borders) else x


@aten("flip")
def flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    return br.flip(x, axis=tuple(dims)) if dims and x.ndim else x


@aten("roll")
def roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not x.size:
        return x
    if not dims:
        return br.roll(x, shifts[0])
    return br.roll(x, tuple(shifts), axis=tuple(dims))


@aten("repeat")
def repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    return br.tile(reshaped(x, (1,) * (len(repeats) - x.ndim) + x.shape), tuple(repeats))


@aten("repeat_interleave.self_int")
def repeat_interleave(
    x: Tensor, repeats: int, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    return br.repeat(x, repeats, axis=dim)


@aten("tril")
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    return br.tril(x, k=diagonal)


@aten("triu")
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    return br.triu(x, k=diagonal)


@aten("view_as_real_copy", "view_as_real")
def view_as_real(x: Tensor) -> Tensor:
    return br.stack([br.real(x), br.imag(x)], axis=-1)


@aten("view_as_complex_copy", "view_as_complex")
def view_as_complex(x: Tensor) -> Tensor:
    return br.complex(x[..., 0], x[..., 1])


@aten("as_strided_copy")
def as_strided(
    x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Return elements of the flattened tensor.

    Only compiled graphs call this: without ``torch.compile``, such a tensor is a view of a storage.
    """
    places = strided_positions(x, size, stride, storage_offset or 0)
    return br.reshape(br.take(br.flatten(x), places, axis=0), tuple(size))


def strided_positions(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """Return the positions of a strided tensor's elements in its flat storage: ``[elements]``."""
    places = filled_like(x, offset, (1,) * len(size), br.int64)
    for at, (count, step) in enumerate(zip(size, stride, strict=True)):
        shape = [1] * len(size)
        shape[at] = count
        steps = br.reshape(br.arange(count, dtype=br.int64, device=x.device), shape)
        places = places + steps * step
    return br.flatten(places)
