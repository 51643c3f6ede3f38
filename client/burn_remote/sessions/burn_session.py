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

from burn_remote.runner import TensorHandle
from burn_remote.sessions.burn_connection import BurnConnection, DialRoute
from burn_remote.sessions.burn_departures import Departures
from burn_remote.sessions.burn_facts import facts, find_bool_store
from burn_remote.sessions.burn_outgoing import Outgoing
from burn_remote.sessions.burn_replies import BurnReplies
from burn_remote.sessions.locations import Locations
from burn_remote.sessions.pending import Pending
from burn_remote.sessions.runtime import Flusher, watch, weakly
from burn_remote.sessions.traffic import Traffic
from burn_remote_protocol.dialects.burn_responses import decode_answer
from burn_remote_protocol.dtypes import F32, DType, DTypeUsage
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ClosedDevice,
)
from burn_remote_protocol.messages import (
    Expose,
    Fetch,
    QueryDType,
    Read,
    Seed,
    Sync,
)
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

if TYPE_CHECKING:
    from burn_remote.device import Device

__all__ = ["BurnSession"]

# Up to this size an upload waits for company like an operation. Larger: more memory is held twice.
# Smaller: small tensors leave one by one.
SMALL_UPLOAD_BYTES: Final = 16 * 2**10


class BurnSession:
    """The ``RunnerClient`` of a device behind Burn 0.21's two sockets. Thread-safe."""

    def __init__(self, dial: DialRoute, *, address: str, timeout_seconds: float) -> None:
        """Open a session over the links that ``dial`` opens.

        ``address`` is where other servers find this one. Raises ``ConnectionFailed``,
        ``ConnectionLost``.
        """
        self.device: Device
        self.welcome: Final = facts(address)
        self._locations: Final = Locations()
        self._outgoing: Final = Outgoing()
        # On a real server all sessions share one table of tensors: whoever counts from 0, as its
        # own clients do, meets others there.
        self._next_tensor = secrets.randbits(62)
        self._last_operation: tuple[Signature, int] | None = None
        self._replies: Final = BurnReplies(self._locations)
        self._connection: Final = BurnConnection(
            dial, weakly(self._handle), self._replies.fail, weakly(self._explain)
        )
        outgoing, connection = (
            self._outgoing,
            self._connection,
        )  # the thread holds no more than that
        self._flusher: Final = Flusher(lambda: connection.close(outgoing.take_drops()))
        self._departures: Final = Departures(self, self._outgoing, self._connection, self._flusher)
        self._connection.start()
        try:
            store = find_bool_store(self.dtype_usage, self._connection.address, timeout_seconds)
            self._outgoing.bool_store = store
        except BaseException:
            self._connection.end(ClosedDevice(f"{address} did not open a session"))
            raise
        self._flusher.start(self)
        watch(self)

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
        with self._departures.lock:
            self._connection.raise_error()
            first = self._next_tensor
            self._next_tensor = first + len(outputs)
            tensors = [handle.id for handle in inputs]
            tensors += range(first, self._next_tensor)
            self._outgoing.operation(signature, tensors)
            self._locations.note(first)
            self._last_operation = signature, first
            self._connection.traffic.operations += 1
            self._departures.added(sum([spec.nbytes for spec in outputs]))
        return tuple(
            [TensorHandle(self, first + position, spec) for position, spec in enumerate(outputs)]
        )

    def register_tensor_data(self, data: TensorData) -> TensorHandle:
        """Send a tensor's elements; see ``RunnerClient.register_tensor_data``.

        Raises ``UsageError`` for more than a Burn server takes in one message, which is how this
        dialect sends a tensor.
        """
        with self._departures.lock:
            tensor = self._take_id()
            self._locations.note(tensor)
            self._outgoing.upload(tensor, data)
            if memoryview(data.bytes).nbytes > SMALL_UPLOAD_BYTES:
                self._departures.leave()
            else:
                self._departures.added()
        return TensorHandle(self, tensor, data.spec)

    def create_empty_handle(self, spec: TensorSpec) -> TensorHandle:
        """Reserve a tensor id; see ``RunnerClient.create_empty_handle``."""
        with self._departures.lock:
            return TensorHandle(self, self._take_id(), spec)

    def drop_handle(self, identifier: int) -> None:
        """Free a tensor with the next message. Lock-free: it is called by ``__del__``."""
        self._outgoing.drop(identifier)
        self._departures.leave_soon()

    # -- questions ----------------------------------------------------------------------------

    def read_tensor_async(self, handle: TensorHandle) -> Pending[TensorData]:
        """Ask for a tensor's elements; see ``RunnerClient.read_tensor_async``."""
        pending: Pending[TensorData] = Pending(self)
        stored = self._outgoing.stored(handle.spec)
        with self._departures.lock:
            self._connection.raise_error()
            self._connection.traffic.requests += 1
            request = self._outgoing.question(lambda request: Read(request, handle.id, stored))
            self._replies.expect(request, pending, handle)
            self._departures.added()
        self._fail_late()
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
        with self._departures.lock:
            self._connection.raise_error()
            request = self._outgoing.next_request()
            self._connection.traffic.requests += 1
            self._replies.expect(request, pending)
            self._outgoing.task(question(request), request)
            self._departures.added()
        self._fail_late()
        return pending

    def _fail_late(self) -> None:
        # The connection fails what is expected when it ends; this may have come a moment later.
        if self._connection.error is not None:
            self._replies.fail(self._connection.error)

    # -- statements ---------------------------------------------------------------------------

    def seed(self, seed: int) -> None:
        """Set the seed of random numbers; a real server has one for all its sessions."""
        with self._departures.lock:
            self._connection.raise_error()
            self._outgoing.task(Seed(seed))
            self._departures.added()

    def memory_cleanup(self) -> None:
        """Do nothing: Burn 0.21 has no message for it."""

    def expose(self, handle: TensorHandle, transfer: bytes | int, expires_seconds: float) -> None:
        """Let a server that names ``transfer`` fetch a tensor once; return when it may.

        A real server forgets, now and then, who asked for a tensor at the moment in which it is
        exposed; that move would hang. The dialect says nothing of how long it may be fetched.
        """
        assert isinstance(transfer, int)  # the router knows what this dialect can say
        stored = self._outgoing.stored(handle.spec)
        with self._departures.lock:
            self._connection.raise_error()
            expose = Expose(handle.id, stored, 1, transfer, expires_seconds)
            self._outgoing.question(lambda _: expose)
        # Answered in its turn. A sync would also be, and take a failure that the program must see.
        self.dtype_usage(F32).result()

    def fetch(self, transfer: bytes | int, address: str, spec: TensorSpec) -> TensorHandle:
        """Have the server fetch an exposed tensor from the server at ``address``."""
        with self._departures.lock:
            tensor = self._take_id()
            self._locations.note(tensor)
            self._outgoing.task(Fetch(transfer, address, tensor, None), made=tensor)
            self._departures.added()
        return TensorHandle(self, tensor, spec)

    # -- sending ------------------------------------------------------------------------------

    def _take_id(self) -> int:
        self._connection.raise_error()
        tensor = self._next_tensor
        self._next_tensor = tensor + 1
        return tensor

    def flush(self) -> None:
        """Send what waits, now."""
        self._departures.flush()

    def flush_waiting(self) -> None:
        """Send what has waited for its millisecond."""
        self._departures.flush_waiting()

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
        self._replies.take(decode_answer(frame))

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

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return self._connection.error is not None

    def close(self) -> None:
        """Send what waits, free all tensors and end the session. A second time does nothing."""
        with self._departures.lock, contextlib.suppress(BurnRemoteError):
            self._departures.leave()
        self._connection.close(self._outgoing.take_drops())
        self._flusher.stop()

    def abandon_after_fork(self) -> None:
        """Make every use in a forked child a clear error; the parent keeps the sockets."""
        self._departures.lock = threading.Lock()
        self._connection.abandon(
            ClosedDevice(
                f"the connection to {self._connection.address} belongs to the parent process; "
                "open a RemoteDevice after the fork, or start processes by spawn"
            )
        )
