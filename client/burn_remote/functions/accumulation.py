"""How do sums, products and extremes accumulate along an axis?

The result has the shape of the tensor. Raises ``ShapeMismatch`` for an axis that does not exist,
and where it was left out of a tensor that has several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.manipulation import concat
from burn_remote.functions.statistics import widened
from burn_remote.tensors.arrays import AnyDType
from burn_remote.tensors.axes import normal_axis
from burn_remote.tensors.operators import Operator, filled
from burn_remote_protocol.errors import ShapeMismatch
from burn_remote_protocol.operations.families import numeric
from burn_remote_protocol.tensors import TensorSpec

if TYPE_CHECKING:
    from burn_remote.tensor import Tensor

__all__ = ["cummax", "cummin", "cumulative_prod", "cumulative_sum"]

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
