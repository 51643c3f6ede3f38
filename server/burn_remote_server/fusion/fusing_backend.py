"""``Fusion``: a decorator of backends, whose sessions then fuse operations."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

from burn_remote_protocol.collectives import Reduction
from burn_remote_protocol.dtypes import F32, DType, DTypeUsage
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.interface import (
    Backend,
    BackendSession,
    Combine,
    Communicator,
    Loan,
    Memory,
    Reduce,
)
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations
from burn_remote_server.fusion.background_compiler import BackgroundCompiler
from burn_remote_server.fusion.fuser import OperationFuser, Optimization, OptimizationState

__all__ = ["Fusion", "FusionBackend", "FusionRuntime"]


class FusionRuntime(ABC):
    """The fusers of a kind of device.

    ``fuses_streams``: the operations of a stream are fused too, not only those of graphs.
    """

    fuses_streams: ClassVar[bool] = True

    # The compiler of this runtime's kernels. Runtimes may share one.
    compiler: BackgroundCompiler[Any] | None = None

    @abstractmethod
    def fusers(self, device: Backend) -> Sequence[OperationFuser]:
        """Return new fusers for a device. One stream uses them."""

    def graph_fusers(self, device: Backend) -> Sequence[OperationFuser]:
        """Return new fusers for the steps of a graph."""
        return self.fusers(device)

    @abstractmethod
    def from_state(self, device: Backend, state: OptimizationState) -> Optimization:
        """Return the optimization of a state, for a device.

        Raises ``UsageError`` for the state of an optimization that this runtime does not have, and
        ``ProtocolViolation`` for an operation that cannot be decoded.
        """

    @abstractmethod
    def cast_float(self, array: Any, dtype: DType) -> Any:
        """Return a floating-point array in another floating-point dtype, rounded once."""


class FusionBackend(ABC):
    """The methods that fusion adds to a backend."""

    @property
    @abstractmethod
    def fusion_runtime(self) -> FusionRuntime:
        """The source of this backend's fusers."""

    def fusers(self) -> Sequence[OperationFuser]:
        """Return new fusers for this device."""
        assert isinstance(self, Backend)
        return self.fusion_runtime.fusers(self)

    def graph_fusers(self) -> Sequence[OperationFuser]:
        """Return new fusers for the steps of a graph on this device."""
        assert isinstance(self, Backend)
        return self.fusion_runtime.graph_fusers(self)

    @property
    def full_precision_backend(self) -> FusionBackend:
        """The equivalent of Burn's ``FullPrecisionBackend``, which computes in float32.

        It is this backend itself, because kernels here convert 16-bit floats to float32 themselves.
        """
        return self

    def cast_float(self, array: Any, dtype: DType = F32) -> Any:
        """Return a floating-point array in another floating-point dtype, rounded once."""
        return self.fusion_runtime.cast_float(array, dtype)


class Fusion(Backend, FusionBackend):
    """A backend that fuses operations; in all other respects, it behaves as the one it wraps."""

    def __init__(self, inner: Backend, runtime: FusionRuntime) -> None:
        self.inner: Final = inner
        self._runtime: Final = runtime
        self.name = f"fusion<{inner.name}>"  # type: ignore[misc]
        self.ad_enabled = inner.ad_enabled  # type: ignore[misc]
        # Called for each tensor, so a forwarding method would cost 0.1 µs each time.
        self.nbytes = inner.nbytes  # type: ignore[method-assign]
        self.root = inner.root  # type: ignore[method-assign]
        self.owns_memory = inner.owns_memory  # type: ignore[method-assign]

    @property
    def fusion_runtime(self) -> FusionRuntime:
        return self._runtime

    @property
    def device_count(self) -> int:
        return self.inner.device_count

    @property
    def failure(self) -> str | None:
        return self.inner.failure

    def examine(self) -> None:
        self.inner.examine()

    def explained(self, error: Exception) -> Exception:
        return self.inner.explained(error)

    def open_session(self, custom: CustomOperations = NO_OPERATIONS) -> BackendSession:
        return self.inner.open_session(custom)

    def to_device(self, data: TensorData) -> Any:
        return self.inner.to_device(data)

    def copies_upload(self, data: TensorData) -> bool:
        return self.inner.copies_upload(data)

    def empty(self, spec: TensorSpec) -> Any:
        return self.inner.empty(spec)

    def write(self, upload: Any, offset: int, data: memoryview | bytes) -> None:
        self.inner.write(upload, offset, data)

    def chunk_memory(self, upload: Any, offset: int, size: int) -> memoryview | None:
        return self.inner.chunk_memory(upload, offset, size)

    def chunk_written(self, upload: Any, size: int) -> None:
        self.inner.chunk_written(upload, size)

    def finished(self, upload: Any, dtype: DType) -> Any:
        return self.inner.finished(upload, dtype)

    def to_bytes(self, array: Any, dtype: DType) -> memoryview:
        return self.inner.to_bytes(array, dtype)

    def copies_elements(self, array: Any, dtype: DType) -> bool:
        return self.inner.copies_elements(array, dtype)

    def upload_memory(self, upload: Any) -> memoryview | None:
        return self.inner.upload_memory(upload)

    def arriving_memory(self, size: int) -> memoryview:
        return self.inner.arriving_memory(size)

    def combiner(self, dtype: DType, reduction: Reduction, members: int) -> Combine:
        return self.inner.combiner(dtype, reduction, members)

    def reducer(self, dtype: DType, reduction: Reduction) -> Reduce:
        return self.inner.reducer(dtype, reduction)

    @property
    def has_communicators(self) -> bool:
        return self.inner.has_communicators

    def new_communicator_identifier(self) -> bytes:
        return self.inner.new_communicator_identifier()

    def open_communicator(self, identifier: bytes, members: int, rank: int) -> Communicator:
        return self.inner.open_communicator(identifier, members, rank)

    def import_shared(self, shared: Any, spec: TensorSpec, source: Backend) -> Any:
        return self.inner.import_shared(
            shared, spec, source.inner if isinstance(source, Fusion) else source
        )

    @property
    def lends_to(self) -> str | None:
        return self.inner.lends_to

    def lend(self, shared: Any, dtype: DType) -> Loan | None:
        return self.inner.lend(shared, dtype)

    def borrow(self, upload: Any, handle: bytes) -> None:
        self.inner.borrow(upload, handle)

    def nbytes(self, array: Any) -> int:
        return self.inner.nbytes(array)

    def root(self, array: Any) -> Any:
        return self.inner.root(array)

    @property
    def reads_in_place(self) -> bool:
        return self.inner.reads_in_place

    @property
    def device_name(self) -> str:
        return self.inner.device_name

    def memory_bytes(self) -> int:
        return self.inner.memory_bytes()

    def memory(self) -> Memory:
        return self.inner.memory()

    def dtype_usage(self, dtype: DType) -> DTypeUsage:
        return self.inner.dtype_usage(dtype)

    def supports_dtype(self, dtype: DType) -> bool:
        return self.inner.supports_dtype(dtype)

    def prepare_thread(self) -> None:
        self.inner.prepare_thread()

    def sync(self) -> None:
        self.inner.sync()

    def memory_cleanup(self) -> None:
        self.inner.memory_cleanup()

    def begin_recycling(self, max_bytes: int) -> None:
        self.inner.begin_recycling(max_bytes)

    def expire_memory(self) -> None:
        self.inner.expire_memory()

    def memory_persistent_allocations(self) -> contextlib.AbstractContextManager[None]:
        return self.inner.memory_persistent_allocations()

    def staging(self, data: Iterable[TensorData]) -> None:
        self.inner.staging(data)
