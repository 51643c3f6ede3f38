"""Products and norms of vectors and matrices.

Operands of different dtypes are converted to their common dtype, which the result has. All raise
``ShapeMismatch`` and ``DTypeMismatch``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np

from burn_remote.arguments.arrays import Array
from burn_remote.arguments.axes import normal_axes, normal_axis
from burn_remote.diagnostics.invalid_calls import explained, no_tensor
from burn_remote.dispatch.operators import Operator, reshaped, with_rank
from burn_remote.functions.arithmetic import multiply, subtract
from burn_remote.functions.casting import as_float, astype, at_least_float32, rounded_once
from burn_remote.functions.complex_numbers import adjoint
from burn_remote.functions.elementwise import (
    abs,
    norm_of_powers,
    norm_of_squares,
    norm_powers,
    square,
)
from burn_remote.functions.manipulation import concat, part, permute_dims
from burn_remote.functions.operands import alike, operands
from burn_remote.functions.statistics import count_nonzero, max_abs, sum
from burn_remote.functions.statistics import min as smallest
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.dtypes import F32, Category, DType
from burn_remote_protocol.errors import ArgumentMismatch, ShapeMismatch
from burn_remote_protocol.operations.families import floats, ints

if TYPE_CHECKING:
    from burn_remote.arguments.axes import Axes
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "cross",
    "kron",
    "matmul",
    "outer",
    "reflected_matmul",
    "tensordot",
    "vecdot",
    "vector_norm",
]

MATMUL: Final = Operator(floats.MATMUL)
INT_MATMUL: Final = Operator(ints.MATMUL)
CROSS: Final = Operator(floats.CROSS)


@explained
def matmul(x1: Tensor | Array, x2: Tensor | Array, /) -> Tensor:
    """Multiply matrices: ``[…, n, k] @ […, k, m]`` gives ``[…, n, m]``; leading axes broadcast.

    A vector ``[k]`` is treated as a row on the left or a column on the right, and the result lacks
    that axis. A quantized tensor is dequantized to the dtype of the other operand, or to float32.
    """
    first, second = operands(x1, x2)
    for name, one in (("x1", first), ("x2", second)):
        if not is_tensor(one):
            raise ArgumentMismatch(no_tensor(name, one))
    return _matmul(first, second)


def _matmul(x1: Tensor, x2: Tensor) -> Tensor:
    if Category.QUANTIZED in (x1.dtype.category, x2.dtype.category):
        x1, x2 = as_float(x1, _plain(x2)), as_float(x2, _plain(x1))
    x1, x2 = alike(x1, x2)
    operator = INT_MATMUL if x1.handle.spec.dtype.is_integer else MATMUL
    shape1, shape2 = x1.handle.spec.shape, x2.handle.spec.shape
    if len(shape1) >= 2 and len(shape2) >= 2:
        return operator.binary(x1, x2)
    if not shape1 or not shape2:
        raise ShapeMismatch(f"{x1.handle.spec} @ {x2.handle.spec}: use * for 0-d tensors")
    row = reshaped(x1, (1, *shape1)) if len(shape1) == 1 else x1
    column = reshaped(x2, (*shape2, 1)) if len(shape2) == 1 else x2
    product = operator.binary(row, column)
    shape = product.handle.spec.shape
    end = shape[-1:] if len(shape2) > 1 else ()
    start = shape[:-1] if len(shape1) > 1 else shape[:-2]
    return reshaped(product, start + end)


def reflected_matmul(x2: Tensor, x1: object, /) -> NoReturn:
    """Raise ``ArgumentMismatch`` for ``x1 @ x2`` where ``x1`` is not a tensor."""
    raise ArgumentMismatch(no_tensor("x1", x1))


def _plain(x: Tensor) -> DType:
    """Return the dtype to which the other operand is dequantized."""
    return x.dtype if x.dtype.is_floating else F32


@explained
def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return the outer product of vectors: ``[n]`` and ``[m]`` to ``[n, m]``."""
    if x1.ndim != 1 or x2.ndim != 1:
        raise ShapeMismatch(f"outer takes two vectors, not {x1.handle.spec} and {x2.handle.spec}")
    return multiply(reshaped(x1, (x1.size, 1)), reshaped(x2, (1, x2.size)))


