"""The interface between sessions and array libraries.

It follows Burn's ``Backend`` trait. Burn has a ``*TensorOps`` trait per kind of tensor; a backend
here has one kernel per row of the table of operations.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from burn_remote_protocol.collectives import CollectiveCall, Reduction
from burn_remote_protocol.dtypes import DType, DTypeUsage
from burn_remote_protocol.errors import BurnRemoteError, DeviceLost, TransferFailed, Unsupported
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import Shape, TensorData, TensorSpec
from burn_remote_server.backends.byte_buffers import empty_bytes
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations

__all__ = [
    "Backend",
    "BackendSession",
    "CapturedRun",
    "Combine",
    "Communicator",
    "Deliver",
    "Kernel",
    "Loan",
    "Memory",
    "NotCaptured",
    "Reduce",
    "RowReduction",
    "Run",
    "array_shape",
]

# kernel(*tensors, **parameters, out=spec or specs) -> array or tuple of arrays. There is one tensor
# per input field: an array, None for an absent input, or a list of arrays for a list of tensors.
Kernel = Callable[..., Any]

# run(*tensors) -> array or tuple of arrays: a kernel bound to its parameters and outputs.
Run = Callable[..., Any]


class ElementwiseCall(NamedTuple):
    """A function; each element of its result depends on one element of each operand.

    ``function(*inputs, *constants)`` returns the result, which may be an input itself. ``into``
    takes the same arguments and ``out=array``, and writes the result there; ``None`` if there is no
    such function. ``out`` may be one of the inputs. If both are the same function, it is a ufunc:
    it returns a new array, keeps no reference to an input, and takes ``out`` also by position.
    ``is_slower``: it takes longer than the operation's own kernel.
    """

    function: Run
    constants: tuple[Any, ...] = ()
    into: Run | None = None
    is_slower: bool = False


class RowReduction(NamedTuple):
    """A reduction over the last axis, which keeps that axis with length 1.

    ``function(array)`` takes a C-contiguous array. Each element of the result depends only on one
    row of the array. If the array has at least two rows, the bits of an element do not depend on
    the row's position.
    """

    function: Run


# Delivers the result of a read or a sync: the elements, None for a sync, or an error. Called once,
# from any thread.
Deliver = Callable[[memoryview | Exception | None], None]


# combine(own, received, out, is_last): combines elements in host memory, given as bytes in wire
# order. ``is_last``: afterwards, the elements of all members are combined. ``out`` may be ``own``
# or ``received``.
Combine = Callable[[memoryview, memoryview, memoryview, bool], None]

# reduce(elements, out): ``elements`` are those of all members, in the order of the ranks. Results
# of low precision are rounded once.
Reduce = Callable[[Sequence[memoryview], memoryview], None]


class Communicator(Protocol):
    """A member of a communicator of a device's own library, such as NCCL. One thread uses it."""

    def start(
        self,
        call: CollectiveCall,
        inputs: Sequence[Any],
        specs: Sequence[TensorSpec],
    ) -> None:
        """Start a collective on shared arrays, without waiting; ``watch`` must be called after it.

        ``specs`` are the specs of the outputs.
        """
        ...

    def watch(self, done: Callable[[Sequence[Sequence[Any]] | None], None]) -> Callable[[], None]:
        """Have ``done`` called when the collectives since the last call of ``watch`` have finished.

        Another thread calls it, with the outputs of each collective as shared arrays, or with
        ``None`` if the device failed. The call may come a millisecond late. A caller that waits for
        it calls the returned function, so that it comes at once.
        """
        ...

    def examine(self) -> None:
        """Raise the error that the library has detected since the start, if any."""
        ...

    def abort(self) -> None:
        """End the collectives in progress, and free the communicator."""
        ...

    def close(self) -> None:
        """Free the communicator; no collective may be in progress."""
        ...


def array_shape(spec: TensorSpec) -> Shape:
    """Return the shape of the array that stores a tensor. A quantized tensor is stored as bytes."""
    return spec.shape if spec.dtype.scheme is None else (spec.nbytes,)


class Memory(NamedTuple):
    """Memory of a device in bytes: in total, used by arrays, and cached for reuse."""

    total: int
    used: int
    cached: int


class Loan(Protocol):
    """A copy of a tensor's elements that another process may read as long as this object lives."""

    handle: bytes


