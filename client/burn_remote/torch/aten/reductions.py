"""Reductions, cumulative functions, searching and sorting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import burn_remote as br
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.elementwise import log_of_sum
from burn_remote.torch.aten.promotion import as_floats, cast, filled_like
from burn_remote.torch.aten.table import aten, implement
from burn_remote_protocol.errors import UsageError

__all__: list[str] = []

Tensor = br.Tensor


def _axes(x: Tensor, dim: Any) -> Any:
    """Return the axes of a reduction: ``None`` for all. A 0-d tensor has one axis, 0 or -1."""
    if dim is None or dim == [] or dim == () or not x.ndim:
        return None
    return dim if isinstance(dim, int) else tuple(dim)


@aten("sum", "sum.dim_IntList")
def sum_(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return br.sum(cast(x, dtype), axis=_axes(x, dim), keepdims=keepdim)


@aten("mean", "mean.dim")
def mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return br.mean(cast(x, dtype), axis=_axes(x, dim), keepdims=keepdim)


@aten("prod", "prod.dim_int")
def prod(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return br.prod(cast(x, dtype), axis=_axes(x, dim), keepdims=keepdim)


def _extreme(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        if x.dtype.is_bool:
            whole = br.any if function is br.max else br.all
            return whole(x, axis=_axes(x, dim), keepdims=keepdim)
        return function(x, axis=_axes(x, dim), keepdims=keepdim)

    return reduce


for _name, _function in (("amax", br.max), ("amin", br.min), ("max", br.max), ("min", br.min)):
    implement(_name, _extreme(_function))


def _with_indices(function: Callable[..., Any]) -> Callable[..., Any]:
    def search(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        if not x.ndim:
            return x, filled_like(x, 0, (), br.int64)
        wide = converted_to(x, br.uint8) if x.dtype.is_bool else x
        values, indices = function(wide, dim, keepdims=keepdim)
        return converted_to(values, x.dtype), indices

    return search


implement("max.dim", _with_indices(br.max_with_indices))
implement("min.dim", _with_indices(br.min_with_indices))


def _index_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def search(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if not x.ndim:
            return filled_like(x, 0, (), br.int64)
        wide = converted_to(x, br.uint8) if x.dtype.is_bool else x
        return function(wide, axis=dim, keepdims=keepdim)

    return search


implement("argmax", _index_of(br.argmax))
implement("argmin", _index_of(br.argmin))


def _truth(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        result = function(x, axis=_axes(x, dim), keepdims=keepdim)
        # PyTorch returns uint8 for uint8, for compatibility.
        return converted_to(result, br.uint8) if x.dtype is br.uint8 else result

    return reduce


for _name, _function in (("any", br.any), ("all", br.all)):
    for _suffix in ("", ".dim", ".dims"):
        implement(_name + _suffix, _truth(_function))


def _count(x: Tensor, axes: Any) -> int:
    if axes is None:
        return x.size
    return math.prod(x.shape[one] for one in ((axes,) if isinstance(axes, int) else axes))


@aten("var.correction")
def var(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    axes = _axes(x, dim)
    correction = 1 if correction is None else correction
    if x.dtype.is_complex:
        real = var(br.real(x), dim, correction=correction, keepdim=keepdim)
        return real + var(br.imag(x), dim, correction=correction, keepdim=keepdim)
    if _count(x, axes) <= correction:
        away = x - br.mean(x, axis=axes, keepdims=True)
        return br.sum(away * away, axis=axes, keepdims=keepdim) / filled_like(x, 0.0)
    return br.var(x, axis=axes, correction=correction, keepdims=keepdim)


@aten("std.correction")
def std(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    return br.sqrt(var(x, dim, correction=correction, keepdim=keepdim))


@aten("var_mean.correction")
def var_mean(
    x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    middle = br.mean(x, axis=_axes(x, dim), keepdims=keepdim)
    return var(x, dim, correction=correction, keepdim=keepdim), middle


def _cumulative(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def accumulate(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
        x = cast(x, dtype)
        if not x.ndim:
            return x if x.dtype.is_floating or x.dtype.is_complex else converted_to(x, br.int64)
        return function(x, axis=dim)

    return accumulate


implement("cumsum", _cumulative(br.cumulative_sum))
implement("cumprod", _cumulative(br.cumulative_prod))


@aten("sort")
def sort(
    x: Tensor, dim: Any = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Tensor, Tensor]:
    return _sorted(x, dim, descending)


@aten("sort.stable")
def sort_stable(
    x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return _sorted(x, dim, descending)


def _sorted(x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    if not x.ndim:
        return x, filled_like(x, 0, (), br.int64)
    wide = converted_to(x, br.uint8) if x.dtype.is_bool else x
    values, indices = br.sort_with_indices(wide, axis=dim, descending=descending)
    return converted_to(values, x.dtype), indices


@aten("topk")
def topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    if not x.ndim:
        return x, filled_like(x, 0, (), br.int64)
    if x.dtype.is_complex:
        raise UsageError(f"topk takes tensors of ordered numbers, not of {x.dtype}")
    return br.topk(x, k, dim, largest=largest)


@aten("kthvalue")
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the ``k``-th smallest elements, counted from 1, and their indices."""
    if not x.ndim:
        return x, filled_like(x, 0, (), br.int64)
    if not 1 <= k <= x.shape[dim]:
        raise RuntimeError("kthvalue(): selected number k out of range for dimension " + str(dim))
    return _picked(x, k - 1, dim, keepdim)


