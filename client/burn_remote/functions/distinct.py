"""Distinct elements of a tensor.

All flatten the tensor. Values ascend; each NaN is distinct and last, and -0.0 equals 0.0. The
number of values depends on the elements, so each call waits for one round trip to the device, which
counts them; ``compile`` cannot record it. All raise ``Unsupported`` on Burn's own servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, reshaped
from burn_remote.functions.manipulation import flatten
from burn_remote.functions.tensor_value import read_size
from burn_remote_protocol.operations.families import base, search_rows

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "UniqueAllResult",
    "UniqueCountsResult",
    "UniqueInverseResult",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]

UNIQUE_ORDER: Final = Operator(search_rows.UNIQUE_ORDER)
UNIQUE: Final = Operator(search_rows.UNIQUE)
SELECT: Final = Operator(base.SELECT)


class UniqueAllResult(NamedTuple):
    """Distinct values, their first indices, the index of the value of each element, and counts."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCountsResult(NamedTuple):
    """Distinct values and how often they occur."""

    values: Tensor
    counts: Tensor


class UniqueInverseResult(NamedTuple):
    """Distinct values and the index of the value of each element."""

    values: Tensor
    inverse_indices: Tensor


@explained
def unique_all(x: Tensor, /) -> UniqueAllResult:
    """Return distinct values, first indices, inverse indices and counts; waits for a round trip.

    ``values``, ``indices`` and ``counts`` have the shape ``[n]``, and ``inverse_indices`` that of
    ``x``: ``values[inverse_indices]`` is ``x``. Indices and counts are int64.
    """
    flat = flatten(x)
    order, found = UNIQUE_ORDER.apply_all((flat,))
    way = "sort(x) has the same elements in order, with their repetitions"
    count = read_size(found, "the distinct elements of x", way)
    indices, inverse, counts = UNIQUE.apply_all((flat, order), (count,))
    # Selected from ``flat``, so that gradients pass to ``x``.
    values = SELECT.apply((flat, indices), (0,))
    return UniqueAllResult(values, indices, reshaped(inverse, x.shape), counts)


@explained
def unique_counts(x: Tensor, /) -> UniqueCountsResult:
    """Return distinct values and their int64 counts, both ``[n]``; waits for a round trip."""
    values, _, _, counts = unique_all(x)
    return UniqueCountsResult(values, counts)


@explained
def unique_inverse(x: Tensor, /) -> UniqueInverseResult:
    """Return distinct values ``[n]`` and int64 inverse indices; waits for a round trip.

    ``inverse_indices`` has the shape of ``x``, and ``values[inverse_indices]`` is ``x``.
    """
    values, _, inverse, _ = unique_all(x)
    return UniqueInverseResult(values, inverse)


@explained
def unique_values(x: Tensor, /) -> Tensor:
    """Return the distinct values ``[n]`` in ascending order; waits for a round trip."""
    return unique_all(x).values
