"""``x[index] = value``: assignment to elements, by making the tensor refer to a changed copy."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, Final

from burn_remote.arguments.promotion import promoted
from burn_remote.diagnostics.tracebacks import shorten
from burn_remote.dispatch.operators import filled, reshaped
from burn_remote.functions.casting import converted_to
from burn_remote.functions.gathering import take
from burn_remote.functions.indexing import set_item
from burn_remote.functions.logic import not_equal
from burn_remote.functions.manipulation import broadcast_to, concat, flatten
from burn_remote.functions.operands import elements_for
from burn_remote.functions.selection import where
from burn_remote.functions.statistics import cumulative_sum
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.functions.tracked_tensors import is_parameter, updated
from burn_remote_protocol.errors import (
    BurnRemoteError,
    DTypeMismatch,
    ShapeMismatch,
)
from burn_remote_protocol.tensors import TensorSpec

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["assign_item"]

# References to the tensor of ``f()[index] = value`` in ``assign_item``: the interpreter's stack,
# the parameter and the argument of ``getrefcount``. A tensor that the program can reach has more.
# From Python 3.14 on, the stack has no reference of its own to a local variable's tensor, so the
# count cannot tell them apart: -1 never warns.
_TEMPORARY: Final = 3 if sys.implementation.name == "cpython" and sys.version_info < (3, 14) else -1


def assign_item(x: Tensor, index: Any, value: Any, /) -> None:
    """Carry out ``x[index] = value``: this object refers to a changed copy from now on.

    No element is written, so tensors that were made from ``x`` before, also ``x[1:]``,
    ``x.reshape(…)`` and ``x.detach()``, keep the old elements, unlike NumPy's views. Gradients pass
    to the old ``x``, where its elements were kept, and to ``value``.

    ``value`` is a number, or a tensor, an array or a list that broadcasts to the shape of
    ``x[index]``; its elements are converted to the dtype of ``x``. With a mask tensor, that shape
    begins with the number of true elements. If ``value`` has neither one row nor that number of
    rows, the operation fails, and reading ``x`` raises ``OperationFailed``.

    Raises as ``x.set`` does, ``DTypeMismatch`` for elements that the dtype of ``x`` does not hold,
    and ``UsageError`` for a tracked leaf outside ``no_grad``. Warns if the program has no reference
    to ``x``, as in ``y[0][1] = value``, because the changed copy is lost.
    """
    # Not an error: an extension module may keep a tensor with fewer references than Python code.
    if sys.getrefcount(x) == _TEMPORARY:
        warnings.warn(
            "this assignment has no effect: it changes a temporary tensor, which is a copy. In "
            "place of x[0][1] = value, write x[0, 1] = value; in place of x.T[0] = value, "
            "x[:, 0] = value",
            RuntimeWarning,
            stacklevel=2,
        )
    try:
        is_leaf = is_parameter(x, "x[index] =", "y = x.set(index, value)")
        new = _converted(x, value)
        if is_tensor(index) and index.dtype.is_bool and is_tensor(new):
            changed = _with_rows(x, index, new)
        else:
            changed = set_item(x, index, new)
        if is_leaf:
            updated(x, changed)
        else:
            x.handle = changed.handle
    except BurnRemoteError as error:
        shorten(error)
        raise


def _converted(x: Tensor, value: Any) -> Any:
    """Convert a value to the dtype and the device of ``x``; a number stays a number."""
    dtype = x.handle.spec.dtype
    if value.__class__ is bool and not dtype.is_bool:
        return int(value)
    value = elements_for(x, value)
    if not is_tensor(value):
        return value
    given = value.handle.spec.dtype
    # Floats are rounded. Any other change of values must be visible in the program.
    are_floats = given.is_floating and dtype.is_floating
    if given is not dtype and not are_floats and promoted(dtype, given) is not dtype:
        raise DTypeMismatch(
            f"{given} cannot be stored in {x.handle.spec} without changing values; write "
            "x[index] = value.astype(x.dtype)"
        )
    return converted_to(value, dtype)


def _with_rows(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """Assign one row of ``value`` after the other where a mask of the leading axes is true.

    The k-th true element takes row k. Only the device knows how many elements are true, and the
    client does not wait for the number: if ``value`` has another number of rows, the device
    computes row indices that are out of range, so that the operation fails.
    """
    shape = x.shape
    if mask.shape != shape[: mask.ndim]:
        raise ShapeMismatch(
            f"a mask {mask.handle.spec} does not match the leading axes of {x.handle.spec}"
        )
    rest = shape[mask.ndim :]
    # As in NumPy, the value may have further leading axes of size 1.
    extra = 0
    while value.ndim - extra > len(rest) and value.shape[extra] == 1:
        extra += 1
    if extra:
        value = reshaped(value, value.shape[extra:])
    if value.ndim <= len(rest):
        return set_item(x, mask, broadcast_to(value, rest))
    rows = value.shape[0]
    # Row 0 belongs to the elements that are not selected. It exists even if ``value`` has no rows.
    unused = x.__class__(
        filled(x.handle.client, TensorSpec((1, *rest), x.dtype), False if x.dtype.is_bool else 0)
    )
    selected = cumulative_sum(flatten(mask))
    counted = selected[-1:] if mask.size else selected
    places = where(not_equal(counted, rows), rows + 1, where(flatten(mask), selected, 0))
    chosen = take(concat([unused, broadcast_to(value, (rows, *rest))]), places, axis=0)
    selector = reshaped(mask, mask.shape + (1,) * len(rest))
    return where(selector, reshaped(chosen, shape), x)
