"""Products of matrices and vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import (
    Array,
    Kernel,
    KernelFamily,
    Parameters,
    Prepared,
    Run,
    Seen,
)
from burn_remote_server.backends.array.kernels.blas_threads import on_one_thread, pays_for_threads

__all__ = ["FloatLinearAlgebra", "IntLinearAlgebra"]

# Above this many multiplications it pays to look whether integers are small enough to be multiplied
# as floating-point numbers. Larger: matrices of 64x64 take 200 microseconds instead of 40. Smaller:
# looking takes longer than what it saves.
MULTIPLICATIONS_WORTH_LOOKING: Final = 32_768

# Integers up to this size, and all sums of them up to it, are float64 numbers.
EXACT_IN_FLOAT64: Final = 2**53


class FloatLinearAlgebra(KernelFamily):
    """Matrix products over the last two axes, with broadcasting; cross products along one."""

    family = "Float"

    def table(self) -> Mapping[str, Kernel]:
        return {"Matmul": Prepared(self.prepare_matmul), "Cross": self.cross}

    def prepare_matmul(self, first: Seen, out: TensorSpec, parameters: Parameters) -> Run:
        """Return the matrix products over the last two axes."""
        # The array module's own function: transposed views are multiplied where they are.
        function: Run = self.xp.matmul
        if pays_for_threads(math.prod(first.shape[-1:] + out.shape[-2:])):
            return function
        return on_one_thread(function)

    def cross(self, lhs: Array, rhs: Array, *, dim: int, out: TensorSpec) -> Array:
        """Return the cross products of the vectors of 3 along an axis of the result."""
        xp = self.xp
        from_end = dim - len(out.shape)
        a, b = (xp.moveaxis(tensor, from_end, 0) for tensor in (lhs, rhs))
        parts = (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
        return xp.stack(parts, axis=dim)


class IntLinearAlgebra(KernelFamily):
    """Matrix products of integers, which wrap around."""

    family = "Int"

    def table(self) -> Mapping[str, Kernel]:
        return {"Matmul": self.matmul}

    def matmul(self, lhs: Array, rhs: Array, *, out: TensorSpec) -> Array:
        """Return the matrix products over the last two axes."""
        xp, inner = self.xp, lhs.shape[-1]
        if out.size * inner > MULTIPLICATIONS_WORTH_LOOKING:
            largest = [max(int(xp.max(item)), -int(xp.min(item))) for item in (lhs, rhs)]
            if largest[0] * largest[1] * inner <= EXACT_IN_FLOAT64:
                # Array modules multiply integers one by one, float64 with the processor's best.
                product = xp.matmul(lhs.astype(np.float64), rhs.astype(np.float64))
                # By way of 64 bits: a sum too large for the dtype must wrap around.
                return product.astype(np.int64).astype(lhs.dtype, copy=False)
        return xp.matmul(lhs, rhs)
