"""Functions of matrices, composed of factorizations: pseudoinverses, ranks, norms, powers.

A matrix is the last two axes ``[…, rows, columns]``; leading axes are a batch of matrices.
Functions that use a factorization raise ``Unsupported`` on Burn's own servers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from burn_remote.arguments.numbers import Number, whole_number
from burn_remote.autodiff.custom_vjp import custom_vjp
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import reshaped
from burn_remote.functions.arithmetic import add, multiply, reciprocal, subtract
from burn_remote.functions.casting import astype, at_least_float32, rounded_once
from burn_remote.functions.complex_numbers import adjoint
from burn_remote.functions.creation import ones_like
from burn_remote.functions.elementwise import abs, square
from burn_remote.functions.factorizations import inv, svd, svdvals
from burn_remote.functions.linear_algebra import matmul, vector_norm
from burn_remote.functions.logic import greater, less_equal
from burn_remote.functions.manipulation import matrix_transpose, moveaxis
from burn_remote.functions.matrix_parts import check_matrix, check_square, tril, triu
from burn_remote.functions.selection import mask_fill
from burn_remote.functions.statistics import max as largest
from burn_remote.functions.statistics import min as smallest
from burn_remote.functions.statistics import sum
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.dtypes import BF16, C128, F16, F64, I64, DType
from burn_remote_protocol.errors import ShapeMismatch, UsageError

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["LstsqResult", "lstsq", "matrix_norm", "matrix_power", "matrix_rank", "norm", "pinv"]

_EPSILONS = {F64: 2.0**-52, C128: 2.0**-52, F16: 2.0**-10, BF16: 2.0**-7}


class LstsqResult(NamedTuple):
    """A solution, sums of squared residuals, the rank, and descending singular values."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def _epsilon(dtype: DType) -> float:
    return _EPSILONS.get(dtype, 2.0**-23)


def _cutoff(x: Tensor, values: Tensor, rtol: Tensor | Number | None) -> Tensor:
    """Return ``rtol`` times the largest singular values: ``[…, 1]``."""
    tolerance = max(x.shape[-2:]) * _epsilon(x.dtype) if rtol is None else rtol
    if is_tensor(tolerance) and tolerance.ndim:
        tolerance = reshaped(tolerance, (*tolerance.shape, 1))
    return multiply(largest(values, axis=-1, keepdims=True), tolerance)


@explained
def matrix_rank(x: Tensor, /, *, rtol: Tensor | Number | None = None) -> Tensor:
    """Return the ranks of matrices, as int64: the number of singular values above a bound.

    The bound is ``rtol`` times the largest singular value. By default, ``rtol`` is ``max(rows,
    columns)`` times the distance from 1 to the next number of the dtype. A tensor ``rtol`` has one
    number for each matrix, and so the shape of the batch.
    """
    check_matrix(x)
    values = svdvals(x)
    if 0 in values.shape:
        return sum(astype(values, I64), axis=-1)
    return sum(astype(greater(values, _cutoff(x, values, rtol)), I64), axis=-1)


def _pinv(x: Tensor, rtol: Tensor | Number | None) -> Tensor:
    u, s, vh = svd(x, full_matrices=False)
    return matmul(multiply(_adjoint(vh), _row(_inverted(x, s, rtol))), _adjoint(u))


def _inverted(x: Tensor, values: Tensor, rtol: Tensor | Number | None) -> Tensor:
    """Return the reciprocals of singular values, and 0 for those that count as 0."""
    if 0 in values.shape:
        return values
    is_zero = less_equal(values, _cutoff(x, values, rtol))
    return mask_fill(reciprocal(mask_fill(values, is_zero, 1.0)), is_zero, 0.0)


def _row(x: Tensor) -> Tensor:
    return reshaped(x, (*x.shape[:-1], 1, x.shape[-1]))


def _adjoint(x: Tensor) -> Tensor:
    """Return the conjugate transposes."""
    return adjoint(matrix_transpose(x))


def _of_pinv(residuals: tuple[Tensor, Tensor], grad: Tensor) -> Tensor:
    """Return the gradient of a pseudoinverse, for changes of the matrix that keep its rank.

    G. Golub and V. Pereyra, "The differentiation of pseudo-inverses" (1973), equation 4.12.
    """
    x, inverse = residuals
    turned, grad_turned = _adjoint(inverse), _adjoint(grad)
    first = matmul(matmul(turned, grad), turned)
    # (1 - A P) Gᴴ P Pᴴ and Pᴴ P Gᴴ (1 - P A), with A = x, P = inverse and G = grad
    rows = matmul(matmul(grad_turned, inverse), turned)
    columns = matmul(turned, matmul(inverse, grad_turned))
    rows = subtract(rows, matmul(x, matmul(inverse, rows)))
    columns = subtract(columns, matmul(matmul(columns, inverse), x))
    return subtract(add(rows, columns), first)


