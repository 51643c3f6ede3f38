"""The CuPy backend: one GPU, its sessions, and copies between its memory and the host's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import cupy
import numpy as np

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import DeviceLost, OperationFailed, ShapeMismatch
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.array.array_session import ArraySession, kernel_table
from burn_remote_server.backends.array.backend import ArrayBackend
from burn_remote_server.backends.array.core.array_dtypes import BFLOAT16, wire_dtype
from burn_remote_server.backends.array.core.kernel_forms import (
    ArraySpec,
    Kernel,
    Parameters,
    PreparedKernel,
    Run,
)
from burn_remote_server.backends.array.kernels.kernel_families import random_families
from burn_remote_server.backends.array.kernels.quantized_kernels import stored
from burn_remote_server.backends.cupy.array_module import CUPY
from burn_remote_server.backends.cupy.captured_runs import CudaGraphs, prepare
from burn_remote_server.backends.cupy.communicator import (
    NcclCommunicator,
    has_nccl,
    new_identifier,
)
from burn_remote_server.backends.cupy.cudnn_convolution import Cudnn, open_cudnn
from burn_remote_server.backends.cupy.device import Gpu, OnStream, Shared
from burn_remote_server.backends.cupy.element_launches import launched
from burn_remote_server.backends.cupy.faults import lacks_memory
from burn_remote_server.backends.cupy.host_copies import BLOCK_BYTES, Reads, Upload, host_array
from burn_remote_server.backends.cupy.kernel_families import cuda_families
from burn_remote_server.backends.cupy.memory_lending import Lender, borrow, domain
from burn_remote_server.backends.cupy.products import round_to_tf32
from burn_remote_server.backends.cupy.random_numbers import CudaRandomStream
from burn_remote_server.backends.interface import (
    Backend,
    CapturedRun,
    Communicator,
    Deliver,
    ElementwiseCall,
    Loan,
    Memory,
    array_shape,
)
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations

__all__ = ["CupyBackend"]


# The dtypes of operations whose scalar may change without a new check. A new divisor of an integer
# operation may be 0, and a number that low precision does not represent is added in float32.
_WIDE_FLOATS: Final = (np.dtype(np.float32), np.dtype(np.float64))

# The families whose kernels depend only on their arguments, except for the operations in
# ``_NOT_CAPTURED``: these draw random numbers, or their library keeps memory between calls.
_CAPTURED_FAMILIES: Final = frozenset(
    ["Base", "Numeric", "Float", "Int", "Bool", "Activation", "Module", "Elementwise", "Complex"]
)
_NOT_CAPTURED: Final = frozenset(["Random", "IntRandom", "Rfft", "IRfft"])


class CupySession(ArraySession):
    """The kernels of one session, which run on a CUDA stream of their own."""

    def __init__(
        self,
        backend: CupyBackend,
        gpu: Gpu,
        stream: Any,
        table: Any,
        seed: Callable[[int], None],
        custom: CustomOperations,
    ) -> None:
        super().__init__(backend, table, seed, custom)
        self._cudnn = backend.cudnn
        self.binds_slowly = backend.cudnn is not None
        self._gpu = gpu
        self._stream = stream
        self._is_closed = False
        self._awaited: Any = None  # the event for which the stream was made to wait last
        # The event of the last ``share_all``, until the stream has to wait for others.
        self._shared_by: Any = None
        self._faults = gpu.faults
        self._reads = Reads(gpu, stream)
        self._graphs = CudaGraphs(gpu, stream)

    captures_runs = True

    def activate(self) -> None:
        # No operation of a session runs on a lost GPU, so a failed activation does no harm.
        with contextlib.suppress(DeviceLost), self._faults:
            # The current device and stream are per thread; several sessions may share a thread.
            self._gpu.device.use()
            self._stream.use()
            self._gpu.release_finished()

    def share(self, array: Any) -> Shared:
        with self._faults:
            return self._gpu.shared(array, self._stream)

    def share_all(self, arrays: Sequence[Any], *, has_worked: bool = True) -> list[Any]:
        # Without work in between, the last event is as good as a new one.
        if has_worked or self._shared_by is None:
            with self._faults:
                self._shared_by = self._gpu.recorded(self._stream) if arrays else None
        return [Shared(array, self._shared_by) for array in arrays]

    def adopt(self, shared: Shared) -> Any:
        with self._faults:
            if shared.ready is not self._awaited:  # one event may make many arrays ready
                self._stream.wait_event(shared.ready)
                self._awaited, self._shared_by = shared.ready, None
            return self._gpu.lent(shared, self._stream)

    def read(self, array: Any, dtype: DType, later: Callable[[], Deliver]) -> memoryview | None:
        with self._faults:
            return self._reads.read(_as_on_the_wire(array, dtype), later)

    def synced(self, later: Callable[[], Deliver]) -> bool:
        with self._faults:
            return self._reads.synced(later)

    def bind(self, signature: Signature) -> Run:
        with self._faults:
            run = None if self._cudnn is None else self._cudnn.bind(signature)
            return launched(signature, super().bind(signature)) if run is None else run

    def bind_into(self, signature: Signature) -> None:
        # CuPy's memory pool reuses freed memory without a system call, so reuse here gains nothing.
        return None

    def _numbered_calls(
        self, signature: Signature, kernel: Kernel, numbers: Mapping[str, float]
    ) -> tuple[ElementwiseCall, ...]:
        spec = signature.input_uses[0].spec
        first = ArraySpec(spec.shape, self.array_dtype(spec.dtype))
        if not isinstance(kernel, PreparedKernel) or first.dtype not in _WIDE_FLOATS:
            return ()
        call = kernel.numbered_call(first, {**signature.call.parameters, **numbers})
        return () if call is None else (call,)

    def may_capture(self, signature: Signature) -> bool:
        row = signature.row
        specs = [*[use.spec for use in signature.input_uses], *signature.outputs]
        return (
            row.family in _CAPTURED_FAMILIES
            and row.name not in _NOT_CAPTURED
            and all(spec.dtype.scheme is None for spec in specs)
        )

    def capture(
        self,
        run: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
        inputs: Sequence[Any],
        constants: Sequence[Any],
    ) -> CapturedRun:
        with self._faults:
            return self._graphs.capture(run, inputs, constants)

    def close(self) -> None:
        if not self._is_closed:  # two later sessions must not get the same stream
            self._is_closed = True
            self._gpu.give_back_stream(self._stream)

    def _keeps_precision(
        self, kernel: PreparedKernel, first: ArraySpec, parameters: Parameters
    ) -> bool:
        # Few of CuPy's functions accept bfloat16.
        return first.dtype != BFLOAT16 and kernel.keeps_precision(first, parameters)


class CupyBackend(ArrayBackend):
    """One GPU of this machine.

    ``memory_limit`` bounds the bytes that arrays may use. With ``uses_cudnn``, convolutions run on
    cuDNN if it is installed. With ``tf32``, which concerns all GPUs of the process, matrix products
    and convolutions of ``float32`` may round their operands to TF32, with a mantissa of 10 bits.
    """

    name: ClassVar[str] = "cupy"

    def __init__(
        self,
        index: int = 0,
        memory_limit: int | None = None,
        *,
        uses_cudnn: bool = True,
        tf32: bool = False,
    ) -> None:
        self._gpu = Gpu(index, memory_limit)
        self._faults = self._gpu.faults
        self._lender = Lender(self._gpu)
        self._lends_to = domain()
        with self._gpu.device:
            # Load cuDNN here, so that no session waits for it at its first convolution.
            self.cudnn: Cudnn | None = open_cudnn(tf32=tf32) if uses_cudnn else None
            round_to_tf32(tf32)
            prepare(index)  # here, because a capture on the event loop must not wait for a compiler
            super().__init__(CUPY)
            self._shared = {**self._shared, **kernel_table(cuda_families())}

    @property
    def index(self) -> int:
        """The number of the GPU in this process."""
        return self._gpu.index

    @property
    def device_count(self) -> int:
        return int(cupy.cuda.runtime.getDeviceCount())

    @property
    def array_module(self) -> Any:
        return cupy

    @property
    def failure(self) -> str | None:
        return self._faults.failure

    def examine(self) -> None:
        self._faults.examine()

    def explained(self, error: Exception) -> Exception:
        explained = super().explained(error)
        return MemoryError(str(error)) if lacks_memory(explained) else explained

    def open_session(self, custom: CustomOperations = NO_OPERATIONS) -> CupySession:
        with self._faults:
            stream = self._gpu.take_stream()
            numbers = CudaRandomStream()
            table = {**self._shared, **kernel_table(random_families(CUPY, numbers))}
            return CupySession(self, self._gpu, stream, table, numbers.seed, custom)

    @property
    def reads_in_place(self) -> bool:
        return False

    # -- tensors in and out -------------------------------------------------------------------

    def to_device(self, data: TensorData) -> Shared:
        upload = self.empty(data.spec)
        given = memoryview(data.bytes).cast("B")
        if data.dtype.scheme is not None:
            given = stored(np.frombuffer(given, np.uint8), data.spec).data
        if len(given) != upload.array.nbytes:
            raise ShapeMismatch(f"{data.spec} does not have {len(given):,} bytes")
        self.write(upload, 0, given)
        return self.finished(upload, data.dtype)

    def empty(self, spec: TensorSpec) -> Upload:
        with self._faults:
            return Upload(self._gpu, array_shape(spec), wire_dtype(spec.dtype))

    def write(self, upload: Upload, offset: int, data: memoryview | bytes) -> None:
        with self._faults:
            upload.write(data)

    def chunk_memory(self, upload: Upload, offset: int, size: int) -> memoryview | None:
        try:
            with self._faults:
                return upload.room(size)
        except (MemoryError, RuntimeError, OperationFailed):
            return None  # ``write`` reports it as the failure of the tensor

    def chunk_written(self, upload: Upload, size: int) -> None:
        with self._faults:
            upload.advance(size)

    def finished(self, upload: Upload, dtype: DType) -> Shared:
        stream = self._gpu.transfers
        with self._faults, self._gpu.device, OnStream(stream):
            array = _truth(upload.array) if dtype.is_bool else upload.array
            return self._gpu.shared(array, stream)

    def to_bytes(self, array: Any, dtype: DType) -> memoryview:
        with self._faults, self._gpu.device:
            if not isinstance(array, Shared):
                return _copied(array, dtype, cupy.cuda.get_current_stream())
            with OnStream(self._gpu.transfers) as stream:
                stream.wait_event(array.ready)
                return _copied(array.array, dtype, stream)

    @property
    def has_communicators(self) -> bool:
        return has_nccl()

    def new_communicator_identifier(self) -> bytes:
        return new_identifier()

    def open_communicator(self, identifier: bytes, members: int, rank: int) -> Communicator:
        return NcclCommunicator(self._gpu, identifier, members, rank)

    def import_shared(self, shared: Shared, spec: TensorSpec, source: Backend) -> Any:
        if not isinstance(source, CupyBackend):
            return super().import_shared(shared, spec, source)
        on_source = OnStream(source._gpu.transfers)
        with self._faults, source._faults, source._gpu.device, on_source as there:
            there.wait_event(shared.ready)
            whole = source._gpu.shared(cupy.ascontiguousarray(shared.array), there)
        on_own = OnStream(self._gpu.transfers)
        with source._faults, self._faults, self._gpu.device, on_own as here:
            here.wait_event(whole.ready)
            array = cupy.empty(whole.array.shape, whole.array.dtype)
            # CuPy copies directly between the GPUs if the machine supports it.
            array.data.copy_from_device_async(whole.array.data, array.nbytes, here)
            arrived = self._gpu.shared(array, here)
        with source._faults, source._gpu.device:
            there.wait_event(arrived.ready)
            source._gpu.keep_until_finished(whole.array, there)
        return arrived

    # -- memory lent between processes of a host ----------------------------------------------

    @property
    def lends_to(self) -> str | None:
        return self._lends_to

    def lend(self, shared: Shared, dtype: DType) -> Loan | None:
        with self._faults, self._gpu.device, OnStream(self._lender.stream) as stream:
            stream.wait_event(shared.ready)
            try:
                return self._lender.lend(_as_on_the_wire(shared.array, dtype))
            except MemoryError:
                return None

    def borrow(self, upload: Upload, handle: bytes) -> None:
        with self._faults, self._gpu.device:
            borrow(upload.array, handle, self._gpu.transfers)

    # -- the device ---------------------------------------------------------------------------

    @property
    def device_name(self) -> str:
        return self._gpu.name

    def memory_bytes(self) -> int:
        return self._gpu.memory_bytes

    def memory(self) -> Memory:
        try:
            found = self._gpu.memory()
        except DeviceLost:
            return Memory(self._gpu.memory_bytes, 0, 0)
        return Memory(
            found.total,
            found.used + self._lender.lent_bytes,
            found.cached + self._lender.spare_bytes,
        )

    def prepare_thread(self) -> None:
        # Scalar results on the host may be infinite or NaN without a warning.
        np.seterr(all="ignore")
        with contextlib.suppress(DeviceLost), self._faults:
            self._gpu.device.use()

    def sync(self) -> None:
        with self._faults:
            self._gpu.device.synchronize()

    def memory_cleanup(self) -> None:
        # Memory cannot be returned to a lost GPU.
        with contextlib.suppress(DeviceLost), self._faults:
            self._gpu.cleanup()
            self._lender.cleanup()

    def memory_persistent_allocations(self) -> contextlib.AbstractContextManager[None]:
        return self._gpu.persistent_allocations()

    def staging(self, data: Iterable[TensorData]) -> None:
        """Allocate pinned memory for the blocks in which the data will be uploaded."""
        blocks = [host_array(min(BLOCK_BYTES, item.spec.nbytes)) for item in data]
        del blocks  # returns them to the pinned memory pool


def _truth(array: Any) -> Any:
    """Return booleans stored as 0 or 1, because kernels read other bytes in different ways."""
    if array.itemsize != 1:
        return array != 0
    # In place: there may be no memory left for a second array.
    return cupy.not_equal(array, 0, out=array.view(np.bool_))


def _as_on_the_wire(array: Any, dtype: DType) -> Any:
    """Return an array in C order and in the requested dtype."""
    wanted = wire_dtype(dtype)
    if array.dtype != wanted and not (array.dtype.kind == "b" and wanted.itemsize == 1):
        array = array.astype(wanted)
    return cupy.ascontiguousarray(array)


def _copied(array: Any, dtype: DType, stream: Any) -> memoryview:
    whole = _as_on_the_wire(array, dtype)
    host = host_array(whole.nbytes)
    if whole.size:
        whole.data.copy_to_host_async(int(host.ctypes.data), whole.nbytes, stream)
    stream.synchronize()
    return memoryview(host)
