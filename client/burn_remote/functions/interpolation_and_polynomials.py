"""Linear interpolation and polynomials, under NumPy's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from burn_remote.arguments.arrays import Array, as_dtype
from burn_remote.arguments.numbers import Number, real_number, whole_number
from burn_remote.arguments.promotion import promoted
from burn_remote.diagnostics.invalid_calls import explained, no_tensor
from burn_remote.dispatch.operators import Operator, reshaped
from burn_remote.functions.arithmetic import add, divide, multiply, pow, remainder, subtract
from burn_remote.functions.casting import as_float, astype, at_least_float32, rounded_once
from burn_remote.functions.creation import arange, zeros_like
from burn_remote.functions.elementwise import isnan, norm_of_squares, square
from burn_remote.functions.gathering import take
from burn_remote.functions.linear_algebra import matmul
from burn_remote.functions.logic import equal, greater, less, logical_and, logical_not
from burn_remote.functions.manipulation import concat, flatten, part
from burn_remote.functions.matrix_functions import pinv
from burn_remote.functions.operands import all_alike, sent
from burn_remote.functions.searching import argsort
from burn_remote.functions.selection import clip, where
from burn_remote.functions.statistics import sum
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.dtypes import F32, F64, U64
from burn_remote_protocol.errors import ArgumentMismatch, ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import search_rows

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["interp", "polyfit", "polyval"]

SEARCH_SORTED: Final = Operator(search_rows.SEARCH_SORTED)
MAX_DEGREE: Final = 1024


def _all_tensors(*values: Any) -> list[Tensor]:
    """Return tensors of one float dtype; arrays and lists are sent to the first tensor's device."""
    first = next((x for x in values if is_tensor(x)), None)
    if first is None:
        raise ArgumentMismatch(no_tensor("no argument is a tensor: x", values[0]))
    tensors = [x if is_tensor(x) else sent(first, np.asarray(x)) for x in values]
    return all_alike([at_least_float32(as_float(x, F32)) for x in tensors])


@explained
def interp(
    x: Tensor | Array,
    xp: Tensor | Array | Sequence[float],
    fp: Tensor | Array | Sequence[float],
    /,
    left: Number | None = None,
    right: Number | None = None,
    period: float | None = None,
) -> Tensor:
    """Interpolate linearly between the points ``(xp, fp)`` at ``x``, as ``numpy.interp`` does.

    Shapes: any, ``[n]`` and ``[n]`` to that of ``x``. Without ``period``, ``xp`` must ascend, and
    ``left`` and ``right`` are the values below and above it, by default the first and the last of
    ``fp``. With ``period``, ``x`` and ``xp`` count modulo the period, ``xp`` may have any order,
    and ``left`` and ``right`` are ignored. Integers are converted to float32. Gradients with
    respect to ``xp``, ``fp`` and ``x`` are those of the lines between the points. Raises
    ``Unsupported`` on Burn's own servers.
    """
    x, xp, fp = _all_tensors(x, xp, fp)
    if xp.ndim != 1 or xp.shape != fp.shape or not xp.size:
        raise ShapeMismatch(
            f"xp is {xp.handle.spec} and fp is {fp.handle.spec}, but both must be vectors of one "
            "length, which is not 0"
        )
    if period is not None:
        x, xp, fp = _periodic(x, xp, fp, abs(real_number("period", period)))
        left = right = None
    count = xp.size
    ends = [take(fp, 0, axis=0), take(fp, count - 1, axis=0)]
    low, high = [end if value is None else value for end, value in zip(ends, (left, right),
                 strict=True)]  # fmt: skip
    if count == 1:
        inside: Any = add(zeros_like(x), ends[0])
    else:
        inside = _on_lines(x, xp, fp)
    inside = where(greater(x, take(xp, count - 1, axis=0)), high, inside)
    return where(less(x, take(xp, 0, axis=0)), low, inside)


