"""Comparisons, logical operations and bitwise operations.

Shapes broadcast. Operands of different dtypes are converted to their common dtype
(``arguments/promotion.py`` has the rules). Comparisons and logical operations return bools of the
broadcast shape. A comparison with NaN is false, except ``not_equal``, which is true. All raise
``ShapeMismatch``, ``DTypeMismatch`` or ``DeviceMismatch``; complex numbers have no order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from burn_remote.arguments.numbers import Operand, check_number
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator
from burn_remote.dispatch.rows_with_fallbacks import preferring
from burn_remote.functions.casting import NOT, as_bool, astype
from burn_remote.functions.operands import Pair, operands
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.dtypes import U64
from burn_remote_protocol.errors import DTypeMismatch
from burn_remote_protocol.operations.families import base, bools, ints, numeric

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "bitwise_and",
    "bitwise_invert",
    "bitwise_or",
    "bitwise_xor",
    "equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
]

EQUAL: Final = Pair(base.EQUAL, base.EQUAL_ELEM, reflected=base.EQUAL_ELEM, compares=True)
GREATER: Final = Pair(
    numeric.GREATER, numeric.GREATER_ELEM, reflected=numeric.LOWER_ELEM, compares=True
)
GREATER_EQUAL: Final = Pair(
    numeric.GREATER_EQUAL,
    numeric.GREATER_EQUAL_ELEM,
    reflected=numeric.LOWER_EQUAL_ELEM,
    compares=True,
)
LOWER: Final = Pair(
    numeric.LOWER, numeric.LOWER_ELEM, reflected=numeric.GREATER_ELEM, compares=True
)
LOWER_EQUAL: Final = Pair(
    numeric.LOWER_EQUAL,
    numeric.LOWER_EQUAL_ELEM,
    reflected=numeric.GREATER_EQUAL_ELEM,
    compares=True,
)
NOT_EQUAL: Final = Pair(
    base.NOT_EQUAL, base.NOT_EQUAL_ELEM, reflected=base.NOT_EQUAL_ELEM, compares=True
)
XOR: Final = Pair(bools.XOR)
AND: Final = Pair(bools.AND)
OR: Final = Pair(bools.OR)
BITWISE_AND: Final = Pair(
    ints.BITWISE_AND, ints.BITWISE_AND_SCALAR, reflected=ints.BITWISE_AND_SCALAR
)
BITWISE_OR: Final = Pair(ints.BITWISE_OR, ints.BITWISE_OR_SCALAR, reflected=ints.BITWISE_OR_SCALAR)
BITWISE_XOR: Final = Pair(
    ints.BITWISE_XOR, ints.BITWISE_XOR_SCALAR, reflected=ints.BITWISE_XOR_SCALAR
)
BITWISE_NOT: Final = Operator(ints.BITWISE_NOT)


def equal(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return ``x1 == x2`` element by element."""
    return _compared(EQUAL, operator.eq, x1, x2)


@preferring(base.NOT_EQUAL, lambda x1, x2, /: _compared(NOT_EQUAL, operator.ne, x1, x2))
def not_equal(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return ``x1 != x2`` element by element."""
    return NOT.unary(equal(x1, x2))


def greater(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return ``x1 > x2`` element by element."""
    return _compared(GREATER, operator.gt, x1, x2)


def greater_equal(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return ``x1 >= x2`` element by element."""
    return _compared(GREATER_EQUAL, operator.ge, x1, x2)


def less(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return ``x1 < x2`` element by element."""
    return _compared(LOWER, operator.lt, x1, x2)


def less_equal(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return ``x1 <= x2`` element by element."""
    return _compared(LOWER_EQUAL, operator.le, x1, x2)


def _compared(
    pair: Pair,
    compare: Callable[[int, int], bool],
    x1: Tensor | Operand,
    x2: Tensor | Operand,
) -> Tensor:
    try:
        return pair.apply(x1, x2)
    except DTypeMismatch:
        first, second = operands(x1, x2)
        if not (is_tensor(first) and is_tensor(second)):
            raise
        if U64 not in (first.dtype, second.dtype) or not _are_integers(first, second):
            raise
    # No integer dtype holds the elements of uint64 and of a signed dtype. A negative element is
    # less than every element of uint64.
    if first.dtype is U64:
        below, found = less(second, 0), pair.apply(first, astype(second, U64))
        answer = compare(0, -1)
    else:
        below, found = less(first, 0), pair.apply(astype(first, U64), second)
        answer = compare(-1, 0)
    return OR.apply(found, below) if answer else AND.apply(found, NOT.unary(below))


def _are_integers(*tensors: Tensor) -> bool:
    return all(x.dtype.is_integer for x in tensors)


def bitwise_and(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return the bitwise AND of integers, or the logical AND of bools."""
    x1, x2 = operands(x1, x2)
    return AND.apply(x1, x2) if _are_bools(x1, x2) else BITWISE_AND.apply(x1, x2)


def bitwise_or(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return the bitwise OR of integers, or the logical OR of bools."""
    x1, x2 = operands(x1, x2)
    return OR.apply(x1, x2) if _are_bools(x1, x2) else BITWISE_OR.apply(x1, x2)


def bitwise_xor(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return the bitwise XOR of integers, or the logical XOR of bools."""
    x1, x2 = operands(x1, x2)
    return _xor(x1, x2) if _are_bools(x1, x2) else BITWISE_XOR.apply(x1, x2)


@explained
def bitwise_invert(x: Tensor, /) -> Tensor:
    """Return the bitwise complement of integers, or the logical NOT of bools."""
    return (NOT if x.dtype.is_bool else BITWISE_NOT).unary(x)


@explained
def logical_and(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return the logical AND; nonzero numbers are true."""
    return AND.apply(*_truths(x1, x2))


@explained
def logical_or(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return the logical OR; nonzero numbers are true."""
    return OR.apply(*_truths(x1, x2))


@explained
def logical_xor(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return the logical XOR; nonzero numbers are true."""
    return _xor(*_truths(x1, x2))


@preferring(bools.XOR, lambda x1, x2: XOR.apply(x1, x2))
def _xor(x1: Tensor | Operand, x2: Tensor | Operand) -> Tensor:
    return not_equal(x1, x2)


@explained
def logical_not(x: Tensor, /) -> Tensor:
    """Return the logical NOT; nonzero numbers are true."""
    return NOT.unary(as_bool(x))


def _truths(x1: Any, x2: Any) -> tuple[Any, Any]:
    x1, x2 = operands(x1, x2)
    return _truth(x1), _truth(x2)


def _truth(x: Tensor | Operand) -> Tensor | bool:
    if is_tensor(x):
        return as_bool(x)
    check_number(x)
    return bool(x)


def _are_bools(x1: Tensor | Operand, x2: Tensor | Operand) -> bool:
    return all(x.dtype.is_bool if is_tensor(x) else x.__class__ is bool for x in (x1, x2))
