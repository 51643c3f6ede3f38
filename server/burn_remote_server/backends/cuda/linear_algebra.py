"""How are matrices of low precision multiplied on a GPU?

CuPy multiplies single ``float16`` matrices well, batches of them in ``float32`` (slower than
``float32`` itself), and ``bfloat16`` not at all; cuBLAS does all of it in one call.
"""

from __future__ import annotations

import math
from typing import Any, Final

import cupy
import numpy as np
from cupy.cuda import cublas

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.dtypes import BFLOAT16, LOW_PRECISION
from burn_remote_server.backends.array.kernels import Parameters, Run, Seen
from burn_remote_server.backends.array.linear_algebra import FloatLinearAlgebra

__all__ = ["CudaLinearAlgebra"]

# Names of cuBLAS: the elements' types, and sums in float32.
_TYPES: Final = {np.dtype(np.float16): 2, BFLOAT16: 14}
_COMPUTE_32F: Final = 68
_DEFAULT_ALGORITHM: Final = -1
_ONE: Final = np.ones(1, np.float32)
_ZERO: Final = np.zeros(1, np.float32)


class CudaLinearAlgebra(FloatLinearAlgebra):
    """Matrix products of ``float16`` and ``bfloat16`` as they are, with sums in ``float32``."""

    low_precision = frozenset({"Matmul"})

    def prepare_matmul(self, first: Seen, out: TensorSpec, parameters: Parameters) -> Run:
        """Return the matrix products over the last two axes."""
        function: Run = cupy.matmul
        return _low_precision if first.dtype in LOW_PRECISION else function


def _low_precision(lhs: Any, rhs: Any) -> Any:
    batch = np.broadcast_shapes(lhs.shape[:-2], rhs.shape[:-2])
    rows, inner = lhs.shape[-2:]
    columns = rhs.shape[-1]
    result = cupy.empty((*batch, rows, columns), lhs.dtype)
    if not result.size or not inner:
        return cupy.zeros(result.shape, result.dtype)
    (lhs, lhs_step), (rhs, rhs_step) = _laid_out(lhs, batch), _laid_out(rhs, batch)
    kind = _TYPES[lhs.dtype]
    handle = cupy.cuda.device.get_cublas_handle()
    # cuBLAS counts columns first: seen so, the arrays are transposed, and the product is too.
    cublas.gemmStridedBatchedEx(
        handle, cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_N, columns, rows, inner,
        _ONE.ctypes.data, rhs.data.ptr, kind, columns, rhs_step,
        lhs.data.ptr, kind, inner, lhs_step,
        _ZERO.ctypes.data, result.data.ptr, kind, columns, rows * columns,
        math.prod(batch), _COMPUTE_32F, _DEFAULT_ALGORITHM,
    )  # fmt: skip
    return result


def _laid_out(array: Any, batch: tuple[int, ...]) -> tuple[Any, int]:
    """Return an array in C order and the elements from one matrix of the batch to the next."""
    size = array.shape[-2] * array.shape[-1]
    if math.prod(array.shape[:-2]) == 1:
        return cupy.ascontiguousarray(array), 0
    return cupy.ascontiguousarray(cupy.broadcast_to(array, (*batch, *array.shape[-2:]))), size
