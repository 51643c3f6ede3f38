"""Sums over an axis that is not the last, such as those of a bias gradient.

CuPy's own kernel takes 47 µs for the columns of 4,096 x 1,024 elements on an H100, which its memory
could deliver in 6. Here, threads that are neighbours read neighbouring columns, and the rows are
divided among several blocks. How they are divided depends on the shape alone, so equal sums have
equal bits.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Final

import cupy
import numpy as np

__all__ = ["sum_of"]

_TYPES: Final = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}

# Threads of a block: columns, and rows that are summed side by side.
COLUMNS: Final = 32
ROWS: Final = 8
# Rows of a block: at least 32 for each thread, and not so few that the second kernel, which sums
# the results of the blocks, has more than 64 rows.
MIN_CHUNK: Final = 256
MAX_CHUNKS: Final = 64
# Shorter axes, and narrower arrays, would leave most threads without work.
MIN_LENGTH: Final = 64
MIN_WIDTH: Final = 4
# CUDA's bound of the third dimension of a grid.
MAX_OUTER: Final = 65535


@cache
def _kernel(element: str) -> Any:
    source = f"""
extern "C" __global__ void burn_remote_sums(
    const {element}* __restrict__ source, {element}* __restrict__ target,
    const long long length, const long long width, const long long chunk) {{
    const long long column = static_cast<long long>(blockIdx.x) * {COLUMNS} + threadIdx.x;
    const long long first = blockIdx.y * chunk;
    const long long last = min(length, first + chunk);
    {element} sums[4] = {{0, 0, 0, 0}};
    if (column < width) {{
        const {element}* at = source + blockIdx.z * length * width + column;
        long long row = first + threadIdx.y;
        for (; row + 3 * {ROWS} < last; row += 4 * {ROWS})
            for (int k = 0; k < 4; ++k) sums[k] += at[(row + k * {ROWS}) * width];
        for (; row < last; row += {ROWS}) sums[0] += at[row * width];
    }}
    __shared__ {element} parts[{ROWS}][{COLUMNS}];
    parts[threadIdx.y][threadIdx.x] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    __syncthreads();
    if (threadIdx.y == 0 && column < width) {{
        {element} total = 0;
        for (int k = 0; k < {ROWS}; ++k) total += parts[k][threadIdx.x];
        target[(blockIdx.z * gridDim.y + blockIdx.y) * width + column] = total;
    }}
}}
"""
    return cupy.RawModule(code=source, options=("--std=c++17",)).get_function("burn_remote_sums")


def sum_of(array: Any, *, axis: int | None, dtype: Any, keepdims: bool = False) -> Any:
    """Return the sums of an array along an axis, or of all elements, as ``cupy.sum`` does."""
    if axis is None or not _is_fitting(array, axis, dtype):
        return cupy.add.reduce(array, axis=axis, dtype=dtype, keepdims=keepdims)
    *outer, length = array.shape[: axis + 1]
    after = array.shape[axis + 1 :]
    width = math.prod(after)
    while length > 1:
        chunk = max(MIN_CHUNK, -(-length // MAX_CHUNKS))
        chunks = -(-length // chunk)
        target = cupy.empty((math.prod(outer), chunks, width), dtype)
        grid = (-(-width // COLUMNS), chunks, math.prod(outer))
        _kernel(_TYPES[dtype])(
            grid,
            (COLUMNS, ROWS),
            (array, target, np.int64(length), np.int64(width), np.int64(chunk)),
        )
        array, length = target, chunks
    kept = (*outer, 1) if keepdims else outer
    return array.reshape(*kept, *after)


def _is_fitting(array: Any, axis: int, dtype: Any) -> bool:
    return (
        array.dtype == dtype
        and array.dtype in _TYPES
        and 0 <= axis < array.ndim - 1
        and array.shape[axis] >= MIN_LENGTH
        and math.prod(array.shape[axis + 1 :]) >= MIN_WIDTH
        and 0 < math.prod(array.shape[:axis]) <= MAX_OUTER
        and bool(array.flags.c_contiguous)
    )
