"""Reading and writing elements by tensors of indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import burn_remote as br
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.promotion import factor_for, filled_like, number_for
from burn_remote.torch.aten.table import aten
from burn_remote_protocol.errors import UsageError

__all__: list[str] = []

Tensor = br.Tensor


def _with_axes(x: Tensor) -> Tensor:
    return x if x.ndim else br.reshape(x, (1,))


@aten("index_select")
def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    if not x.ndim:
        return x
    return br.take(x, _with_axes(index), axis=dim)


@aten("gather")
def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if not index.size:
        return br.zeros(index.shape, dtype=x.dtype, device=x.device)
    result = br.gather(_with_axes(x), dim, converted_to(_with_axes(index), br.int64))
    return br.reshape(result, index.shape)


def _of_same_dtype(name: str, x: Tensor, source: Tensor) -> Tensor:
    """Return ``source``. Raises ``UsageError`` if its dtype is not that of ``x``."""
    if source.dtype is not x.dtype:
        raise UsageError(
            f"{name}: expected self.dtype to be equal to src.dtype, but they are {x.dtype} and "
            f"{source.dtype}; convert the source first"
        )
    return source


def _scattered(x: Tensor, dim: int, index: Tensor, src: Any, update: str) -> Tensor:
    if not index.size:
        return x
    places = converted_to(_with_axes(index), br.int64)
    if type(src) is Tensor:
        values = _with_axes(src)
        if values.shape != places.shape:
            values = values[tuple(slice(0, size) for size in places.shape)]
        values = _of_same_dtype("scatter", x, values)
    else:
        values = filled_like(x, number_for(src, x.dtype), places.shape)
    result = br.scatter(_with_axes(x), dim, places, values, update=update)  # type: ignore[arg-type]
    return br.reshape(result, x.shape)


@aten("scatter.src", "scatter.value")
def scatter(x: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
    return _scattered(x, dim, index, src, "assign")


@aten("scatter_add")
def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scattered(x, dim, index, src, "add")


@aten("scatter.reduce", "scatter.value_reduce")
def scatter_with(x: Tensor, dim: int, index: Tensor, src: Any, *, reduce: str) -> Tensor:
    return _scattered(x, dim, index, src, "add" if reduce == "add" else "mul")


_REDUCTIONS: Final = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}
_NEUTRAL: Final = {"sum": 0, "mean": 0, "prod": 1}


@aten("scatter_reduce.two")
def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    start = x
    if not include_self:
        if reduce in _NEUTRAL:
            neutral: Any = _NEUTRAL[reduce]
        else:
            low = br.finfo(x.dtype).min if x.dtype.is_floating else br.iinfo(x.dtype).min
            high = br.finfo(x.dtype).max if x.dtype.is_floating else br.iinfo(x.dtype).max
            if x.dtype.is_floating:
                low, high = float("-inf"), float("inf")
            neutral = low if reduce == "amax" else high
        start = _scattered(x, dim, index, neutral, "assign")
    result = _scattered(start, dim, index, src, _REDUCTIONS[reduce])
    if reduce == "mean":
        ones = br.ones_like(x)
        if not include_self:
            ones = _scattered(ones, dim, index, 0, "assign")
        counts = _scattered(ones, dim, index, 1, "add")
        counts = br.maximum(counts, 1)
        divide = br.divide if x.dtype.is_floating else br.floor_divide
        result = divide(result, counts)
    return result


def _places(x: Tensor, indices: Sequence[Any]) -> tuple[Any, ...]:
    """Return an index as in NumPy, with a full slice in place of aten's ``None``."""
    return tuple([slice(None) if one is None else one for one in indices])


def _expanded(x: Tensor, indices: Sequence[Any]) -> list[Any]:
    """Replace masks by the positions of their true elements."""
    result: list[Any] = []
    for one in indices:
        if one is not None and (one.dtype.is_bool or one.dtype is br.uint8):
            mask = converted_to(one, br.bool)
            result += list(br.nonzero(mask))
        elif one is None:
            result.append(None)
        else:
            result.append(converted_to(one, br.int64))
    return result


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(x: Tensor, indices: Sequence[Any]) -> Tensor:
    return x[_places(x, _expanded(x, indices))]


