"""Shifts of the bits of integers.

Burn's operations take the number of positions modulo 64. The functions here give the results of
NumPy and PyTorch, where a shift by 64 or more, or by a negative number, moves all bits out. All
raise ``ShapeMismatch``, ``DeviceMismatch``, and ``DTypeMismatch`` unless the tensors are integers.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, Final

from burn_remote.arguments.numbers import Operand, bounds_of
from burn_remote.functions.logic import bitwise_and, equal
from burn_remote.functions.operands import Pair, operands
from burn_remote.functions.selection import where
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.dtypes import Category
from burn_remote_protocol.operations.families import ints

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "bitwise_left_shift",
    "bitwise_right_shift",
    "reflected_left_shift",
    "reflected_right_shift",
]

LEFT_SHIFT: Final = Pair(ints.BITWISE_LEFT_SHIFT, ints.BITWISE_LEFT_SHIFT_SCALAR)
RIGHT_SHIFT: Final = Pair(ints.BITWISE_RIGHT_SHIFT, ints.BITWISE_RIGHT_SHIFT_SCALAR)

# Burn's operations use the six lowest bits of a number of positions, so 64 shifts by 0.
POSITIONS: Final = 64


def bitwise_left_shift(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Shift the bits of ``x1`` left by ``x2`` positions.

    A shift by at least the width of the dtype, or by a negative number, gives 0, as in NumPy and
    PyTorch.
    """
    x1, x2 = operands(x1, x2)
    if is_tensor(x2):
        shifted = LEFT_SHIFT.apply(x1, x2)
        return where(_are_in_range(x2), shifted, 0)
    if _is_out_of_range(x2):  # a shift by 64 in two steps
        return LEFT_SHIFT.apply(LEFT_SHIFT.apply(x1, POSITIONS - 1), 1)
    return LEFT_SHIFT.apply(x1, x2)


def bitwise_right_shift(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Shift the bits of ``x1`` right by ``x2`` positions, preserving the sign.

    A shift by at least the width of the dtype, or by a negative number, gives 0, or -1 for negative
    numbers, as in NumPy and PyTorch.
    """
    x1, x2 = operands(x1, x2)
    if not is_tensor(x2):
        if not _is_out_of_range(x2):
            return RIGHT_SHIFT.apply(x1, x2)
        return RIGHT_SHIFT.apply(RIGHT_SHIFT.apply(x1, POSITIONS - 1), 1)
    if not x2.dtype.is_integer or (_is_unsigned(x2) and (_is_unsigned(x1) or not is_tensor(x1))):
        shifted = RIGHT_SHIFT.apply(x1, x2)  # refuses other dtypes
        return where(_are_in_range(x2), shifted, 0)
    # A shift by 63 leaves nothing but the sign.
    return RIGHT_SHIFT.apply(x1, where(_are_in_range(x2), x2, POSITIONS - 1))


def reflected_left_shift(x2: Tensor, x1: Operand, /) -> Tensor:
    """Return ``x1 << x2``."""
    return bitwise_left_shift(x1, x2)


def reflected_right_shift(x2: Tensor, x1: Operand, /) -> Tensor:
    """Return ``x1 >> x2``."""
    return bitwise_right_shift(x1, x2)


def _is_out_of_range(number: Operand) -> bool:
    """Return whether a number of positions is negative, or at least ``POSITIONS``."""
    return isinstance(number, Integral) and not 0 <= number < POSITIONS


def _are_in_range(x: Tensor) -> Tensor:
    """Return where numbers of positions are from 0 to 63."""
    # All bits but the six lowest. One comparison with them also finds negative numbers.
    higher = bounds_of(x.dtype)[1] - (POSITIONS - 1) if _is_unsigned(x) else -POSITIONS
    return equal(bitwise_and(x, higher), 0)


def _is_unsigned(x: Any) -> bool:
    return is_tensor(x) and x.dtype.category is Category.UINT
