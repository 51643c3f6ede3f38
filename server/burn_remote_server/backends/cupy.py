"""What is particular to CuPy as the array library?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, ClassVar, Final

import cupy
import cupyx
import numpy as np

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.array.backend import ArrayBackend
from burn_remote_server.backends.array.dtypes import BFLOAT16, wire_dtype
from burn_remote_server.backends.array.families import random_families
from burn_remote_server.backends.array.kernels import Parameters, PreparedKernel, Seen
from burn_remote_server.backends.array.session import ArraySession, kernel_table
from burn_remote_server.backends.cuda.families import cuda_families
from burn_remote_server.backends.cuda.library import CUPY
from burn_remote_server.backends.cuda.random_numbers import CudaRandomStream
from burn_remote_server.backends.interface import Run

__all__ = ["CupyBackend"]

# From this size on elements cross to the host through pinned memory, at 55 instead of 10 GB/s.
# Smaller: pinning costs more than it saves.
PINNED_BYTES: Final = 2**16


class CupySession(ArraySession):
    """Kernels of one session on one GPU."""

    def __init__(self, device: Any, table: Any, seed: Any) -> None:
        super().__init__(CUPY, table, seed)
        self._device = device

    def bind(self, signature: Signature) -> Run:
        with self._device:
            run = super().bind(signature)
        # The current device belongs to a thread, and sessions of several devices share one.
        return _on(self._device, run) if cupy.cuda.runtime.getDeviceCount() > 1 else run

    def seed(self, seed: int) -> None:
        with self._device:
            super().seed(seed)

    def _keeps_precision(self, kernel: PreparedKernel, first: Seen, parameters: Parameters) -> bool:
        # Few of CuPy's functions take bfloat16.
        return first.dtype != BFLOAT16 and kernel.keeps_precision(first, parameters)


def _on(device: Any, run: Run) -> Run:
    def run_on_device(*tensors: Any) -> Any:
        with device:
            return run(*tensors)

    return run_on_device


class CupyBackend(ArrayBackend):
    """One GPU of this machine."""

    name: ClassVar[str] = "cupy"

    def __init__(self, index: int = 0) -> None:
        self._device = cupy.cuda.Device(index)
        with self._device:
            super().__init__(CUPY)
            self._shared = {**self._shared, **kernel_table(cuda_families())}

    @property
    def device_count(self) -> int:
        return int(cupy.cuda.runtime.getDeviceCount())

    def open_session(self) -> CupySession:
        with self._device:
            stream = CudaRandomStream()
            table = {**self._shared, **kernel_table(random_families(CUPY, stream))}
            return CupySession(self._device, table, stream.seed)

    # -- tensors in and out -------------------------------------------------------------------

    def empty(self, spec: TensorSpec) -> Any:
        # On the host: ``finished`` sends it to the GPU when it is whole.
        return (
            _host_bytes(spec.size * wire_dtype(spec.dtype).itemsize)
            .view(wire_dtype(spec.dtype))
            .reshape(spec.shape)
        )

    def finished(self, array: Any, dtype: DType) -> Any:
        whole = super().finished(array, dtype)
        with self._device:
            result = cupy.empty(whole.shape, whole.dtype)
            if whole.size:
                flat = np.ascontiguousarray(whole).reshape(-1).view(np.uint8)
                result.reshape(-1).view(np.uint8).set(flat)
                # The host's memory may be reused from here on.
                cupy.cuda.get_current_stream().synchronize()
        return result

    def to_bytes(self, array: Any, dtype: DType) -> memoryview:
        wanted = wire_dtype(dtype)
        with self._device:
            if array.dtype != wanted and not (array.dtype.kind == "b" and wanted.itemsize == 1):
                array = array.astype(wanted)
            host = _host_bytes(array.nbytes)
            if array.size:
                cupy.ascontiguousarray(array).reshape(-1).view(np.uint8).get(out=host)
        return memoryview(host)

    # -- the device ---------------------------------------------------------------------------

    def memory_bytes(self) -> int:
        return int(self._device.mem_info[1])

    def prepare_thread(self) -> None:
        # Results of scalars on the host may be infinite or NaN too.
        np.seterr(all="ignore")
        self._device.use()

    def sync(self) -> None:
        with self._device:
            cupy.cuda.get_current_stream().synchronize()

    def memory_cleanup(self) -> None:
        with self._device:
            cupy.get_default_memory_pool().free_all_blocks()
            cupy.get_default_pinned_memory_pool().free_all_blocks()

    # CuPy's pool keeps what is in use where it is; there is no better place for what will stay.

    def memory_persistent_allocations(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def staging(self, data: Iterable[TensorData]) -> None:
        return None


def _host_bytes(size: int) -> Any:
    return cupyx.empty_pinned(size, np.uint8) if size >= PINNED_BYTES else np.empty(size, np.uint8)
