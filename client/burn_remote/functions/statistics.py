"""Reductions and cumulative operations.

``axis`` of a reduction is one axis, a tuple of axes, or ``None`` for all. The result lacks these
axes, or keeps them with size 1 if ``keepdims`` is true. A cumulative operation preserves the shape;
its ``axis`` is one axis, which may be omitted for a tensor of one axis. Negative axes count from
the end. All raise ``ShapeMismatch`` for an invalid axis and ``DTypeMismatch`` for an unsupported
dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from burn_remote.arguments.arrays import AnyDType
from burn_remote.arguments.axes import Axes, normal_axes, normal_axis
from burn_remote.arguments.numbers import real_number
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, filled, reshaped
from burn_remote.dispatch.rows_with_fallbacks import preferring
from burn_remote.functions.arithmetic import add, divide, multiply, subtract
from burn_remote.functions.casting import (
    LOW_PRECISION,
    as_bool,
    as_float,
    astype,
    at_least_float32,
    distinct,
)
from burn_remote.functions.closed_form_gradients import gradient_from_argument
from burn_remote.functions.complex_numbers import imag, real
from burn_remote.functions.elementwise import norm_of_squares, sqrt
from burn_remote.functions.logic import equal, greater
from burn_remote.functions.manipulation import broadcast_to, concat, permute_dims
from burn_remote.functions.selection import mask_fill
from burn_remote_protocol.dtypes import F32, I32, I64, U64, Category
from burn_remote_protocol.errors import ShapeMismatch
from burn_remote_protocol.operations.families import base, numeric
from burn_remote_protocol.tensors import Slice, TensorSpec

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "all",
    "any",
    "count_nonzero",
    "cummax",
    "cummin",
    "cumulative_prod",
    "cumulative_sum",
    "max",
    "max_abs",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "var",
    "widened",
]

SUM: Final = Operator(numeric.SUM)
SUM_DIM: Final = Operator(numeric.SUM_DIM)
PROD: Final = Operator(numeric.PROD)
PROD_DIM: Final = Operator(numeric.PROD_DIM)
MEAN: Final = Operator(numeric.MEAN)
MEAN_DIM: Final = Operator(numeric.MEAN_DIM)
MAX: Final = Operator(numeric.MAX)
MAX_DIM: Final = Operator(numeric.MAX_DIM)
MIN: Final = Operator(numeric.MIN)
MIN_DIM: Final = Operator(numeric.MIN_DIM)
MAX_ABS: Final = Operator(numeric.MAX_ABS)
MAX_ABS_DIM: Final = Operator(numeric.MAX_ABS_DIM)
SUM_DIMS: Final = Operator(numeric.SUM_DIMS)
ALL: Final = Operator(base.ALL)
ALL_DIM: Final = Operator(base.ALL_DIM)
ANY: Final = Operator(base.ANY_)
ANY_DIM: Final = Operator(base.ANY_DIM)
SLICE: Final = Operator(base.SLICE)
CUM_SUM: Final = Operator(numeric.CUM_SUM)
CUM_PROD: Final = Operator(numeric.CUM_PROD)
CUM_MIN: Final = Operator(numeric.CUM_MIN)
CUM_MAX: Final = Operator(numeric.CUM_MAX)


@explained
def sum(
    x: Tensor, /, axis: Axes = None, *, dtype: AnyDType | None = None, keepdims: bool = False
) -> Tensor:
    """Return the sum of elements; 0 if there are none.

    Without ``dtype``, integers are converted to 64 bits and bools to int64 before the sum.
    """
    x = widened(x, dtype)
    if axis is None or type(axis) is int:  # the same as below, in less time
        return _reduce(SUM, SUM_DIM, x, axis, keepdims)
    return _sum(x, axis, keepdims)


def _sum_of_axes(x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    axes = normal_axes(axis, x.ndim)
    if not 1 < len(axes) < x.ndim:
        return _reduce(SUM, SUM_DIM, x, axis, keepdims)
    return _without(SUM_DIMS.apply((x,), (tuple(axes),)), axes, keepdims)


@preferring(numeric.SUM_DIMS, _sum_of_axes)
def _sum(x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    return _reduce(SUM, SUM_DIM, x, axis, keepdims)


@explained
def prod(
    x: Tensor, /, axis: Axes = None, *, dtype: AnyDType | None = None, keepdims: bool = False
) -> Tensor:
    """Return the product of elements, 1 if there are none; dtypes as for ``sum``."""
    return _reduce(PROD, PROD_DIM, widened(x, dtype), axis, keepdims)


@explained
def mean(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return the mean; integers and bools are converted to float32."""
    return _reduce(MEAN, MEAN_DIM, as_float(x, F32), axis, keepdims)


