"""Reductions that ignore NaN, under NumPy's names.

``axis=None`` reduces all axes. Where all elements are NaN, sums are 0, products 1, and the others
NaN. Tensors of integers and bools have no NaN, so the functions are those of ``statistics``. All
raise ``ShapeMismatch`` for an invalid axis and ``DTypeMismatch`` for an unsupported dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from burn_remote.arguments.arrays import AnyDType
from burn_remote.arguments.axes import Axes
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions import statistics
from burn_remote.functions.arithmetic import add, divide, multiply, subtract
from burn_remote.functions.casting import astype, at_least_float32, rounded_once
from burn_remote.functions.complex_numbers import imag, real
from burn_remote.functions.elementwise import isnan, sqrt
from burn_remote.functions.logic import equal, less_equal, logical_not
from burn_remote.functions.selection import mask_fill
from burn_remote_protocol.dtypes import C128, F32, F64

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
    "without_nan",
]


@explained
def nansum(
    x: Tensor, /, axis: Axes = None, *, dtype: AnyDType | None = None, keepdims: bool = False
) -> Tensor:
    """Return the sum of the elements that are not NaN; dtypes as for ``sum``."""
    return statistics.sum(without_nan(x, 0), axis=axis, dtype=dtype, keepdims=keepdims)


@explained
def nanprod(
    x: Tensor, /, axis: Axes = None, *, dtype: AnyDType | None = None, keepdims: bool = False
) -> Tensor:
    """Return the product of the elements that are not NaN; dtypes as for ``prod``."""
    return statistics.prod(without_nan(x, 1), axis=axis, dtype=dtype, keepdims=keepdims)


@explained
def nanmax(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return the maximum of the elements that are not NaN. Raises as ``max`` does."""
    return _extreme(statistics.max, -math.inf, x, axis, keepdims)


@explained
def nanmin(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return the minimum of the elements that are not NaN. Raises as ``min`` does."""
    return _extreme(statistics.min, math.inf, x, axis, keepdims)


@explained
def nanmean(
    x: Tensor, /, axis: Axes = None, *, dtype: AnyDType | None = None, keepdims: bool = False
) -> Tensor:
    """Return the mean of the elements that are not NaN; integers are converted to float32.

    ``dtype`` is that of the sum and of the result.
    """
    x = x if dtype is None else astype(x, dtype)
    if not _may_have_nan(x):
        return statistics.mean(x, axis=axis, keepdims=keepdims)
    wide = at_least_float32(x)
    return astype(_mean(wide, axis, keepdims), x.dtype)


@explained
def nanvar(
    x: Tensor,
    /,
    axis: Axes = None,
    *,
    dtype: AnyDType | None = None,
    correction: float = 0,
    keepdims: bool = False,
) -> Tensor:
    """Return the variance of the elements that are not NaN.

    It is ``sum((x - mean(x)) ** 2) / (count - correction)``, and NaN where ``count`` is not larger
    than ``correction``. ``dtype`` is that of the sums and of the result. The variance of complex
    numbers is real: the sum of the variances of their parts.
    """
    x = x if dtype is None else astype(x, dtype)
    if not _may_have_nan(x):
        return statistics.var(x, axis=axis, correction=correction, keepdims=keepdims)
    wide = at_least_float32(x)
    # An infinite number has no distance from its mean, so the variance is NaN.
    distance = mask_fill(subtract(wide, _mean(wide, axis, True)), isnan(wide), 0)
    squares = statistics.sum(_squared(distance), axis=axis, keepdims=keepdims)
    count = astype(subtract(_count(wide, axis, keepdims), correction), squares.dtype)
    variance = divide(squares, mask_fill(count, less_equal(count, 0), math.nan))
    return variance if x.dtype.is_complex else astype(variance, x.dtype)


@explained
def nanstd(
    x: Tensor,
    /,
    axis: Axes = None,
    *,
    dtype: AnyDType | None = None,
    correction: float = 0,
    keepdims: bool = False,
) -> Tensor:
    """Return the square root of ``nanvar``."""
    x = x if dtype is None else astype(x, dtype)
    return _nanstd(x, axis=axis, correction=correction, keepdims=keepdims)


@rounded_once
def _nanstd(x: Tensor, *, axis: Axes, correction: float, keepdims: bool) -> Tensor:
    return sqrt(nanvar(x, axis=axis, correction=correction, keepdims=keepdims))


def _squared(x: Tensor) -> Tensor:
    """Return the squares of the absolute values, which are real."""
    if not x.dtype.is_complex:
        return multiply(x, x)
    first, second = real(x), imag(x)
    return add(multiply(first, first), multiply(second, second))


def _may_have_nan(x: Tensor) -> bool:
    return x.dtype.is_floating or x.dtype.is_complex


def without_nan(x: Tensor, number: float) -> Tensor:
    """Return ``x`` with a number in place of each NaN."""
    return mask_fill(x, isnan(x), number) if _may_have_nan(x) else x


def _count(x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    """Return the number of elements that are not NaN, in the dtype of a real ``x``."""
    dtype = x.dtype
    if dtype.is_complex:
        dtype = F64 if dtype == C128 else F32
    return astype(statistics.count_nonzero(logical_not(isnan(x)), axis, keepdims=keepdims), dtype)


def _mean(x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    total = statistics.sum(without_nan(x, 0), axis=axis, keepdims=keepdims)
    return divide(total, _count(x, axis, keepdims))


def _extreme(
    reduce: Callable[..., Tensor], empty: float, x: Tensor, axis: Axes, keepdims: bool
) -> Tensor:
    found = reduce(without_nan(x, empty), axis=axis, keepdims=keepdims)
    if not _may_have_nan(x):
        return found
    return mask_fill(found, equal(_count(x, axis, keepdims), 0), math.nan)
