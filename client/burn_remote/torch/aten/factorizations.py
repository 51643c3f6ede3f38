"""Loops of known length: LU factors, exponentials of matrices, common divisors and multiples."""

from __future__ import annotations

import functools
import math
import operator

import burn_remote as br
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.promotion import in_common
from burn_remote.torch.aten.table import aten

__all__ = ["matrix_of_factors"]

Tensor = br.Tensor


def _moved_rows(x: Tensor, order: Tensor) -> Tensor:
    """Return the rows of matrices in another order; ``order`` is [..., rows]."""
    places = br.broadcast_to(br.expand_dims(order, -1), (*order.shape, x.shape[-1]))
    return br.gather(x, x.ndim - 2, places)


def _swapped(places: Tensor, first: int, second: Tensor) -> Tensor:
    """Return the places ``0, 1 …`` with one exchanged for another; ``second`` is [..., 1]."""
    return br.where(
        br.equal(places, first), second, br.where(br.equal(places, second), first, places)
    )


def _size(x: Tensor) -> Tensor:
    """Return the size by which LAPACK chooses a pivot."""
    return br.abs(br.real(x)) + br.abs(br.imag(x)) if x.dtype.is_complex else br.abs(x)


@aten("linalg_lu_factor_ex")
def lu_factor(
    x: Tensor, *, pivot: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return both factors in one matrix, pivots counted from 1, and where a pivot is 0.

    Gaussian elimination: some ten operations for each column.
    """
    rows, columns = x.shape[-2:]
    batch, steps = x.shape[:-2], min(rows, columns)
    places = br.arange(rows, dtype=br.int64, device=x.device)
    places = br.broadcast_to(places, (*batch, rows))
    info = br.zeros(batch, dtype=br.int64, device=x.device)
    pivots = []
    every: list[slice] = [slice(None)] * len(batch)
    for step in range(steps):
        after, here = slice(step + 1, None), slice(step, step + 1)
        found = br.full((*batch, 1), step, dtype=br.int64, device=x.device)
        if pivot and step + 1 < rows:
            column = br.squeeze(x[(*every, slice(step, None), here)], -1)
            found = br.argmax(_size(column), axis=-1, keepdims=True)
            found = converted_to(found, br.int64) + step
            x = _moved_rows(x, _swapped(places, step, found))
        pivots.append(found + 1)
        chosen = x[(*every, here, here)]
        is_zero = br.equal(chosen, 0)
        flag = br.reshape(is_zero, batch)
        info = br.where(br.logical_and(br.equal(info, 0), flag), step + 1, info)
        if step + 1 < rows:
            factors = x[(*every, after, here)] / br.where(is_zero, br.ones_like(chosen), chosen)
            x = x.set((*every, after, here), factors)
            if step + 1 < columns:
                rest = x[(*every, after, after)] - factors * x[(*every, here, after)]
                x = x.set((*every, after, after), rest)
    taken = (
        br.concat(pivots, axis=-1)
        if pivots
        else br.zeros((*batch, 0), dtype=br.int64, device=x.device)
    )
    return x, converted_to(taken, br.int32), converted_to(info, br.int32)


def permutation_of(pivots: Tensor, rows: int) -> Tensor:
    """Return the row of the matrix that each row of the factors stands for: [..., rows]."""
    batch = pivots.shape[:-1]
    places = br.arange(rows, dtype=br.int64, device=pivots.device)
    order = br.broadcast_to(places, (*batch, rows))
    wide = converted_to(pivots, br.int64) - 1
    every: list[slice] = [slice(None)] * len(batch)
    for step in range(pivots.shape[-1]):
        second = wide[(*every, slice(step, step + 1))]
        order = br.gather(
            order, order.ndim - 1, _swapped(br.broadcast_to(places, order.shape), step, second)
        )
    return order


def _triangles(factors: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = factors.shape[-2:]
    least = min(rows, columns)
    every: list[slice] = [slice(None)] * (factors.ndim - 1)
    lower = br.tril(factors[(*every, slice(0, least))], k=-1)
    one = br.eye(rows, least, dtype=factors.dtype, device=factors.device)
    upper = br.triu(factors[(*every[:-1], slice(0, least), slice(None))])
    return lower + one, upper


def _permutation_matrix(order: Tensor, dtype: br.DType) -> Tensor:
    """Return matrices whose products with the factors have the rows in the first order."""
    rows = order.shape[-1]
    places = br.arange(rows, dtype=br.int64, device=order.device)
    hits = br.equal(br.reshape(places, (rows, 1)), br.expand_dims(order, -2))
    return converted_to(hits, dtype)


@aten("lu_unpack")
def lu_unpack(
    factors: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    none = br.zeros((0,), dtype=factors.dtype, device=factors.device)
    lower, upper = _triangles(factors) if unpack_data else (none, none)
    if not unpack_pivots:
        return none, lower, upper
    order = permutation_of(pivots, factors.shape[-2])
    return _permutation_matrix(order, factors.dtype), lower, upper


@aten("linalg_lu")
def lu(x: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    factors, pivots, _ = lu_factor(x, pivot=pivot)
    permutation, lower, upper = lu_unpack(factors, pivots, True, pivot)
    return permutation, lower, upper


def matrix_of_factors(factors: Tensor, pivots: Tensor) -> Tensor:
    """Return the matrix whose factors ``linalg_lu_factor_ex`` returned."""
    permutation, lower, upper = lu_unpack(factors, pivots)
    return br.matmul(permutation, br.matmul(lower, upper))


# After the division, the norm of a matrix is at most 1, and the next term of the series is below
# 1e-19. The terms are grouped by powers of the fourth power of the matrix, which takes 7 products
# instead of 19.
_TERMS = 20
# Squarings that undo the division: all norms of finite float32 matrices with 1,024 rows. A server
# cannot leave out squarings by the elements of a matrix without telling the client.
_SQUARINGS = 138


@aten("linalg_matrix_exp", "matrix_exp")
def matrix_exp(x: Tensor) -> Tensor:
    """Return exponentials by scaling and squaring, without waiting for the norm."""
    if not x.size:
        return x
    if x.dtype.itemsize < (16 if x.dtype.is_complex else 8):
        # Squarings double the relative error of each element.
        wide = converted_to(x, br.complex128 if x.dtype.is_complex else br.float64)
        return converted_to(matrix_exp(wide), x.dtype)
    size = br.max(br.sum(br.abs(x), axis=-1, keepdims=True), axis=-2, keepdims=True)
    halvings = br.clip(br.ceil(br.log2(br.where(size > 0, size, 1.0))), 0, _SQUARINGS)
    scaled = x * br.exp2(0 - halvings)
    result = _exponential_series(scaled)
    for step in range(_SQUARINGS):
        result = br.where(halvings > step, br.matmul(result, result), result)
    return result


def _exponential_series(x: Tensor) -> Tensor:
    """Return the series of the exponential of matrices (Paterson and Stockmeyer's algorithm)."""
    one = br.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    second = br.matmul(x, x)
    third, fourth = br.matmul(second, x), br.matmul(second, second)
    result: Tensor | None = None
    for first in range(_TERMS - 4, -1, -4):
        terms = [
            factor / math.factorial(first + at) for at, factor in enumerate((one, x, second, third))
        ]
        group = functools.reduce(operator.add, terms)
        rest = fourth / math.factorial(_TERMS) if result is None else br.matmul(fourth, result)
        result = group + rest
    assert result is not None
    return result


def _remainders(x: Tensor, y: Tensor) -> Tensor:
    """Return greatest common divisors by Euclid's algorithm.

    The number of divisions is at most that of Fibonacci numbers below the dtype's largest number.
    """
    bits = int(math.log2(br.iinfo(x.dtype).max + 1))
    for _ in range(math.ceil(bits / math.log2((1 + 5**0.5) / 2)) + 1):
        is_done = br.equal(y, 0)
        rest = br.remainder(x, br.where(is_done, br.ones_like(y), y))
        x, y = br.where(is_done, x, y), br.where(is_done, y, rest)
    return x


@aten("gcd")
def gcd(x: Tensor, y: Tensor) -> Tensor:
    x, y = br.broadcast_arrays(*in_common(x, y))
    return _remainders(br.abs(x), br.abs(y))


@aten("lcm")
def lcm(x: Tensor, y: Tensor) -> Tensor:
    x, y = br.broadcast_arrays(*in_common(x, y))
    divisor = gcd(x, y)
    return br.abs(br.trunc_divide(x, br.where(br.equal(divisor, 0), br.ones_like(x), divisor)) * y)
