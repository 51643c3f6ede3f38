"""What must an array library offer so that sessions can compute on it?

The surface is that of Burn's ``Backend`` trait; what are Burn's ``*TensorOps`` for each kind of
tensor is here one kernel per row of the table of operations.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple, Protocol

from burn_remote_protocol.dtypes import DType, DTypeUsage
from burn_remote_protocol.errors import BurnRemoteError, DeviceLost, TransferFailed
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import Shape, TensorData, TensorSpec
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations

__all__ = [
    "Backend",
    "BackendSession",
    "Deliver",
    "Kernel",
    "Loan",
    "Memory",
    "Run",
    "array_shape",
]

# kernel(*tensors, **parameters, out=spec or specs) -> array or tuple of arrays. One tensor per
# input field: an array, None for an absent one, a list for a list.
Kernel = Callable[..., Any]

# run(*tensors) -> array or tuple of arrays: a kernel whose parameters and outputs are settled.
Run = Callable[..., Any]

# Takes the elements of a read, nothing for a sync, or the reason why they will not come. Any thread
# may call it, once.
Deliver = Callable[[memoryview | Exception | None], None]


def array_shape(spec: TensorSpec) -> Shape:
    """Return the shape of the array that holds a tensor: of a quantized one, that of its bytes."""
    return spec.shape if spec.dtype.scheme is None else (spec.nbytes,)


class Memory(NamedTuple):
    """Bytes of a device: what it has, what arrays take now, and what is kept to be used again."""

    total: int
    used: int
    cached: int


class Loan(Protocol):
    """A copy of a tensor's elements that another process may read while somebody keeps this."""

    handle: bytes


class BackendSession(ABC):
    """What one session has of a backend: kernels bound to its own random numbers.

    A device may work on several sessions at once, each in its own order. Between them, and between
    a session and a transfer, arrays therefore pass *shared*: in a form of the backend's that knows
    when they can be used. ``share`` makes it, ``adopt`` ends it.
    """

    # Whether binding may take so long that nobody but the session itself should wait for it.
    binds_slowly: bool = False

    def activate(self) -> None:
        """Let the calling thread, from now on, work for this session."""
        return None

    def share(self, array: Any) -> Any:
        """Return an array of this session for others to use."""
        return array

    def adopt(self, shared: Any) -> Any:
        """Return as an array of this session what another session shared, or an upload made."""
        return shared

    @abstractmethod
    def read(self, array: Any, dtype: DType, later: Callable[[], Deliver]) -> memoryview | None:
        """Return the elements as they cross the wire, or ``None`` where that takes a while.

        Then what ``later`` returned gets them. Raises ``MemoryError``.
        """

    @abstractmethod
    def synced(self, later: Callable[[], Deliver]) -> bool:
        """Whether everything asked of the session is done; if not, what ``later`` returned is
        called when it is."""

    def close(self) -> None:
        """Give back what the session has of the device, its arrays aside."""
        return None

    @abstractmethod
    def bind(self, signature: Signature) -> Run:
        """Return the implementation of an operation for its parameters and its outputs.

        What does not change between calls is decided here, once; what is returned may be a function
        of the array library itself. Raises ``Unsupported``.
        """

    def bind_into(self, signature: Signature) -> Run | None:
        """Return ``run(*tensors, out=array)``, which leaves the result in an array that may be one
        of the tensors, or ``None`` where the implementation cannot do so."""
        return None

    @abstractmethod
    def array_dtype(self, dtype: DType) -> Any:
        """Return the array library's dtype in which tensors of ``dtype`` are held."""

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Start the session's random numbers anew; the same seed gives the same tensors."""


