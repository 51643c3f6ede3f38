"""Shapes and dtypes of factorizations, inverses, determinants and equations."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote_protocol.dtypes import F64
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch
from burn_remote_protocol.operations.families import matrix_rows
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.tensors import TensorSpec
from support.specs import f32, i64, made


@pytest.mark.parametrize(
    "row, parameters, shape, outputs",
    [
        (matrix_rows.INV, {}, (2, 3, 3), [(2, 3, 3)]),
        (matrix_rows.CHOLESKY, {"upper": True}, (3, 3), [(3, 3)]),
        (matrix_rows.DET, {}, (3, 3), [()]),
        (matrix_rows.DET, {}, (0, 2, 5, 5), [(0, 2)]),
        (matrix_rows.SLOGDET, {}, (2, 0, 0), [(2,), (2,)]),
        (matrix_rows.EIGH, {}, (2, 3, 3), [(2, 3), (2, 3, 3)]),
        (matrix_rows.EIGVALSH, {}, (3, 3), [(3,)]),
        (matrix_rows.QR, {"complete": False}, (2, 4, 3), [(2, 4, 3), (2, 3, 3)]),
        (matrix_rows.QR, {"complete": True}, (4, 3), [(4, 4), (4, 3)]),
        (matrix_rows.QR, {"complete": False}, (3, 4), [(3, 3), (3, 4)]),
        (matrix_rows.SVD, {"full_matrices": True}, (4, 3), [(4, 4), (3,), (3, 3)]),
        (matrix_rows.SVD, {"full_matrices": False}, (2, 3, 4), [(2, 3, 3), (2, 3), (2, 3, 4)]),
        (matrix_rows.SVD, {"full_matrices": True}, (0, 4), [(0, 0), (0,), (4, 4)]),
        (matrix_rows.SVDVALS, {}, (2, 4, 3), [(2, 3)]),
    ],
)
def test_shapes_of_results(
    row: Row, parameters: dict[str, Any], shape: tuple[int, ...], outputs: list[tuple[int, ...]]
) -> None:
    assert made(row, f32(*shape), **parameters) == tuple(f32(*out) for out in outputs)


def test_batches_of_equations_broadcast() -> None:
    assert made(matrix_rows.SOLVE, f32(2, 1, 3, 3), f32(4, 3, 5)) == (f32(2, 4, 3, 5),)
    assert made(matrix_rows.SOLVE, f32(3, 3), f32(3, 1)) == (f32(3, 1),)


@pytest.mark.parametrize("row", [matrix_rows.INV, matrix_rows.DET, matrix_rows.EIGH], ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (3, 3, 2)])
def test_other_matrices_than_square_ones_are_refused(row: Row, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeMismatch):
        made(row, f32(*shape))


@pytest.mark.parametrize(
    "lhs, rhs",
    [
        ((3, 3), (3,)),
        ((3, 3), (4, 2)),
        ((3, 2), (3, 2)),
        ((2, 3, 3), (4, 3, 2)),
    ],
)
def test_equations_that_do_not_fit_are_refused(lhs: Any, rhs: Any) -> None:
    with pytest.raises(ShapeMismatch):
        made(matrix_rows.SOLVE, f32(*lhs), f32(*rhs))


def test_integers_and_two_dtypes_are_refused() -> None:
    with pytest.raises(DTypeMismatch):
        made(matrix_rows.SVDVALS, i64(3, 3))
    with pytest.raises(DTypeMismatch):
        made(matrix_rows.SOLVE, f32(3, 3), TensorSpec((3, 1), F64))
