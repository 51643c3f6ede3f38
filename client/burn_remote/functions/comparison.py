"""How are tensors compared with each other and with numbers?

Shapes broadcast; dtypes must be the same, and a number takes the tensor's dtype. The result has
the broadcast shape and truth values. Comparing with NaN gives false, and ``not_equal`` true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.functions.casting import NOT
from burn_remote.tensors.pairs import Pair
from burn_remote.tensors.scalars import Number
from burn_remote_protocol.operations.families import base, numeric

if TYPE_CHECKING:
    from burn_remote.tensor import Tensor

__all__ = ["equal", "greater", "greater_equal", "less", "less_equal", "not_equal"]

EQUAL: Final = Pair(base.EQUAL, base.EQUAL_ELEM, reflected=base.EQUAL_ELEM)
GREATER: Final = Pair(numeric.GREATER, numeric.GREATER_ELEM, reflected=numeric.LOWER_ELEM)
GREATER_EQUAL: Final = Pair(
    numeric.GREATER_EQUAL, numeric.GREATER_EQUAL_ELEM, reflected=numeric.LOWER_EQUAL_ELEM
)
LOWER: Final = Pair(numeric.LOWER, numeric.LOWER_ELEM, reflected=numeric.GREATER_ELEM)
LOWER_EQUAL: Final = Pair(
    numeric.LOWER_EQUAL, numeric.LOWER_EQUAL_ELEM, reflected=numeric.GREATER_EQUAL_ELEM
)


def equal(x1: Tensor | Number, x2: Tensor | Number, /) -> Tensor:
    """Return where ``x1 == x2``."""
    return EQUAL.apply(x1, x2)


def not_equal(x1: Tensor | Number, x2: Tensor | Number, /) -> Tensor:
    """Return where ``x1 != x2``."""
    return NOT.unary(EQUAL.apply(x1, x2))


def greater(x1: Tensor | Number, x2: Tensor | Number, /) -> Tensor:
    """Return where ``x1 > x2``."""
    return GREATER.apply(x1, x2)


def greater_equal(x1: Tensor | Number, x2: Tensor | Number, /) -> Tensor:
    """Return where ``x1 >= x2``."""
    return GREATER_EQUAL.apply(x1, x2)


def less(x1: Tensor | Number, x2: Tensor | Number, /) -> Tensor:
    """Return where ``x1 < x2``."""
    return LOWER.apply(x1, x2)


def less_equal(x1: Tensor | Number, x2: Tensor | Number, /) -> Tensor:
    """Return where ``x1 <= x2``."""
    return LOWER_EQUAL.apply(x1, x2)
