"""Medians and quantiles, under NumPy's names.

``axis=None`` means all axes. Integers give float32; float16 and bfloat16 are rounded once. A NaN
among the elements gives NaN. The functions raise ``ShapeMismatch`` if an axis has no elements, and
``DTypeMismatch`` for bools and for complex numbers, which have no order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from burn_remote.arguments.axes import Axes, normal_axes
from burn_remote.arguments.numbers import real_number
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import reshaped
from burn_remote.functions.arithmetic import add, multiply
from burn_remote.functions.casting import (
    LOW_PRECISION,
    as_float,
    at_least_float32,
    converted_to,
)
from burn_remote.functions.elementwise import isnan
from burn_remote.functions.logic import equal
from burn_remote.functions.manipulation import part, permute_dims, stack
from burn_remote.functions.searching import sort
from burn_remote.functions.selection import mask_fill, where
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import ArgumentMismatch, DTypeMismatch, ShapeMismatch

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["median", "percentile", "quantile"]


@explained
def median(x: Tensor, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return the median; of an even number of elements, the mean of the two in the middle.

    PyTorch's ``median`` returns the lower one of the two.
    """
    return quantile(x, 0.5, axis, keepdims=keepdims)


@explained
def percentile(
    x: Tensor, q: float | Sequence[float], /, axis: Axes = None, *, keepdims: bool = False
) -> Tensor:
    """Return percentiles: ``quantile`` with ``q`` from 0 to 100."""
    return quantile(x, _fractions(q, 100), axis, keepdims=keepdims)


@explained
def quantile(
    x: Tensor, q: float | Sequence[float], /, axis: Axes = None, *, keepdims: bool = False
) -> Tensor:
    """Return quantiles, interpolated between the two nearest elements (NumPy's ``"linear"``).

    ``q`` is a number from 0 to 1, or a sequence of ``n`` such numbers, which prepends an axis of
    size ``n``. Raises ``ArgumentMismatch`` for other numbers.
    """
    if x.dtype.is_complex:
        raise DTypeMismatch(f"{x.handle.spec} has no order; take quantiles of real(x) or abs(x)")
    places = normal_axes(axis, x.ndim)
    rest = [place for place in range(x.ndim) if place not in places]
    shape = tuple([x.shape[place] for place in rest])
    count = math.prod(x.shape[place] for place in places)
    if not count:
        raise ShapeMismatch(f"{x.handle.spec} has no elements along axes {list(places)}")
    lines = reshaped(permute_dims(at_least_float32(x), [*rest, *places]), (*shape, count))
    # Integers are sorted exactly and converted afterwards.
    ordered = as_float(sort(lines), F32)
    if keepdims:
        shape = tuple([1 if place in places else size for place, size in enumerate(x.shape)])
    fractions = _fractions(q, 1)
    dtype = x.dtype if x.dtype in LOW_PRECISION else ordered.dtype
    if isinstance(fractions, float):
        return converted_to(reshaped(_between(ordered, fractions), shape), dtype)
    found = stack([reshaped(_between(ordered, fraction), shape) for fraction in fractions])
    return converted_to(found, dtype)


def _fractions(q: float | Sequence[float], largest: int) -> float | list[float]:
    """Return ``q / largest``. Raises ``ArgumentMismatch`` for numbers not from 0 to ``largest``."""
    if isinstance(q, (Sequence, np.ndarray)) and not isinstance(q, str) and np.ndim(q):
        if not len(q):
            raise ArgumentMismatch("q is empty; pass at least one number")
        return [_fraction(one, largest) for one in q]
    return _fraction(q, largest)


def _fraction(q: object, largest: int) -> float:
    number = real_number("q", q)
    if not 0 <= number <= largest:
        raise ArgumentMismatch(f"q must be from 0 to {largest}, not {number}")
    return number / largest


def _between(ordered: Tensor, q: float) -> Tensor:
    """Return the quantile ``q`` of sorted lines ``[…, count]``, as ``[…, 1]``."""
    axis, count = ordered.ndim - 1, ordered.shape[-1]
    position = q * (count - 1)
    place = int(position)
    found = part(ordered, axis, place, place + 1)
    if position > place:
        above = part(ordered, axis, place + 1, place + 2)
        share = position - place
        # A weighted sum, because the difference of the two may overflow where the result does not.
        between = add(multiply(found, 1 - share), multiply(above, share))
        # For equal elements, the weighted sum could differ by rounding.
        found = where(equal(above, found), found, between)
    # NaN comes last in sorted lines.
    return mask_fill(found, isnan(part(ordered, axis, count - 1, count)), math.nan)