@aten("mode")
def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the most frequent elements (the smallest if several are), and their last indices."""
    if not x.ndim:
        return x, filled_like(x, 0, (), br.int64)
    dim %= x.ndim
    if not x.shape[dim]:
        raise RuntimeError(f"mode(): expected reduction dim {dim} to have non-zero size")
    length = x.shape[dim]
    places = br.arange(length, dtype=br.int64, device=x.device)
    places = br.reshape(places, tuple([length if at == dim else 1 for at in range(x.ndim)]))
    ordered = _sorted(x, dim, False)[0]
    before = ordered[(*[slice(None)] * dim, slice(0, -1))]
    after = ordered[(*[slice(None)] * dim, slice(1, None))]
    is_first = br.concat(
        [
            br.ones((*x.shape[:dim], 1, *x.shape[dim + 1 :]), dtype=br.bool, device=x.device),
            br.not_equal(after, before),
        ],
        axis=dim,
    )
    # The length of a run of equal elements so far: the distance of an element from the run's first.
    starts = br.cummax(br.where(is_first, places, 0), dim)
    longest = br.argmax(places - starts, axis=dim, keepdims=True)
    values = br.gather(ordered, dim, converted_to(longest, br.int64))
    equal = br.equal(x, values)
    if x.dtype.is_floating:
        equal = br.logical_or(equal, br.logical_and(br.isnan(x), br.isnan(values)))
    indices = br.max(br.where(equal, places, -1), axis=dim, keepdims=True)
    return (values, indices) if keepdim else (br.squeeze(values, dim), br.squeeze(indices, dim))


def _picked(x: Tensor, place: int, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Return the elements at a place of the sorted axis, and their indices."""
    dim %= x.ndim
    index = (*[slice(None)] * dim, slice(place, place + 1))
    values, indices = (one[index] for one in _sorted(x, dim, False))
    return (values, indices) if keepdim else (br.squeeze(values, dim), br.squeeze(indices, dim))


