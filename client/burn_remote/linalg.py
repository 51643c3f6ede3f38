"""Linear algebra, under the names of the array API standard's ``linalg`` extension.

A matrix is the last two axes of a tensor ``[…, rows, columns]``; leading axes are a batch.
"""

from burn_remote.functions.linear_algebra import (
    cross,
    matmul,
    outer,
    tensordot,
    vecdot,
    vector_norm,
)
from burn_remote.functions.manipulation import matrix_transpose
from burn_remote.functions.matrices import diagonal, trace

__all__ = [
    "cross",
    "diagonal",
    "matmul",
    "matrix_transpose",
    "outer",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]