@explained
def pinv(x: Tensor, /, *, rtol: Tensor | Number | None = None) -> Tensor:
    """Return the Moore-Penrose pseudoinverses of matrices: ``[…, m, n]`` to ``[…, n, m]``.

    Singular values up to ``rtol`` times the largest one count as 0; ``rtol`` is that of
    ``matrix_rank``. The gradient assumes that the rank stays the same.
    """
    check_matrix(x)
    tolerance = rtol.detach() if is_tensor(rtol) else rtol

    def forward(x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        inverse = _pinv(x, tolerance)
        return inverse, (x, inverse)

    @custom_vjp(forward, _of_pinv)
    def computed(x: Tensor) -> Tensor:
        return _pinv(x, tolerance)

    return computed(x)


@explained
def lstsq(x1: Tensor, x2: Tensor, /, *, rtol: Tensor | Number | None = None) -> LstsqResult:
    """Return the ``x`` of least norm that minimizes the norm of ``x1 @ x - x2``.

    Shapes: ``[…, m, n]`` and ``[…, m, k]`` give a solution ``[…, n, k]``, residuals ``[…, k]``, the
    rank ``[…]`` and singular values ``[…, min(m, n)]``; a vector ``[m]`` gives ``[…, n]`` and
    ``[…]``. ``rtol`` is that of ``matrix_rank``. Unlike in NumPy, batches are solved together, and
    residuals are returned whatever the rank is.
    """
    check_matrix(x1)
    is_vector = x2.ndim == 1
    right = reshaped(x2, (*x2.shape, 1)) if is_vector else x2
    if right.ndim < 2 or right.shape[-2] != x1.shape[-2]:
        raise ShapeMismatch(
            f"x2 is {x2.handle.spec}, but must have {x1.shape[-2]} rows like x1 {x1.handle.spec}"
        )
    solution = matmul(pinv(x1, rtol=rtol), right)
    differences = abs(subtract(matmul(x1, solution), right))
    residuals = sum(square(differences), axis=-2, dtype=differences.dtype)
    values = svdvals(x1)
    rank = matrix_rank(x1, rtol=rtol)
    if is_vector:
        solution = reshaped(solution, solution.shape[:-1])
        residuals = reshaped(residuals, residuals.shape[:-1])
    return LstsqResult(solution, residuals, rank, values)


@explained
def norm(
    x: Tensor,
    /,
    ord: float | Literal["fro", "nuc"] | None = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> Tensor:
    """Return norms of vectors or matrices, as ``numpy.linalg.norm`` chooses between them.

    Without ``ord``, this is the Euclidean norm along ``axis``, or of all elements. With ``ord``, it
    is ``vector_norm`` for one axis and ``matrix_norm`` for two; ``axis=None`` means all axes of
    ``x``. Raises ``UsageError`` for other numbers of axes.
    """
    if ord is None:
        return vector_norm(x, axis=axis, keepdims=keepdims)
    axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis
    if len(axes) == 1:
        if isinstance(ord, str):
            raise UsageError(f"ord={ord!r} is a norm of matrices, but x has one axis to reduce")
        return vector_norm(x, axis=axes, keepdims=keepdims, ord=ord)
    if len(axes) != 2:
        raise UsageError(f"norm takes one or two axes with ord=, not {len(axes)}")
    norms = matrix_norm(moveaxis(x, axes, (-2, -1)), keepdims=keepdims, ord=ord)
    return moveaxis(norms, (-2, -1), axes) if keepdims else norms


def matrix_norm(
    x: Tensor, /, *, keepdims: bool = False, ord: float | Literal["fro", "nuc"] | None = "fro"
) -> Tensor:
    """Return norms of matrices: ``[…, rows, columns]`` to ``[…]``.

    Norms of complex matrices are real. ``ord`` is ``"fro"`` (the square root of the sum of
    squares), ``"nuc"`` (the sum of singular values), 2 or -2 (the largest or smallest singular
    value), 1 or -1 (the largest or smallest sum of a column's absolute values), infinity or
    -infinity (the same of rows).
    """
    check_matrix(x)
    if ord in ("fro", None):
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    wide = at_least_float32(x)
    if ord in ("nuc", 2, -2):
        values = svdvals(wide)
        reduce: Any = {"nuc": sum, 2: _largest, -2: smallest}[ord]
        norms = reduce(values, axis=-1)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = sum(abs(wide), axis=-2 if ord in (1, -1) else -1)
        norms = (_largest if ord > 0 else smallest)(sums, axis=-1)
    else:
        raise UsageError(f"ord must be 'fro', 'nuc', ±1, ±2 or ±infinity, not {ord!r}")
    norms = norms if x.dtype.is_complex else astype(norms, x.dtype)
    return reshaped(norms, (*norms.shape, 1, 1)) if keepdims else norms


def _largest(sizes: Tensor, axis: int) -> Tensor:
    # Without elements, the largest absolute value is 0, and so is the sum.
    return largest(sizes, axis=axis) if sizes.shape[axis] else sum(sizes, axis=axis)


@explained
@rounded_once
def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """Return the ``n``-th power of square matrices, by repeated squaring.

    0 gives identity matrices; a negative ``n`` gives powers of the inverses.
    """
    check_square(x)
    n = whole_number("n", n, -(2**63), 2**63 - 1)
    if n == 0:
        return tril(triu(ones_like(x)))
    factor, count = (inv(x), -n) if n < 0 else (x, n)
    result: Tensor | None = None
    while True:
        if count & 1:
            result = factor if result is None else matmul(result, factor)
        count >>= 1
        if not count:
            assert result is not None
            return result
        factor = matmul(factor, factor)
