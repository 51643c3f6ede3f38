"""What is particular to NumPy: arrays in this process's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.array.backend import ArrayBackend
from burn_remote_server.backends.array.dtypes import wire_dtype
from burn_remote_server.host_memory import host_memory_bytes

__all__ = ["NumpyBackend"]


class NumpyBackend(ArrayBackend):
    """Tensors on the CPU."""

    name = "numpy"
    xp = np

    def to_device(self, data: TensorData) -> Any:
        array = np.frombuffer(data.bytes, wire_dtype(data.dtype)).reshape(data.shape)
        return array != 0 if data.dtype.is_bool else array.copy()

    def empty(self, spec: TensorSpec) -> Any:
        return np.empty(spec.shape, wire_dtype(spec.dtype))

    def writable_bytes(self, array: Any) -> memoryview:
        return memoryview(array.reshape(-1).view(np.uint8))

    def finished(self, array: Any, dtype: DType) -> Any:
        return array != 0 if dtype.is_bool else array

    def to_bytes(self, array: Any, dtype: DType) -> memoryview:
        elements = np.ascontiguousarray(array, dtype=wire_dtype(dtype))
        return memoryview(elements.reshape(-1).view(np.uint8))

    def memory_bytes(self) -> int:
        return host_memory_bytes()

    def prepare_thread(self) -> None:
        # Division by zero gives infinity and NaN here, as on every device; nobody reads warnings.
        np.seterr(all="ignore")
