"""The largest elements of windows along one or two axes, and their positions, by one kernel."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import cupy

from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.array.kernels.networks.windows import Windows
from burn_remote_server.backends.cupy.launches import PreparedLaunch, kept_function, prepared
from burn_remote_server.backends.cupy.maxima_kernels import MAXIMA, maxima_launch, maxima_source
from burn_remote_server.backends.cupy.new_arrays import new_array

__all__ = ["window_maxima"]


# A cache without a limit: there are 12 kernels of 20 KB.
@cache
def _function(dtype: Any, taps: tuple[int, int], is_indexed: bool, device: int) -> Any:
    """Return a kernel for the current device, whose number is given."""
    return kept_function(maxima_source(dtype, taps, is_indexed), MAXIMA, ("--std=c++17",))


def window_maxima(x: Any, windows: Windows, shape: Shape, where: Any = None) -> Any:
    """Return the maxima of a C-ordered array of planes, in ``shape``.

    The windows are such that ``windows.has_kernels`` is true. Stores the position of each maximum
    within its plane in ``where``, an array of ``int64``, if given: -1 for a window without
    elements.
    """
    y = new_array(shape, x.dtype)
    if not y.size:
        return y
    device = cupy.cuda.runtime.getDevice()
    is_indexed = where is not None

    def make() -> PreparedLaunch:
        launch = maxima_launch(windows, math.prod(shape) // math.prod(windows.outputs))
        function = _function(x.dtype, launch.taps, is_indexed, device)
        return PreparedLaunch(function, launch.grid, launch.block, 3, launch.values)

    launch = prepared((MAXIMA, x.dtype, shape, windows, is_indexed, device), make)
    pointers = launch.pointers
    pointers[0], pointers[1] = x.data.ptr, y.data.ptr
    pointers[2] = where.data.ptr if is_indexed else 0
    launch.run(cupy.cuda.get_current_stream().ptr)
    return y
