"""Operations on two operands, either of which may be a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, final

from burn_remote.arguments.numbers import Number
from burn_remote.dispatch.operators import Operator, constant
from burn_remote.functions.value import is_tensor
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

    def apply(self, x1: Tensor | Number, x2: Tensor | Number) -> Tensor:
        """Apply the row for these operands. Raises ``ArgumentMismatch`` if neither is a tensor."""
        if is_tensor(x1):
            if is_tensor(x2):
                return self._tensors.binary(x1, x2)
            if self._number is not None:
                return self._number.scalar(x1, x2)
            return self._tensors.binary(x1, constant(x1, x2))
        if not is_tensor(x2):
            refuse_numbers(x1, x2)
        if self._reflected is not None:
            return self._reflected.scalar(x2, x1)
        return self._tensors.binary(constant(x2, x1), x2)


def refuse_numbers(x1: object, x2: object) -> NoReturn:
    """Raise ``ArgumentMismatch`` for two numbers: only a tensor determines the device."""
    seen = f"{type(x1).__name__} and {type(x2).__name__}"
    raise ArgumentMismatch(
        f"expected a tensor, not {seen}; burn_remote.tensor(data, device=…) makes a tensor of data"
    )
