"""Factorizations, inverses and determinants of matrices, and systems of linear equations.

A matrix is the last two axes ``[…, rows, columns]``; leading axes are a batch of matrices. Tensors
are floating-point or complex; float16 and bfloat16 are computed in float32. All raise
``ShapeMismatch``, ``DTypeMismatch``, and ``Unsupported`` on Burn's own servers and, for complex
matrices, on an older burn-remote-server. A function that fails for a matrix, such as the inverse of
a singular one, fails for its whole batch: reading the result raises ``OperationFailed``.

Eigenvectors and singular vectors of complex matrices are unique up to factors of absolute value 1.
Gradients are valid only for results that do not depend on these factors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, reshaped
from burn_remote.functions.casting import at_least_float32
from burn_remote.functions.operands import alike
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.operations.families import matrix_rows

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "EigResult",
    "EighResult",
    "QRResult",
    "SVDResult",
    "SlogdetResult",
    "cholesky",
    "det",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
]

CHOLESKY: Final = Operator(matrix_rows.CHOLESKY)
DET: Final = Operator(matrix_rows.DET)
EIG: Final = Operator(matrix_rows.EIG)
EIGVALS: Final = Operator(matrix_rows.EIGVALS)
EIGH: Final = Operator(matrix_rows.EIGH)
EIGVALSH: Final = Operator(matrix_rows.EIGVALSH)
INV: Final = Operator(matrix_rows.INV)
QR: Final = Operator(matrix_rows.QR)
SLOGDET: Final = Operator(matrix_rows.SLOGDET)
SOLVE: Final = Operator(matrix_rows.SOLVE)
SVD: Final = Operator(matrix_rows.SVD)
SVDVALS: Final = Operator(matrix_rows.SVDVALS)


class EigResult(NamedTuple):
    """Complex eigenvalues ``[…, n]`` and eigenvectors in the columns of a complex ``[…, n, n]``."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class EighResult(NamedTuple):
    """Eigenvalues ``[…, n]`` and eigenvectors in the columns of ``[…, n, n]``."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QRResult(NamedTuple):
    """A matrix ``Q`` with orthonormal columns and an upper triangular matrix ``R``."""

    Q: Tensor
    R: Tensor


class SlogdetResult(NamedTuple):
    """The sign of a determinant and the logarithm of its absolute value."""

    sign: Tensor
    logabsdet: Tensor


class SVDResult(NamedTuple):
    """Left singular vectors, singular values, and right singular vectors in rows."""

    U: Tensor
    S: Tensor
    Vh: Tensor


@explained
def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """Return the lower triangular ``L`` of ``x = L @ L.mT``, or its transpose if ``upper``.

    ``x`` is symmetric and positive definite; only its lower triangle is read. Complex ``x`` is
    Hermitian, and transposes are conjugated. For other matrices, reading the result raises
    ``OperationFailed``. The gradient is symmetric, or Hermitian.
    """
    return CHOLESKY.apply((x,), (bool(upper),))


@explained
def det(x: Tensor, /) -> Tensor:
    """Return the determinants of square matrices: ``[…, n, n]`` to ``[…]``.

    The gradient is exact for singular matrices too. Their second derivative fails when it is read.
    """
    return DET.unary(x)


@explained
def slogdet(x: Tensor, /) -> SlogdetResult:
    """Return signs and logarithms of the absolute values of determinants, both ``[…]``.

    The signs of complex matrices are complex numbers of absolute value 1. A singular matrix has the
    sign 0 and the logarithm -infinity, but no gradient.
    """
    return SlogdetResult(*SLOGDET.apply_all((x,)))


@explained
def eig(x: Tensor, /) -> EigResult:
    """Return the eigenvalues and the eigenvectors of square matrices, real or complex.

    Both are complex: complex64 for float32 and complex128 for float64. The eigenvalues have no
    order, and each eigenvector has the norm 1. The gradient of the eigenvectors does not exist
    where eigenvalues are equal, and is infinite or NaN there.
    """
    return EigResult(*EIG.apply_all((at_least_float32(x),)))


@explained
def eigvals(x: Tensor, /) -> Tensor:
    """Return the complex eigenvalues of square matrices, without an order: ``[…, n]``."""
    return EIGVALS.unary(at_least_float32(x))


@explained
def eigh(x: Tensor, /) -> EighResult:
    """Return the ascending eigenvalues and the eigenvectors of symmetric or Hermitian matrices.

    The eigenvalues are real. Only the lower triangle is read, and of a complex diagonal only the
    real parts. The gradient is symmetric, or Hermitian; that of the eigenvectors does not
    exist where eigenvalues are equal, and is infinite or NaN there.
    """
    return EighResult(*EIGH.apply_all((x,)))


@explained
def eigvalsh(x: Tensor, /) -> Tensor:
    """Return the ascending real eigenvalues of symmetric or Hermitian matrices.

    Shapes: ``[…, n, n]`` to ``[…, n]``.
    """
    return EIGVALSH.unary(x)


@explained
def inv(x: Tensor, /) -> Tensor:
    """Return the inverses of square matrices.

    Reading the result for a singular matrix raises ``OperationFailed``.
    """
    return INV.unary(x)


@explained
def qr(x: Tensor, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QRResult:
    """Return ``Q`` and ``R`` of ``x = Q @ R``.

    Shapes with ``mode="reduced"``: ``[…, m, k]`` and ``[…, k, n]``, where ``k = min(m, n)``; with
    ``mode="complete"``: ``[…, m, m]`` and ``[…, m, n]``. The gradient needs linearly independent
    columns (the first ``m`` of them if there are more), and ``mode="reduced"`` if ``m > n``.
    """
    if mode not in ("reduced", "complete"):
        raise UsageError(f"mode must be 'reduced' or 'complete', not {mode!r}")
    return QRResult(*QR.apply_all((x,), (mode == "complete",)))


@explained
def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return the solution ``x`` of ``x1 @ x = x2``.

    Shapes: ``[…, n, n]`` and ``[…, n, k]`` give ``[…, n, k]``; a vector ``[n]`` gives ``[…, n]``.
    Batches broadcast. Reading the result for a singular ``x1`` raises ``OperationFailed``.
    """
    x1, x2 = alike(x1, x2)
    if x2.ndim != 1:
        return SOLVE.binary(x1, x2)
    solution = SOLVE.binary(x1, reshaped(x2, (*x2.shape, 1)))
    return reshaped(solution, solution.shape[:-1])


@explained
def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVDResult:
    """Return the singular value decomposition ``x = U @ diag(S) @ Vh``; ``S`` descends and is real.

    Shapes: ``[…, m, m]``, ``[…, k]`` and ``[…, n, n]``, where ``k = min(m, n)``; without
    ``full_matrices``, ``[…, m, k]``, ``[…, k]`` and ``[…, k, n]``. Singular vectors have gradients
    with ``full_matrices=False``, or of square matrices. These gradients do not exist where singular
    values are equal, and are infinite or NaN there; ``svdvals`` has a gradient everywhere but at 0.
    """
    return SVDResult(*SVD.apply_all((x,), (bool(full_matrices),)))


@explained
def svdvals(x: Tensor, /) -> Tensor:
    """Return the descending singular values: ``[…, m, n]`` to ``[…, min(m, n)]``."""
    return SVDVALS.unary(x)
