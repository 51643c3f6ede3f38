"""The NumPy backend: the CPU of this machine."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterable
from typing import Any, ClassVar, Final

import numpy as np

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.array.backend import ArrayBackend
from burn_remote_server.backends.array.core.array_dtypes import wire_dtype
from burn_remote_server.backends.interface import Memory, array_shape
from burn_remote_server.backends.numpy.memory_limits import host_memory_bytes, resident_bytes
from burn_remote_server.backends.numpy.recycling import Recycling, is_recycled

__all__ = ["NumpyBackend"]


class NumpyBackend(ArrayBackend):
    """The CPU of this machine, as one device."""

    name: ClassVar[str] = "numpy"

    def __init__(self, memory_limit: int | None = None) -> None:
        super().__init__(np)
        # Read once: each session asks for it, and it is in about ten files of the system.
        available = host_memory_bytes()
        self._memory_bytes: Final = min(available, memory_limit or available)
        self._recycling = Recycling(0)

    @property
    def device_name(self) -> str:
        return platform.processor() or platform.machine()

    def memory_bytes(self) -> int:
        return self._memory_bytes

    def memory(self) -> Memory:
        # NumPy does not report its arrays separately from the rest of the process.
        return Memory(self.memory_bytes(), resident_bytes(), self._recycling.kept_bytes)

    def prepare_thread(self) -> None:
        # Infinities and NaN are ordinary results. NumPy keeps this setting per context (thread or
        # asyncio task); setting it around each call would cost a microsecond.
        np.seterr(all="ignore")

    def owns_memory(self, array: Any) -> bool:
        # Only arrays in C order. A new result is in C order if one of its operands is. If it were
        # written into an operand in another order, it would have that order. A later sum would then
        # add its elements in that order and round differently.
        flags = array.flags
        return bool(
            (array.base is None or is_recycled(array)) and flags.writeable and flags.c_contiguous
        )

    def empty(self, spec: TensorSpec) -> Any:
        return self._recycling.empty(array_shape(spec), wire_dtype(spec.dtype))

    def upload_memory(self, upload: Any) -> memoryview | None:
        return memoryview(upload.reshape(-1).view(np.uint8))

    def arriving_memory(self, size: int) -> memoryview:
        return self._recycling.message_memory(size)

    def arrived(self, elements: memoryview, spec: TensorSpec) -> Any:
        return self._recycling.taken_over(elements, array_shape(spec), wire_dtype(spec.dtype))

    def copies_upload(self, data: TensorData) -> bool:
        # A bool is examined (``finished``), and quantized elements are converted.
        return (
            type(data.bytes) is not memoryview
            or data.dtype.is_bool
            or data.dtype.scheme is not None
            or not self._recycling.would_take_over(data.bytes)
        )

    def copies_elements(self, array: Any, dtype: DType) -> bool:
        return not array.flags.c_contiguous or bool(array.dtype != wire_dtype(dtype))

    def begin_recycling(self, max_bytes: int) -> None:
        self._recycling = Recycling(max_bytes)

    def expire_memory(self) -> None:
        self._recycling.expire()

    # A NumPy kernel has finished when it returns.

    def sync(self) -> None:
        return None

    def memory_cleanup(self) -> None:
        self._recycling.expire(0)

    def memory_persistent_allocations(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def staging(self, data: Iterable[TensorData]) -> None:
        return None
