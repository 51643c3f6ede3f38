"""Sorting, and searching for the largest and smallest elements.

Negative axes count from the end. Indices are int64. All raise ``ShapeMismatch`` for an invalid axis
and ``DTypeMismatch`` for bools and complex numbers. Burn 0.21 has only one operation that orders
elements: it returns the ``k`` largest along an axis. On its servers, a sort passes the size of the
axis as ``k``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.arguments.axes import normal_axis
from burn_remote.arguments.numbers import whole_number
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, reshaped
from burn_remote.dispatch.rows_with_fallbacks import preferring
from burn_remote.functions.arithmetic import negative, subtract
from burn_remote.functions.logic import bitwise_invert
from burn_remote.functions.manipulation import flatten, flip
from burn_remote_protocol.operations.families import numeric
from burn_remote_protocol.tensors import MAX_ELEMENTS

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "argmax",
    "argmin",
    "argsort",
    "argtopk",
    "max_with_indices",
    "min_with_indices",
    "sort",
    "sort_with_indices",
    "topk",
]

ARG_MAX: Final = Operator(numeric.ARG_MAX)
ARG_MIN: Final = Operator(numeric.ARG_MIN)
TOP_K: Final = Operator(numeric.TOP_K)
ARG_TOP_K: Final = Operator(numeric.ARG_TOP_K)
SORT: Final = Operator(numeric.SORT)
SORT_WITH_INDICES: Final = Operator(numeric.SORT_WITH_INDICES)
ARG_SORT: Final = Operator(numeric.ARG_SORT)
TOP_K_WITH_INDICES: Final = Operator(numeric.TOP_K_WITH_INDICES)
MAX_DIM_WITH_INDICES: Final = Operator(numeric.MAX_DIM_WITH_INDICES)
MIN_DIM_WITH_INDICES: Final = Operator(numeric.MIN_DIM_WITH_INDICES)


@explained
def argmax(x: Tensor, /, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Return the index of the first maximum; ``axis=None`` searches the flattened tensor."""
    return _arg_reduce(ARG_MAX, x, axis, keepdims)


@explained
def argmin(x: Tensor, /, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Return the index of the first minimum; ``axis=None`` searches the flattened tensor."""
    return _arg_reduce(ARG_MIN, x, axis, keepdims)


@explained
def max_with_indices(x: Tensor, /, axis: int, *, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """Return the maxima along an axis and the index of the first occurrence of each."""
    return _extreme_with_indices(MAX_DIM_WITH_INDICES, x, axis, keepdims)


@explained
def min_with_indices(x: Tensor, /, axis: int, *, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """Return the minima along an axis and the index of the first occurrence of each."""
    return _extreme_with_indices(MIN_DIM_WITH_INDICES, x, axis, keepdims)


@explained
def topk(x: Tensor, k: int, /, axis: int = -1, *, largest: bool = True) -> tuple[Tensor, Tensor]:
    """Return the ``k`` largest elements along an axis in descending order, and their indices.

    ``largest=False`` returns the smallest elements in ascending order. Shapes: ``[…, n, …]`` to
    two tensors ``[…, k, …]``. Raises ``ShapeMismatch`` if ``k > n``.
    """
    place = normal_axis(axis, x.ndim)
    k = whole_number("k", k, 0, MAX_ELEMENTS)
    if largest:
        return _largest(x, place, k)
    values, places = _largest(_opposite(x), place, k)
    return _opposite(values), places


@preferring(
    numeric.TOP_K_WITH_INDICES,
    lambda x, place, k: TOP_K_WITH_INDICES.apply_all((x,), (place, k)),
)
def _largest(x: Tensor, place: int, k: int) -> tuple[Tensor, Tensor]:
    return TOP_K.apply((x,), (place, k)), ARG_TOP_K.apply((x,), (place, k))


@explained
def argtopk(x: Tensor, k: int, /, axis: int = -1) -> Tensor:
    """Return the indices of the ``k`` largest elements along an axis, in descending order."""
    return ARG_TOP_K.apply((x,), (normal_axis(axis, x.ndim), k))


@explained
def sort(x: Tensor, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Tensor:
    """Sort along an axis in ascending order with NaN last; ``descending`` reverses the order.

    The sort is stable, except on Burn's own servers. 0 and -0 are equal.
    """
    return _sorted(x, normal_axis(axis, x.ndim), descending)


@preferring(numeric.SORT, lambda x, place, descending: SORT.apply((x,), (place, descending)))
def _sorted(x: Tensor, place: int, descending: bool) -> Tensor:
    descended = TOP_K.apply((x,), (place, x.shape[place]))
    return descended if descending else flip(descended, place)


@explained
def argsort(
    x: Tensor, /, axis: int = -1, *, descending: bool = False, stable: bool = True
) -> Tensor:
    """Return the indices that sort an axis; the sort is always stable."""
    return _order(x, normal_axis(axis, x.ndim), descending)


@explained
def sort_with_indices(
    x: Tensor, /, axis: int = -1, *, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """Return ``sort(x)`` and ``argsort(x)`` along an axis."""
    return _sorted_with_indices(x, normal_axis(axis, x.ndim), descending)


@preferring(
    numeric.SORT_WITH_INDICES,
    lambda x, place, descending: SORT_WITH_INDICES.apply_all((x,), (place, descending)),
)
def _sorted_with_indices(x: Tensor, place: int, descending: bool) -> tuple[Tensor, Tensor]:
    return _sorted(x, place, descending), _order(x, place, descending)


@preferring(
    numeric.ARG_SORT, lambda x, place, descending: ARG_SORT.apply((x,), (place, descending))
)
def _order(x: Tensor, place: int, descending: bool) -> Tensor:
    size = x.shape[place]
    if descending:
        return ARG_TOP_K.apply((x,), (place, size))
    # ARG_TOP_K is stable in descending order. Reversing both its input and its output makes the
    # ascending order stable too.
    backwards = ARG_TOP_K.apply((flip(x, place),), (place, size))
    return flip(subtract(size - 1, backwards), place)


def _arg_reduce(operator: Operator, x: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    rank = x.ndim
    if axis is None:
        return reshaped(operator.apply((flatten(x),), (0, 1)), (1,) * rank if keepdims else ())
    place = normal_axis(axis, rank)
    return _without(operator.apply((x,), (place, 1)), place, keepdims)


def _extreme_with_indices(
    operator: Operator, x: Tensor, axis: int, keepdims: bool
) -> tuple[Tensor, Tensor]:
    place = normal_axis(axis, x.ndim)
    values, indices = operator.apply_all((x,), (place,))
    return _without(values, place, keepdims), _without(indices, place, keepdims)


def _without(x: Tensor, place: int, keepdims: bool) -> Tensor:
    return x if keepdims else reshaped(x, (*x.shape[:place], *x.shape[place + 1 :]))


def _opposite(x: Tensor) -> Tensor:
    """Reverse the order of numbers: negate floats, invert integers (-(-128) overflows int8)."""
    return negative(x) if x.dtype.is_floating else bitwise_invert(x)
