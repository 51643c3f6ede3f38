"""Parts of matrices: diagonals and triangles; traces.

A matrix is the last two axes ``[…, rows, columns]``; leading axes are a batch of matrices.
All raise ``ShapeMismatch`` for a tensor of fewer than two axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.arguments.arrays import AnyDType
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator, counted, reshaped
from burn_remote.functions.arithmetic import add
from burn_remote.functions.logic import greater, less
from burn_remote.functions.manipulation import part
from burn_remote.functions.padding import pad
from burn_remote.functions.selection import mask_fill
from burn_remote.functions.statistics import sum
from burn_remote_protocol.errors import ShapeMismatch
from burn_remote_protocol.operations.families import base
from burn_remote_protocol.tensors import Slice

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["check_matrix", "check_square", "diag", "diagonal", "trace", "tril", "triu"]

SLICE: Final = Operator(base.SLICE)


@explained
def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """Return the diagonals of matrices: ``[…, rows, columns]`` to ``[…, length]``.

    ``offset`` counts diagonals to the right of the main diagonal, a negative one to the left.
    """
    check_matrix(x)
    *batch, rows, columns = x.shape
    start = offset if offset >= 0 else -offset * columns
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    if not length:
        start = 0
    # In C order, consecutive elements of a diagonal are a row and one element apart.
    flat = reshaped(x, (*batch, rows * columns))
    end = start + (length - 1) * (columns + 1) + 1 if length else start
    everything = [Slice(0, size, 1) for size in batch]
    return SLICE.apply((flat,), ((*everything, Slice(start, end, columns + 1)),))


@explained
def diag(x: Tensor, /, k: int = 0) -> Tensor:
    """Return the matrix whose ``k``-th diagonal is a vector, or the ``k``-th diagonal of a matrix.

    ``[n]`` gives ``[n + abs(k), n + abs(k)]`` with zeros elsewhere; ``[rows, columns]`` gives the
    diagonal that ``diagonal`` returns. Raises ``ShapeMismatch`` for other shapes.
    """
    if x.ndim == 2:
        return diagonal(x, offset=k)
    if x.ndim != 1:
        raise ShapeMismatch(f"diag is for vectors and matrices, not {x.handle.spec}")
    size = x.size
    # With a row of zeros after each element, C order puts element i at row i and column i.
    spread = reshaped(pad(reshaped(x, (size, 1)), (0, size)), (size * (size + 1),))
    square = reshaped(part(spread, 0, 0, size * size), (size, size))
    return pad(square, (k, 0, 0, k) if k >= 0 else (0, -k, -k, 0)) if k else square


@explained
def trace(x: Tensor, /, *, offset: int = 0, dtype: AnyDType | None = None) -> Tensor:
    """Return the sum of a diagonal of matrices: ``[…, rows, columns]`` to ``[…]``.

    ``offset`` is that of ``diagonal``, and dtypes are those of ``sum``.
    """
    return sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


@explained
def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Replace elements above the ``k``-th diagonal by 0: ``[…, rows, columns]``."""
    rows, columns = _places(x)
    return _zeroed(x, greater(columns, add(rows, k)))


@explained
def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Replace elements below the ``k``-th diagonal by 0: ``[…, rows, columns]``."""
    rows, columns = _places(x)
    return _zeroed(x, less(columns, add(rows, k)))


def _places(x: Tensor) -> tuple[Tensor, Tensor]:
    check_matrix(x)
    rows, columns = (counted(x.__class__, x.handle.client, size) for size in x.shape[-2:])
    return reshaped(rows, (x.shape[-2], 1)), reshaped(columns, (1, x.shape[-1]))


def _zeroed(x: Tensor, mask: Tensor) -> Tensor:
    return mask_fill(x, mask, False if x.dtype.is_bool else 0)


def check_matrix(x: Tensor) -> None:
    """Raise ``ShapeMismatch`` for a tensor of fewer than two axes."""
    if x.ndim < 2:
        raise ShapeMismatch(f"{x.handle.spec} is not a matrix; at least 2 axes are required")


def check_square(x: Tensor) -> None:
    """Raise ``ShapeMismatch`` unless the last two axes have equal sizes."""
    check_matrix(x)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeMismatch(f"{x.handle.spec} is not square; the last 2 axes must be equal")
