"""The fusion of backends whose arrays are NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from burn_remote_protocol.dtypes import DType
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.array.kernels.casting import conversion
from burn_remote_server.backends.interface import Backend
from burn_remote_server.fusion.array.elementwise import ElementwiseFuser
from burn_remote_server.fusion.backend import FusionRuntime
from burn_remote_server.fusion.fuser import OperationFuser

__all__ = ["NumpyFusionRuntime"]


class NumpyFusionRuntime(FusionRuntime):
    """The fusers of the NumPy backend."""

    def fusers(self, device: Backend) -> Sequence[OperationFuser]:
        return (ElementwiseFuser(),)

    def cast_float(self, array: Any, dtype: DType) -> Any:
        return conversion(np, array.dtype, array_dtype(dtype))(array)
