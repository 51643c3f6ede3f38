"""Matrix products of low-precision floats, and factorizations, on a GPU."""

from __future__ import annotations

import contextlib
from typing import Any

import cupy
import cupyx

from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import ArraySpec, Parameters, Run
from burn_remote_server.backends.array.kernels.linear_algebra import FloatLinearAlgebra
from burn_remote_server.backends.array.kernels.matrix_kernels import NO_CONVERGENCE, MatrixKernels
from burn_remote_server.backends.cupy.products import matmul, plain_matmul

__all__ = ["CudaLinearAlgebra", "CudaMatrixKernels"]


class CudaLinearAlgebra(FloatLinearAlgebra):
    """Matrix products of ``float16`` and ``bfloat16`` with sums in ``float32``."""

    low_precision = frozenset({"Matmul"})

    def prepare_matmul(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return the kernel of matrix products over the last two axes."""
        is_plain = len(out.shape) <= 2 and len(first.shape) <= 2
        return plain_matmul if is_plain else matmul


class CudaMatrixKernels(MatrixKernels):
    """Linear algebra by cuSOLVER and cuBLAS."""

    def raising(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which CuPy raises ``LinAlgError``; by default it returns NaN."""
        state: contextlib.AbstractContextManager[Any] = cupyx.errstate(linalg="raise")
        return state

    def svdvals(self, input: Any, *, out: TensorSpec) -> Any:
        """Return the singular values in descending order.

        Raises ``UsageError`` if the iteration did not converge, which CuPy reports only when it
        also computes vectors.
        """
        values = super().svdvals(input, out=out)
        if bool(cupy.isnan(values).any()):
            raise UsageError(NO_CONVERGENCE)
        return values

    def solve(self, lhs: Any, rhs: Any, *, out: TensorSpec) -> Any:
        """Return X of A X = B. Broadcasts batches, which CuPy's function does not."""
        batch = out.shape[:-2]
        lhs = cupy.broadcast_to(lhs, (*batch, *lhs.shape[-2:]))
        return super().solve(lhs, cupy.broadcast_to(rhs, out.shape), out=out)