class Backend(ABC):
    """One device: its arrays and what can be done with them.

    Arrays are never changed once a kernel or an upload has made them, so they may be shared. One
    that its session alone refers to, and drops, may become the result of the operation it dies in.
    """

    name: ClassVar[str]
    # Gradients are the client's: it sends the operations that compute them.
    ad_enabled: ClassVar[bool] = False

    @property
    def device_count(self) -> int:
        """How many devices of this library the machine has."""
        return 1

    @property
    def failure(self) -> str | None:
        """Why the device can do nothing any more, and what to do; ``None``: it works. What is said
        once stays, until the process is started anew."""
        return None

    def examine(self) -> None:
        """Find out what may have happened to the device. Called every second or so; any thread may
        ask, and the device is not waited for."""
        return None

    def explained(self, error: Exception) -> Exception:
        """Return ``DeviceLost`` for what was raised because the device is lost, or the error."""
        if isinstance(error, BurnRemoteError):
            return error
        self.examine()
        return error if self.failure is None else DeviceLost(self.failure)

    @abstractmethod
    def open_session(self, custom: CustomOperations = NO_OPERATIONS) -> BackendSession:
        """Return a session with random numbers of its own, and an operator's operations."""

    @abstractmethod
    def to_device(self, data: TensorData) -> Any:
        """Return a shared array with the elements of ``data``, which may change afterwards.

        Raises ``MemoryError``, and ``Unsupported`` for a dtype that cannot be stored.
        """

    @abstractmethod
    def empty(self, spec: TensorSpec) -> Any:
        """Return what an upload fills. Raises ``MemoryError`` and ``Unsupported``."""

    @abstractmethod
    def write(self, upload: Any, offset: int, data: memoryview | bytes) -> None:
        """Put bytes in wire order into their place; they come from the first to the last.

        Raises ``MemoryError``.
        """

    @abstractmethod
    def finished(self, upload: Any, dtype: DType) -> Any:
        """Return the shared array of an upload of which everything is written."""

    @abstractmethod
    def to_bytes(self, array: Any, dtype: DType) -> memoryview:
        """Return the elements, of a shared array or of the thread's own, as they cross the wire.

        No copy where they are so in memory. Waits for the device.
        """

    def brought(self, shared: Any, spec: TensorSpec, source: Backend) -> Any:
        """Return as a shared array of this device what a session of another device shared."""
        data = source.to_bytes(shared, spec.dtype)
        return self.to_device(TensorData(data, spec.shape, spec.dtype))

    # -- memory that processes of a host lend each other --------------------------------------

    @property
    def lends_to(self) -> str | None:
        """Name those who can copy what this device lends, and from whom it can copy: other
        processes whose devices say the same. ``None``: nobody."""
        return None

    def lend(self, shared: Any, dtype: DType) -> Loan | None:
        """Return a loan of a shared array's elements as they cross the wire. Waits for the device.

        ``None`` where there is no room for it.
        """
        return None

    def borrow(self, upload: Any, handle: bytes) -> None:
        """Write all of an upload from what another process lends; return when it is written.

        Raises ``TransferFailed`` where that cannot be done, for a false handle too.
        """
        raise TransferFailed(f"the backend {self.name} copies from no other process")

    @abstractmethod
    def nbytes(self, array: Any) -> int:
        """Return the logical size of an array in bytes."""

    @property
    @abstractmethod
    def device_name(self) -> str:
        """What the device is called."""

    def owns_memory(self, array: Any) -> bool:
        """Whether an array that nothing else refers to may be written over: it is no view, nor a
        window on somebody else's bytes. A library whose pool gives freed memory to the next result
        need not look."""
        return False

    @abstractmethod
    def memory_bytes(self) -> int:
        """Return the memory of the device that arrays may take."""

    @abstractmethod
    def memory(self) -> Memory:
        """Return how the device's memory is used now. Any thread may ask."""

    @abstractmethod
    def dtype_usage(self, dtype: DType) -> DTypeUsage:
        """Return what the device can do with a dtype."""

    def supports_dtype(self, dtype: DType) -> bool:
        """Whether tensors of a dtype can be stored and computed with."""
        general = DTypeUsage.STORAGE | DTypeUsage.ARITHMETIC
        return self.dtype_usage(dtype) & general == general

    @abstractmethod
    def prepare_thread(self) -> None:
        """Make the calling thread, or the running task, ready to run kernels."""

    @abstractmethod
    def sync(self) -> None:
        """Wait until the device has done everything asked of it."""

    @abstractmethod
    def memory_cleanup(self) -> None:
        """Return cached memory to the system."""

    def begin_recycling(self) -> None:
        """From now on keep memory of tensors that are gone for those that arrive, where that is
        faster. Who asks for it calls ``expire_memory`` every second or so."""
        return None

    def expire_memory(self) -> None:
        """Return to the system what was kept to be used again and was not."""
        return None

    @abstractmethod
    def memory_persistent_allocations(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which arrays are made that will stay, such as a model's weights."""

    @abstractmethod
    def staging(self, data: Iterable[TensorData]) -> None:
        """Prepare data that will soon be uploaded, where the device is faster for it."""
