"""The source of kernels that reduce the rows of an array: their sums, and softmax.

A warp reduces a row; a part of a warp reduces a short row, and a block a long one. The order of the
additions depends only on the row's length. Kernels that are fused around a reduction
(``fusion.cuda.row_source``) are built from the same functions, so their results have the same bits.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from burn_remote_protocol.tensors import Shape

__all__ = [
    "EXTREMES",
    "OPTIONS",
    "ROW_FUNCTIONS",
    "are_fitting",
    "row_grid",
    "row_kernel_source",
    "row_threads",
]

# Without fused multiply-add: a product and a sum must each be rounded, as in single operations.
OPTIONS: Final = ("--std=c++17", "--fmad=false")

# Longer rows need several blocks, which CuPy's kernels use.
MAX_COLUMNS: Final = 65536
# Rows up to this length are reduced by a warp or a part of one, longer ones by a block.
MAX_WARP_COLUMNS: Final = 1024
WARP: Final = 32
SHORT_ROW_BLOCK: Final = 128
LONG_ROW_THREADS: Final = 256

_TYPES: Final = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}

# NaN in either operand gives NaN, as CuPy's ``maximum`` and ``minimum`` define it.
EXTREMES: Final = """
template <typename T> __device__ inline T burn_max(T a, T b) {
    return isnan(a) | isnan(b) ? T(__int_as_float(0x7fc00000)) : T(max(a, b));
}
template <typename T> __device__ inline T burn_min(T a, T b) {
    return isnan(a) | isnan(b) ? T(__int_as_float(0x7fc00000)) : T(min(a, b));
}
"""

ROW_FUNCTIONS: Final = """
struct RowSum {
    template <typename T> __device__ static T first() { return 0; }
    template <typename T> __device__ static T of(T a, T b) { return a + b; }
};
struct RowMax {
    template <typename T> __device__ static T first() { return -T(__int_as_float(0x7f800000)); }
    template <typename T> __device__ static T of(T a, T b) { return burn_max(a, b); }
};
// Combines the values of all threads of a row; each thread gets the same bits.
template <typename Reduction, int threads, typename T> __device__ inline T row_all(T value) {
    for (int distance = (threads < 32 ? threads : 32) / 2; distance; distance /= 2)
        value = Reduction::of(value, __shfl_xor_sync(0xffffffffu, value, distance));
    if (threads > 32) {
        __shared__ T parts[threads < 32 ? 1 : threads / 32];
        __syncthreads();
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
        __syncthreads();
        value = parts[0];
        for (int k = 1; k < threads / 32; ++k) value = Reduction::of(value, parts[k]);
    }
    return value;
}
"""

_HEAD: Final = """
extern "C" __global__ void burn_remote_rows(
    const {type}* __restrict__ source, {type}* __restrict__ target,
    const long long rows, const long long columns) {{
    const long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    source += row * columns;
"""

_SUM: Final = """
    {type} sum = 0;
    for (long long c = threadIdx.x; c < columns; c += {threads}) sum = sum + source[c];
    sum = row_all<RowSum, {threads}>(sum);
    if (threadIdx.x == 0) target[row] = sum;
}}
"""

_SHARES: Final = """
    target += row * columns;
    {type} largest = RowMax::first<{type}>();
    for (long long c = threadIdx.x; c < columns; c += {threads})
        largest = burn_max(largest, source[c]);
    largest = row_all<RowMax, {threads}>(largest);
    {type} sum = 0;
    for (long long c = threadIdx.x; c < columns; c += {threads})
        sum = sum + exp(source[c] - largest);
    sum = row_all<RowSum, {threads}>(sum);
"""

_SOFTMAX: Final = """
    for (long long c = threadIdx.x; c < columns; c += {threads})
        target[c] = exp(source[c] - largest) / sum;
}}
"""

_LOG_SOFTMAX: Final = """
    const {type} logarithm = log(sum);
    for (long long c = threadIdx.x; c < columns; c += {threads})
        target[c] = (source[c] - largest) - logarithm;
}}
"""

_BODIES: Final = {
    "sum": _HEAD + _SUM,
    "softmax": _HEAD + _SHARES + _SOFTMAX,
    "log_softmax": _HEAD + _SHARES + _LOG_SOFTMAX,
}


def row_kernel_source(kind: str, dtype: Any, threads: int) -> str:
    """Return the source of the kernel ``burn_remote_rows`` of one kind."""
    return EXTREMES + ROW_FUNCTIONS + _BODIES[kind].format(type=_TYPES[dtype], threads=threads)


def row_threads(columns: int) -> int:
    """Return how many threads reduce a row."""
    if columns > MAX_WARP_COLUMNS:
        return LONG_ROW_THREADS
    return int(min(WARP, 1 << (columns - 1).bit_length()))


def row_grid(rows: int, columns: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the grid and the block of a kernel that reduces rows."""
    if columns > MAX_WARP_COLUMNS:
        return (rows, 1), (LONG_ROW_THREADS, 1)
    threads = row_threads(columns)
    rows_of_block = SHORT_ROW_BLOCK // threads
    return (-(-rows // rows_of_block), 1), (threads, rows_of_block)


def are_fitting(shape: Shape, dtype: Any) -> bool:
    """Whether these kernels reduce the rows of C-ordered arrays of a shape and dtype."""
    if not shape or dtype not in _TYPES:
        return False
    return 2 <= shape[-1] <= MAX_COLUMNS and 0 < math.prod(shape[:-1]) < 2**31
