"""Products and factorizations of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

import burn_remote as br
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.promotion import as_floats, factor_for, result_dtype
from burn_remote.torch.aten.table import aten
from burn_remote_protocol.errors import UsageError

__all__: list[str] = []

Tensor = br.Tensor


@aten("mm", "bmm", "mv", "dot", "matmul")
def mm(x: Tensor, y: Tensor) -> Tensor:
    return br.matmul(x, y)


def _plus(x: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    beta, alpha = (factor_for(one, product.dtype) for one in (beta, alpha))
    product = product if alpha == 1 else product * alpha
    if beta == 0:  # x is ignored, even where it is NaN
        return product
    return (x if beta == 1 else x * beta) + product


@aten("addmm", "addmv", "baddbmm")
def addmm(x: Tensor, y: Tensor, z: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _plus(x, mm(y, z), beta, alpha)


@aten("addbmm")
def addbmm(x: Tensor, y: Tensor, z: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _plus(x, br.sum(mm(y, z), axis=0), beta, alpha)


@aten("addr")
def addr(x: Tensor, y: Tensor, z: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    dtype = result_dtype(x, y, z)
    for name, factor in (("beta", beta), ("alpha", alpha)):
        if isinstance(factor, float) and not (dtype.is_floating or dtype.is_complex):
            raise UsageError(
                f"For integral input tensors, argument {name} must not be a floating point number; "
                f"it is {factor}, and the tensors are combined in {dtype}"
            )
    return _plus(x, br.reshape(y, (-1, 1)) * br.reshape(z, (1, -1)), beta, alpha)


@aten("linalg_inv_ex")
def inv_ex(x: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    return br.linalg.inv(x), br.zeros(x.shape[:-2], dtype=br.int32, device=x.device)


@aten("linalg_cholesky_ex")
def cholesky_ex(
    x: Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    factor = br.linalg.cholesky(x, upper=upper)
    return factor, br.zeros(x.shape[:-2], dtype=br.int32, device=x.device)


@aten("cholesky")
def cholesky(x: Tensor, upper: bool = False) -> Tensor:
    return br.linalg.cholesky(x, upper=upper)


@aten("_cholesky_solve_helper")
def cholesky_solve(b: Tensor, factor: Tensor, upper: bool) -> Tensor:
    """Solve ``L @ Lᴴ @ result = b`` for a lower factor, or ``Uᴴ @ U @ result = b`` for an upper."""
    other = br.matrix_transpose(br.conj(factor) if factor.dtype.is_complex else factor)
    first, second = (other, factor) if upper else (factor, other)
    between = solve_triangular(first, b, upper=False)
    return solve_triangular(second, between, upper=True)


@aten("cholesky_inverse")
def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    one = br.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return cholesky_solve(br.broadcast_to(one, factor.shape), factor, upper)


@aten("linalg_lstsq")
def lstsq(
    x: Tensor, y: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the solution of least norm, residuals, rank and singular values.

    As on the CPU, a driver returns what its LAPACK routine computes; the others are empty. Waits
    for the rank if residuals depend on it.
    """
    is_vector = y.ndim == x.ndim - 1 and y.shape == x.shape[:-1]
    right = br.expand_dims(y, -1) if is_vector else y
    batch = np.broadcast_shapes(x.shape[:-2], right.shape[:-2])
    right = br.broadcast_to(right, (*batch, *right.shape[-2:]))
    rows, columns = x.shape[-2:]
    cutoff = max(rows, columns) * br.finfo(x.dtype).eps if rcond is None else rcond
    found = br.linalg.lstsq(x, right, rtol=cutoff)
    solution = br.squeeze(found.solution, -1) if is_vector else found.solution
    residuals = br.zeros((0,), dtype=x.dtype, device=x.device)
    rank = br.zeros((0,), dtype=br.int64, device=x.device)
    values = br.zeros((0,), dtype=x.dtype, device=x.device)
    if driver != "gels":
        rank = converted_to(found.rank, br.int64)
    if driver in ("gelsd", "gelss"):
        values = found.singular_values
    has_residuals = rows > columns and driver in ("gels", "gelsd", "gelss")
    if has_residuals and (driver == "gels" or bool(br.all(rank == columns))):
        residuals = found.residuals
    return solution, residuals, rank, values


@aten("triangular_solve")
def triangular_solve(
    y: Tensor,
    x: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Tensor, Tensor]:
    matrix = br.matrix_transpose(x) if transpose else x
    upper = upper is not transpose
    return solve_triangular(matrix, y, upper=upper, unitriangular=unitriangular), x


@aten("linalg_qr")
def qr(x: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    if mode == "r":
        return br.zeros((0,), dtype=x.dtype, device=x.device), br.linalg.qr(x).R
    q, r = br.linalg.qr(x, mode=mode)  # type: ignore[arg-type]
    return q, r


@aten("_linalg_svd")
def svd(
    x: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    if not compute_uv:
        none = br.zeros((0,), dtype=x.dtype, device=x.device)
        return none, br.linalg.svdvals(x), none
    u, s, vh = br.linalg.svd(x, full_matrices=full_matrices)
    return u, s, vh


@aten("_linalg_eigh")
def eigh(x: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    if UPLO.upper() == "U":
        x = br.conj(br.matrix_transpose(x)) if x.dtype.is_complex else br.matrix_transpose(x)
    if not compute_v:
        none = br.zeros((0,), dtype=x.dtype, device=x.device)
        return br.linalg.eigvalsh(x), none
    values, vectors = br.linalg.eigh(x)
    return values, vectors


@aten("linalg_eig")
def eig(x: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = br.linalg.eig(x)
    return values, vectors


@aten("linalg_eigvals", "_linalg_eigvals")
def eigvals(x: Tensor) -> Tensor:
    return br.linalg.eigvals(x)


@aten("linalg_cross")
def cross(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    x, y = as_floats(x, y) if x.dtype is not y.dtype else (x, y)
    first, second = br.broadcast_arrays(x, y)
    return br.linalg.cross(first, second, axis=dim)


@aten("linalg_solve_triangular")
def solve_triangular(
    x: Tensor, y: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """Solve ``x @ result = y`` (``left``) or ``result @ x = y``, with one triangle of ``x``."""
    size = x.shape[-1]
    matrix = br.triu(x) if upper else br.tril(x)
    if unitriangular:
        one = br.eye(size, dtype=x.dtype, device=x.device)
        matrix = br.where(converted_to(one, br.bool), one, matrix)
    if not left:
        matrix, y = br.matrix_transpose(matrix), br.matrix_transpose(y)
    batch = np.broadcast_shapes(matrix.shape[:-2], y.shape[:-2])
    result = br.linalg.solve(
        br.broadcast_to(matrix, (*batch, size, size)), br.broadcast_to(y, (*batch, *y.shape[-2:]))
    )
    return result if left else br.matrix_transpose(result)
