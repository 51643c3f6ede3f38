"""The fuser of element-wise operations: they run together, block by block.

A block of each intermediate result stays in the processor's cache. Results that only the run itself
uses (they *die inside*) are never written to memory.
"""

from __future__ import annotations

import math
from typing import ClassVar, Final, Self

from burn_remote_protocol.tensors import Shape
from burn_remote_server.fusion.cpu.block_optimization import (
    BlockOptimization,
    bytes_saved,
    gives,
    is_exact,
    reused_inputs,
)
from burn_remote_server.fusion.cpu.kernel_compiler import KernelCompiler
from burn_remote_server.fusion.fuser import (
    FuserProperties,
    Optimization,
    StreamOperation,
)
from burn_remote_server.fusion.run_fuser import RunFuser

__all__ = ["ElementwiseFuser", "ElementwiseOptimization"]

KI: Final = 1024
# Pairs of minimums: the elements of each result, and the number of results that die inside. A run
# pays if it reaches both minimums of any pair.
Limits = tuple[tuple[int, int], ...]

# The limits from which fused runs are faster. Smaller results stay in the cache anyway. The numbers
# are the speed with fusion divided by the speed without, measured by
# `benchmarks/fusion.py --sizes` on processors with 2 MiB of cache per core:
# - block by block, 5 cheap operations and GELU gave 1.6 and 1.5 with 1 Mi elements, and Adam 1.3
#   with 512 Ki; with 256 Ki elements, GELU gave 0.97. Where blocks are slower, on processors whose
#   other caches are fast, the first runs notice it and compute whole arrays (``block_trials``),
#   which gives 0.94 to 1.05;
# - with kernels for a part of the operations, GELU gave 0.96 with 256 Ki and 1.49 with 384 Ki;
# - with kernels for all of them, 5 operations gave 1.24 and 1.77 with 128 and 256 Ki. 2 operations
#   gave 1.35 with 512 Ki, but 0.88 on a processor of another kind.
BLOCKS_PAY: Final[Limits] = ((1024 * KI, 4), (512 * KI, 8))
MIXED_PAY: Final[Limits] = ((384 * KI, 4), *BLOCKS_PAY)
KERNELS_PAY: Final[Limits] = ((1024 * KI, 1), (256 * KI, 4))

# Single operations write their results over an input that dies, so they gain less from fusion. For
# each such input, at least ``RESULTS_PER_INPUT`` results must die inside, each with at least
# ``MIN_REUSING_ELEMENTS``. Block by block, 6 operations on such an input had 0.94 times the speed
# of single operations with 512 Ki elements, and 1.29 times with 1 Mi. With kernels, they had 1.52
# times the speed with 256 Ki.
RESULTS_PER_INPUT: Final = 5
MIN_REUSING_ELEMENTS: Final = 1024 * KI
MIN_KERNEL_REUSING_ELEMENTS: Final = 256 * KI


class ElementwiseOptimization(BlockOptimization):
    """Element-wise operations with results of one shape, in blocks."""

    name: ClassVar[str] = "elementwise"


class ElementwiseFuser(RunFuser):
    """Collects element-wise operations with results of one shape."""

    # A quarter of the bytes of the smallest results that pay, which have elements of 4 bytes,
    # because bools take one byte.
    least_bytes: ClassVar[int] = 256 * KI

    def __init__(self, compiler: KernelCompiler | None = None) -> None:
        self._compiler: Final = compiler
        super().__init__()

    def _accepted_shape(self, operation: StreamOperation) -> Shape | None:
        if len(operation.calls) != 1 or len(operation.outputs) != 1:
            return None
        (out,) = operation.signature.outputs
        if self._shape is None:
            takes = math.prod(out.shape) >= self._least_elements()
        else:
            takes = out.shape == self._shape
        return out.shape if takes and gives(operation, out) else None

    def _least_elements(self) -> int:
        """Return the size below which no run pays, however long it is."""
        tables = (BLOCKS_PAY,) if self._compiler is None else (KERNELS_PAY, MIXED_PAY)
        return min(least for table in tables for least, _ in table)

    def finish(self) -> Optimization:
        assert self._shape is not None
        return ElementwiseOptimization(self._shape, self._operations, self._compiler)

    def properties(self) -> FuserProperties:
        if self._shape is None:
            return FuserProperties(0, ready=False)
        inside, saved = bytes_saved(self._operations)
        return FuserProperties(saved, ready=self._pays(inside, reused_inputs(self._operations)))

    def _pays(self, inside: int, reused: int) -> bool:
        if self._shape is None or not inside:
            return False
        size = math.prod(self._shape)
        exact = sum(map(is_exact, self._operations)) if self._compiler is not None else 0
        table, least_reusing = BLOCKS_PAY, MIN_REUSING_ELEMENTS
        if exact == len(self._operations):
            table, least_reusing = KERNELS_PAY, MIN_KERNEL_REUSING_ELEMENTS
        elif 2 * exact >= len(self._operations):
            table = MIXED_PAY
        if reused and (size < least_reusing or inside < RESULTS_PER_INPUT * reused):
            return False
        return any(size >= least and inside >= count for least, count in table)

    def _empty(self) -> Self:
        return type(self)(self._compiler)
