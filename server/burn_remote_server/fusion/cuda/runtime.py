"""The fusion of the CuPy backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import cupy

from burn_remote_protocol.dtypes import DType
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.array.kernels.casting import conversion
from burn_remote_server.backends.interface import Backend
from burn_remote_server.fusion.cuda.column_fuser import CudaColumnFuser, CudaColumnOptimization
from burn_remote_server.fusion.cuda.compiler import CudaCompiler
from burn_remote_server.fusion.cuda.elementwise_fuser import (
    CudaElementwiseFuser,
    CudaElementwiseOptimization,
)
from burn_remote_server.fusion.cuda.optimization import CudaOptimization
from burn_remote_server.fusion.cuda.row_fuser import CudaRowFuser, CudaRowOptimization
from burn_remote_server.fusion.fuser import OperationFuser, Optimization, OptimizationState
from burn_remote_server.fusion.fusing_backend import FusionRuntime
from burn_remote_server.fusion.optimization_state import restored

__all__ = ["CupyFusionRuntime"]

_OPTIMIZATIONS: Final[dict[str, type[CudaOptimization]]] = {
    each.name: each
    for each in (CudaElementwiseOptimization, CudaRowOptimization, CudaColumnOptimization)
}


class CupyFusionRuntime(FusionRuntime):
    """The fusers of one GPU.

    Streams are not fused. Batches divide a stream into different windows each time, and each new
    window needs a new kernel. So with fusion, a program of 20 small operations took 1.1 to 2 times
    as long.
    """

    fuses_streams: ClassVar[bool] = False

    def __init__(self, index: int) -> None:
        self.compiler: CudaCompiler = CudaCompiler(index)

    def fusers(self, device: Backend) -> Sequence[OperationFuser]:
        compiler = self.compiler
        return CudaElementwiseFuser(compiler), CudaRowFuser(compiler), CudaColumnFuser(compiler)

    def from_state(self, device: Backend, state: OptimizationState) -> Optimization:
        return restored(state, _OPTIMIZATIONS, device, self.compiler)

    def cast_float(self, array: Any, dtype: DType) -> Any:
        return conversion(cupy, array.dtype, array_dtype(dtype))(array)
