"""Matrix products of low-precision floats on a GPU."""

from __future__ import annotations

import cupy

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import LOW_PRECISION
from burn_remote_server.backends.array.core.kernel_forms import ArraySpec, Parameters, Run
from burn_remote_server.backends.array.kernels.linear_algebra import FloatLinearAlgebra
from burn_remote_server.backends.cupy.products import matmul

__all__ = ["CudaLinearAlgebra"]


class CudaLinearAlgebra(FloatLinearAlgebra):
    """Matrix products of ``float16`` and ``bfloat16`` with sums in ``float32``."""

    low_precision = frozenset({"Matmul"})

    def prepare_matmul(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return the kernel of matrix products over the last two axes."""
        function: Run = matmul if first.dtype in LOW_PRECISION else cupy.matmul
        return function
