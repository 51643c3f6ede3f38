"""Operations on two operands, either of which may be a number."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NoReturn, final

from burn_remote.arguments.numbers import Number, number_for
from burn_remote.dispatch.operators import Binary, Operator, constant, operator_method
from burn_remote.functions.casting import LOW_PRECISION, astype
from burn_remote.functions.value import TensorValue, is_tensor
from burn_remote_protocol.dtypes import F32, DType
from burn_remote_protocol.errors import ArgumentMismatch

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor
    from burn_remote_protocol.operations.row import Row

__all__ = ["Pair", "refuse_numbers"]


@final
class Pair:
    """Rows for tensor and tensor, tensor and number, and number and tensor (``reflected``).

    Without a row for numbers, the number is converted to a tensor of one element.
    """

    __slots__ = ("_number", "_reflected", "_tensors")

    def __init__(
        self, tensors: Row, number: Row | None = None, *, reflected: Row | None = None
    ) -> None:
        self._tensors = Operator(tensors)
        self._number = None if number is None else Operator(number)
        self._reflected = None if reflected is None else Operator(reflected)

    def method(self, function: Binary) -> Binary:
        """Return the method for an operator of ``Tensor`` that computes ``function(x1, x2)``.

        The function must apply this pair to its operands as they are. It is called for operands
        that the method does not recognize.
        """
        return operator_method(function, self._tensors, self._number)

    def apply(self, x1: Tensor | Number, x2: Tensor | Number) -> Tensor:
        """Apply the row for these operands. Raises ``ArgumentMismatch`` if neither is a tensor."""
        # ``is_tensor`` written out: a call takes a fiftieth of an operation.
        if isinstance(x1, TensorValue):
            if isinstance(x2, TensorValue):
                return self._tensors.binary(x1, x2)
            if self._number is not None:
                return self._number.scalar(x1, x2)
            wide, dtype = _wide(x1, x2)
            return astype(self._tensors.binary(wide, constant(wide, x2)), dtype)
        if not is_tensor(x2):
            refuse_numbers(x1, x2)
        if self._reflected is not None:
            return self._reflected.scalar(x2, x1)
        wide, dtype = _wide(x2, x1)
        return astype(self._tensors.binary(constant(wide, x1), wide), dtype)


def _wide(x: Tensor, number: Number) -> tuple[Tensor, DType]:
    """Return a tensor in the dtype in which it is computed with a number, and its own dtype.

    The rows for a tensor and a number compute float16 and bfloat16 in float32 with the unrounded
    number. For the other rows, a constant in the tensor's dtype would be rounded first.
    """
    dtype = x.handle.spec.dtype
    if dtype in LOW_PRECISION and not _is_short(number_for(dtype, number)):
        return astype(x, F32), dtype
    return x, dtype


def _is_short(number: float) -> bool:
    """Whether float16 and bfloat16 hold a number: 8 bits, and an exponent that float16 has."""
    significand, exponent = math.frexp(number)
    return not number or ((significand * 256).is_integer() and -13 <= exponent <= 15)


def refuse_numbers(x1: object, x2: object) -> NoReturn:
    """Raise ``ArgumentMismatch`` for two numbers: only a tensor determines the device."""
    seen = f"{type(x1).__name__} and {type(x2).__name__}"
    raise ArgumentMismatch(
        f"expected a tensor, not {seen}; burn_remote.tensor(data, device=…) makes a tensor of data"
    )
