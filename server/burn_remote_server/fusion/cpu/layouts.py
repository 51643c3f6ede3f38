"""The division of an element-wise computation into blocks.

All results of a computation have one shape, to which each operand is broadcast. Two neighbouring
axes are merged if each operand either has both or is broadcast along both. Then the computation is
split along the first axis whose following axes together have no more elements than a block. Without
broadcasting, all axes are merged into one.

If a computation reduces rows, the last axis is neither merged nor split, and each block has at
least two rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from burn_remote_protocol.tensors import Shape

__all__ = ["Layout", "Mask", "expanded_mask", "static_mask"]

# For each axis of the results, whether an operand has it; otherwise, the operand is broadcast along
# it.
Mask = tuple[bool, ...]


def static_mask(shape: Shape, result: Shape) -> Mask:
    """Return the mask of an operand of this shape."""
    missing = len(result) - len(shape)
    return tuple(
        axis >= missing and shape[axis - missing] == length for axis, length in enumerate(result)
    )


def expanded_mask(array: Any, result: Shape) -> tuple[Any, Mask] | None:
    """Return an operand without the axes that only repeat its elements, and its mask.

    Returns ``None`` if the remaining array is not C-contiguous.
    """
    index = tuple(
        slice(0, 1) if stride == 0 and length > 1 else slice(None)
        for stride, length in zip(array.strides, array.shape, strict=True)
    )
    part = array[index]
    return (part, static_mask(part.shape, result)) if part.flags.c_contiguous else None


class Layout:
    """The blocks of a computation whose operands have these masks.

    ``keeps_rows``: the computation reduces rows, of which there are at least two, each at most half
    as long as a block. ``shapes`` has the shape to which each operand must be reshaped before its
    index is applied. ``size`` is the shape of the largest block; other blocks are shorter along the
    first axis.
    """

    def __init__(
        self,
        result: Shape,
        masks: Sequence[Mask],
        block_elements: int,
        *,
        keeps_rows: bool = False,
    ) -> None:
        lengths, merged = _merged(result, masks, keeps_rows)
        self.shapes: Final = tuple(
            tuple(length if has else 1 for length, has in zip(lengths, mask, strict=True))
            for mask in merged
        )
        self.result_shape: Final = tuple(lengths)
        axis = 0
        last_split = len(lengths) - 1 - keeps_rows
        while axis < last_split and math.prod(lengths[axis + 1 :]) > block_elements:
            axis += 1
        self._axis = axis
        self._lengths = lengths
        self._masks = merged
        rows, inner = lengths[axis], lengths[axis + 1 :]
        # The parts have nearly equal lengths. NumPy treats an axis of length 1 as broadcast, so a
        # last part of a single element would run through other loops of NumPy.
        most = max(1, block_elements // max(1, math.prod(inner)))
        self._parts = max(1, rows // most if keeps_rows else -(-rows // most))
        self.size: Final = (-(-rows // self._parts), *inner)

    @property
    def row_result_shape(self) -> Shape:
        """The shape of a result with one element for each row."""
        return (*self.result_shape[:-1], 1)

    @property
    def row_size(self) -> Shape:
        """The shape of the largest block of a result with one element for each row."""
        return (*self.size[:-1], 1)

    def blocks(self) -> Iterator[tuple[int, Any, tuple[Any, ...]]]:
        """Yield the rows of each block, its index in a result, and its indices in the operands."""
        axis, rows, parts = self._axis, self._lengths[self._axis], self._parts
        bounds = [rows * part // parts for part in range(parts + 1)]
        everything = slice(None)
        for lead in itertools.product(*map(range, self._lengths[:axis])):
            for start, stop in itertools.pairwise(bounds):
                part = slice(start, stop)
                yield (
                    stop - start,
                    (*lead, part),
                    tuple(
                        (
                            *[place if has else 0 for place, has in zip(lead, mask, strict=False)],
                            part if mask[axis] else everything,
                        )
                        for mask in self._masks
                    ),
                )


def _merged(result: Shape, masks: Sequence[Mask], keeps_rows: bool) -> tuple[list[int], list[Mask]]:
    """Merge neighbouring axes with equal masks, and leave out those of length 1."""
    lengths: list[int] = []
    columns: list[tuple[bool, ...]] = []
    for axis, length in enumerate(result):
        if length == 1:
            continue
        column = tuple(mask[axis] for mask in masks)
        is_row = keeps_rows and axis == len(result) - 1
        if columns and columns[-1] == column and not is_row:
            lengths[-1] *= length
        else:
            lengths.append(length)
            columns.append(column)
    if not lengths:
        lengths, columns = [1], [(True,) * len(masks)]
    return lengths, [tuple(column[place] for column in columns) for place in range(len(masks))]
