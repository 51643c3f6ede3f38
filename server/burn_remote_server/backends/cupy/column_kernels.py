"""The source of a kernel that sums along any axis but the last, as in the gradient of a bias.

Adjacent threads read adjacent columns, and the rows are divided among several blocks. The division
depends only on the shape, so sums of equal arrays have equal bits.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from burn_remote_protocol.tensors import Shape

__all__ = [
    "COLUMN_SUMS",
    "COLUMN_THREADS",
    "ColumnPass",
    "are_columns_fitting",
    "column_passes",
    "column_source",
    "column_width",
]

_TYPES: Final = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}

# Threads of a block: columns, and rows that are summed side by side.
COLUMNS: Final = 32
ROWS: Final = 8
COLUMN_THREADS: Final = (COLUMNS, ROWS)
# The fewest rows of a block, 32 for each thread, and the most blocks along the rows. A second
# kernel sums the results of these blocks, one row for each block.
MIN_CHUNK: Final = 256
MAX_CHUNKS: Final = 64
# Shorter axes, and narrower arrays, would leave most threads without work.
MIN_LENGTH: Final = 64
MIN_WIDTH: Final = 4
# CUDA's limit for the third dimension of a grid.
MAX_OUTER: Final = 65535


# The kernel's function.
COLUMN_SUMS: Final = "burn_remote_sums"

_STORED: Final = "target[at] = total;"


class ColumnPass(NamedTuple):
    """One pass over ``rows`` rows: the grid, the rows of each block, and the rows that are left."""

    grid: tuple[int, int, int]
    rows: int
    chunk: int
    remaining: int


def column_source(
    dtype: Any, parameters: str | None = None, stored: str = _STORED, preamble: str = ""
) -> str:
    """Return the source of a kernel that sums columns; its last arguments are three integers.

    ``stored`` are statements that store the variable ``total``, the sum of a column, at the place
    ``at`` of the results.
    """
    element = _TYPES[dtype]
    if parameters is None:
        parameters = f"const {element}* __restrict__ source, {element}* __restrict__ target"
    return f"""{preamble}
extern "C" __global__ void {COLUMN_SUMS}(
    {parameters},
    const long long length, const long long width, const long long chunk) {{
    const long long column = static_cast<long long>(blockIdx.x) * {COLUMNS} + threadIdx.x;
    const long long first = blockIdx.y * chunk;
    const long long last = min(length, first + chunk);
    {element} sums[4] = {{0, 0, 0, 0}};
    if (column < width) {{
        const {element}* from = source + blockIdx.z * length * width + column;
        long long row = first + threadIdx.y;
        for (; row + 3 * {ROWS} < last; row += 4 * {ROWS})
            for (int k = 0; k < 4; ++k) sums[k] += from[(row + k * {ROWS}) * width];
        for (; row < last; row += {ROWS}) sums[0] += from[row * width];
    }}
    __shared__ {element} parts[{ROWS}][{COLUMNS}];
    parts[threadIdx.y][threadIdx.x] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    __syncthreads();
    if (threadIdx.y == 0 && column < width) {{
        {element} total = 0;
        for (int k = 0; k < {ROWS}; ++k) total += parts[k][threadIdx.x];
        const long long at = (blockIdx.z * gridDim.y + blockIdx.y) * width + column;
        {stored}
    }}
}}
"""


def column_passes(shape: Shape, axis: int) -> list[ColumnPass]:
    """Return the passes over an array of a fitting shape; the last one leaves one row."""
    outer, length, width = _sizes(shape, axis)
    passes: list[ColumnPass] = []
    while not passes or length > 1:
        chunk = max(MIN_CHUNK, -(-length // MAX_CHUNKS))
        chunks = -(-length // chunk)
        passes.append(ColumnPass((-(-width // COLUMNS), chunks, outer), length, chunk, chunks))
        length = chunks
    return passes


def column_width(shape: Shape, axis: int) -> int:
    """Return the number of columns: the elements after an axis."""
    return math.prod(shape[axis + 1 :])


def _sizes(shape: Shape, axis: int) -> tuple[int, int, int]:
    """Return the number of elements before an axis, along it, and after it."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def are_columns_fitting(shape: Shape, axis: int, dtype: Any) -> bool:
    """Whether this kernel sums an axis of C-ordered arrays of a shape and dtype."""
    if dtype not in _TYPES or not 0 <= axis < len(shape) - 1:
        return False
    outer, length, width = _sizes(shape, axis)
    return length >= MIN_LENGTH and width >= MIN_WIDTH and 0 < outer <= MAX_OUTER
