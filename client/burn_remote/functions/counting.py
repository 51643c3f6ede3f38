"""Positions in sorted vectors, tests of membership, counts of elements, and histograms."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from burn_remote.arguments.arrays import Array
from burn_remote.arguments.numbers import Number, whole_number
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import ONES, Operator, constant, counted, reshaped, upload
from burn_remote.functions.arithmetic import add, divide, multiply, subtract
from burn_remote.functions.casting import as_float, astype, at_least_float32
from burn_remote.functions.gathering import take
from burn_remote.functions.logic import bitwise_invert, equal
from burn_remote.functions.manipulation import concat, flatten, part
from burn_remote.functions.operands import alike, refuse_numbers
from burn_remote.functions.repetition import diff
from burn_remote.functions.searching import sort
from burn_remote.functions.selection import clip, where
from burn_remote.functions.statistics import max as largest
from burn_remote.functions.statistics import min as smallest
from burn_remote.functions.statistics import sum
from burn_remote.functions.tensor_value import is_tensor, read_size
from burn_remote_protocol.dtypes import BOOL, F64, I64, U8
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import base, search_rows
from burn_remote_protocol.tensors import MAX_ELEMENTS, TensorSpec

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["bincount", "histogram", "isin", "searchsorted"]

SEARCH_SORTED: Final = Operator(search_rows.SEARCH_SORTED)
SELECT_ASSIGN: Final = Operator(base.SELECT_ASSIGN)
ZEROS: Final = Operator(base.ZEROS)


@explained
def searchsorted(
    x1: Tensor,
    x2: Tensor | Number,
    /,
    *,
    side: Literal["left", "right"] = "left",
    sorter: Tensor | None = None,
) -> Tensor:
    """Return, as int64, the index in the sorted ``x1`` before which each element of ``x2`` fits.

    Shapes: ``[n]`` and any shape, which the result has. ``side="right"`` gives the index behind
    equal elements. ``sorter`` has the indices that sort ``x1``, such as ``argsort(x1)``. The result
    for an ``x1`` that is not sorted is unspecified. Raises ``Unsupported`` on Burn's own servers.
    """
    if side not in ("left", "right"):
        raise UsageError(f"side must be 'left' or 'right', not {side!r}")
    if sorter is not None:
        x1 = take(x1, sorter, axis=0)
    x1, x2 = alike(x1, x2, compares=True)
    values = x2 if is_tensor(x2) else reshaped(constant(x1, x2), ())
    return SEARCH_SORTED.apply((x1, values), (side == "right",))


@explained
def isin(x1: Tensor | Number, x2: Tensor | Number, /, *, invert: bool = False) -> Tensor:
    """Return, as bools in the shape of ``x1``, whether its elements occur in ``x2``.

    NaN occurs nowhere. ``invert`` returns the opposite. Raises ``Unsupported`` on Burn's own
    servers.
    """
    x1, x2 = alike(x1, x2, compares=True)
    if not is_tensor(x1):
        if not is_tensor(x2):
            refuse_numbers(x1, x2)
        x1 = reshaped(constant(x2, x1), ())
    if not is_tensor(x2):
        found = equal(x1, x2)
        return bitwise_invert(found) if invert else found
    if not x2.size:
        spec = TensorSpec(x1.shape, BOOL)
        return x1.__class__((ONES if invert else ZEROS).create(x1.handle.client, spec))
    if x1.dtype.is_bool:
        x1, x2 = astype(x1, U8), astype(x2, U8)
    ordered = sort(flatten(x2))
    places = clip(SEARCH_SORTED.apply((ordered, x1), (False,)), max=x2.size - 1)
    found = equal(take(ordered, places, axis=0), x1)
    return bitwise_invert(found) if invert else found


@explained
def bincount(
    x: Tensor,
    /,
    weights: Tensor | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
) -> Tensor:
    """Count how often each integer occurs: ``[n]`` to int64 ``[length]``; or sum ``weights``.

    ``weights`` has the shape of ``x``, and the result its dtype. Without ``length``, which must
    exceed all integers, the call waits for one round trip to find the maximum; the result then has
    at least ``minlength`` elements. If an integer is negative, or not below ``length``, reading the
    result raises ``OperationFailed``.
    """
    if not x.dtype.is_integer or x.ndim != 1:
        raise DTypeMismatch(f"x is {x.handle.spec}, but must be a vector of integers")
    if weights is not None and weights.shape != x.shape:
        raise ShapeMismatch(f"weights are {weights.handle.spec}, but x is {x.handle.spec}")
    minlength = whole_number("minlength", minlength, 0, MAX_ELEMENTS)
    if length is None:
        way = "pass length=, which must exceed all integers"
        most = read_size(largest(x), "bincount(x)", way) if x.size else -1
        length = max(minlength, most + 1)
    return _summed_by_place(x, weights, whole_number("length", length, 0, MAX_ELEMENTS))


def _summed_by_place(places: Tensor, weights: Tensor | None, length: int) -> Tensor:
    kind, client = places.__class__, places.handle.client
    if weights is None:
        weights = kind(ONES.create(client, TensorSpec(places.shape, I64)))
    zeros = kind(ZEROS.create(client, TensorSpec((length,), weights.dtype)))
    return SELECT_ASSIGN.apply((zeros, places, weights), (0, "Add"))


@explained
def histogram(
    x: Tensor,
    /,
    bins: int | Tensor | Array | Sequence[float] = 10,
    range: tuple[float, float] | None = None,
    *,
    weights: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """Count the elements in intervals; return the counts and the edges, as NumPy does.

    ``bins`` is the number of intervals of equal width from the least to the largest element, or
    between the two numbers of ``range``; or the ascending edges themselves. An interval contains
    its lower edge; the last one contains both. Elements outside, and NaN, are not counted. If
    ``x`` has NaN or infinite elements, ``range`` or edges must be given: else the edges are NaN.

    Shapes: any to ``[bins]`` and ``[bins + 1]``. Counts are int64, or have the dtype of
    ``weights``, which has the shape of ``x``. ``density`` divides the counts by the
    widths of the intervals and by the sum of the counts. Never waits. Raises ``Unsupported`` on
    Burn's own servers.
    """
    if weights is not None and weights.shape != x.shape:
        raise ShapeMismatch(f"weights are {weights.handle.spec}, but x is {x.handle.spec}")
    flat = at_least_float32(as_float(flatten(x), F64))
    edges = _edges(flat, bins, range)
    count = edges.shape[0] - 1
    # Place 0 is below all edges, count + 1 above.
    places = SEARCH_SORTED.apply((edges, flat), (True,))
    places = where(equal(flat, part(edges, 0, count, count + 1)), count, places)
    flat_weights = None if weights is None else flatten(weights)
    counts = part(_summed_by_place(places, flat_weights, count + 2), 0, 1, count + 1)
    if density:
        numbers = astype(counts, edges.dtype)
        counts = divide(numbers, multiply(diff(edges), sum(numbers)))
    return counts, edges


def _edges(
    x: Tensor,
    bins: int | Tensor | Array | Sequence[float],
    limits: tuple[float, float] | None,
) -> Tensor:
    if is_tensor(bins) or isinstance(bins, Sequence | np.ndarray):
        edges = astype(bins, x.dtype) if is_tensor(bins) else upload(x, np.asarray(bins, float))
        if edges.ndim != 1 or not edges.size:
            raise ShapeMismatch(f"the edges are {edges.handle.spec}, but must be a vector")
        return astype(edges, x.dtype)
    count = whole_number("bins", operator.index(bins), 1, MAX_ELEMENTS)
    if limits is None and not x.size:
        limits = (0.0, 1.0)
    if limits is not None:
        low, high = map(float, limits)
        if not (np.isfinite(low) and np.isfinite(high) and low <= high):
            raise UsageError(f"range must be two finite ascending numbers, not {limits}")
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        least, most = (reshaped(constant(x[:0], one), (1,)) for one in (low, high))
    else:
        least, most = smallest(x, axis=0, keepdims=True), largest(x, axis=0, keepdims=True)
        half = where(equal(least, most), 0.5, 0.0)
        half = astype(half, x.dtype)
        least, most = subtract(least, half), add(most, half)
    # As numpy.linspace computes them, so that the edges are those of NumPy.
    step = divide(subtract(most, least), count)
    numbers = astype(counted(x.__class__, x.handle.client, count), x.dtype)
    return concat([add(multiply(numbers, step), least), most])