@aten("index_put", "_unsafe_index_put")
def index_put(
    x: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False
) -> Tensor:
    (mask, *others) = indices
    values = _of_same_dtype("index_put", x, values)
    if not others and mask is not None and mask.dtype.is_bool and values.size == 1:
        value = br.reshape(values, ())
        shaped = br.reshape(mask, mask.shape + (1,) * (x.ndim - mask.ndim))
        return br.where(shaped, x + value if accumulate else value, x)
    update: Any = "add" if accumulate else "assign"
    return x.set(_places(x, _expanded(x, indices)), values, update=update)


def _along(x: Tensor, dim: int, index: Tensor, source: Any, update: Any) -> Tensor:
    if not x.ndim:
        return br.reshape(_along(br.reshape(x, (1,)), 0, index, _rank_one(source), update), ())
    index = _with_axes(index)
    if not index.size:
        return x
    dim = dim % x.ndim
    shape = (*x.shape[:dim], index.size, *x.shape[dim + 1 :])
    values = (
        br.broadcast_to(source, shape)
        if type(source) is Tensor
        else filled_like(x, number_for(source, x.dtype), shape)
    )
    index = converted_to(index, br.int64)
    index = br.where(index < 0, index + x.shape[dim], index)
    return br.update_along(x, dim, index, values, update=update)


def _rank_one(source: Any) -> Any:
    return _with_axes(source) if type(source) is Tensor else source


@aten("index_add")
def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    source = _of_same_dtype("index_add", x, source)
    alpha = factor_for(alpha, x.dtype)
    return _along(x, dim, index, source if alpha == 1 else source * alpha, "add")


@aten("index_copy")
def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _along(x, dim, index, _of_same_dtype("index_copy", x, source), "assign")


