"""Element selection: ``where``, masks, bounds, maxima and minima of two tensors.

Shapes broadcast. Operands of different dtypes are converted to their common dtype
(``arguments/promotion.py`` has the rules). All raise ``ShapeMismatch``, ``DTypeMismatch`` or
``DeviceMismatch``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from burn_remote.arguments.arrays import dtype_of_number
from burn_remote.arguments.numbers import Number, Operand, bounds_of, check_number, is_imaginary
from burn_remote.autodiff.custom_vjp import custom_vjp
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, constant, filled, with_rank
from burn_remote.dispatch.rows_with_fallbacks import preferring
from burn_remote.functions.casting import NOT, distinct
from burn_remote.functions.logic import EQUAL, GREATER, LOWER, OR
from burn_remote.functions.operands import Pair, alike, operands, refuse_numbers, sent
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.dtypes import BOOL, C64, F32, DType
from burn_remote_protocol.errors import DTypeMismatch
from burn_remote_protocol.operations.families import base, floats, numeric
from burn_remote_protocol.tensors import TensorSpec

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["clip", "mask_fill", "maximum", "minimum", "where"]

MASK_WHERE: Final = Operator(base.MASK_WHERE)
MASK_FILL: Final = Operator(base.MASK_FILL)
CLAMP_MIN: Final = Operator(numeric.CLAMP_MIN)
CLAMP_MAX: Final = Operator(numeric.CLAMP_MAX)
CLAMP: Final = Operator(numeric.CLAMP)
MUL_SCALAR: Final = Operator(numeric.MUL_SCALAR)
IS_NAN: Final = Operator(floats.IS_NAN)


@explained
def where(condition: Tensor, x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return the elements of ``x1`` where ``condition`` is true and those of ``x2`` elsewhere.

    ``condition`` is a bool tensor, or an array of at most 64 KiB beside a tensor. If both ``x1``
    and ``x2`` are Python numbers, two integers give int64, two bools give bool, other real numbers
    float32, and complex numbers complex64. Raises ``DTypeMismatch`` for a bool and another number.
    """
    if isinstance(condition, np.ndarray):
        # Other operands of NumPy's arrays are sent too; without a tensor, the call is refused.
        beside = next((x for x in (x1, x2) if is_tensor(x)), None)
        condition = condition if beside is None else sent(beside, condition)
    return _selected(condition, *alike(x1, x2))


def _selected(condition: Tensor, x1: Tensor | Number, x2: Tensor | Number) -> Tensor:
    if not is_tensor(x1):
        return mask_fill(x2 if is_tensor(x2) else _alike(condition, x1, x2), condition, x1)
    if not is_tensor(x2):
        return mask_fill(x1, NOT.unary(condition), x2)
    rank = max(len(x.handle.spec.shape) for x in (condition, x1, x2))
    return MASK_WHERE.apply((with_rank(x2, rank), with_rank(condition, rank), with_rank(x1, rank)))


@explained
def mask_fill(x: Tensor, mask: Tensor, value: Number) -> Tensor:
    """Return ``x`` with ``value`` where the bool tensor ``mask`` is true."""
    rank = max(len(x.handle.spec.shape), len(mask.handle.spec.shape))
    if is_imaginary(value) and x.dtype.is_complex:
        return where(mask, constant(with_rank(x, rank), value), x)
    return MASK_FILL.numbers((with_rank(x, rank), with_rank(mask, rank)), (value,))


@explained
def clip(
    x: Tensor, /, min: Tensor | Number | None = None, max: Tensor | Number | None = None
) -> Tensor:
    """Limit elements to the range from ``min`` to ``max``; NaN stays NaN.

    A bound is a number, a tensor that broadcasts with ``x``, or ``None``. The gradient is 0 where
    ``x`` equals a bound that is a number, as in PyTorch 2.15.
    """
    given = x
    if is_tensor(min):
        x, min = maximum(x, min), None
    if is_tensor(max):
        x, max = minimum(x, max), None
    if min is None and max is None:
        return distinct(given, x)
    for bound in (min, max):
        if bound is not None:
            x, _ = alike(x, bound)
    if min is None:
        assert max is not None  # returned above
        return _at_most(x, max)
    if max is None:
        return _at_least(x, min)
    return CLAMP.numbers((x,), (min, max))


