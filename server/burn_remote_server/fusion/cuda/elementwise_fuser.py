"""The fuser of element-wise operations on a GPU: they run as one kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final

from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.cupy.cuda_expressions import expression_of
from burn_remote_server.fusion.cuda.kernel_source import FUNCTION, KernelStep, kernel_source
from burn_remote_server.fusion.cuda.optimization import CudaFuser, CudaOptimization, Inputs
from burn_remote_server.fusion.fuser import FuserProperties, StreamOperation

__all__ = ["CudaElementwiseFuser", "CudaElementwiseOptimization", "is_expression"]

# Threads of a block, and the most blocks: enough to occupy the largest GPUs several times over.
THREADS: Final = 256
MAX_BLOCKS: Final = 4096


class CudaElementwiseOptimization(CudaOptimization):
    """Element-wise operations with results of one shape, as one kernel."""

    name: ClassVar[str] = "cuda_elementwise"
    function = FUNCTION
    block = (THREADS,)

    def _kernel_source(
        self, inputs: Inputs, steps: Sequence[KernelStep], kept: Sequence[int]
    ) -> str:
        self.grid = (min(-(-math.prod(self._shape) // THREADS), MAX_BLOCKS),)
        return kernel_source(self._shape, inputs, steps, kept)


class CudaElementwiseFuser(CudaFuser):
    """Collects element-wise operations with results of one shape."""

    optimization: ClassVar[type[CudaOptimization]] = CudaElementwiseOptimization

    def _accepted_shape(self, operation: StreamOperation) -> Shape | None:
        if not operation.calls or len(operation.outputs) != 1:
            return None
        (out,) = operation.signature.outputs
        if self._shape not in (None, out.shape) or not math.prod(out.shape):
            return None
        return out.shape if is_expression(operation) else None

    def properties(self) -> FuserProperties:
        # Each operation but the first saves a launch, which saves more time than anything else. So
        # the score is the number of operations.
        return FuserProperties(len(self._operations), ready=len(self._operations) > 1)


def is_expression(operation: StreamOperation) -> bool:
    """Whether a kernel can compute an operation for each element of its result."""
    if not operation.calls:
        return False
    expression = expression_of(operation.signature)
    return expression is not None and len(operation.numbers) in (0, len(expression.numbers))
