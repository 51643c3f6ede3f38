"""Sums and softmax of the rows of an array, each by one kernel. CuPy needs five for softmax."""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy
import numpy as np

from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.cupy.launches import PreparedLaunch, kept_function, prepared
from burn_remote_server.backends.cupy.new_arrays import new_array
from burn_remote_server.backends.cupy.row_kernels import (
    OPTIONS,
    row_grid,
    row_kernel_source,
    row_threads,
)

__all__ = ["log_softmax", "row_sums", "softmax"]


def row_sums(array: Any, shape: Shape) -> Any:
    """Return the sums of the rows of a fitting array in C order, in the given shape."""
    return _run("sum", array, shape)


def softmax(array: Any) -> Any:
    """Return the softmax of the rows of a fitting array in C order."""
    return _run("softmax", array, array.shape)


def log_softmax(array: Any) -> Any:
    """Return the logarithm of the softmax of the rows of a fitting array in C order."""
    return _run("log_softmax", array, array.shape)


@cache
def _function(kind: str, dtype: Any, threads: int, device: int) -> Any:
    """Return a kernel for the current device, whose number is given."""
    return kept_function(row_kernel_source(kind, dtype, threads), "burn_remote_rows", OPTIONS)


def _run(kind: str, array: Any, shape: Shape) -> Any:
    columns = array.shape[-1]
    rows = array.size // columns
    dtype = array.dtype
    device = cupy.cuda.runtime.getDevice()

    def make() -> PreparedLaunch:
        function = _function(kind, dtype, row_threads(columns), device)
        values = np.array([rows], np.int64), np.array([columns], np.int64)
        return PreparedLaunch(function, *row_grid(rows, columns), 2, values)

    launch = prepared((kind, dtype, rows, columns, device), make)
    target = new_array(shape, dtype)
    launch.pointers[0], launch.pointers[1] = array.data.ptr, target.data.ptr
    launch.run(cupy.cuda.get_current_stream().ptr)
    return target
