"""The operations of reductions, which combine the tensors of several members into one."""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from burn_remote.diagnostics.advice import similar_name
from burn_remote.functions.casting import at_least_float32
from burn_remote.functions.selection import maximum, minimum
from burn_remote.functions.tensor import Tensor
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import ArgumentMismatch, DTypeMismatch, shown

__all__ = ["ReduceOperation", "checked_operation", "mean_of_sum", "reduced"]


class ReduceOperation(enum.Enum):
    """How a collective combines the members' elements. ``"sum"`` stands for ``SUM``, and so on.

    ``AVG`` is ``MEAN``.
    """

    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"

    AVG = "mean"


_COMBINE: Final[Mapping[ReduceOperation, Callable[[Any, Any], Any]]] = {
    ReduceOperation.SUM: operator.add,
    ReduceOperation.MEAN: operator.add,
    ReduceOperation.MIN: minimum,
    ReduceOperation.MAX: maximum,
    ReduceOperation.PRODUCT: operator.mul,
}

# Their results are elements of an input, so there is nothing to round.
_EXACT: Final = frozenset({ReduceOperation.MIN, ReduceOperation.MAX})

# Names of other libraries.
_ALIASES: Final = {
    "average": ReduceOperation.MEAN,
    "avg": ReduceOperation.MEAN,
    "maximum": ReduceOperation.MAX,
    "minimum": ReduceOperation.MIN,
    "prod": ReduceOperation.PRODUCT,
}


def checked_operation(given: Any, dtypes: Sequence[DType]) -> ReduceOperation:
    """Return a reduction that exists for these dtypes.

    ``given`` is a ``ReduceOperation`` or its name. Raises ``ArgumentMismatch`` for anything else,
    and ``DTypeMismatch`` for a dtype that cannot be reduced.
    """
    operation = _named_operation(given)
    for dtype in dtypes:
        if not (dtype.is_floating or dtype.is_integer):
            raise DTypeMismatch(
                f"collectives compute no {operation.value} of {dtype} tensors; {_conversion(dtype)}"
            )
        if operation is ReduceOperation.MEAN and dtype.is_integer:
            raise DTypeMismatch(
                f"a mean of {dtype} tensors would round; use 'sum', or convert them with "
                "x.astype(burn_remote.float32)"
            )
    return operation


def _conversion(dtype: DType) -> str:
    if dtype.is_complex:
        return "reduce burn_remote.real(x) and burn_remote.imag(x)"
    instead = "x.astype(burn_remote.int32)" if dtype.is_bool else "x.dequantize()"
    return f"convert them with {instead}"


def reduced(tensors: Sequence[Tensor], operation: ReduceOperation) -> Tensor:
    """Return the reduction of one tensor of each member, all on one device.

    The tensors are combined one after the other in the order of the members, so the result has the
    same bits wherever it is computed. float16 and bfloat16 are combined in float32 and rounded
    once.
    """
    if operation in _EXACT:
        return functools.reduce(_COMBINE[operation], tensors)
    dtype = tensors[0].dtype
    combined = functools.reduce(_COMBINE[operation], map(at_least_float32, tensors))
    if operation is ReduceOperation.MEAN:
        combined = mean_of_sum(combined, len(tensors))
    return combined.astype(dtype)


def mean_of_sum(total: Tensor, count: int) -> Tensor:
    """Return the mean of ``count`` tensors, of which ``total`` is the sum."""
    return total / count


def _named_operation(given: Any) -> ReduceOperation:
    if isinstance(given, ReduceOperation):
        return given
    # The text of PyTorch's ``ReduceOp.SUM`` ends with the name of the operation.
    name = str(given).rpartition(".")[2].lower() if given is not None else ""
    known = {operation.value: operation for operation in ReduceOperation}
    found = known.get(name) or _ALIASES.get(name)
    if found is None:
        similar = similar_name(name, known)
        advice = f"; did you mean {similar!r}?" if similar else ""
        raise ArgumentMismatch(
            f"a reduction must be one of {', '.join(map(repr, known))}, not {shown(given)}{advice}"
        )
    return found
