"""Elements that are not 0, and selection by a bool tensor.

The size of a result depends on the elements. Without ``size``, a call therefore waits for one round
trip to the device, which counts them; a function that ``compile`` records cannot wait, so it must
give ``size``. If ``size`` is not the true number, reading the result raises ``OperationFailed``.
All raise ``Unsupported`` on Burn's own servers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, overload

from burn_remote.arguments.numbers import Number
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, reshaped
from burn_remote.functions import selection
from burn_remote.functions.casting import as_bool
from burn_remote.functions.manipulation import flatten, matrix_transpose, unstack
from burn_remote.functions.statistics import count_nonzero
from burn_remote.functions.tensor_value import read_size
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import base, search_rows

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["argwhere", "boolean_mask", "nonzero", "where"]

NONZERO: Final = Operator(search_rows.NONZERO)
SELECT: Final = Operator(base.SELECT)
_GIVEN: Final = "pass size=count if the number of elements that are not 0 is known"


def _indices(x: Tensor, size: int | None, result: str, way: str) -> Tensor:
    """Return the indices of elements that are not 0: int64 ``[axes, size]``."""
    x = as_bool(x) if x.dtype.is_complex else x
    count = read_size(count_nonzero(x), result, way) if size is None else size
    return NONZERO.apply((x,), (count,))


@explained
def nonzero(x: Tensor, /, *, size: int | None = None) -> tuple[Tensor, ...]:
    """Return the indices of elements that are not 0: one int64 ``[size]`` for each axis.

    They are in C order. Waits for one round trip unless ``size`` is given. Raises ``ShapeMismatch``
    for a 0-d tensor.
    """
    if not x.ndim:
        raise ShapeMismatch(f"{x.handle.spec} has no axes; use x.reshape(1)")
    return unstack(_indices(x, size, "nonzero(x)", _GIVEN))


@explained
def argwhere(x: Tensor, /, *, size: int | None = None) -> Tensor:
    """Return the indices of elements that are not 0, in rows: int64 ``[size, axes]``.

    Waits for one round trip unless ``size`` is given.
    """
    if not x.ndim:
        raise ShapeMismatch(f"{x.handle.spec} has no axes; use x.reshape(1)")
    return matrix_transpose(_indices(x, size, "argwhere(x)", _GIVEN))


@explained
def boolean_mask(x: Tensor, mask: Tensor, /, *, size: int | None = None) -> Tensor:
    """Select the elements of ``x`` where a bool tensor is true, as ``x[mask]`` does in NumPy.

    Shapes: ``[n…, r…]`` and a mask ``[n…]`` for its leading axes give ``[size, r…]``, in C order.
    Waits for one round trip unless ``size``, the number of true elements, is given. The gradient is
    0 for the elements that were not selected.
    """
    if not mask.dtype.is_bool:
        raise DTypeMismatch(f"mask is {mask.handle.spec}, but must be bool; write mask != 0")
    rest = x.shape[mask.ndim :]
    if x.shape[: mask.ndim] != mask.shape:
        raise ShapeMismatch(
            f"mask is {mask.handle.spec}, but must have the leading axes of x {x.handle.spec}"
        )
    way = (
        "write where(mask, x, 0), which keeps the shape, or boolean_mask(x, mask, size=count) if "
        "the number of true elements is known"
    )
    (places,) = unstack(_indices(flatten(mask), size, "x[mask]", way))
    rows = reshaped(x, (math.prod(mask.shape), *rest))
    return SELECT.apply((rows, places), (0,))


@overload
def where(condition: Tensor, /) -> tuple[Tensor, ...]: ...
@overload
def where(condition: Tensor, x1: Tensor | Number, x2: Tensor | Number, /) -> Tensor: ...
@explained
def where(
    condition: Tensor, x1: Tensor | Number | None = None, x2: Tensor | Number | None = None, /
) -> Tensor | tuple[Tensor, ...]:
    """Return the elements of ``x1`` where ``condition`` is true and those of ``x2`` elsewhere.

    ``condition`` is a bool tensor. If both ``x1`` and ``x2`` are Python numbers, two integers give
    int64, two bools give bool, other real numbers float32, and complex numbers complex64. Without
    ``x1`` and ``x2``, it returns ``nonzero(condition)``, which waits for one round trip. Raises
    ``DTypeMismatch`` for a bool and another number.
    """
    if x1 is not None and x2 is not None:
        return selection.where(condition, x1, x2)
    if x1 is not None or x2 is not None:
        raise UsageError("where() takes a condition, or a condition and two values")
    return nonzero(condition)
