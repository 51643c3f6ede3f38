"""The fuser of element-wise operations: they run together, block by block.

A block of each intermediate result stays in the processor's cache, and results that die inside are
never written to memory.
"""

from __future__ import annotations

import math
from typing import ClassVar, Final

from burn_remote_protocol.tensors import Shape
from burn_remote_server.fusion.array.block_optimization import (
    BlockOptimization,
    bytes_saved,
    gives,
    is_exact,
    reused_inputs,
)
from burn_remote_server.fusion.array.kernel_compiler import KernelCompiler
from burn_remote_server.fusion.fuser import (
    FuserProperties,
    FuserStatus,
    OperationFuser,
    Optimization,
    StreamOperation,
)

__all__ = ["ElementwiseFuser", "ElementwiseOptimization"]

# Smallest results for which blocks pay: smaller ones stay in the cache anyway. With 256 Ki
# elements, blocks take between 0.9 and 1.1 of the time (`benchmarks/fusion.py --sizes`).
MIN_ELEMENTS: Final = 512 * 1024

# Blocks write new arrays, where single operations reuse the memory of an input that dies. For each
# such input, at least this many results must die inside, each of at least ``MIN_REUSING_ELEMENTS``
# (measured: 5 results of 1 Mi elements give 1.05 times the speed, 3 of 4 Mi 1.03).
RESULTS_PER_INPUT: Final = 5
MIN_REUSING_ELEMENTS: Final = 2**20


# The least elements of each result, and how many results must then die inside: for functions block
# by block, and where everything is compiled (measured: 2 and 5 operations on 512 Ki to 1 Mi
# elements ran at 0.66 to 0.86 of the speed in blocks; 2 on 512 Ki at 0.88 compiled; others faster).
BLOCKS_PAY: Final = ((2 * 2**20, 4), (2**20, 8))
KERNELS_PAY: Final = ((2**20, 1), (512 * 1024, 4))


class ElementwiseOptimization(BlockOptimization):
    """Element-wise operations with results of one shape, in blocks."""

    name: ClassVar[str] = "elementwise"


class ElementwiseFuser(OperationFuser):
    """Collects element-wise operations with results of one shape."""

    def __init__(self, compiler: KernelCompiler | None = None) -> None:
        self._compiler: Final = compiler
        self._operations: list[StreamOperation] = []
        self._shape: Shape | None = None
        self._status = FuserStatus.OPEN

    def fuse(self, operation: StreamOperation) -> None:
        if self._accepts(operation):
            self._shape = operation.signature.outputs[0].shape
            self._operations.append(operation)
        else:
            self._status = FuserStatus.CLOSED

    def _accepts(self, operation: StreamOperation) -> bool:
        if len(operation.calls) != 1 or len(operation.outputs) != 1:
            return False
        (out,) = operation.signature.outputs
        if math.prod(out.shape) < MIN_ELEMENTS or self._shape not in (None, out.shape):
            return False
        return gives(operation, out)

    def finish(self) -> Optimization:
        assert self._shape is not None
        return ElementwiseOptimization(self._shape, self._operations, self._compiler)

    def reset(self) -> None:
        self._operations = []
        self._shape = None
        self._status = FuserStatus.OPEN

    def status(self) -> FuserStatus:
        return self._status

    def properties(self) -> FuserProperties:
        if self._shape is None:
            return FuserProperties(0, ready=False)
        inside, saved = bytes_saved(self._operations)
        reused = reused_inputs(self._operations)
        is_large = not reused or math.prod(self._shape) >= MIN_REUSING_ELEMENTS
        pays = inside >= max(1, RESULTS_PER_INPUT * reused) and self._pays(inside)
        return FuserProperties(saved, ready=is_large and pays)

    def _pays(self, inside: int) -> bool:
        assert self._shape is not None
        size = math.prod(self._shape)
        is_compiled = self._compiler is not None and all(map(is_exact, self._operations))
        table = KERNELS_PAY if is_compiled else BLOCKS_PAY
        return any(size >= least and inside >= count for least, count in table)

    def __len__(self) -> int:
        return len(self._operations)

    def clone_dyn(self) -> OperationFuser:
        clone = ElementwiseFuser(self._compiler)
        clone._operations = [*self._operations]
        clone._shape, clone._status = self._shape, self._status
        return clone