@aten("median.dim")
def median_along(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the lower of two medians. The median of a line with a NaN is NaN."""
    if not x.ndim:
        return x, filled_like(x, 0, (), br.int64)
    values, indices = _picked(x, (x.shape[dim] - 1) // 2, dim, keepdim)
    if not x.dtype.is_floating:
        return values, indices
    # NaN is the last element of a sorted line.
    last, place = _picked(x, x.shape[dim] - 1, dim, keepdim)
    is_nan = br.isnan(last)
    return br.where(is_nan, last, values), br.where(is_nan, place, indices)


@aten("median")
def median(x: Tensor) -> Tensor:
    if not x.size and x.dtype.is_floating:
        return filled_like(x, math.nan)
    return median_along(br.flatten(x), 0)[0]


@aten("nanmedian.dim")
def nanmedian_along(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the lower of two medians of the elements that are not NaN."""
    if not x.ndim or not x.dtype.is_floating:
        return median_along(x, dim, keepdim)
    values, indices = _sorted(x, dim, False)  # NaN comes last
    counts = br.sum(converted_to(~br.isnan(x), br.int64), axis=dim, keepdims=True)
    middle = br.maximum((counts - 1) // 2, 0)
    found = br.gather(values, dim, middle), br.gather(indices, dim, middle)
    return found if keepdim else (br.squeeze(found[0], dim), br.squeeze(found[1], dim))


@aten("nanmedian")
def nanmedian(x: Tensor) -> Tensor:
    return nanmedian_along(br.flatten(x), 0)[0]


def _cumulative_extreme(
    name: str, better: Callable[[Tensor, Tensor], Tensor]
) -> Callable[..., Any]:
    def accumulate(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Scan in rounds: each combines elements ``reach`` apart, and doubles ``reach``.

        A later element replaces an equal earlier one; NaN replaces all others.
        """
        if x.dtype.is_complex:
            raise UsageError(f"{name} takes tensors of ordered numbers, not of {x.dtype}")
        if x.dtype.is_bool:
            values, places = accumulate(converted_to(x, br.uint8), dim)
            return converted_to(values, br.bool), places
        if not x.ndim or not x.size:
            return x, filled_like(x, 0, x.shape, br.int64)
        dim %= x.ndim
        count = x.shape[dim]
        steps = br.arange(count, dtype=br.int64, device=x.device)
        shape = [1] * x.ndim
        shape[dim] = count
        values, places = x, br.broadcast_to(br.reshape(steps, shape), x.shape)
        before: list[Any] = [slice(None)] * x.ndim
        after: list[Any] = [slice(None)] * x.ndim
        reach = 1
        while reach < count:
            before[dim], after[dim] = slice(0, count - reach), slice(reach, count)
            old, new = values[tuple(before)], values[tuple(after)]
            keeps = better(old, new)
            if x.dtype.is_floating:
                keeps = br.logical_and(br.logical_or(keeps, br.isnan(old)), ~br.isnan(new))
            here = tuple(after)
            values = values.set(here, br.where(keeps, old, new))
            places = places.set(here, br.where(keeps, places[tuple(before)], places[here]))
            reach *= 2
        return values, places

    return accumulate


implement("cummax", _cumulative_extreme("cummax", br.greater))
implement("cummin", _cumulative_extreme("cummin", br.less))


@aten("_logcumsumexp")
def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """Scan in rounds: each adds elements ``reach`` apart, in logarithms, and doubles ``reach``."""
    if not x.ndim or not x.size:
        return x
    dim %= x.ndim
    count, reach = x.shape[dim], 1
    before: list[Any] = [slice(None)] * x.ndim
    after: list[Any] = [slice(None)] * x.ndim
    while reach < count:
        before[dim], after[dim] = slice(0, count - reach), slice(reach, count)
        x = x.set(tuple(after), log_of_sum(x[tuple(before)], x[tuple(after)]))
        reach *= 2
    return x


@aten("count_nonzero.dim_IntList", "count_nonzero")
def count_nonzero(x: Tensor, dim: Any = None) -> Tensor:
    return br.count_nonzero(x, axis=_axes(x, dim))


@aten("logsumexp")
def logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    (x,) = as_floats(x)
    axes = _axes(x, dim)
    if not x.size:
        return br.log(br.sum(x, axis=axes, keepdims=keepdim))
    largest = br.max(br.real(x) if x.dtype.is_complex else x, axis=axes, keepdims=True)
    largest = br.mask_fill(largest, br.isinf(largest), 0.0)
    total = br.log(br.sum(br.exp(x - largest), axis=axes, keepdims=True)) + largest
    return total if keepdim else br.reshape(total, br.sum(x, axis=axes).shape)


@aten("linalg_vector_norm")
def vector_norm(
    x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    x = cast(x, dtype)
    axes = _axes(x, dim)
    size = br.abs(x)
    if ord == 2:
        return br.sqrt(br.sum(size * size, axis=axes, keepdims=keepdim))
    if ord == 1:
        return br.sum(size, axis=axes, keepdims=keepdim)
    if ord == 0:
        return converted_to(br.count_nonzero(x, axis=axes, keepdims=keepdim), size.dtype)
    if math.isinf(ord):
        whole = br.max if ord > 0 else br.min
        return whole(size, axis=axes, keepdims=keepdim)
    return br.pow(br.sum(br.pow(size, float(ord)), axis=axes, keepdims=keepdim), 1 / ord)
