"""CUDA kernels over the windows of convolutions and poolings.

One launch handles all taps of all windows, where array functions need a launch per tap. Every
kernel has three spatial axes; missing ones have length one. One thread computes each sum, in the
order of the taps, so results do not depend on thread timing.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any, Final

import cupy
import numpy as np

from burn_remote_server.backends.array.kernels.networks.windows import Windows
from burn_remote_server.backends.cupy.launches import PreparedLaunch, kept_function, prepared

__all__ = ["has_kernels", "launch"]

# The dtypes with compiled kernels; others use the array functions.
KERNEL_DTYPES: Final = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}

THREADS: Final = 256

# Windows with up to this many taps along an axis always run on kernels. Windows with more taps do
# so only if the axis has at least as many elements and windows together. Most taps of larger
# windows would read the padding.
TAPS: Final = 64

# CUDA's limit for the second and third grid dimension; kernels loop over the rest.
MAX_BLOCKS: Final = 65_535

_SOURCE: Final = r"""
struct Axes { int size[3], taps[3], stride[3], padding[3], dilation[3], outputs[3]; };

#define EACH(variable, count) \
    for (long long variable = blockIdx.x * (long long)blockDim.x + threadIdx.x; \
         variable < (count); variable += (long long)gridDim.x * blockDim.x)
#define LINES(variable, count) \
    for (long long variable = blockIdx.y; variable < (count); variable += gridDim.y)

__device__ inline long long volume(const int* sizes) {
    return (long long)sizes[0] * sizes[1] * sizes[2];
}