class NotCaptured(Exception):
    """A device cannot capture a run; the text says why."""


class CapturedRun(ABC):
    """The kernels of a run, which a device launches as one, and the memory that they use."""

    @property
    @abstractmethod
    def blocks(self) -> Sequence[tuple[object, int]]:
        """The memory blocks: objects that keep them alive, and their bytes.

        Several runs may share a block.
        """

    @property
    @abstractmethod
    def is_released(self) -> bool:
        """Whether the memory was released, so that the kernels cannot be launched any more."""

    @abstractmethod
    def launch(self, inputs: Sequence[Any], numbers: Sequence[Any]) -> list[Any] | None:
        """Return the outputs for inputs of the captured shapes, and for the given numbers.

        Returns ``None`` if the inputs have other memory layouts, if the run was released, or if an
        index is out of range. Then the caller runs the operations one by one. Raises
        ``MemoryError``.
        """

    @abstractmethod
    def release(self) -> None:
        """Release the memory. Any thread may call it."""


class BackendSession(ABC):
    """One session's part of a backend: its kernels and its random numbers.

    A device may execute several sessions concurrently, each in its own order. Arrays that pass
    between sessions, or between a session and a transfer, are therefore *shared*: wrapped together
    with an event after which they can be used, if the device needs one. ``share`` wraps an array
    and ``adopt`` unwraps it.
    """

    # Whether binding can be slow, so that it must not run on the event loop.
    binds_slowly: bool = False

    def activate(self) -> None:
        """Make this session current in the calling thread."""
        return None

    def share(self, array: Any) -> Any:
        """Return an array of this session in shared form."""
        return array

    def share_all(self, arrays: Sequence[Any], *, has_worked: bool = True) -> list[Any]:
        """Return arrays of this session in shared form.

        ``has_worked``: the session may have executed operations since the last call.
        """
        return [self.share(array) for array in arrays]

    def adopt(self, shared: Any) -> Any:
        """Return a shared array, from another session or an upload, as an array of this session."""
        return shared

    @abstractmethod
    def read(self, array: Any, dtype: DType, later: Callable[[], Deliver]) -> memoryview | None:
        """Return the elements in wire order, or ``None`` if they are not available yet.

        In that case the function that ``later()`` returns receives them. Raises ``MemoryError``.
        """

    @abstractmethod
    def synced(self, later: Callable[[], Deliver]) -> bool:
        """Return whether all work of the session is done.

        If not, the backend calls the function that ``later()`` returns as soon as it is done.
        """

    def close(self) -> None:
        """Release the session's resources of the device, other than its arrays."""
        return None

    @abstractmethod
    def bind(self, signature: Signature) -> Run:
        """Return the implementation of an operation for its parameters and outputs.

        All decisions that do not depend on the arrays are made here, once per plan. The result may
        be a function of the array library itself. Raises ``Unsupported``.
        """

    def bind_into(self, signature: Signature) -> Run | None:
        """Return ``run(*tensors, out=array)``, where ``out`` may be one of the tensors.

        Returns ``None`` if the operation cannot write over an input.
        """
        return None

    def bind_elementwise(
        self, signature: Signature, numbers: Mapping[str, float] | None = None
    ) -> tuple[ElementwiseCall, ...]:
        """Return an operation as calls of elementwise functions; empty if it is not elementwise.

        The first call takes the inputs, each later one the result of the call before. ``numbers``
        has parameters that replace those of the signature.
        """
        return ()

    def bind_row_reduction(self, signature: Signature) -> RowReduction | None:
        """Return an operation as a reduction over the last axis; ``None`` if it is not one."""
        return None

    def returns_new_array(self, signature: Signature) -> bool:
        """Whether an operation without a ufunc returns one new array, which nothing references.

        With up to two dimensions, that array is in C order.
        """
        return False

    # Whether ``capture`` is possible at all.
    captures_runs: bool = False

    def may_capture(self, signature: Signature) -> bool:
        """Whether launching the kernels of an operation again always repeats the operation."""
        return False

    def capture(
        self,
        run: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
        inputs: Sequence[Any],
        constants: Sequence[Any],
    ) -> CapturedRun:
        """Capture the kernels that ``run(inputs, constants)`` launches; nothing is computed.

        ``constants`` are zero-dimensional arrays, which each launch replaces by its numbers.
        Raises the errors of ``run``, ``NotCaptured`` and ``MemoryError``.
        """
        raise NotCaptured("this device captures no runs")

    @abstractmethod
    def array_dtype(self, dtype: DType) -> Any:
        """Return the array library's dtype that stores tensors of ``dtype``."""

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Restart the session's random numbers. The same seed gives the same tensors."""


