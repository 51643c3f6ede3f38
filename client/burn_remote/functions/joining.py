"""Functions that join, split, reverse and rotate along fixed axes, under NumPy's names.

``h`` is axis 1 (axis 0 of vectors), ``v`` axis 0 and ``d`` axis 2. All raise ``ShapeMismatch``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from burn_remote.arguments.axes import normal_axes, normal_axis
from burn_remote.arguments.numbers import whole_number
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import reshaped
from burn_remote.functions.manipulation import concat, flatten, flip, part, split, swapaxes
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.errors import ShapeMismatch
from burn_remote_protocol.tensors import MAX_ELEMENTS

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "array_split", "column_stack", "dsplit", "dstack", "fliplr", "flipud", "hsplit", "hstack",
    "rot90", "vsplit", "vstack",
]  # fmt: skip


@explained
def vstack(tensors: Iterable[Tensor], /) -> Tensor:
    """Join tensors along axis 0; a vector counts as a row."""
    rows = [x if x.ndim > 1 else reshaped(x, (1, x.size)) for x in tensors]
    return concat(rows, axis=0)


@explained
def hstack(tensors: Iterable[Tensor], /) -> Tensor:
    """Join tensors along axis 1, and vectors along axis 0."""
    listed = [flatten(x) if x.ndim == 0 else x for x in tensors]
    return concat(listed, axis=min(1, listed[0].ndim - 1) if listed else 0)


@explained
def dstack(tensors: Iterable[Tensor], /) -> Tensor:
    """Join tensors along axis 2; ``[n]`` counts as ``[1, n, 1]``, ``[m, n]`` as ``[m, n, 1]``."""
    return concat([_deep(x) for x in tensors], axis=2)


def _deep(x: Tensor) -> Tensor:
    if x.ndim > 2:
        return x
    return reshaped(x, (*x.shape, 1) if x.ndim == 2 else (1, x.size, 1))


@explained
def column_stack(tensors: Iterable[Tensor], /) -> Tensor:
    """Join tensors along axis 1; a vector counts as a column."""
    columns = [x if x.ndim > 1 else reshaped(x, (x.size, 1)) for x in tensors]
    return concat(columns, axis=1)


@explained
def array_split(x: Tensor, /, sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Split a tensor along an axis as ``split`` does, but the sizes of parts may differ by one.

    The first parts are the larger ones.
    """
    if isinstance(sections, Sequence | np.ndarray) or is_tensor(sections):
        return split(x, sections, axis)
    count = whole_number("sections", sections, 1, MAX_ELEMENTS)
    place = normal_axis(axis, x.ndim)
    size, larger = divmod(x.shape[place], count)
    ends = [0]
    for number in range(count):
        ends.append(ends[-1] + size + (number < larger))
    return [part(x, place, *pair) for pair in itertools.pairwise(ends)]


@explained
def hsplit(x: Tensor, /, sections: int | Sequence[int]) -> list[Tensor]:
    """Split along axis 1, or a vector along axis 0."""
    return split(x, sections, min(1, _with_axes(x, 1) - 1))


@explained
def vsplit(x: Tensor, /, sections: int | Sequence[int]) -> list[Tensor]:
    """Split along axis 0; ``x`` has at least two axes."""
    _with_axes(x, 2)
    return split(x, sections, 0)


@explained
def dsplit(x: Tensor, /, sections: int | Sequence[int]) -> list[Tensor]:
    """Split along axis 2; ``x`` has at least three axes."""
    _with_axes(x, 3)
    return split(x, sections, 2)


@explained
def fliplr(x: Tensor, /) -> Tensor:
    """Reverse axis 1."""
    _with_axes(x, 2)
    return flip(x, 1)


@explained
def flipud(x: Tensor, /) -> Tensor:
    """Reverse axis 0."""
    _with_axes(x, 1)
    return flip(x, 0)


@explained
def rot90(x: Tensor, /, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """Turn by ``k`` times 90 degrees, from the first towards the second of the two axes."""
    first, second = normal_axes(axes, _with_axes(x, 2))
    turns = whole_number("k", k, -MAX_ELEMENTS, MAX_ELEMENTS) % 4
    if turns in (0, 2):
        return flip(x, (first, second) if turns else ())
    if turns == 1:
        return swapaxes(flip(x, second), first, second)
    return flip(swapaxes(x, first, second), second)


def _with_axes(x: Tensor, least: int) -> int:
    """Return the number of axes. Raises ``ShapeMismatch`` if there are fewer than ``least``."""
    if x.ndim < least:
        raise ShapeMismatch(f"{x.handle.spec} has fewer than the required {least} axes")
    return x.ndim