def _on_lines(x: Tensor, xp: Tensor, fp: Tensor) -> Tensor:
    count = xp.size
    places = SEARCH_SORTED.apply((xp.detach(), x.detach()), (True,))
    places = clip(subtract(places, 1), 0, count - 2)
    slopes = divide(subtract(part(fp, 0, 1, count), part(fp, 0, 0, count - 1)),
                    subtract(part(xp, 0, 1, count), part(xp, 0, 0, count - 1)))  # fmt: skip
    slope = take(slopes, places, axis=0)
    start, end = take(xp, places, axis=0), take(xp, add(places, 1), axis=0)
    value, last = take(fp, places, axis=0), take(fp, add(places, 1), axis=0)
    line = add(multiply(slope, subtract(x, start)), value)
    # At infinite points, NumPy starts from the other end, or takes the value that both ends have.
    line = where(isnan(line), add(multiply(slope, subtract(x, end)), last), line)
    is_level = logical_and(isnan(line), equal(value, last))
    line = where(logical_and(is_level, logical_not(isnan(x))), value, line)
    # At a point, the value needs no slope, which may be infinite.
    line = where(equal(x, start), value, line)
    return where(equal(x, take(xp, count - 1, axis=0)), take(fp, count - 1, axis=0), line)


def _periodic(x: Tensor, xp: Tensor, fp: Tensor, period: float) -> tuple[Tensor, Tensor, Tensor]:
    if not period:
        raise UsageError("period must not be 0")
    x, xp = remainder(x, period), remainder(xp, period)
    order = argsort(xp.detach())
    xp, fp = take(xp, order, axis=0), take(fp, order, axis=0)
    count = xp.size
    first, last = part(xp, 0, 0, 1), part(xp, 0, count - 1, count)
    xp = concat([subtract(last, period), xp, add(first, period)])
    fp = concat([part(fp, 0, count - 1, count), fp, part(fp, 0, 0, 1)])
    return x, xp, fp


@explained
@rounded_once
def polyval(p: Tensor | Array | Sequence[float], x: Tensor | Array, /) -> Tensor:
    """Evaluate a polynomial by Horner's method; ``p`` ``[n]`` has the highest power first.

    Integers are evaluated in the common dtype of ``p`` and ``x``; a list of integers counts as
    int64.
    """
    if not is_tensor(x) and not is_tensor(p):
        raise ArgumentMismatch(no_tensor("neither argument is a tensor: x", x))
    coefficients: Any = p
    if is_tensor(p):
        if p.ndim != 1:
            raise ShapeMismatch(f"coefficients are a vector, not {p.handle.spec}")
        x = x if is_tensor(x) else sent(p, np.asarray(x))
    else:
        assert is_tensor(x)
        array = np.asarray(p).reshape(-1)
        coefficients = [one.item() for one in array]
        if array.dtype.kind in "iu" and x.dtype.is_integer and x.dtype is not U64:
            x = astype(x, promoted(x.dtype, as_dtype(array.dtype)))
    count = len(coefficients)
    if not count:
        return zeros_like(x)
    result = zeros_like(x)
    for place in range(count):
        result = add(multiply(result, x), coefficients[place])
    return result


@explained
def polyfit(
    x: Tensor | Array,
    y: Tensor | Array,
    deg: int,
    /,
    *,
    w: Tensor | Array | None = None,
) -> Tensor:
    """Return the polynomial of degree ``deg`` with the least squared errors, highest power first.

    Shapes: ``[m]`` and ``[m]`` or ``[m, k]`` to ``[deg + 1]`` or ``[deg + 1, k]``. ``w`` ``[m]``
    multiplies the errors. As in NumPy, the columns are scaled, and singular values count as 0 up to
    ``m`` times the precision of the dtype. ``numpy.polyfit`` computes in float64; for a high
    degree, convert ``x`` and ``y`` to float64 first. Raises ``Unsupported`` on Burn's own servers.
    """
    degree = whole_number("deg", deg, 0, MAX_DEGREE)
    x, y = _all_tensors(x, y)
    if x.ndim != 1 or y.ndim not in (1, 2) or x.shape[0] != y.shape[0] or not x.size:
        raise ShapeMismatch(
            f"x is {x.handle.spec} and y is {y.handle.spec}, but x must be a vector, and y must "
            "have as many rows"
        )
    powers = arange(degree, -1, -1, device=x.device)
    matrix = pow(reshaped(x, (x.size, 1)), powers)
    right = reshaped(y, (x.size, y.size // x.size))
    if w is not None:
        weights = reshaped(_all_tensors(x, w)[1], (x.size, 1))
        matrix, right = multiply(matrix, weights), multiply(right, weights)
    scale = norm_of_squares(sum(square(matrix), axis=0))
    precision = 2.0**-52 if x.dtype is F64 else 2.0**-23
    inverse = pinv(divide(matrix, scale), rtol=x.size * precision)
    found = divide(matmul(inverse, right), reshaped(scale, (degree + 1, 1)))
    return flatten(found) if y.ndim == 1 else found
