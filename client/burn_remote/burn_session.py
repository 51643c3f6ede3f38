"""How does a program's work reach a server that speaks Burn 0.21, the real one or ours?

The same promises as a native session's, within what the dialect has: one message per operation, no
way to come back after a broken connection, and no word of a failure but at a read.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from burn_remote.arrays import array_from, data_from, numpy_dtype
from burn_remote.burn_connection import BurnConnection, DialRoute
from burn_remote.burn_outgoing import Outgoing
from burn_remote.locations import Locations
from burn_remote.pending import Pending
from burn_remote.runner import TensorHandle
from burn_remote.runtime import schedule_flush, watch
from burn_remote.traffic import Traffic
from burn_remote_protocol.batching import BATCH_TASKS, DROP_BYTES
from burn_remote_protocol.dialects.burn_0_21 import encode_tasks
from burn_remote_protocol.dialects.burn_answers import decode_answer
from burn_remote_protocol.dtypes import BOOL, BOOL_U8, BOOL_U32, DType, DTypeUsage
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ClosedDevice,
    ConnectionFailed,
    OperationFailed,
    ProtocolViolation,
    UsageError,
    shown,
)
from burn_remote_protocol.messages import (
    Expose,
    Fetch,
    QueryDType,
    Read,
    Seed,
    Sync,
    Upload,
    Welcome,
)
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

if TYPE_CHECKING:
    from burn_remote.device import Device

__all__ = ["FRAGMENT_BYTES", "BurnSession"]

# Burn's server takes WebSocket frames of up to 16 MiB and messages of up to 64 MiB. Smaller
# fragments: more headers. Larger: other traffic waits longer; over 16 MiB the session ends.
FRAGMENT_BYTES: Final = 2**20
MAX_MESSAGE_BYTES: Final = 64 * 2**20

# Up to this size an upload waits for company like an operation. Larger: more memory is held twice.
# Smaller: small tensors leave one by one.
SMALL_UPLOAD_BYTES: Final = 16 * 2**10

_GENERAL: Final = DTypeUsage.STORAGE | DTypeUsage.ARITHMETIC


class _Request:
    """An answer that is awaited; ``read`` is the tensor, where it is asked for."""

    __slots__ = ("pending", "read")

    def __init__(self, pending: Pending[Any], read: TensorHandle | None = None) -> None:
        self.pending = pending
        # Not the handle: holding it would keep the tensor on the server.
        self.read = None if read is None else (read.spec, read.id)


class BurnSession:
    """The ``RunnerClient`` of a device behind Burn 0.21's two sockets. Thread-safe."""

    def __init__(self, dial: DialRoute, *, address: str, timeout_seconds: float) -> None:
        """Open a session over the links that ``dial`` opens.

        ``address`` is where other servers find this one. Raises ``ConnectionFailed``,
        ``ConnectionLost``.
        """
        self.device: Device
        self.welcome: Final = Welcome(
            version=0,
            session=0,
            secret=b"",
            lease_seconds=0.0,
            device={"dialect": "burn-0.21"},
            limits={"message_bytes": MAX_MESSAGE_BYTES},
            peer_address=address,
        )
        self._lock = threading.Lock()
        self._locations: Final = Locations()
        self._outgoing: Final = Outgoing()
        # On a real server all sessions share one table of tensors: whoever counts from 0, as its
        # own clients do, meets others there.
        self._next_tensor = secrets.randbits(62)
        self._undropped_bytes = 0
        self._last_operation: tuple[Signature, int] | None = None
        self._flush_scheduled = False
        self._requests: dict[int, _Request] = {}
        self._connection: Final = BurnConnection(
            dial, self._handle, self._fail_requests, self._explain
        )
        self._connection.start()
        try:
            self._outgoing.bool_store = self._find_bool_store(timeout_seconds)
        except BaseException:
            self._connection.end(ClosedDevice(f"{address} did not open a session"))
            raise
        watch(self)

    def _find_bool_store(self, timeout_seconds: float) -> DType:
        """Ask how the server stores truth values, as Burn's own client does when it connects."""
        stores = (BOOL, BOOL_U8, BOOL_U32)
        answers = [self.dtype_usage(store) for store in stores]
        try:
            usages = [answer.result(timeout_seconds) for answer in answers]
        except TimeoutError:
            raise ConnectionFailed(
                f"{self._connection.address} opened a session and answers nothing; a Burn 0.21 "
                "server is like this for good once an operation has panicked: start it anew"
            ) from None
        for store, usage in zip(stores, usages, strict=True):
            if usage & _GENERAL == _GENERAL:
                return store
        return BOOL

    @property
    def traffic(self) -> Traffic:
        """What crossed the wire so far."""
        return self._connection.traffic

    # -- operations ---------------------------------------------------------------------------

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue one operation; see ``RunnerClient.register_op``."""
        outputs = signature.outputs
        with self._lock:
            self._connection.raise_error()
            first = self._next_tensor
            self._next_tensor = first + len(outputs)
            tensors = [handle.id for handle in inputs]
            tensors += range(first, self._next_tensor)
            self._outgoing.operation(signature, tensors)
            self._locations.note(first)
            self._last_operation = signature, first
            self._connection.traffic.operations += 1
            self._undropped_bytes += sum([spec.nbytes for spec in outputs])
            self._added()
        return tuple(
            [TensorHandle(self, first + position, spec) for position, spec in enumerate(outputs)]
        )

    def register_tensor_data(self, data: TensorData) -> TensorHandle:
        """Send a tensor's elements; see ``RunnerClient.register_tensor_data``.

        Raises ``UsageError`` for more than a Burn server takes in one message, which is how this
        dialect sends a tensor.
        """
        stored = self._as_stored(data)
        with self._lock:
            tensor = self._take_id()
            self._locations.note(tensor)
            upload = Upload(tensor, stored)
            _check_size(upload, data.spec)
            self._outgoing.task(upload, made=tensor)
            if memoryview(stored.bytes).nbytes > SMALL_UPLOAD_BYTES:
                self._flush()
            else:
                self._added()
        return TensorHandle(self, tensor, data.spec)

    def create_empty_handle(self, spec: TensorSpec) -> TensorHandle:
        """Reserve a tensor id; see ``RunnerClient.create_empty_handle``."""
        with self._lock:
            return TensorHandle(self, self._take_id(), spec)

    def drop_handle(self, identifier: int) -> None:
        """Free a tensor with the next message. Lock-free: it is called by ``__del__``."""
        self._outgoing.drop(identifier)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            schedule_flush(self)

    # -- questions ----------------------------------------------------------------------------

    def read_tensor_async(self, handle: TensorHandle) -> Pending[TensorData]:
        """Ask for a tensor's elements; see ``RunnerClient.read_tensor_async``."""
        pending: Pending[TensorData] = Pending(self)
        stored = self._outgoing.stored(handle.spec)
        with self._lock:
            self._connection.raise_error()
            request = self._outgoing.question(lambda request: Read(request, handle.id, stored))
            self._requests[request] = _Request(pending, handle)
            self._added()
        return pending

    def sync(self) -> Pending[None]:
        """Ask to be told when everything issued so far has been executed.

        A real server says nothing of failures here; ours does.
        """
        return self._ask(Sync)

    def dtype_usage(self, dtype: DType) -> Pending[DTypeUsage]:
        """Ask what the device can do with a dtype."""
        return self._ask(lambda request: QueryDType(request, dtype))

    def _ask(self, question: Callable[[int], Sync | QueryDType]) -> Pending[Any]:
        pending: Pending[Any] = Pending(self)
        with self._lock:
            self._connection.raise_error()
            request = self._outgoing.next_request()
            self._requests[request] = _Request(pending)
            self._outgoing.task(question(request), request)
            self._added()
        return pending

    # -- statements ---------------------------------------------------------------------------

    def seed(self, seed: int) -> None:
        """Set the seed of random numbers; a real server has one for all its sessions."""
        with self._lock:
            self._connection.raise_error()
            self._outgoing.task(Seed(seed))
            self._added()

    def memory_cleanup(self) -> None:
        """Do nothing: Burn 0.21 has no message for it."""

    def expose(self, handle: TensorHandle, transfer: bytes | int, expires_seconds: float) -> None:
        """Let a server that names ``transfer`` fetch a tensor once. Sent at once.

        The dialect says nothing of how long.
        """
        number = _number(transfer)
        stored = self._outgoing.stored(handle.spec)
        with self._lock:
            self._connection.raise_error()
            self._outgoing.question(lambda _: Expose(handle.id, stored, 1, number, expires_seconds))
            self._flush()

    def fetch(self, transfer: bytes | int, address: str, spec: TensorSpec) -> TensorHandle:
        """Have the server fetch an exposed tensor from the server at ``address``."""
        with self._lock:
            tensor = self._take_id()
            self._locations.note(tensor)
            self._outgoing.task(Fetch(_number(transfer), address, tensor, None), made=tensor)
            self._added()
        return TensorHandle(self, tensor, spec)

    # -- sending, under the lock --------------------------------------------------------------

    def _take_id(self) -> int:
        self._connection.raise_error()
        tensor = self._next_tensor
        self._next_tensor = tensor + 1
        return tensor

    def _added(self) -> None:
        if len(self._outgoing) >= BATCH_TASKS or self._undropped_bytes >= DROP_BYTES:
            self._flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            schedule_flush(self)

    def _flush(self) -> None:
        self._undropped_bytes = 0
        frames = self._outgoing.take()
        if frames:
            self._connection.send(frames)

    def flush(self) -> None:
        """Send what waits, now."""
        with self._lock:
            if self._connection.error is None:
                self._flush()

    def flush_waiting(self) -> None:
        """Send what has waited for its millisecond."""
        self._flush_scheduled = False
        # An error stays with the connection: whoever uses the session next is told.
        with contextlib.suppress(BurnRemoteError):
            self.flush()

    # -- receiving ----------------------------------------------------------------------------

    def wait(self, pending: Pending[Any], timeout_seconds: float | None) -> None:
        """Wait for an answer (``Source``)."""
        if len(self._outgoing):
            self.flush()
        self._connection.receiver.wait(pending, timeout_seconds)

    def attend(self) -> None:
        """Have answers received although no thread waits (``Source``)."""
        if len(self._outgoing):
            self.flush()
        self._connection.receiver.attend()

    def _handle(self, frame: bytes) -> None:
        self.traffic.frames_received += 1
        self.traffic.bytes_received += len(frame)
        answer = decode_answer(frame)
        request = self._requests.pop(answer.request, None)
        if request is None:
            raise ProtocolViolation(f"an answer to {answer.request:#x}, which was not asked")
        value = answer.value
        if isinstance(value, OperationFailed):
            if request.read is not None:
                value.location = self._locations.find(request.read[1])
            request.pending.fail(value)
        elif request.read is not None:
            request.pending.complete(_as_declared(value, request.read[0]))
        else:
            request.pending.complete(DTypeUsage(value) if type(value) is int else None)

    # -- the end ------------------------------------------------------------------------------

    def _explain(self) -> str:
        last = self._last_operation
        if last is None:
            return ""
        signature, tensor = last
        return (
            f"; the last operation sent was {signature.row}({signature.describe()}), "
            f"issued at {self._locations.find(tensor)}"
        )

    def _fail_requests(self, error: BurnRemoteError) -> None:
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.pending.fail(type(error)(*error.args))

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return self._connection.error is not None

    def close(self) -> None:
        """Send what waits, free all tensors and end the session. A second time does nothing."""
        with self._lock, contextlib.suppress(BurnRemoteError):
            self._flush()
        self._connection.close(self._outgoing.take_drops())

    def abandon_after_fork(self) -> None:
        """Make every use in a forked child a clear error; the parent keeps the sockets."""
        self._lock = threading.Lock()
        self._connection.abandon(
            ClosedDevice(
                f"the connection to {self._connection.address} belongs to the parent process; "
                "open a RemoteDevice after the fork, or start processes by spawn"
            )
        )

    def _as_stored(self, data: TensorData) -> TensorData:
        spec = self._outgoing.stored(data.spec)
        if spec.dtype is data.dtype:
            return data
        return data_from(array_from(data), spec.dtype)


