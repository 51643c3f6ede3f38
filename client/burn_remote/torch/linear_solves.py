"""Solutions of linear equations, determinants, and the factors that PyTorch saves for gradients.

PyTorch's gradients of these operations reuse the factorization that the forward pass returned, by
``linalg_lu_solve``. A server solves with a matrix, not with its LU factors. So the forward pass
returns the matrix itself in place of its factors, with pivots of ``int64``. The pivots of factors
are ``int32``, so ``linalg_lu_solve`` recognizes such a matrix and solves with it.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import torch

import burn_remote as br
from burn_remote.torch.aten.factorizations import matrix_of_factors
from burn_remote.torch.burn_tensor import BurnTensor, value_of, wrap, wrap_strided
from burn_remote.torch.result_strides import strides_of_results
from burn_remote.torch.value_conversion import Handler

__all__ = ["FACTORIZATIONS"]

Tensor = br.Tensor

# The dtype of pivots of a matrix whose diagonal has NaN in place of zeros.
MARKED: Final = br.int16


def _solved(matrix: Tensor, right: Tensor, left: bool) -> Tensor:
    """Solve ``matrix @ result = right``, or ``result @ matrix = right``."""
    if not left:
        matrix, right = br.matrix_transpose(matrix), br.matrix_transpose(right)
    batch = np.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
    result = br.linalg.solve(
        br.broadcast_to(matrix, (*batch, *matrix.shape[-2:])),
        br.broadcast_to(right, (*batch, *right.shape[-2:])),
    )
    return result if left else br.matrix_transpose(result)


def _kept(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return matrices in place of their factors, and the pivots that mark them."""
    return value, br.zeros(value.shape[:-1], dtype=br.int64, device=value.device)


def _matrix_of_determinant(x: BurnTensor) -> Tensor:
    """Return the matrix that PyTorch's gradient of a determinant solves with.

    It expects the factors of the transpose if the tensor is contiguous and real.
    """
    value = value_of(x)
    is_transposed = x.is_contiguous() and not x.is_complex()
    return br.matrix_transpose(value) if is_transposed else value


def _zeros_on_diagonal(x: Tensor, are_zeros: Tensor) -> Tensor:
    return are_zeros & br.eye(x.shape[-1], dtype=br.bool, device=x.device)


def _marked(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``_kept`` with NaN in place of zeros on the diagonal, and pivots that say so.

    PyTorch's gradient of ``det`` adds the machine epsilon to zeros on the diagonal of the factors.
    Those of a regular matrix have none, but the matrix itself may, and its elements may be small.
    """
    pivots = br.zeros(x.shape[:-1], dtype=MARKED, device=x.device)
    return br.where(_zeros_on_diagonal(x, x == 0), math.nan, x), pivots


def _unmarked(x: Tensor) -> Tensor:
    return br.where(_zeros_on_diagonal(x, br.isnan(x)), 0, x)


def _lu_solve(args: Any, kwargs: dict[str, Any]) -> Any:
    factors, pivots, right = map(value_of, args)
    strides = None
    if pivots.dtype is MARKED:
        factors = _unmarked(factors)
    elif pivots.dtype is not br.int64:
        strides = strides_of_results(torch.ops.aten.linalg_lu_solve.default, args, kwargs)
        factors = matrix_of_factors(factors, pivots)
    if kwargs.get("adjoint", False):
        conjugate = br.conj(factors) if factors.dtype.is_complex else factors
        factors = br.matrix_transpose(conjugate)
    result = _solved(factors, right, kwargs.get("left", True))
    place = args[0]._place
    return wrap(result, place) if strides is None else wrap_strided(result, strides, place)


def _solve(args: Any, kwargs: dict[str, Any]) -> Any:
    x, right, left = args[0], args[1], kwargs.get("left", True)
    if x.dtype is not right.dtype:
        raise RuntimeError(
            "linalg.solve: Expected A and B to have the same dtype, but found A of type "
            f"{x.dtype} and B of type {right.dtype} instead"
        )
    place = x._place
    matrix, value = value_of(x), value_of(right)
    is_vector = value.ndim == 1 or (
        value.ndim == matrix.ndim - 1 and value.shape == matrix.shape[:-1]
    )
    if is_vector:
        last = -1 if left else -2
        value = br.expand_dims(value, value.ndim + 1 + last)
    result = _solved(matrix, value, left)
    if is_vector:
        result = br.squeeze(result, result.ndim + last)
    strides = strides_of_results(torch.ops.aten._linalg_solve_ex.default, args, kwargs)
    wrapped = wrap(result, place) if not strides else wrap_strided(result, strides[0], place)
    codes = br.zeros(matrix.shape[:-2], dtype=br.int32, device=matrix.device)
    return wrapped, *[wrap(each, place) for each in (*_kept(matrix), codes)]


def _det(args: Any, kwargs: dict[str, Any]) -> Any:
    (x,) = args
    results = br.linalg.det(value_of(x)), *_marked(_matrix_of_determinant(x))
    return tuple([wrap(each, x._place) for each in results])


def _slogdet(args: Any, kwargs: dict[str, Any]) -> Any:
    (x,) = args
    results = *br.linalg.slogdet(value_of(x)), *_kept(_matrix_of_determinant(x))
    return tuple([wrap(each, x._place) for each in results])


# Name of an overload -> its handler.
FACTORIZATIONS: Final[dict[str, Handler]] = {
    "_linalg_det": _det,
    "_linalg_slogdet": _slogdet,
    "_linalg_solve_ex": _solve,
    "linalg_lu_solve": _lu_solve,
}
