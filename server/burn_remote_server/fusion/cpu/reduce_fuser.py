"""The fuser around reductions of rows, such as those of softmax and layer normalization.

Element-wise operations before and after a reduction over the last axis run together with it, for
some rows at a time. A row is never divided, so a reduction adds its elements in the same order.
"""

from __future__ import annotations

import math
from typing import ClassVar, Final, Self

import burn_remote_server.fusion.cpu.block_program as block_program
from burn_remote_protocol.tensors import Shape
from burn_remote_server.fusion.cpu.block_optimization import (
    BlockOptimization,
    bytes_saved,
    gives,
    is_exact,
)
from burn_remote_server.fusion.cpu.kernel_compiler import KernelCompiler
from burn_remote_server.fusion.fuser import FuserProperties, Optimization, StreamOperation
from burn_remote_server.fusion.run_fuser import RunFuser

__all__ = ["ReduceFuser", "ReduceOptimization"]

# Pairs of minimums: the number of elements, and the number of exact operations on whole rows.
# Blocks of rows are faster if both minimums of a pair are reached (`benchmarks/fusion.py --rows`).
# With fewer, programs took up to 1.5 times as long as their operations one by one.
EXACT_OPERATIONS: Final = ((16 * 2**20, 2), (4 * 2**20, 3), (2**20, 4))


class ReduceOptimization(BlockOptimization):
    """Reductions of the rows of one shape, with the operations around them, in blocks of rows."""

    name: ClassVar[str] = "reduce"


class ReduceFuser(RunFuser):
    """Collects row reductions of arrays of one shape, and element-wise operations around them."""

    least_bytes: ClassVar[int] = 256 * 1024

    def __init__(self, compiler: KernelCompiler | None = None) -> None:
        self._compiler: Final = compiler
        super().__init__()

    def _accepted_shape(self, operation: StreamOperation) -> Shape | None:
        if len(operation.outputs) != 1:
            return None
        (out,) = operation.signature.outputs
        if operation.reduction is not None:
            shape = operation.signature.input_uses[0].spec.shape
            is_declared = out.shape == (*shape[:-1], 1)
            return shape if is_declared and self._takes(shape) else None
        if len(operation.calls) != 1:
            return None
        shape = out.shape if self._shape is None else self._shape
        if out.shape not in (shape, (*shape[:-1], 1)) or not self._takes(shape):
            return None
        return shape if gives(operation, out) else None

    def _takes(self, shape: Shape) -> bool:
        if self._shape is not None:
            return shape == self._shape
        size = math.prod(shape)
        if all(size < least for least, _ in EXACT_OPERATIONS):
            return False
        # Each block needs two rows or more, because NumPy computes a single element by other loops.
        return 2 <= shape[-1] <= size // 2 and is_short_row(shape[-1])

    def finish(self) -> Optimization:
        assert self._shape is not None
        return ReduceOptimization(self._shape, self._operations, self._compiler)

    def properties(self) -> FuserProperties:
        inside, saved = bytes_saved(self._operations)
        reduces = any(each.reduction is not None for each in self._operations)
        return FuserProperties(saved, ready=reduces and inside > 0 and self._pays())

    def _pays(self) -> bool:
        assert self._shape is not None
        exact = sum(
            each.signature.outputs[0].shape == self._shape and is_exact(each)
            for each in self._operations
        )
        size = math.prod(self._shape)
        return any(size >= least and exact >= count for least, count in EXACT_OPERATIONS)

    def _empty(self) -> Self:
        return type(self)(self._compiler)


def is_short_row(length: int) -> bool:
    """Whether two rows of this length fit into a block."""
    return 2 * length <= block_program.BLOCK_ELEMENTS
