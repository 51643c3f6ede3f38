"""Operations on two operands, one of which may be a number or a NumPy array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import numpy as np

from burn_remote.arguments.arrays import as_array, data_from
from burn_remote.arguments.numbers import Number, Operand, is_imaginary, number_for
from burn_remote.arguments.promotion import (
    compared,
    compared_with_number,
    promoted,
    promoted_with_number,
)
from burn_remote.dispatch.operators import Binary, Operator, constant, operator_method, upload
from burn_remote.functions.casting import LOW_PRECISION, astype, converted_to
from burn_remote.functions.tensor_value import TensorValue, holds_tensors, is_tensor
from burn_remote_protocol.dtypes import F32, DType
from burn_remote_protocol.errors import ArgumentMismatch, type_name

if TYPE_CHECKING:
    from burn_remote.arguments.arrays import Array
    from burn_remote.functions.tensor import Tensor
    from burn_remote_protocol.operations.row import Row

__all__ = [
    "MAX_OPERAND_BYTES",
    "Pair",
    "alike",
    "all_alike",
    "elements_for",
    "operands",
    "refuse_numbers",
    "sent",
]

# The largest array that is sent with the operation that uses it. At 10 Mbit/s it takes 50 ms, about
# a round trip; a larger one would cost more in each call than sending it once.
MAX_OPERAND_BYTES: Final = 65_536


def sent(x: Tensor, array: Array) -> Tensor:
    """Send an array to the device of ``x``, for an operation of both.

    Raises ``ArgumentMismatch`` for an array of more than ``MAX_OPERAND_BYTES``, and for one whose
    elements are no numbers.
    """
    if array.nbytes > MAX_OPERAND_BYTES:
        raise ArgumentMismatch(
            f"an array of {array.nbytes:,} bytes is not sent with an operation, which takes arrays "
            f"of up to {MAX_OPERAND_BYTES:,}; send it once, and use the tensor in its place: "
            "burn_remote.tensor(array, device=x.device)"
        )
    handle = x.handle.client.register_tensor_data(data_from(as_array(array, None)))
    return x.__class__(handle)


def elements_for(x: Tensor, value: Any) -> Any:
    """Return an array or a list as a tensor of the dtype of ``x`` on its device.

    Returns other values as they are. Raises ``DTypeMismatch`` for elements that the dtype does not
    hold, and ``ArgumentMismatch`` for a list of tensors.
    """
    if isinstance(value, list | tuple) and holds_tensors(value):
        raise ArgumentMismatch(
            "the value is a list of tensors; write burn_remote.stack([y, z]) in its place"
        )
    if isinstance(value, np.ndarray | list | tuple):
        return upload(x, as_array(value, x.handle.spec.dtype))
    return value


def operands(x1: Any, x2: Any) -> tuple[Any, Any]:
    """Return two operands; an array beside a tensor is sent to its device."""
    if isinstance(x2, np.ndarray) and is_tensor(x1):
        return x1, sent(x1, x2)
    if isinstance(x1, np.ndarray) and is_tensor(x2):
        return sent(x2, x1), x2
    return x1, x2


@final
class Pair:
    """Rows for tensor and tensor, tensor and number, and number and tensor (``reflected``).

    Without a row for numbers, the number is converted to a tensor of one element. Operands of
    different dtypes are converted to their common dtype; ``promotes=False`` leaves that to the
    row. ``compares`` says that the row compares (see ``compared``).
    """

    __slots__ = ("_number", "_promoted_with", "_reflected", "_tensors")

    def __init__(
        self,
        tensors: Row,
        number: Row | None = None,
        *,
        reflected: Row | None = None,
        promotes: bool = True,
        compares: bool = False,
    ) -> None:
        promoted_with = compared_with_number if compares else promoted_with_number
        promoted_tensors = compared if compares else promoted

        def operator(row: Row) -> Operator:
            convert = converted_to if promotes else None
            return Operator(
                row, convert=convert, promoted=promoted_tensors, promoted_with=promoted_with
            )

        self._promoted_with = promoted_with
        self._tensors = operator(tensors)
        self._number = None if number is None else operator(number)
        self._reflected = None if reflected is None else operator(reflected)

    def method(self, function: Binary) -> Binary:
        """Return the method for an operator of ``Tensor`` that computes ``function(x1, x2)``.

        The function must apply this pair to its operands as they are. It is called for operands
        that the method does not recognize.
        """
        return operator_method(function, self._tensors, self._number)

    def apply(self, x1: Tensor | Operand, x2: Tensor | Operand) -> Tensor:
        """Apply the row for these operands. Raises ``ArgumentMismatch`` if neither is a tensor."""
        # ``is_tensor`` is inlined: the call would take 2 % of an operation's time.
        if isinstance(x1, TensorValue):
            if isinstance(x2, TensorValue):
                return self._tensors.binary(x1, x2)
            if isinstance(x2, np.ndarray):
                return self._tensors.binary(x1, sent(x1, x2))
            return self._with_number(x1, x2)
        if not is_tensor(x2):
            refuse_numbers(x1, x2)
        if isinstance(x1, np.ndarray):
            return self._tensors.binary(sent(x2, x1), x2)
        return self._with_number_first(x1, x2)

    def _with_number(self, x1: Tensor, x2: Number) -> Tensor:
        if isinstance(x2, complex):  # also NumPy's complex128
            x1 = converted_to(x1, self._promoted_with(x1.dtype, x2))
            if is_imaginary(x2):
                return self._tensors.binary(x1, constant(x1, x2))
        if self._number is not None:
            return self._number.scalar(x1, x2)
        x1, x2 = self._tensors.promoted_number(x1, x2)
        wide, dtype = _wide(x1, x2)
        return self._narrowed(self._tensors.binary(wide, constant(wide, x2)), wide, dtype)

    def _with_number_first(self, x1: Number, x2: Tensor) -> Tensor:
        if isinstance(x1, complex):
            x2 = converted_to(x2, self._promoted_with(x2.dtype, x1))
            if is_imaginary(x1):
                return self._tensors.binary(constant(x2, x1), x2)
        if self._reflected is not None:
            return self._reflected.scalar(x2, x1)
        x2, x1 = self._tensors.promoted_number(x2, x1)
        wide, dtype = _wide(x2, x1)
        return self._narrowed(self._tensors.binary(constant(wide, x1), wide), wide, dtype)

    @staticmethod
    def _narrowed(result: Tensor, wide: Tensor, dtype: DType) -> Tensor:
        """Convert a result to ``dtype`` if ``_wide`` widened an operand."""
        return result if wide.handle.spec.dtype is dtype else converted_to(result, dtype)


def alike(x1: Tensor | Operand, x2: Tensor | Operand, *, compares: bool = False) -> tuple[Any, Any]:
    """Convert two operands to their common dtype; numbers stay as they are, arrays are sent.

    Operands that need no conversion are returned themselves. ``compares`` says that the elements
    are compared, and that no operand may be rounded for it (see ``compared``); float16 and bfloat16
    beside a number that they do not hold become float32. Raises ``DTypeMismatch`` if there is no
    common dtype.
    """
    x1, x2 = operands(x1, x2)
    if compares:
        return _comparable(x1, x2)
    if is_tensor(x1):
        if is_tensor(x2):
            first, second = x1.handle.spec.dtype, x2.handle.spec.dtype
            if first is second:
                return x1, x2
            dtype = promoted(first, second)
            return converted_to(x1, dtype), converted_to(x2, dtype)
        return converted_to(x1, promoted_with_number(x1.handle.spec.dtype, x2)), x2
    if is_tensor(x2):
        return x1, converted_to(x2, promoted_with_number(x2.handle.spec.dtype, x1))
    return x1, x2


def _comparable(x1: Any, x2: Any) -> tuple[Any, Any]:
    if is_tensor(x1) and is_tensor(x2):
        dtype = compared(x1.dtype, x2.dtype)
        return converted_to(x1, dtype), converted_to(x2, dtype)
    if is_tensor(x1):
        x1 = converted_to(x1, compared_with_number(x1.dtype, x2))
        return _wide(x1, x2)[0], x2
    if is_tensor(x2):
        x2 = converted_to(x2, compared_with_number(x2.dtype, x1))
        return x1, _wide(x2, x1)[0]
    return x1, x2


def all_alike(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Convert tensors to their common dtype. Raises ``DTypeMismatch`` if there is none."""
    dtypes = [x.handle.spec.dtype for x in tensors]
    if all(dtype is dtypes[0] for dtype in dtypes):
        return list(tensors)
    common = promoted(*dtypes)
    return [converted_to(x, common) for x in tensors]


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
    """Return whether both float16 and bfloat16 hold a number exactly.

    It has at most 8 significant bits, and an exponent that float16 has.
    """
    significand, exponent = math.frexp(number)
    return not number or ((significand * 256).is_integer() and -13 <= exponent <= 15)


def refuse_numbers(x1: object, x2: object) -> NoReturn:
    """Raise ``ArgumentMismatch`` for two numbers: only a tensor determines the device."""
    seen = f"{type_name(x1)} and {type_name(x2)}"
    raise ArgumentMismatch(
        f"expected a tensor, not {seen}; burn_remote.tensor(data, device=…) makes a tensor of data"
    )