def _as_declared(data: object, spec: TensorSpec) -> TensorData:
    """Return what was read as the program knows it.

    The real server answers some reads in another dtype: positions of extremes of integers as int64,
    truth values that were gathered as bytes.
    """
    if not isinstance(data, TensorData) or data.shape != spec.shape:
        raise ProtocolViolation(f"the answer to a read of {spec} is {shown(data)}")
    if data.dtype is spec.dtype:
        return data
    return data_from(array_from(data).astype(numpy_dtype(spec.dtype)), spec.dtype)


def _check_size(upload: Upload, spec: TensorSpec) -> None:
    empty = TensorData(b"", upload.data.shape, upload.data.dtype)
    rest = len(encode_tasks([Upload(upload.tensor, empty)], 2**64 - 1)) + 4
    size = rest + memoryview(upload.data.bytes).nbytes
    if size > MAX_MESSAGE_BYTES:
        raise UsageError(
            "a Burn 0.21 server takes a tensor in one message, of at most "
            f"{MAX_MESSAGE_BYTES:,} bytes, and ends the session at more; {spec} needs {size:,}: "
            "upload parts of it and concatenate them there"
        )


def _number(transfer: bytes | int) -> int:
    if not isinstance(transfer, int):
        raise UsageError("Burn 0.21 names transfers by numbers")
    return transfer
