"""Extension rows: linear algebra that Burn's IR lacks.

A matrix is the last two axes ``[…, rows, columns]``; leading axes are a batch of matrices.
"""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.fields import boolean, tensor_in, tensor_out
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.matrix_rules import (
    determinant,
    eigenvalues,
    eigenvalues_symmetric,
    eigenvectors,
    eigenvectors_symmetric,
    orthogonal_triangular,
    signed_determinant,
    singular_values,
    singular_vectors,
    solution,
    square_to_square,
)
from burn_remote_protocol.operations.shared_fields import BINARY, UNARY
from burn_remote_protocol.operations.vocabularies import EXTENSION

_FAMILY: Final = "LinearAlgebra"

CHOLESKY: Final = Row(
    _FAMILY,
    "Cholesky",
    (tensor_in("tensor"), boolean("upper"), tensor_out("out")),
    square_to_square,
    estimates.factorization(1),
    EXTENSION,
)
DET: Final = Row(_FAMILY, "Det", UNARY, determinant, estimates.factorization(2), EXTENSION)
EIG: Final = Row(
    _FAMILY,
    "Eig",
    (tensor_in("tensor"), tensor_out("values"), tensor_out("vectors")),
    eigenvectors,
    estimates.factorization(60, iterates=True),
    EXTENSION,
)
EIGVALS: Final = Row(
    _FAMILY, "Eigvals", UNARY, eigenvalues, estimates.factorization(25, iterates=True), EXTENSION
)
EIGH: Final = Row(
    _FAMILY,
    "Eigh",
    (tensor_in("tensor"), tensor_out("values"), tensor_out("vectors")),
    eigenvectors_symmetric,
    estimates.factorization(15, iterates=True),
    EXTENSION,
)
EIGVALSH: Final = Row(
    _FAMILY,
    "Eigvalsh",
    UNARY,
    eigenvalues_symmetric,
    estimates.factorization(6, iterates=True),
    EXTENSION,
)
INV: Final = Row(_FAMILY, "Inv", UNARY, square_to_square, estimates.factorization(4), EXTENSION)
QR: Final = Row(
    _FAMILY,
    "Qr",
    (tensor_in("tensor"), boolean("complete"), tensor_out("q"), tensor_out("r")),
    orthogonal_triangular,
    estimates.factorization(6),
    EXTENSION,
)
SLOGDET: Final = Row(
    _FAMILY,
    "Slogdet",
    (tensor_in("tensor"), tensor_out("sign"), tensor_out("logarithm")),
    signed_determinant,
    estimates.factorization(2),
    EXTENSION,
)
SOLVE: Final = Row(_FAMILY, "Solve", BINARY, solution, estimates.SOLVE, EXTENSION)
SVD: Final = Row(
    _FAMILY,
    "Svd",
    (
        tensor_in("tensor"),
        boolean("full_matrices"),
        tensor_out("u"),
        tensor_out("s"),
        tensor_out("vh"),
    ),
    singular_vectors,
    estimates.factorization(20, iterates=True),
    EXTENSION,
)
SVDVALS: Final = Row(
    _FAMILY, "Svdvals", UNARY, singular_values, estimates.factorization(8, iterates=True), EXTENSION
)

ROWS: Final = (
    CHOLESKY, DET, EIGH, EIGVALSH, INV, QR, SLOGDET, SOLVE, SVD, SVDVALS, EIG, EIGVALS,
)  # fmt: skip
