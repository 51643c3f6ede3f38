"""Products of matrices and vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import (
    Array,
    ArraySpec,
    Kernel,
    KernelFamily,
    Parameters,
    Prepared,
    Run,
)
from burn_remote_server.backends.array.kernels.blas_threads import is_small, on_one_thread
from burn_remote_server.backends.array.kernels.matrix_products import (
    cores,
    divided,
    matmul,
    parts_of,
)

__all__ = ["FloatLinearAlgebra", "IntLinearAlgebra"]

# From this number of multiplications on, it pays to check whether integers are small enough for
# float64: products of 64x64 matrices then take 40 µs instead of 200 µs.
MIN_CHECKED_MULTIPLICATIONS: Final = 32_768

# float64 represents all integers up to this size exactly.
EXACT_IN_FLOAT64: Final = 2**53


class FloatLinearAlgebra(KernelFamily):
    """Matrix products over the last two axes, with broadcasting; cross products along one."""

    family = "Float"

    def table(self) -> Mapping[str, Kernel]:
        return {"Matmul": Prepared(self.prepare_matmul), "Cross": self.cross}

    def prepare_matmul(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return a kernel for matrix products over the last two axes."""
        # ``matmul`` multiplies transposed views without copying them.
        function: Run = self.xp.matmul
        inner = first.shape[-1]
        if is_small(out.shape[-2], inner, out.shape[-1]):
            return function
        return on_one_thread(divided(function, parts_of(out.shape, inner, cores())))

    def cross(self, lhs: Array, rhs: Array, *, dim: int, out: TensorSpec) -> Array:
        """Return the cross products of vectors of 3 elements along axis ``dim`` of the result."""
        xp = self.xp
        from_end = dim - len(out.shape)
        a, b = (xp.moveaxis(tensor, from_end, 0) for tensor in (lhs, rhs))
        parts = (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
        return xp.stack(parts, axis=dim)


class IntLinearAlgebra(KernelFamily):
    """Matrix products of integers. Products and sums wrap around."""

    family = "Int"

    def table(self) -> Mapping[str, Kernel]:
        return {"Matmul": self.matmul}

    def matmul(self, lhs: Array, rhs: Array, *, out: TensorSpec) -> Array:
        """Return the matrix products over the last two axes."""
        xp, inner = self.xp, lhs.shape[-1]
        if out.size * inner > MIN_CHECKED_MULTIPLICATIONS:
            largest = [max(int(xp.max(item)), -int(xp.min(item))) for item in (lhs, rhs)]
            if largest[0] * largest[1] * inner <= EXACT_IN_FLOAT64:
                # float64 uses the BLAS; array modules multiply integers element by element.
                product = matmul(xp, lhs.astype(np.float64), rhs.astype(np.float64))
                # By way of int64, so that sums beyond a smaller dtype wrap around.
                return product.astype(np.int64).astype(lhs.dtype, copy=False)
        return xp.matmul(lhs, rhs)