@preferring(numeric.CLAMP_MIN, lambda x, limit: CLAMP_MIN.scalar(x, limit))
def _at_least(x: Tensor, limit: Number) -> Tensor:
    return CLAMP.numbers((x,), (limit, _limits(x.dtype)[1]))


@preferring(numeric.CLAMP_MAX, lambda x, limit: CLAMP_MAX.scalar(x, limit))
def _at_most(x: Tensor, limit: Number) -> Tensor:
    return CLAMP.numbers((x,), (_limits(x.dtype)[0], limit))


def maximum(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return the elementwise maximum, NaN if either element is NaN.

    Where the elements of two tensors are equal, each receives half of the gradient.
    """
    return _larger(*operands(x1, x2))


def _larger(x1: Tensor | Number, x2: Tensor | Number) -> Tensor:
    if is_tensor(x1) and is_tensor(x2):
        return _greater_one(*alike(x1, x2))
    if is_tensor(x1):
        check_number(x2)
        return clip(x1, min=x2)
    if not is_tensor(x2):
        refuse_numbers(x1, x2)
    check_number(x1)
    return clip(x2, min=x1)


def minimum(x1: Tensor | Operand, x2: Tensor | Operand, /) -> Tensor:
    """Return the elementwise minimum, NaN if either element is NaN.

    Where the elements of two tensors are equal, each receives half of the gradient.
    """
    return _smaller(*operands(x1, x2))


def _smaller(x1: Tensor | Number, x2: Tensor | Number) -> Tensor:
    if is_tensor(x1) and is_tensor(x2):
        return _lower_one(*alike(x1, x2))
    if is_tensor(x1):
        check_number(x2)
        return clip(x1, max=x2)
    if not is_tensor(x2):
        refuse_numbers(x1, x2)
    check_number(x1)
    return clip(x2, max=x1)


def _of_chosen(residuals: tuple[Tensor, Tensor, Pair], grad: Tensor) -> tuple[Tensor, Tensor]:
    x1, x2, loses = residuals
    x1, x2 = x1.detach(), x2.detach()
    shared = where(EQUAL.apply(x1, x2), MUL_SCALAR.scalar(grad, 0.5), grad)
    return mask_fill(shared, loses.apply(x1, x2), 0), mask_fill(shared, loses.apply(x2, x1), 0)


def _chooser(wins: Pair, loses: Pair) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function that takes ``x2`` where ``wins(x2, x1)``, else ``x1``."""

    def choose(x1: Tensor, x2: Tensor) -> Tensor:
        return _chosen(wins.apply(x2, x1), x1, x2)

    def forward(x1: Tensor, x2: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Pair]]:
        return choose(x1, x2), (x1, x2, loses)

    return custom_vjp(forward, _of_chosen)(choose)


_greater_one: Final = _chooser(GREATER, LOWER)
_lower_one: Final = _chooser(LOWER, GREATER)


def _chosen(second: Tensor, x1: Tensor, x2: Tensor) -> Tensor:
    # A comparison with NaN is false, which selects x1. That is right if x1 is NaN, so only x2 must
    # be tested for NaN.
    if x2.dtype.is_floating:
        second = OR.apply(second, IS_NAN.unary(x2))
    return where(second, x2, x1)


def _alike(condition: Tensor, x1: Number, x2: Number) -> Tensor:
    kinds = {dtype_of_number(x1), dtype_of_number(x2)}
    if len(kinds) > 1 and BOOL in kinds:
        raise DTypeMismatch(
            f"{x1!r} and {x2!r} have no common dtype; write 0 or 1 in place of the bool"
        )
    dtype = kinds.pop() if len(kinds) == 1 else C64 if C64 in kinds else F32
    spec = TensorSpec((1,) * len(condition.handle.spec.shape), dtype)
    return condition.__class__(filled(condition.handle.client, spec, x2))


def _limits(dtype: DType) -> tuple[float, float]:
    return bounds_of(dtype) if dtype.is_integer else (-math.inf, math.inf)
