"""Which single numbers describe the elements of a tensor, of one axis, or of several?

``axis`` is one axis, several, or ``None`` for all; the result lacks them, or has them with size 1
where ``keepdims`` is true. Axes count from the end when negative. Raises ``ShapeMismatch`` for an
axis that does not exist, and ``DTypeMismatch``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from burn_remote.arguments.arrays import AnyDType
from burn_remote.arguments.axes import Axes, normal_axes, normal_axis
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, filled, reshaped
from burn_remote.functions.arithmetic import divide, multiply, subtract
from burn_remote.functions.casting import as_bool, as_float, astype, at_least_float32
from burn_remote.functions.elementwise import sqrt
from burn_remote.functions.logic import equal, greater
from burn_remote.functions.manipulation import concat
from burn_remote_protocol.dtypes import F32, I32, I64, U64, Category
from burn_remote_protocol.errors import ShapeMismatch
from burn_remote_protocol.operations.families import numeric
from burn_remote_protocol.tensors import TensorSpec

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


@explained
def sum(
    x: Tensor, /, axis: Axes = None, *, dtype: AnyDType | None = None, keepdims: bool = False
) -> Tensor:
    """Add elements up.

    Integers narrower than 64 bits are added as 64-bit ones, bools are counted; ``dtype`` says
    otherwise. The sum of nothing is 0.
    """
    return _reduce(SUM, SUM_DIM, widened(x, dtype), axis, keepdims)


@explained
def prod(
    x: Tensor, /, axis: Axes = None, *, dtype: AnyDType | None = None, keepdims: bool = False
) -> Tensor:
    """Multiply elements; dtypes are those of ``sum``. The product of nothing is 1."""
    return _reduce(PROD, PROD_DIM, widened(x, dtype), axis, keepdims)


@explained
def mean(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return the mean; that of integers and bools is float32."""
    return _reduce(MEAN, MEAN_DIM, as_float(x, F32), axis, keepdims)


@explained
def max(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return the largest element, NaN if there is one; an empty axis has none."""
    return _extreme(MAX, MAX_DIM, x, axis, keepdims)


@explained
def min(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return the smallest element, NaN if there is one; an empty axis has none."""
    return _extreme(MIN, MIN_DIM, x, axis, keepdims)


@explained
def max_abs(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return the largest distance from zero; an empty axis has none."""
    return _extreme(MAX_ABS, MAX_ABS_DIM, x, axis, keepdims)


@explained
def var(
    x: Tensor, /, axis: Axes = None, *, correction: float = 0, keepdims: bool = False
) -> Tensor:
    """Return the variance: the mean square of the distances from the mean.

    The sum of squares is divided by the number of elements less ``correction``. That of integers
    is float32.
    """
    x = as_float(x, F32)
    return astype(_variance(x, axis, correction, keepdims), x.dtype)


def _variance(x: Tensor, axis: Axes, correction: float, keepdims: bool) -> Tensor:
    wide = at_least_float32(x)
    count = math.prod(x.shape[place] for place in normal_axes(axis, x.ndim))
    distance = subtract(wide, mean(wide, axis=axis, keepdims=True))
    squares = sum(multiply(distance, distance), axis=axis, keepdims=keepdims)
    divisor = float(count - correction)
    return divide(squares, divisor if divisor > 0 else 0.0)


@explained
def std(
    x: Tensor, /, axis: Axes = None, *, correction: float = 0, keepdims: bool = False
) -> Tensor:
    """Return the standard deviation, the square root of ``var``."""
    x = as_float(x, F32)
    return astype(sqrt(_variance(x, axis, correction, keepdims)), x.dtype)


@explained
def any(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return, as bools, whether an element is true: not zero. False for nothing."""
    return greater(_counted(x, axis, keepdims), 0)


@explained
def all(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return, as bools, whether every element is true: not zero. True for nothing."""
    count = math.prod(x.shape[place] for place in normal_axes(axis, x.ndim))
    return equal(_counted(x, axis, keepdims), count)


@explained
def count_nonzero(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return, as int64, how many elements are true: not zero."""
    return sum(as_bool(x), axis=axis, keepdims=keepdims)


def _counted(x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    # Half the memory where the count cannot overflow.
    dtype = I32 if x.size < 2**31 else I64
    return _reduce(SUM, SUM_DIM, astype(as_bool(x), dtype), axis, keepdims)


def widened(x: Tensor, dtype: AnyDType | None) -> Tensor:
    """Return ``x`` as it is added up: as ``dtype``, or with integers of 64 bits."""
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
                    f"axis={place} of {x.handle.spec} is empty, so no element of it is the largest "
                    "or the smallest"
                )
    return _reduce(whole, along, x, axis, keepdims)


def _reduce(whole: Operator, along: Operator, x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    shape = x.shape
    rank = len(shape)
    axes = normal_axes(axis, rank)
    if len(axes) == rank and (axis is None or rank > 1):
        # A full reduction has shape [1] in Burn's IR.
        return reshaped(whole.unary(x), (1,) * rank if keepdims else ())
    for place in axes:
        x = along.apply((x,), (place, 1))
    if keepdims:
        return x
    return reshaped(x, tuple([size for place, size in enumerate(shape) if place not in axes]))


CUM_SUM: Final = Operator(numeric.CUM_SUM)
CUM_PROD: Final = Operator(numeric.CUM_PROD)
CUM_MIN: Final = Operator(numeric.CUM_MIN)
CUM_MAX: Final = Operator(numeric.CUM_MAX)


@explained
def cumulative_sum(
    x: Tensor,
    /,
    axis: int | None = None,
    *,
    dtype: AnyDType | None = None,
    include_initial: bool = False,
) -> Tensor:
    """Return the sum of each element and those before it; dtypes are those of ``sum``.

    With ``include_initial`` the axis is one longer and starts with 0.
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
    """Return the product of each element and those before it; dtypes are those of ``sum``.

    With ``include_initial`` the axis is one longer and starts with 1.
    """
    return _accumulate(CUM_PROD, widened(x, dtype), axis, 1 if include_initial else None)


@explained
def cummax(x: Tensor, /, axis: int | None = None) -> Tensor:
    """Return the largest of each element and those before it (values only; no indices)."""
    return _accumulate(CUM_MAX, x, axis, None)


@explained
def cummin(x: Tensor, /, axis: int | None = None) -> Tensor:
    """Return the smallest of each element and those before it (values only; no indices)."""
    return _accumulate(CUM_MIN, x, axis, None)


def _accumulate(operator: Operator, x: Tensor, axis: int | None, initial: int | None) -> Tensor:
    if axis is None and x.ndim != 1:
        raise ShapeMismatch(f"name an axis: {x.handle.spec} has {x.ndim} of them")
    place = normal_axis(axis or 0, x.ndim)
    accumulated = operator.apply((x,), (place,))
    if initial is None:
        return accumulated
    spec = TensorSpec((*x.shape[:place], 1, *x.shape[place + 1 :]), x.dtype)
    first = x.__class__(filled(x.handle.client, spec, initial))
    return concat([first, accumulated], place)
