"""Linear algebra, under the names of the array API standard's ``linalg`` extension.

A matrix is the last two axes of a tensor ``[…, rows, columns]``; leading axes are a batch.
"""

from typing import TYPE_CHECKING

from burn_remote.diagnostics.advice import missing_from
from burn_remote.functions.factorizations import (
    cholesky,
    det,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    inv,
    qr,
    slogdet,
    solve,
    svd,
    svdvals,
)
from burn_remote.functions.linear_algebra import (
    cross,
    matmul,
    outer,
    tensordot,
    vecdot,
    vector_norm,
)
from burn_remote.functions.manipulation import matrix_transpose
from burn_remote.functions.matrix_functions import (
    lstsq,
    matrix_norm,
    matrix_power,
    matrix_rank,
    norm,
    pinv,
)
from burn_remote.functions.matrix_parts import diagonal, trace

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__)