@aten("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    value = converted_to(value, x.dtype) if type(value) is Tensor else value
    return _along(x, dim, index, value, "assign")


@aten("masked_select")
def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    x, mask = br.broadcast_arrays(x, mask)
    return br.boolean_mask(x, mask) if x.ndim else br.boolean_mask(*map(_with_axes, (x, mask)))


@aten("masked_scatter")
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    if x.dtype is not source.dtype:
        raise UsageError(
            "masked_scatter: expected self and source to have same dtypes but got "
            f"{x.dtype} and {source.dtype}"
        )
    x, mask = br.broadcast_arrays(x, mask)
    shape = x.shape
    mask = br.flatten(mask)
    if not mask.size or not source.size:  # without a source, no element may be selected
        return x
    places = br.maximum(br.cumulative_sum(converted_to(mask, br.int64), axis=0) - 1, 0)
    # An element that the mask does not select needs no element of the source, so its place is 0,
    # which always exists. The device checks the other places.
    chosen = br.take(br.flatten(source), br.where(mask, places, 0), axis=0)
    return br.reshape(br.where(mask, chosen, br.flatten(x)), shape)


@aten("nonzero")
def nonzero(x: Tensor) -> Tensor:
    if not x.ndim:
        return br.zeros((int(bool(x)), 0), dtype=br.int64, device=x.device)
    return br.argwhere(x)


@aten("take")
def take(x: Tensor, index: Tensor) -> Tensor:
    if not x.size and index.size:
        raise IndexError("take(): tried to take from an empty tensor")
    return br.reshape(br.take(br.flatten(x), br.flatten(index), axis=0), index.shape)


@aten("index_reduce")
def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    if not x.ndim:
        x, source = _with_axes(x), _with_axes(source)
        result = index_reduce(x, 0, index, source, reduce, include_self=include_self)
        return br.reshape(result, ())
    shape = [1] * x.ndim
    shape[dim] = index.size
    places = br.broadcast_to(br.reshape(index, tuple(shape)), source.shape)
    return scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


@aten("put")
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    if source.size != index.size:
        raise UsageError(
            f"put_(): expected source and index to have the same number of elements, but they have "
            f"{source.size} and {index.size}"
        )
    if not index.size:
        return x
    source = br.flatten(_of_same_dtype("put_", x, source))
    changed = _along(br.flatten(x), 0, br.flatten(index), source, "add" if accumulate else "assign")
    return br.reshape(changed, x.shape)


@aten("isin.Tensor_Tensor")
def isin(x: Tensor, tests: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    return br.isin(x, tests, invert=invert)


@aten("searchsorted.Tensor")
def searchsorted(
    sorted_sequence: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Tensor:
    if sorter is not None:
        sorted_sequence = br.gather(sorted_sequence, sorted_sequence.ndim - 1, sorter)
    place: Any = "right" if right or side == "right" else "left"
    if sorted_sequence.ndim != 1:
        # Compare each value with all elements of its sequence. NaN sorts behind all numbers.
        rows, wanted = br.expand_dims(sorted_sequence, -2), br.expand_dims(x, -1)
        behind = rows > wanted if place == "right" else rows >= wanted
        counts = br.sum(converted_to(br.logical_not(behind), br.int64), axis=-1)
        return converted_to(counts, br.int32) if out_int32 else counts
    found = br.searchsorted(sorted_sequence, _with_axes(x), side=place)
    found = br.reshape(found, x.shape)
    return converted_to(found, br.int32 if out_int32 else br.int64)


@aten("searchsorted.Scalar")
def searchsorted_number(sorted_sequence: Tensor, x: Any, **options: Any) -> Tensor:
    return searchsorted(sorted_sequence, filled_like(sorted_sequence, x), **options)


@aten("bincount")
def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Count each integer, or add up its weights. Waits for the largest, which gives the length."""
    length = max(int(br.max(x)) + 1 if x.size else 0, minlength)
    if weights is None:
        counts = br.zeros((length,), dtype=br.int64, device=x.device)
        weights = br.ones(x.shape, dtype=br.int64, device=x.device)
    else:
        dtype = weights.dtype if weights.dtype is br.float32 else br.float64
        weights = converted_to(weights, dtype)
        counts = br.zeros((length,), dtype=dtype, device=x.device)
    if not x.size:
        return counts
    return br.update_along(counts, 0, converted_to(x, br.int64), weights, update="add")


@aten("histc")
def histc(x: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Tensor:
    """Count elements in bins of equal width.

    If ``min`` equals ``max``, the limits are the smallest and the largest element.
    """
    if not x.dtype.is_floating:
        raise UsageError(f"histc takes floating-point numbers on burn devices, not {x.dtype}")
    if bins <= 0 or min > max:
        raise UsageError(f"histc needs bins > 0 and min <= max, not {bins}, {min} and {max}")
    counts = br.zeros((bins,), dtype=x.dtype, device=x.device)
    if not x.size:
        return counts
    x = br.flatten(x)
    low, high = (filled_like(x, float(one)) for one in (min, max))
    if min == max:
        low, high = br.min(x), br.max(x)
        same = br.equal(low, high)
        low, high = br.where(same, low - 1, low), br.where(same, high + 1, high)
    inside = br.logical_and(x >= low, x <= high)
    places = br.where(inside, (x - low) * bins / (high - low), filled_like(x, 0.0))
    places = br.minimum(converted_to(places, br.int64), bins - 1)
    return br.update_along(counts, 0, places, converted_to(inside, x.dtype), update="add")


@aten("histogram.bins_tensor")
def histogram(
    x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    """Count elements, or add up their weights, between sorted edges; the last edge is inside."""
    x = br.flatten(x)
    count = bins.shape[0] - 1
    inside = br.logical_and(x >= bins[0], x <= bins[count])
    places = converted_to(br.searchsorted(bins, x, side="right"), br.int64) - 1
    places = br.clip(places, 0, count - 1)
    amounts = converted_to(inside, x.dtype)
    if weight is not None:
        amounts = br.where(inside, br.flatten(weight), 0.0)
    zeros = br.zeros((count,), dtype=x.dtype, device=x.device)
    found = br.update_along(zeros, 0, places, amounts, update="add") if x.size else zeros
    if density:
        found = found / (br.sum(found) * (bins[1:] - bins[:-1]))
    return found, bins


@aten("histogram.bin_ct")
def histogram_of_range(
    x: Tensor,
    bins: int = 100,
    *,
    range: Any = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """Count elements in bins of equal width, by default from the smallest to the largest."""
    if range is not None:
        low, high = (filled_like(x, float(one)) for one in range)
    elif x.size:
        low, high = br.min(x), br.max(x)
    else:
        low, high = filled_like(x, 0.0), filled_like(x, 1.0)
    same = br.equal(low, high)
    low, high = br.where(same, low - 0.5, low), br.where(same, high + 0.5, high)
    steps = br.arange(bins + 1, dtype=x.dtype, device=x.device) / bins
    edges = low * (1 - steps) + high * steps
    return histogram(x, edges, weight=weight, density=density)


@aten("repeat_interleave.Tensor")
def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    """Return each position ``repeats`` times. Without ``output_size``, waits for the sum."""
    if repeats.dtype not in (br.int32, br.int64):
        raise UsageError(f"repeats has to be Long or Int tensor, not of {repeats.dtype}")
    count = int(br.sum(repeats)) if output_size is None else output_size
    ends = br.cumulative_sum(converted_to(repeats, br.int64), axis=0)
    places = br.arange(count, dtype=br.int64, device=repeats.device)
    found = br.searchsorted(ends, places, side="right")
    return converted_to(found, repeats.dtype)


@aten("_unique2")
def unique(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distinct elements, the index of each element among them, and their counts.

    Waits for the number of distinct elements.
    """
    found = br.unique_all(x)
    none = br.zeros((0,), dtype=br.int64, device=x.device)
    inverse = br.reshape(found.inverse_indices, x.shape) if return_inverse else none
    return found.values, inverse, found.counts if return_counts else none


@aten("_unique")
def unique_and_inverse(
    x: Tensor, sorted: bool = True, return_inverse: bool = False
) -> tuple[Tensor, Tensor]:
    return unique(x, sorted, return_inverse)[:2]


@aten("unique_dim")
def unique_along(
    x: Tensor,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distinct slices along an axis in lexicographic order; see ``unique``."""
    count = x.shape[dim]
    rows = br.reshape(br.moveaxis(x, dim, 0), (count, -1))
    order = br.arange(count, dtype=br.int64, device=x.device)
    # Stable sorts from the last element of the slices to the first order them.
    for column in range(rows.shape[1] - 1, -1, -1):
        keys = br.take(rows[:, column], order, axis=0)
        keys = converted_to(keys, br.uint8) if keys.dtype.is_bool else keys
        order = br.take(order, br.sort_with_indices(keys, axis=0)[1], axis=0)
    ordered = br.take(x, order, axis=dim)
    values, inverse, counts = unique_consecutive(ordered, True, return_counts, dim)
    if return_inverse:
        inverse = br.update_along(br.zeros_like(inverse), 0, order, inverse)
    else:
        inverse = br.zeros((0,), dtype=br.int64, device=x.device)
    return values, inverse, counts


@aten("unique_consecutive")
def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first of equal elements in succession, or of equal slices along an axis.

    Waits for their number.
    """
    shape = x.shape
    axis = 0 if dim is None else dim % max(x.ndim, 1)
    lines = br.flatten(x) if dim is None or not x.ndim else x
    count = lines.shape[axis]
    none = br.zeros((0,), dtype=br.int64, device=x.device)
    if not count:
        return lines, none, none
    rows = br.reshape(br.moveaxis(lines, axis, 0), (count, -1))
    starts = br.ones((count,), dtype=br.bool, device=x.device)
    starts = starts.set(slice(1, None), br.any(br.not_equal(rows[1:], rows[:-1]), axis=1))
    (places,) = br.nonzero(starts)
    values = br.take(lines, places, axis=axis)
    inverse = br.cumulative_sum(converted_to(starts, br.int64), axis=0) - 1
    inverse = br.reshape(inverse, shape) if dim is None else inverse
    end = br.full((1,), count, dtype=br.int64, device=x.device)
    counts = br.concat([places[1:], end]) - places
    return values, inverse if return_inverse else none, counts if return_counts else none


@aten("unique_dim_consecutive")
def unique_dim_consecutive(
    x: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    return unique_consecutive(x, return_inverse, return_counts, dim)


@aten("nonzero_static")
def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    found = nonzero(x)[:size]
    missing = size - found.shape[0]
    filled = br.full((missing, x.ndim), fill_value, dtype=br.int64, device=x.device)
    return br.concat([found, filled], axis=0) if missing else found
