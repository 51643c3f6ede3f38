"""The fusion of backends whose arrays are NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from burn_remote_protocol.dtypes import DType
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.array.kernels.casting import conversion
from burn_remote_server.backends.interface import Backend
from burn_remote_server.fusion.cpu.block_optimization import BlockOptimization
from burn_remote_server.fusion.cpu.elementwise_fuser import (
    ElementwiseFuser,
    ElementwiseOptimization,
)
from burn_remote_server.fusion.cpu.exponential_fuser import (
    ExponentialFuser,
    ExponentialOptimization,
)
from burn_remote_server.fusion.cpu.kernel_compiler import KernelCompiler
from burn_remote_server.fusion.cpu.loop_fuser import LoopFuser, LoopOptimization
from burn_remote_server.fusion.cpu.reduce_fuser import ReduceFuser, ReduceOptimization
from burn_remote_server.fusion.fuser import OperationFuser, Optimization, OptimizationState
from burn_remote_server.fusion.fusing_backend import FusionRuntime
from burn_remote_server.fusion.optimization_state import restored

__all__ = ["NumpyFusionRuntime"]


_OPTIMIZATIONS: Final[dict[str, type[BlockOptimization | LoopOptimization]]] = {
    kind.name: kind
    for kind in (
        ElementwiseOptimization,
        ReduceOptimization,
        LoopOptimization,
        ExponentialOptimization,
    )
}


class NumpyFusionRuntime(FusionRuntime):
    """The fusers of the NumPy backend.

    ``compiler`` compiles kernels. Without it, reductions are not fused, because blocks of rows are
    not faster than single operations (0.93 to 1.0 times their speed).
    """

    def __init__(self, compiler: KernelCompiler | None = None) -> None:
        self.compiler: KernelCompiler | None = compiler

    def fusers(self, device: Backend) -> Sequence[OperationFuser]:
        if self.compiler is None:
            return (ElementwiseFuser(),)
        return (ElementwiseFuser(self.compiler), ReduceFuser(self.compiler))

    def graph_fusers(self, device: Backend) -> Sequence[OperationFuser]:
        if self.compiler is None:
            return self.fusers(device)
        # Not for streams: searching a window takes longer than a few small operations.
        return (*self.fusers(device), LoopFuser(self.compiler), ExponentialFuser(self.compiler))

    def from_state(self, device: Backend, state: OptimizationState) -> Optimization:
        return restored(state, _OPTIMIZATIONS, device, self.compiler)

    def cast_float(self, array: Any, dtype: DType) -> Any:
        return conversion(np, array.dtype, array_dtype(dtype))(array)