// Loops over the taps of the window w: tap number t reads element p of the plane, -1 is outside.
#define TAPS_OF(w) \
    for (int a = 0, t = 0; a < g.taps[0]; ++a) { \
        int pa = w[0] * g.stride[0] - g.padding[0] + a * g.dilation[0]; \
        bool ia = pa >= 0 && pa < g.size[0]; \
        for (int b = 0; b < g.taps[1]; ++b) { \
            int pb = w[1] * g.stride[1] - g.padding[1] + b * g.dilation[1]; \
            bool ib = ia && pb >= 0 && pb < g.size[1]; \
            for (int c = 0; c < g.taps[2]; ++c, ++t) { \
                int pc = w[2] * g.stride[2] - g.padding[2] + c * g.dilation[2]; \
                bool ic = ib && pc >= 0 && pc < g.size[2]; \
                int p = ic ? (pa * g.size[1] + pb) * g.size[2] + pc : -1;
#define END_TAPS }}}

// Along one axis, the window that has its tap at an element, or -1.
__device__ inline int window(const Axes& g, int axis, int element, int tap, int first, int last) {
    int p = element + g.padding[axis] - tap * g.dilation[axis];
    if (p < 0) return -1;
    if (g.stride[axis] != 1) {
        if (p % g.stride[axis]) return -1;
        p /= g.stride[axis];
    }
    return p < first || p >= last ? -1 : p - first;
}

// Loops over the windows of rows first..last that have their tap number t at the element e.
#define WINDOWS_AT(e, first, last) \
    for (int a = 0, t = 0; a < g.taps[0]; ++a) { \
        int pa = window(g, 0, e[0], a, first, last); \
        for (int b = 0; b < g.taps[1]; ++b) { \
            int pb = pa < 0 ? -1 : window(g, 1, e[1], b, 0, g.outputs[1]); \
            for (int c = 0; c < g.taps[2]; ++c, ++t) { \
                int pc = pb < 0 ? -1 : window(g, 2, e[2], c, 0, g.outputs[2]); \
                if (pc < 0) continue; \
                int p = (pa * g.outputs[1] + pb) * g.outputs[2] + pc;
#define END_WINDOWS }}}

__device__ inline void split(int flat, const int* sizes, int* index) {
    index[2] = flat % sizes[2];
    index[1] = flat / sizes[2] % sizes[1];
    index[0] = flat / (sizes[2] * sizes[1]);
}

extern "C" {

// columns[image, channel, tap, window], windows of rows first..last: lines are channels.
__global__ void columns(const T* x, T* columns, long long lines, int first, int last, Axes g) {
    int taps = g.taps[0] * g.taps[1] * g.taps[2];
    int windows = (last - first) * g.outputs[1] * g.outputs[2];
    long long size = volume(g.size);
    LINES(line, lines) {
        const T* plane = x + line * size;
        T* rows = columns + line * taps * windows;
        EACH(n, windows) {
            int w[3]; split(n, g.outputs, w); w[0] += first;
            TAPS_OF(w) rows[(long long)t * windows + n] = p < 0 ? T(0) : plane[p]; END_TAPS
        }
    }
}

// x[plane, element] += the columns under it: lines are planes.
__global__ void add_back(const T* columns, T* x, long long lines, int first, int last, Axes g) {
    int taps = g.taps[0] * g.taps[1] * g.taps[2];
    long long windows = (long long)(last - first) * g.outputs[1] * g.outputs[2];
    long long size = volume(g.size);
    LINES(line, lines) {
        const T* from = columns + line * taps * windows;
        EACH(n, size) {
            int e[3]; split(n, g.size, e);
            T sum = 0;
            WINDOWS_AT(e, first, last) sum += from[t * windows + p]; END_WINDOWS
            x[line * size + n] += sum;
        }
    }
}

// For each filter, a sum over the taps in its one channel: lines are images and filters.
__global__ void depthwise(const T* x, const T* weight, T* y, long long lines, int filters,
                          int each, Axes g) {
    int taps = g.taps[0] * g.taps[1] * g.taps[2];
    long long windows = volume(g.outputs), size = volume(g.size);
    LINES(line, lines) {
        long long filter = line % filters;
        const T* plane = x + (line / filters * (filters / each) + filter / each) * size;
        EACH(n, windows) {
            int w[3]; split(n, g.outputs, w);
            T sum = 0;
            TAPS_OF(w) if (p >= 0) sum += weight[filter * taps + t] * plane[p]; END_TAPS
            y[line * windows + n] = sum;
        }
    }
}

// The adjoint of ``depthwise``: lines are images and channels.
__global__ void depthwise_back(const T* grad, const T* weight, T* x, long long lines, int filters,
                               int each, Axes g) {
    int taps = g.taps[0] * g.taps[1] * g.taps[2];
    long long windows = volume(g.outputs), size = volume(g.size);
    int channels = filters / each;
    LINES(line, lines) {
        long long image = line / channels, channel = line % channels;
        EACH(n, size) {
            int e[3]; split(n, g.size, e);
            T sum = 0;
            WINDOWS_AT(e, 0, g.outputs[0])
            for (int m = 0; m < each; ++m) {
                long long filter = channel * each + m, plane = image * filters + filter;
                sum += weight[filter * taps + t] * grad[plane * windows + p];
            }
            END_WINDOWS
            x[line * size + n] = sum;
        }
    }
}

// Each element gets the gradients of the windows whose largest element it is.
__global__ void largest_back(const T* grad, const long long* where, T* x, long long lines,
                             int first, int last, Axes g) {
    long long windows = volume(g.outputs), size = volume(g.size);
    LINES(line, lines) {
        EACH(n, size) {
            int e[3]; split(n, g.size, e);
            T sum = 0;
            WINDOWS_AT(e, 0, g.outputs[0])
            if (where[line * windows + p] == n) sum += grad[line * windows + p];
            END_WINDOWS
            x[line * size + n] = sum;
        }
    }
}

// The sum of each window's elements.
__global__ void sums(const T* x, T* y, long long lines, int first, int last, Axes g) {
    long long windows = volume(g.outputs), size = volume(g.size);
    LINES(line, lines) {
        const T* plane = x + line * size;
        EACH(n, windows) {
            int w[3]; split(n, g.outputs, w);
            T sum = 0;
            TAPS_OF(w) if (p >= 0) sum += plane[p]; END_TAPS
            y[line * windows + n] = sum;
        }
    }
}

}
"""


# A cache without a limit: there are six kernels for each dtype.
@cache
def _function(name: str, dtype: Any, device: int) -> Any:
    """Return a kernel for the current device, whose number is given."""
    return kept_function(f"typedef {KERNEL_DTYPES[dtype]} T;\n{_SOURCE}", name, ())


_AXES: Final = np.dtype([("axes", np.int32, (6, 3))])


def _axes(windows: Windows) -> Any:
    """Return the structure that describes the windows to a kernel."""
    axes = [*windows, *[None] * (3 - len(windows))]
    rows = [
        [1 if axis is None else getattr(axis, name) for axis in axes]
        for name in ("size", "kernel", "stride", "padding", "dilation", "outputs")
    ]
    rows[3] = [0 if axis is None else axis.padding for axis in axes]
    structure = np.zeros(1, _AXES)
    structure["axes"] = rows
    return structure


# Limit for the distinct layers of all sessions; a program has few.
@lru_cache(maxsize=1024)
def has_kernels(dtype: Any, windows: Windows) -> bool:
    """Return whether kernels support a dtype and these windows.

    The kernels count in 32 bits and loop over all taps, including those in the padding.
    """
    planes = math.prod(windows.sizes), math.prod(windows.outputs)
    reach = [
        axis.size + abs(axis.padding) + axis.outputs * axis.stride + axis.kernel * axis.dilation
        for axis in windows
    ]
    return (
        dtype in KERNEL_DTYPES
        and max(*planes, *reach) < 2**31
        and all(axis.kernel <= max(TAPS, axis.size + axis.outputs) for axis in windows)
    )


def launch(
    name: str, windows: Windows, arrays: tuple[Any, ...], lines: int, width: int, *numbers: int
) -> None:
    """Run a kernel on C-ordered arrays; the first one determines the dtype.

    The kernel writes ``lines`` of ``width`` elements. ``numbers`` are the two arguments that it
    takes before the windows.
    """
    if not lines or not width:
        return
    dtype, device = arrays[0].dtype, cupy.cuda.runtime.getDevice()

    def make() -> PreparedLaunch:
        integers = [np.array([number], np.int32) for number in numbers]
        return PreparedLaunch(
            _function(name, dtype, device),
            (-(-width // THREADS), min(lines, MAX_BLOCKS)),
            (THREADS,),
            len(arrays),
            (np.array([lines], np.int64), *integers, _axes(windows)),
        )

    prepared_launch = prepared((name, dtype, windows, lines, width, numbers, device), make)
    for place, array in enumerate(arrays):
        prepared_launch.pointers[place] = array.data.ptr
    prepared_launch.run(cupy.cuda.get_current_stream().ptr)