@explained
def cross(x1: Tensor, x2: Tensor, /, axis: int = -1) -> Tensor:
    """Return the cross product of vectors along an axis of size 3. Other axes broadcast."""
    x1, x2 = alike(x1, x2)
    rank = max(x1.ndim, x2.ndim)
    if not x1.dtype.is_floating:  # the row of Burn's IR is for floats
        place = normal_axis(axis, rank)
        first, second = with_rank(x1, rank), with_rank(x2, rank)
        if (first.shape[place], second.shape[place]) != (3, 3):
            raise ShapeMismatch(
                f"axis {axis} of {x1.handle.spec} and {x2.handle.spec} must have the size 3"
            )
        ahead = multiply(_turned(first, place, 1), _turned(second, place, 2))
        return subtract(ahead, multiply(_turned(first, place, 2), _turned(second, place, 1)))
    return CROSS.apply((with_rank(x1, rank), with_rank(x2, rank)), (normal_axis(axis, rank),))


def _turned(x: Tensor, axis: int, count: int) -> Tensor:
    """Return ``x`` with the first elements along an axis moved to its end."""
    size = x.shape[axis]
    return concat([part(x, axis, count, size), part(x, axis, 0, count)], axis=axis)


@explained
@rounded_once
def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return the dot product along an axis; the result lacks this axis. Other axes broadcast.

    If ``x1`` is complex, its elements are conjugated.
    """
    product = multiply(adjoint(x1), x2)
    return sum(product, axis=axis, dtype=product.dtype)


@explained
def kron(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return the Kronecker product: each element of ``x1`` times the whole ``x2``.

    Shapes ``[n…]`` and ``[m…]`` give ``[n * m…]``; axes of size 1 are prepended to the shorter one.
    """
    rank = max(x1.ndim, x2.ndim)
    x1, x2 = with_rank(x1, rank), with_rank(x2, rank)
    first = tuple([size for one in x1.shape for size in (one, 1)])
    second = tuple([size for one in x2.shape for size in (1, one)])
    product = multiply(reshaped(x1, first), reshaped(x2, second))
    shape = tuple([one * other for one, other in zip(x1.shape, x2.shape, strict=True)])
    return reshaped(product, shape)


@explained
def tensordot(
    x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Tensor:
    """Contract axes: the last ``axes`` of ``x1`` with the first of ``x2``, or the given pairs.

    The result has the remaining axes of ``x1``, then those of ``x2``.
    """
    if isinstance(axes, int | np.integer):
        if not 0 <= axes <= min(x1.ndim, x2.ndim):
            raise ShapeMismatch(
                f"{x1.handle.spec} and {x2.handle.spec} do not have {axes} axes to contract"
            )
        first = tuple(range(x1.ndim - axes, x1.ndim))
        second = tuple(range(axes))
    else:
        first, second = normal_axes(axes[0], x1.ndim), normal_axes(axes[1], x2.ndim)
    shared = [x1.shape[place] for place in first]
    if shared != [x2.shape[place] for place in second]:
        raise ShapeMismatch(
            f"axes {list(first)} of {x1.handle.spec} and {list(second)} of {x2.handle.spec} differ"
        )
    rows = [place for place in range(x1.ndim) if place not in first]
    columns = [place for place in range(x2.ndim) if place not in second]
    shape = tuple([x1.shape[place] for place in rows] + [x2.shape[place] for place in columns])
    inner = math.prod(shared)
    height = math.prod(x1.shape[place] for place in rows)
    width = math.prod(x2.shape[place] for place in columns)
    left = reshaped(permute_dims(x1, [*rows, *first]), (height, inner))
    right = reshaped(permute_dims(x2, [*second, *columns]), (inner, width))
    return reshaped(matmul(left, right), shape)


@explained
def vector_norm(
    x: Tensor, /, *, axis: Axes = None, keepdims: bool = False, ord: float = 2
) -> Tensor:
    """Return the norm of floating-point vectors.

    ``ord`` is 2 (Euclidean), 1 (sum of absolute values), infinity (maximum absolute value),
    -infinity (minimum absolute value), 0 (number of elements that are not 0), or another number p:
    ``sum(abs(x) ** p) ** (1 / p)``. At a vector of zeros, the gradient is 0. The norm of
    complex vectors is real.
    """
    if x.dtype.is_complex:
        x = abs(x)
    # Without elements, the maximum absolute value is 0, and so is the sum.
    if ord == math.inf and x.size:
        return max_abs(x, axis=axis, keepdims=keepdims)
    if ord in (1, math.inf):
        return sum(abs(x), axis=axis, keepdims=keepdims)
    if ord == -math.inf:
        return smallest(abs(x), axis=axis, keepdims=keepdims)
    if ord == 0:
        return astype(count_nonzero(x, axis=axis, keepdims=keepdims), x.dtype)
    wide = at_least_float32(x)
    if ord == 2:
        squares = sum(square(wide), axis=axis, keepdims=keepdims)
        return astype(norm_of_squares(squares), x.dtype)
    p = float(ord)
    powers = sum(norm_powers(abs(wide), p=p), axis=axis, keepdims=keepdims)
    return astype(norm_of_powers(powers, p=p), x.dtype)
