"""Which operations have truth values, and the bits of integers?

Shapes broadcast. ``bitwise_*`` and the operators ``& | ^ ~`` work on bools as on integers, of one
dtype; ``logical_*`` take numbers too, which are true unless they are zero. Floating-point tensors
have no bits: ``DTypeMismatch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.casting import NOT, as_bool
from burn_remote.functions.comparison import not_equal
from burn_remote.tensors.operators import Operator
from burn_remote.tensors.pairs import Pair
from burn_remote.tensors.scalars import Number
from burn_remote.tensors.value import is_tensor
from burn_remote_protocol.operations.families import bools, ints

if TYPE_CHECKING:
    from burn_remote.tensor import Tensor

__all__ = [
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "reflected_left_shift",
    "reflected_right_shift",
]

AND: Final = Pair(bools.AND)
OR: Final = Pair(bools.OR)
BITWISE_AND: Final = Pair(
    ints.BITWISE_AND, ints.BITWISE_AND_SCALAR, reflected=ints.BITWISE_AND_SCALAR
)
BITWISE_OR: Final = Pair(ints.BITWISE_OR, ints.BITWISE_OR_SCALAR, reflected=ints.BITWISE_OR_SCALAR)
BITWISE_XOR: Final = Pair(
    ints.BITWISE_XOR, ints.BITWISE_XOR_SCALAR, reflected=ints.BITWISE_XOR_SCALAR
)
LEFT_SHIFT: Final = Pair(ints.BITWISE_LEFT_SHIFT, ints.BITWISE_LEFT_SHIFT_SCALAR)
RIGHT_SHIFT: Final = Pair(ints.BITWISE_RIGHT_SHIFT, ints.BITWISE_RIGHT_SHIFT_SCALAR)
BITWISE_NOT: Final = Operator(ints.BITWISE_NOT)


def bitwise_and(x1: Tensor | Number, x2: Tensor | Number, /) -> Tensor:
    """Return the bits, or truths, that both have."""
    return AND.apply(x1, x2) if _are_bools(x1, x2) else BITWISE_AND.apply(x1, x2)


def bitwise_or(x1: Tensor | Number, x2: Tensor | Number, /) -> Tensor:
    """Return the bits, or truths, that one of both has."""
    return OR.apply(x1, x2) if _are_bools(x1, x2) else BITWISE_OR.apply(x1, x2)


def bitwise_xor(x1: Tensor | Number, x2: Tensor | Number, /) -> Tensor:
    """Return the bits, or truths, that exactly one of both has."""
    return not_equal(x1, x2) if _are_bools(x1, x2) else BITWISE_XOR.apply(x1, x2)


@explained
def bitwise_invert(x: Tensor, /) -> Tensor:
    """Return the bits, or truths, that ``x`` does not have."""
    return (NOT if x.dtype.is_bool else BITWISE_NOT).unary(x)


def bitwise_left_shift(x1: Tensor | Number, x2: Tensor | Number, /) -> Tensor:
    """Move the bits of ``x1`` up by ``x2`` places."""
    return LEFT_SHIFT.apply(x1, x2)


def bitwise_right_shift(x1: Tensor | Number, x2: Tensor | Number, /) -> Tensor:
    """Move the bits of ``x1`` down by ``x2`` places; the sign is kept."""
    return RIGHT_SHIFT.apply(x1, x2)


def reflected_left_shift(x2: Tensor, x1: Number, /) -> Tensor:
    """Return ``x1 << x2``."""
    return LEFT_SHIFT.apply(x1, x2)


def reflected_right_shift(x2: Tensor, x1: Number, /) -> Tensor:
    """Return ``x1 >> x2``."""
    return RIGHT_SHIFT.apply(x1, x2)


@explained
def logical_and(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return where both are true."""
    return AND.apply(as_bool(x1), as_bool(x2))


@explained
def logical_or(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return where one of both is true."""
    return OR.apply(as_bool(x1), as_bool(x2))


@explained
def logical_xor(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return where exactly one of both is true."""
    return not_equal(as_bool(x1), as_bool(x2))


@explained
def logical_not(x: Tensor, /) -> Tensor:
    """Return where ``x`` is not true."""
    return NOT.unary(as_bool(x))


def _are_bools(x1: Tensor | Number, x2: Tensor | Number) -> bool:
    # Where the dtypes differ, the row for integers refuses the bools by name.
    first = x1 if is_tensor(x1) else x2
    return is_tensor(first) and first.dtype.is_bool
