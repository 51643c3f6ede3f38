"""Shapes and dtypes of matrix factorizations, equations, determinants and inverses.

A matrix is the last two axes ``[…, rows, columns]``; leading axes are a batch of matrices. Its
elements are floating-point or complex. Singular values, eigenvalues of Hermitian matrices and
logarithms of absolute values are real.
"""

from __future__ import annotations

from burn_remote_protocol.dtypes import REAL_DTYPES, DType
from burn_remote_protocol.operations.row import Call
from burn_remote_protocol.operations.shape_rules.checks import (
    INEXACT,
    broadcast_shapes,
    check_category,
    check_same_dtype,
    refuse_shape,
    result,
)
from burn_remote_protocol.operations.shape_rules.complex_rules import complex_dtype
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "determinant",
    "eigenvalues",
    "eigenvalues_symmetric",
    "eigenvectors",
    "eigenvectors_symmetric",
    "orthogonal_triangular",
    "signed_determinant",
    "singular_values",
    "singular_vectors",
    "solution",
    "square_to_square",
]

Outputs = tuple[TensorSpec, ...]


def _matrix(argument: str, spec: TensorSpec) -> TensorSpec:
    check_category(argument, spec, INEXACT)
    if len(spec.shape) < 2:
        refuse_shape(f"{argument} is {spec}, but a matrix has at least 2 dimensions")
    return spec


def _real_dtype(spec: TensorSpec) -> DType:
    return REAL_DTYPES.get(spec.dtype, spec.dtype)


def _square(argument: str, spec: TensorSpec) -> TensorSpec:
    _matrix(argument, spec)
    if spec.shape[-1] != spec.shape[-2]:
        refuse_shape(f"{argument} is {spec}, but a square matrix is required")
    return spec


def square_to_square(call: Call) -> Outputs:
    """Return a square matrix for each square matrix."""
    return (_square("tensor", call.inputs[0]),)


def determinant(call: Call) -> Outputs:
    """Return a number for each square matrix."""
    spec = _square("tensor", call.inputs[0])
    return (result(spec.shape[:-2], spec.dtype),)


def signed_determinant(call: Call) -> Outputs:
    """Return a sign and a real logarithm for each square matrix."""
    spec = _square("tensor", call.inputs[0])
    batch = spec.shape[:-2]
    return (result(batch, spec.dtype), result(batch, _real_dtype(spec)))


def eigenvalues(call: Call) -> Outputs:
    """Return ``n`` complex eigenvalues for each ``[n, n]`` matrix, real or complex."""
    spec = _square("tensor", call.inputs[0])
    dtype = spec.dtype if spec.dtype.is_complex else complex_dtype("tensor", spec)
    return (result(spec.shape[:-1], dtype),)


def eigenvectors(call: Call) -> Outputs:
    """Return complex eigenvalues, and the eigenvectors in the columns of a complex matrix."""
    (values,) = eigenvalues(call)
    return (values, result(call.inputs[0].shape, values.dtype))


def eigenvalues_symmetric(call: Call) -> Outputs:
    """Return ``n`` real eigenvalues for each Hermitian ``[n, n]`` matrix."""
    spec = _square("tensor", call.inputs[0])
    return (result(spec.shape[:-1], _real_dtype(spec)),)


def eigenvectors_symmetric(call: Call) -> Outputs:
    """Return the eigenvalues, and the eigenvectors in the columns of a matrix."""
    return (*eigenvalues_symmetric(call), call.inputs[0])


def orthogonal_triangular(call: Call) -> Outputs:
    """Return ``[rows, k]`` and ``[k, columns]``.

    ``k`` is ``rows`` if ``complete``, otherwise the smaller of ``rows`` and ``columns``.

    The result of a complete factorization is larger than its input if there are more rows.
    """
    spec = _matrix("tensor", call.inputs[0])
    *batch, rows, columns = spec.shape
    inner = rows if call.parameters["complete"] else min(rows, columns)
    return (
        result((*batch, rows, inner), spec.dtype),
        result((*batch, inner, columns), spec.dtype),
    )


def singular_values(call: Call) -> Outputs:
    """Return ``min(rows, columns)`` real numbers for each matrix."""
    spec = _matrix("tensor", call.inputs[0])
    return (result((*spec.shape[:-2], min(spec.shape[-2:])), _real_dtype(spec)),)


def singular_vectors(call: Call) -> Outputs:
    """Return ``[rows, k]``, ``[min(rows, columns)]`` and ``[k, columns]``.

    With ``full_matrices``, the matrices are ``[rows, rows]`` and ``[columns, columns]``.
    """
    spec = _matrix("tensor", call.inputs[0])
    *batch, rows, columns = spec.shape
    is_full = call.parameters["full_matrices"]
    left, right = (rows, columns) if is_full else (min(rows, columns),) * 2
    (values,) = singular_values(call)
    return (
        result((*batch, rows, left), spec.dtype),
        values,
        result((*batch, right, columns), spec.dtype),
    )


def solution(call: Call) -> Outputs:
    """Solve ``[…, n, n] @ x = […, n, k]``; batches broadcast."""
    lhs, rhs = call.inputs
    _square("lhs", lhs)
    _matrix("rhs", rhs)
    check_same_dtype(lhs, rhs=rhs)
    if lhs.shape[-1] != rhs.shape[-2]:
        refuse_shape(f"rhs is {rhs}, but must have {lhs.shape[-1]} rows like lhs {lhs}")
    batch = broadcast_shapes(lhs.shape[:-2], rhs.shape[:-2])
    return (result((*batch, *rhs.shape[-2:]), lhs.dtype),)