@explained
def max(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return the maximum, NaN if any element is NaN. Raises ``ShapeMismatch`` for an empty axis."""
    return _extreme(MAX, MAX_DIM, x, axis, keepdims)


@explained
def min(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return the minimum, NaN if any element is NaN. Raises ``ShapeMismatch`` for an empty axis."""
    return _extreme(MIN, MIN_DIM, x, axis, keepdims)


@explained
def max_abs(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return the maximum absolute value. Raises ``ShapeMismatch`` for an empty axis."""
    return _extreme(MAX_ABS, MAX_ABS_DIM, x, axis, keepdims)


@explained
def var(
    x: Tensor, /, axis: Axes = None, *, correction: float = 0, keepdims: bool = False
) -> Tensor:
    """Return the variance: ``sum((x - mean(x)) ** 2) / (count - correction)``.

    Integers and bools are converted to float32. The variance of complex numbers is real: the sum of
    the variances of their parts.
    """
    x = as_float(x, F32)
    if x.dtype.is_complex:
        parts = (real(x), imag(x))
        first, second = [
            var(part, axis=axis, correction=correction, keepdims=keepdims) for part in parts
        ]
        return add(first, second)
    wide = at_least_float32(x)
    return astype(_variance(wide, axis=axis, correction=correction, keepdims=keepdims), x.dtype)


def _of_variance(
    x: Tensor, grad: Tensor, *, axis: Axes, correction: float, keepdims: bool
) -> Tensor:
    """Return ``2 * grad * (x - mean) / divisor``: the gradient of the mean cancels out."""
    spread = broadcast_to(reshaped(grad, _kept_shape(x, axis)), x.shape)
    distance = subtract(x, mean(x, axis=axis, keepdims=True))
    return divide(multiply(spread, multiply(distance, 2)), _divisor(x, axis, correction))


@gradient_from_argument(_of_variance)
def _variance(x: Tensor, *, axis: Axes, correction: float, keepdims: bool) -> Tensor:
    distance = subtract(x, mean(x, axis=axis, keepdims=True))
    squares = sum(multiply(distance, distance), axis=axis, keepdims=keepdims)
    return divide(squares, _divisor(x, axis, correction))


def _kept_shape(x: Tensor, axis: Axes) -> tuple[int, ...]:
    """Return the shape of a reduction over axes that keeps them with the length 1."""
    places = normal_axes(axis, x.ndim)
    return tuple([1 if place in places else size for place, size in enumerate(x.shape)])


def _divisor(x: Tensor, axis: Axes, correction: float) -> float:
    count = math.prod(x.shape[place] for place in normal_axes(axis, x.ndim))
    less = real_number("correction", correction)
    return count - less if count > less else 0.0


@explained
def std(
    x: Tensor, /, axis: Axes = None, *, correction: float = 0, keepdims: bool = False
) -> Tensor:
    """Return the standard deviation: the square root of ``var``.

    Where all numbers are equal, the gradient is 0.
    """
    x = as_float(x, F32)
    if x.dtype.is_complex:
        variance = var(x, axis=axis, correction=correction, keepdims=keepdims)
        return norm_of_squares(variance)
    wide = at_least_float32(x)
    return astype(_deviation(wide, axis=axis, correction=correction, keepdims=keepdims), x.dtype)


def _of_deviation(
    x: Tensor, grad: Tensor, *, axis: Axes, correction: float, keepdims: bool
) -> Tensor:
    """Return ``grad * (x - mean) / (std * divisor)``, and 0 where the numbers are equal."""
    kept = _kept_shape(x, axis)
    moved = x
    if x.size and kept:
        # The mean of equal numbers may be rounded, but that of zeros is exact. So the first number
        # is subtracted from all, which does not change the result.
        ranges = tuple([Slice(0, size, 1) for size in kept])
        moved = subtract(x, SLICE.apply((x.detach(),), (ranges,)))
    distance = subtract(moved, mean(moved, axis=axis, keepdims=True))
    divisor = _divisor(x, axis, correction)
    squares = sum(multiply(distance, distance), axis=axis, keepdims=True)
    deviation = norm_of_squares(divide(squares, divisor))
    nonzero = mask_fill(deviation, equal(deviation, 0), math.inf)
    share = divide(reshaped(grad, kept), multiply(nonzero, divisor))
    return multiply(distance, share)


@gradient_from_argument(_of_deviation)
def _deviation(x: Tensor, *, axis: Axes, correction: float, keepdims: bool) -> Tensor:
    return sqrt(_variance(x, axis=axis, correction=correction, keepdims=keepdims))


@explained
def any(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return, as bools, whether any element is nonzero; false if there are none."""
    return _any(x, axis, keepdims)


@preferring(base.ANY_, lambda x, axis, keepdims: _reduce(ANY, ANY_DIM, x, axis, keepdims))
def _any(x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    return greater(_counted(x, axis, keepdims), 0)


@explained
def all(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return, as bools, whether all elements are nonzero; true if there are none."""
    return _all(x, axis, keepdims)


@preferring(base.ALL, lambda x, axis, keepdims: _reduce(ALL, ALL_DIM, x, axis, keepdims))
def _all(x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    count = math.prod(x.shape[place] for place in normal_axes(axis, x.ndim))
    return equal(_counted(x, axis, keepdims), count)


@explained
def count_nonzero(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return the number of nonzero elements, as int64."""
    return sum(as_bool(x), axis=axis, keepdims=keepdims)


def _counted(x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    # int32 takes half the memory and cannot overflow here.
    dtype = I32 if x.size < 2**31 else I64
    return _reduce(SUM, SUM_DIM, astype(as_bool(x), dtype), axis, keepdims)


def widened(x: Tensor, dtype: AnyDType | None) -> Tensor:
    """Convert ``x`` for a sum or product: to ``dtype``, or integers and bools to 64 bits."""
    if dtype is not None:
        return astype(x, dtype)
    category = x.dtype.category
    if category is Category.INT or category is Category.BOOL:
        return astype(x, I64)
    return astype(x, U64) if category is Category.UINT else x


def _extreme(whole: Operator, along: Operator, x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    if 0 in x.shape:
        for place in normal_axes(axis, x.ndim):
            if x.shape[place] == 0:
                raise ShapeMismatch(
                    f"axis={place} of {x.handle.spec} is empty, so it has no maximum and no minimum"
                )
    return _reduce(whole, along, x, axis, keepdims)


def _reduce(whole: Operator, along: Operator, x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    shape = x.shape
    rank = len(shape)
    axes = normal_axes(axis, rank)
    if not axes and axis is not None:
        if whole in (SUM, PROD, MEAN):
            return distinct(x)
        # Each element is reduced alone, along a new axis: the result may differ from the element.
        single = along.apply((reshaped(x, (1, *shape)),), (0, 1))
        return reshaped(single, shape)
    if len(axes) == rank and (axis is None or rank > 1):
        # In Burn's IR the result of a full reduction has shape [1].
        return reshaped(whole.unary(x), (1,) * rank if keepdims else ())
    if len(axes) > 1 and x.dtype in LOW_PRECISION and whole in (SUM, PROD, MEAN):
        # Each operation computes in float32 and rounds its result.
        return reshaped(_reduced_together(along, x, axes), _shape_without(shape, axes, keepdims))
    for place in axes:
        x = along.apply((x,), (place, 1))
    return _without(x, axes, keepdims)


def _reduced_together(along: Operator, x: Tensor, axes: Sequence[int]) -> Tensor:
    """Reduce several axes as one, so that the result is rounded once, and only it can overflow."""
    kept = [place for place in range(x.ndim) if place not in axes]
    moved = permute_dims(x, (*kept, *axes))
    rows, count = [math.prod(x.shape[place] for place in places) for places in (kept, axes)]
    return along.apply((reshaped(moved, (rows, count)),), (1, 1))


def _without(x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    return x if keepdims else reshaped(x, _shape_without(x.shape, axes, keepdims))


def _shape_without(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple([1 if place in axes else size for place, size in enumerate(shape)])
    return tuple([size for place, size in enumerate(shape) if place not in axes])


@explained
def cumulative_sum(
    x: Tensor,
    /,
    axis: int | None = None,
    *,
    dtype: AnyDType | None = None,
    include_initial: bool = False,
) -> Tensor:
    """Return the cumulative sum along an axis; dtypes as for ``sum``.

    ``include_initial`` prepends 0, so the axis is one longer.
    """
    return _accumulate(CUM_SUM, widened(x, dtype), axis, 0 if include_initial else None)


@explained
def cumulative_prod(
    x: Tensor,
    /,
    axis: int | None = None,
    *,
    dtype: AnyDType | None = None,
    include_initial: bool = False,
) -> Tensor:
    """Return the cumulative product along an axis; dtypes as for ``sum``.

    ``include_initial`` prepends 1, so the axis is one longer.
    """
    return _accumulate(CUM_PROD, widened(x, dtype), axis, 1 if include_initial else None)


@explained
def cummax(x: Tensor, /, axis: int | None = None) -> Tensor:
    """Return the cumulative maximum along an axis, without indices."""
    return _accumulate(CUM_MAX, x, axis, None)


@explained
def cummin(x: Tensor, /, axis: int | None = None) -> Tensor:
    """Return the cumulative minimum along an axis, without indices."""
    return _accumulate(CUM_MIN, x, axis, None)


def _accumulate(operator: Operator, x: Tensor, axis: int | None, initial: int | None) -> Tensor:
    if axis is None and x.ndim != 1:
        raise ShapeMismatch(f"axis is required for {x.handle.spec}, which has {x.ndim} axes")
    place = normal_axis(axis or 0, x.ndim)
    accumulated = operator.apply((x,), (place,))
    if initial is None:
        return accumulated
    spec = TensorSpec((*x.shape[:place], 1, *x.shape[place + 1 :]), x.dtype)
    first = x.__class__(filled(x.handle.client, spec, initial))
    return concat([first, accumulated], place)