class Backend(ABC):
    """One device and its arrays.

    Arrays are immutable once a kernel or an upload has written them, so sessions may share them.
    There is one exception: an operation may overwrite an input that it drops, if only its session
    refers to that input.
    """

    name: ClassVar[str]
    # Differentiation happens on the client, which sends the operations that compute gradients.
    ad_enabled: ClassVar[bool] = False

    @property
    def device_count(self) -> int:
        """The number of devices that the array library finds on this machine."""
        return 1

    @property
    def failure(self) -> str | None:
        """The reason why the device is lost, and what to do; ``None`` if it works.

        A loss lasts until the process restarts.
        """
        return None

    def examine(self) -> None:
        """Update ``failure`` without waiting for the device.

        Called about once a second; any thread may call it.
        """
        return None

    def explained(self, error: Exception) -> Exception:
        """Return ``DeviceLost`` if the device is lost, else the error itself.

        The error of a library that lacks memory becomes a ``MemoryError``.
        """
        if isinstance(error, BurnRemoteError):
            return error
        self.examine()
        return error if self.failure is None else DeviceLost(self.failure)

    @abstractmethod
    def open_session(self, custom: CustomOperations = NO_OPERATIONS) -> BackendSession:
        """Return a new session with its own random numbers and the operator's custom operations."""

    @abstractmethod
    def to_device(self, data: TensorData) -> Any:
        """Copy ``data`` to the device and return a shared array.

        The array may use memory that came from ``arriving_memory``. So the caller must not use the
        message in that memory again.

        Raises ``MemoryError``, and ``Unsupported`` for a dtype that cannot be stored.
        """

    def copies_upload(self, data: TensorData) -> bool:
        """Whether ``to_device`` copies or examines the elements, which takes long for many."""
        return True

    @abstractmethod
    def empty(self, spec: TensorSpec) -> Any:
        """Return the buffer of an upload. Raises ``MemoryError`` and ``Unsupported``."""

    @abstractmethod
    def write(self, upload: Any, offset: int, data: memoryview | bytes) -> None:
        """Write bytes at an offset of an upload, in increasing order. Raises ``MemoryError``."""

    def chunk_memory(self, upload: Any, offset: int, size: int) -> memoryview | None:
        """Return host memory in which to store the next bytes, in place of ``write``.

        ``chunk_written`` follows if they arrive, otherwise other bytes may be written there.
        Returns ``None`` if they must be passed to ``write``.
        """
        memory = self.upload_memory(upload)
        return None if memory is None else memory[offset : offset + size]

    def chunk_written(self, upload: Any, size: int) -> None:
        """Continue after ``size`` bytes were stored in ``chunk_memory``."""
        return None

    @abstractmethod
    def finished(self, upload: Any, dtype: DType) -> Any:
        """Return the shared array of a completed upload."""

    @abstractmethod
    def to_bytes(self, array: Any, dtype: DType) -> memoryview:
        """Return the elements of an array, shared or not, in wire order. Waits for the device.

        No copy is made if the memory layout is already that of the wire.
        """

    def copies_elements(self, array: Any, dtype: DType) -> bool:
        """Whether ``to_bytes`` copies the elements, which takes long for many."""
        return True

    def upload_memory(self, upload: Any) -> memoryview | None:
        """Return the host memory of an upload, in wire order, to write its elements into.

        Returns ``None`` if the elements must be passed to ``write``.
        """
        return None

    def arriving_memory(self, size: int) -> memoryview:
        """Return host memory for a message with elements, which are passed to ``to_device``.

        Raises ``MemoryError``.
        """
        return empty_bytes(size)

    def combiner(self, dtype: DType, reduction: Reduction, members: int) -> Combine:
        """Return the function that combines elements of several members of a group.

        Raises ``Unsupported``.
        """
        raise Unsupported(f"the backend {self.name} takes part in no collectives")

    def reducer(self, dtype: DType, reduction: Reduction) -> Reduce:
        """Return the function that reduces the elements of all members of a group at once.

        Raises ``Unsupported``.
        """
        raise Unsupported(f"the backend {self.name} takes part in no collectives")

    @property
    def has_communicators(self) -> bool:
        """Whether ``open_communicator`` works."""
        return False

    def new_communicator_identifier(self) -> bytes:
        """Return the identifier that all members of a new communicator pass to it.

        Raises ``Unsupported``.
        """
        raise Unsupported(f"the backend {self.name} has no communicators")

    def open_communicator(self, identifier: bytes, members: int, rank: int) -> Communicator:
        """Join a communicator; returns once all members have, and may wait forever.

        Raises ``Unsupported``, and the errors of its library.
        """
        raise Unsupported(f"the backend {self.name} has no communicators")

    def import_shared(self, shared: Any, spec: TensorSpec, source: Backend) -> Any:
        """Copy a shared array from another device and return it as a shared array of this one."""
        data = source.to_bytes(shared, spec.dtype)
        return self.to_device(TensorData(data, spec.shape, spec.dtype))

    # -- memory lent between processes of a host ----------------------------------------------

    @property
    def lends_to(self) -> str | None:
        """The lending domain of this device; ``None`` if it does not lend.

        Devices with the same value can copy from each other's loans.
        """
        return None

    def lend(self, shared: Any, dtype: DType) -> Loan | None:
        """Return a loan of a shared array's elements in wire order. Waits for the device.

        Returns ``None`` if there is not enough memory for the copy.
        """
        return None

    def borrow(self, upload: Any, handle: bytes) -> None:
        """Fill an upload from another process's loan. Waits until it is written.

        Raises ``TransferFailed`` if that is impossible, also for an invalid handle.
        """
        raise TransferFailed(f"the backend {self.name} cannot copy from other processes")

    @abstractmethod
    def nbytes(self, array: Any) -> int:
        """Return the logical size of an array in bytes."""

    @abstractmethod
    def root(self, array: Any) -> Any:
        """Return the array that owns this array's memory; the array itself if it is not a view.

        The attribute ``base`` of an array that owns its memory is ``None``.
        """

    @property
    def reads_in_place(self) -> bool:
        """Whether ``BackendSession.read`` returns memory of this device, possibly the tensor's own.

        Otherwise it returns a copy in host memory.
        """
        return True

    @property
    @abstractmethod
    def device_name(self) -> str:
        """The name of the device."""

    def owns_memory(self, array: Any) -> bool:
        """Return whether the array owns its memory, so that a kernel may overwrite it.

        The result of such a kernel has the array's memory layout, so this is ``False`` for arrays
        that are not in C order. It is always ``False`` for libraries whose memory pool makes
        overwriting pointless. The caller ensures that nothing else refers to the array.
        """
        return False

    @abstractmethod
    def memory_bytes(self) -> int:
        """Return the bytes of the device that arrays may use."""

    @abstractmethod
    def memory(self) -> Memory:
        """Return the current memory use. Any thread may call it."""

    @abstractmethod
    def dtype_usage(self, dtype: DType) -> DTypeUsage:
        """Return the uses of a dtype that the device supports."""

    def supports_dtype(self, dtype: DType) -> bool:
        """Return whether the device can store a dtype and compute with it."""
        general = DTypeUsage.STORAGE | DTypeUsage.ARITHMETIC
        return self.dtype_usage(dtype) & general == general

    @abstractmethod
    def prepare_thread(self) -> None:
        """Prepare the calling thread, or the running task, for kernels."""

    @abstractmethod
    def sync(self) -> None:
        """Wait until the device has finished all work."""

    @abstractmethod
    def memory_cleanup(self) -> None:
        """Return cached memory to the system."""

    def begin_recycling(self, max_bytes: int) -> None:
        """Start to reuse the memory of freed tensors for arriving ones, if that is faster.

        At most ``max_bytes`` are kept. The caller must then call ``expire_memory`` about once a
        second.
        """
        return None

    def expire_memory(self) -> None:
        """Return cached memory that was not reused to the system."""
        return None

    @abstractmethod
    def memory_persistent_allocations(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for allocating long-lived arrays, such as a model's weights."""

    @abstractmethod
    def staging(self, data: Iterable[TensorData]) -> None:
        """Prepare the upload of data, if that makes it faster."""
