"""The source and the arguments of a kernel for the largest elements of windows.

One thread computes each maximum. The taps of common windows are constants of the kernel, so that
their elements are loaded together, and products replace the divisions of a thread's number by the
sizes of the output.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from burn_remote_server.backends.array.kernels.networks.windows import Axis, Windows

__all__ = ["MAXIMA", "Division", "MaximaLaunch", "division_by", "maxima_launch", "maxima_source"]

# The kernel's function.
MAXIMA: Final = "burn_remote_maxima"

# Windows whose taps are constants of a kernel of their own; others pass them.
CONSTANT_TAPS: Final = ((2, 2), (3, 3))
NO_CONSTANTS: Final = (0, 0)

THREADS: Final = 256
# Enough blocks to occupy the largest GPUs several times over; threads loop over the rest.
MAX_BLOCKS: Final = 2**16
# A kernel counts the maxima of a group of planes in 32 bits. CUDA's limit for groups side by side.
MAX_COUNT: Final = 2**31 - 1
MAX_GROUPS: Final = 65_535

_TYPES: Final = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}

# NaN is larger than any number, and the first of equal elements counts.
_BODY: Final = """
struct Windows {
    int size[2], outputs[2], taps[2], stride[2], padding[2], dilation[2];
    unsigned factor[2], shift[2];
};

__device__ inline unsigned quotient(unsigned n, unsigned factor, unsigned shift) {
    return (__umulhi(n, factor) + n) >> shift;
}

extern "C" __global__ void burn_remote_maxima(
    const T* __restrict__ x, T* __restrict__ y, long long* __restrict__ where,
    const long long planes, const long long group, const Windows g) {
    const int rows = ROWS ? ROWS : g.taps[0], columns = COLUMNS ? COLUMNS : g.taps[1];
    for (long long first = blockIdx.y * group; first < planes; first += gridDim.y * group) {
        const unsigned count = unsigned(min(group, planes - first)) * g.outputs[0] * g.outputs[1];
        const T* from = x + first * g.size[0] * g.size[1];
        const long long start = first * g.outputs[0] * g.outputs[1];
        for (unsigned n = blockIdx.x * blockDim.x + threadIdx.x; n < count;
             n += gridDim.x * blockDim.x) {
            const unsigned line = quotient(n, g.factor[1], g.shift[1]);
            const unsigned plane = quotient(line, g.factor[0], g.shift[0]);
            const int top = int(line - plane * g.outputs[0]) * g.stride[0] - g.padding[0];
            const int left = int(n - line * g.outputs[1]) * g.stride[1] - g.padding[1];
            const T* elements = from + (long long)plane * g.size[0] * g.size[1];
            T best = -T(__int_as_float(0x7f800000));
            int at = -1;
            #pragma unroll (ROWS ? ROWS : 1)
            for (int a = 0; a < rows; ++a) {
                const int row = top + a * g.dilation[0];
                #pragma unroll (COLUMNS ? COLUMNS : 1)
                for (int b = 0; b < columns; ++b) {
                    const int column = left + b * g.dilation[1];
                    if (unsigned(row) >= g.size[0] || unsigned(column) >= g.size[1]) continue;
                    const int place = row * g.size[1] + column;
                    const T value = elements[place];
                    if (at < 0 || (!(value <= best) && best == best)) { best = value; at = place; }
                }
            }
            y[start + n] = best;
            if (INDEXED) where[start + n] = at;
        }
    }
}
"""

_WINDOWS: Final = np.dtype(
    [(name, np.int32, 2) for name in ("size", "outputs", "taps", "stride", "padding", "dilation")]
    + [(name, np.uint32, 2) for name in ("factor", "shift")]
)


class Division(NamedTuple):
    """The factor and the shift that give ``n // d = (high(n * factor) + n) >> shift``.

    ``high`` are the upper 32 of the 64 bits of a product; ``n`` and ``d`` are below 2**31
    (Granlund & Montgomery, "Division by invariant integers using multiplication", 1994).
    """

    factor: int
    shift: int


def division_by(divisor: int) -> Division:
    """Return how to divide by a positive number."""
    shift = (divisor - 1).bit_length()
    return Division((((1 << shift) - divisor) << 32) // divisor + 1, shift)


def maxima_source(dtype: Any, taps: tuple[int, int], is_indexed: bool) -> str:
    """Return a kernel's source. Taps of 0 are arguments of the kernel.

    ``is_indexed``: it also stores the positions of the maxima.
    """
    return (
        f"typedef {_TYPES[dtype]} T;\n"
        f"enum {{ ROWS = {taps[0]}, COLUMNS = {taps[1]}, INDEXED = {int(is_indexed)} }};\n{_BODY}"
    )


class MaximaLaunch(NamedTuple):
    """The taps that are constants of the kernel, its grid, its block, and its last arguments."""

    taps: tuple[int, int]
    grid: tuple[int, int]
    block: tuple[int]
    values: tuple[Any, Any, Any]


def maxima_launch(windows: Windows, planes: int, max_count: int = MAX_COUNT) -> MaximaLaunch:
    """Return how to launch the kernel for windows with outputs, along one or two axes.

    A group of planes has at most ``max_count`` maxima.
    """
    axes: list[Axis] = [*windows]
    if len(axes) == 1:
        axes.insert(0, Axis(size=1, kernel=1, stride=1, padding=0, dilation=1, outputs=1))
    structure = np.zeros(1, _WINDOWS)
    for place, axis in enumerate(axes):
        divisor = division_by(axis.outputs)
        for name, number in (
            ("size", axis.size), ("outputs", axis.outputs), ("taps", axis.kernel),
            ("stride", axis.stride), ("padding", axis.padding), ("dilation", axis.dilation),
            ("factor", divisor.factor), ("shift", divisor.shift),
        ):  # fmt: skip
            structure[name][0, place] = number
    each = math.prod(axis.outputs for axis in axes)
    group = min(planes, max(1, max_count // each))
    taps = (axes[0].kernel, axes[1].kernel)
    return MaximaLaunch(
        taps if taps in CONSTANT_TAPS else NO_CONSTANTS,
        (min(-(-group * each // THREADS), MAX_BLOCKS), min(-(-planes // group), MAX_GROUPS)),
        (THREADS,),
        (np.array([planes], np.int64), np.array([group], np.int64), structure),
    )
