"""The fuser after sums of columns on a GPU, such as the update of a bias by its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.cupy.column_kernels import (
    COLUMN_SUMS,
    COLUMN_THREADS,
    are_columns_fitting,
    column_passes,
    column_width,
)
from burn_remote_server.backends.cupy.cuda_expressions import Expression
from burn_remote_server.backends.cupy.sums import sum_columns
from burn_remote_server.fusion.cuda.column_source import column_epilogue_source
from burn_remote_server.fusion.cuda.elementwise_fuser import is_expression
from burn_remote_server.fusion.cuda.kernel_source import KernelStep
from burn_remote_server.fusion.cuda.optimization import CudaFuser, CudaOptimization, Inputs
from burn_remote_server.fusion.fuser import FuserProperties, StreamOperation

__all__ = ["CudaColumnFuser", "CudaColumnOptimization"]


class CudaColumnOptimization(CudaOptimization):
    """A sum of columns and element-wise operations on it. The last pass of the sum runs them."""

    name: ClassVar[str] = "cuda_columns"
    function = COLUMN_SUMS
    block = COLUMN_THREADS

    def _steps(
        self, operation: StreamOperation, operands: tuple[int, ...], first: int
    ) -> list[KernelStep]:
        if not sums_columns(operation):
            return super()._steps(operation, operands, first)
        (out,) = operation.signature.outputs
        return [KernelStep(Expression("{0}", array_dtype(out.dtype)), operands, "sum")]

    def _kernel_source(
        self, inputs: Inputs, steps: Sequence[KernelStep], kept: Sequence[int]
    ) -> str:
        signature = self._operations[0].signature
        axis = signature.call.parameters["axis"]
        shape = signature.input_uses[0].spec.shape
        self._width = column_width(shape, axis)
        *self._first_passes, self._last_pass = column_passes(shape, axis)
        self.grid = self._last_pass.grid
        return column_epilogue_source(self._shape, inputs, steps, kept)

    def _last_values(self) -> Sequence[Any]:
        integers = (self._last_pass.rows, self._width, self._last_pass.chunk)
        return [np.array([integer], np.int64) for integer in integers]

    def _pointers(self, inputs: Sequence[Any]) -> Sequence[Any]:
        if not self._first_passes:
            return inputs
        return [sum_columns(inputs[0], self._first_passes, self._width), *inputs[1:]]


class CudaColumnFuser(CudaFuser):
    """Collects a sum of columns, and element-wise operations on its result."""

    optimization: ClassVar[type[CudaOptimization]] = CudaColumnOptimization

    def _accepted_shape(self, operation: StreamOperation) -> Shape | None:
        if len(operation.outputs) != 1:
            return None
        (out,) = operation.signature.outputs
        if self._shape is None:
            return out.shape if sums_columns(operation) else None
        return self._shape if out.shape == self._shape and is_expression(operation) else None

    def properties(self) -> FuserProperties:
        return FuserProperties(len(self._operations), ready=len(self._operations) > 1)


def sums_columns(operation: StreamOperation) -> bool:
    """Whether an operation is a sum along an axis that a kernel of columns computes."""
    signature = operation.signature
    if (signature.row.family, signature.row.name) != ("Numeric", "SumDim"):
        return False
    spec = signature.input_uses[0].spec
    (out,) = signature.outputs
    axis, shape = signature.call.parameters["axis"], spec.shape
    return (
        spec.dtype.scheme is None
        and out.dtype == spec.dtype
        and are_columns_fitting(shape, axis, array_dtype(spec.dtype))
        and out.shape == (*shape[:axis], 1, *shape[axis + 1 :])
    )
