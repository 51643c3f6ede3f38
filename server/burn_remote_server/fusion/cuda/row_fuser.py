"""The fuser around reductions of rows on a GPU, such as those of softmax.

Element-wise operations before and after a reduction over the last axis run together with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.cupy.cuda_expressions import Expression
from burn_remote_server.backends.cupy.row_kernels import are_fitting, row_grid
from burn_remote_server.fusion.cuda.elementwise_fuser import is_expression
from burn_remote_server.fusion.cuda.kernel_source import FUNCTION, KernelStep
from burn_remote_server.fusion.cuda.optimization import CudaFuser, CudaOptimization, Inputs
from burn_remote_server.fusion.cuda.row_source import row_source
from burn_remote_server.fusion.fuser import FuserProperties, StreamOperation

__all__ = ["CudaRowFuser", "CudaRowOptimization"]

_SUMS: Final = frozenset({("Numeric", "SumDim"), ("Numeric", "MeanDim")})
_SOFTMAXES: Final = frozenset({("Activation", "Softmax"), ("Activation", "LogSoftmax")})


class CudaRowOptimization(CudaOptimization):
    """Reductions of the rows of one shape, and the operations around them, as one kernel."""

    name: ClassVar[str] = "cuda_rows"
    function = FUNCTION

    def _steps(
        self, operation: StreamOperation, operands: tuple[int, ...], first: int
    ) -> list[KernelStep]:
        row = operation.signature.row
        (out,) = operation.signature.outputs
        if (row.family, row.name) in _SOFTMAXES:
            return _softmax(row.name, array_dtype(out.dtype), operands[0], first)
        if (row.family, row.name) in _SUMS:
            dtype = array_dtype(out.dtype)
            steps = [KernelStep(Expression("{0}", dtype), operands, "sum", True)]
            if row.name == "MeanDim":
                count = dtype.type(self._shape[-1])
                steps.append(
                    KernelStep(Expression("({0} / {1})", dtype, (count,)), (first,), None, True)
                )
            return steps
        (step,) = super()._steps(operation, operands, first)
        return [step._replace(is_narrow=out.shape != self._shape)]

    def _kernel_source(
        self, inputs: Inputs, steps: Sequence[KernelStep], kept: Sequence[int]
    ) -> str:
        self.grid, self.block = row_grid(math.prod(self._shape[:-1]), self._shape[-1])
        return row_source(self._shape, inputs, steps, kept)


def _softmax(name: str, dtype: np.dtype, operand: int, first: int) -> list[KernelStep]:
    """Return the steps of softmax, as in ``backends.cupy.row_kernels``."""
    shifted = KernelStep(Expression("({0} - {1})", dtype), (operand, first))
    steps = [
        KernelStep(Expression("{0}", dtype), (operand,), "max", True),
        shifted,
        KernelStep(Expression("exp({0})", dtype), (first + 1,)),
        KernelStep(Expression("{0}", dtype), (first + 2,), "sum", True),
    ]
    if name == "Softmax":
        return [*steps, KernelStep(Expression("({0} / {1})", dtype), (first + 2, first + 3))]
    logarithm = KernelStep(Expression("log({0})", dtype), (first + 3,), None, True)
    return [
        *steps, logarithm,
        KernelStep(Expression("({0} - {1})", dtype), (first + 1, first + 4)),
    ]  # fmt: skip


class CudaRowFuser(CudaFuser):
    """Collects reductions of rows of one shape, and element-wise operations around them."""

    optimization: ClassVar[type[CudaOptimization]] = CudaRowOptimization

    def _accepted_shape(self, operation: StreamOperation) -> Shape | None:
        if len(operation.outputs) != 1:
            return None
        (out,) = operation.signature.outputs
        if _reduces_rows(operation):
            shape = operation.signature.input_uses[0].spec.shape
            return shape if self._shape in (None, shape) else None
        shape = out.shape if self._shape is None else self._shape
        if out.shape not in (shape, (*shape[:-1], 1)) or not is_expression(operation):
            return None
        # The dtype matters only to reductions.
        return shape if are_fitting(shape, np.dtype(np.float32)) else None

    def properties(self) -> FuserProperties:
        reduces = any(map(_reduces_rows, self._operations))
        return FuserProperties(len(self._operations), ready=reduces and len(self._operations) > 1)


def _reduces_rows(operation: StreamOperation) -> bool:
    """Whether an operation is a reduction that a kernel of rows computes, also without fusion."""
    signature = operation.signature
    key = (signature.row.family, signature.row.name)
    if key not in _SUMS | _SOFTMAXES:
        return False
    spec = signature.input_uses[0].spec
    (out,) = signature.outputs
    shape = spec.shape
    return (
        spec.dtype.scheme is None
        and are_fitting(shape, array_dtype(spec.dtype))
        and signature.call.parameters["axis"] == len(shape) - 1
        and out.dtype == spec.dtype
        and out.shape == (shape if key in _SOFTMAXES else (*shape[:-1], 1))
    )
