"""Sessions in the native dialect: operations, graphs, uploads, requests and their replies."""

from __future__ import annotations

import collections
import contextlib
import sys
import weakref
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, Final

from burn_remote.runner.following import Follower
from burn_remote.runner.interface import TensorHandle
from burn_remote.runner.operation_graph import CodePosition, Graph
from burn_remote.runner.pending import Pending, completed
from burn_remote.sessions.lifetime import (
    BATCH_TASKS,
    DROP_BYTES,
    DROP_TENSORS,
    Flusher,
    fence_in_thread,
    nested_use,
    watch,
    weakly,
)
from burn_remote.sessions.native.collective_requests import PROMPT_COLLECTIVES, CollectiveRequests
from burn_remote.sessions.native.graph_table import GraphTable
from burn_remote.sessions.native.link_opening import Dial
from burn_remote.sessions.native.native_connection import Connection
from burn_remote.sessions.native.native_response_router import ResponseRouter
from burn_remote.sessions.native.signature_table import (
    IN_FULL,
    Numbered,
    SignatureTable,
)
from burn_remote.sessions.native.storage_requests import StorageRequests
from burn_remote.sessions.native.task_queue import ENCODED_BYTES, KEPT_DROPS, MOST_BYTES
from burn_remote.sessions.source_locations import PACKAGES, RING_LENGTH
from burn_remote.sessions.stack_room import check_stack_room
from burn_remote.sessions.traffic import Traffic
from burn_remote_protocol.dialects.native import (
    INLINE_BYTES,
    UPLOAD_CHUNK_BYTES,
    EncodedTask,
    chunk_head,
    decode_frame,
    encode_task,
    read_task,
)
from burn_remote_protocol.dialects.reusable_packer import reusable_pack
from burn_remote_protocol.dtypes import DType, DTypeUsage
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ClosedDevice,
    OperationFailed,
    UsageError,
    shown,
)
from burn_remote_protocol.messages import (
    Acknowledged,
    BeginUpload,
    Cleanup,
    Closing,
    Execute,
    Expose,
    Fetch,
    QueryDType,
    Seed,
    Sync,
    Upload,
)
from burn_remote_protocol.operations.extensions import (
    EXTENSIONS_FIELD,
    announces,
    check_announced,
    check_announced_dtype,
)
from burn_remote_protocol.operations.row import Operation, Row, Signature
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = ["FAST_BYTES_PER_SECOND", "PROVEN_BYTES", "NativeSession"]

# An upload continues in large chunks once it has sent this many bytes so fast. Then another
# thread's operation waits at most 40 ms for the chunk in front of it. The sockets of both systems
# usually hold fewer bytes, so that these many show how fast the network is.
PROVEN_BYTES: Final = 16 * UPLOAD_CHUNK_BYTES
FAST_BYTES_PER_SECOND: Final = 100e6

_frame: Final = sys._getframe


def _sync(request: int) -> bytes:
    return encode_task(Sync(request))


def _unfit(numbers: list[Any]) -> UsageError:
    """Return the error for numbers of a graph, one of which has more than 64 bits."""
    unfit = (one for one in numbers if type(one) is int and not -(2**63) <= one < 2**64)
    return UsageError(
        "expected a number from -2**63 to 2**64 - 1 in a compiled function, "
        f"saw {shown(next(unfit))}"
    )


class NativeSession(StorageRequests, CollectiveRequests):
    """The ``Session`` of a device behind a native link. Thread-safe."""

    has_secret_transfers: Final = True
    # See ``Session.follower``.
    follower: Follower | None = None

    def __init__(
        self,
        dial: Dial,
        *,
        token: str | None,
        timeout_seconds: float,
        transfer_domain: str = "servers",
    ) -> None:
        """Open a session over the link that ``dial`` opens, now and after each break.

        Raises ``ConnectionFailed``, ``VersionMismatch``, ``HandshakeRefused`` or
        ``ConnectionLost``.
        """
        super().__init__()
        self.transfer_domain = transfer_domain
        self._pack: Final = reusable_pack()
        # The function that issued the last operation, which is no part of this package.
        self._program: CodeType | None = None
        self._next_request = 1
        self._signature_table: Final = SignatureTable()
        self._numbered: Final = self._signature_table.known  # every operation reads it
        self._graphs: Final = GraphTable()
        # The last fetches from sessions of Burn's dialects: more than other threads issue while
        # one thread handles an interrupt.
        self._fetched: Final[collections.deque[int]] = collections.deque(maxlen=4096)
        # The last frame that was received, and how many were counted before it.
        self._current_frame: tuple[bytes | memoryview, int] = (b"", 0)
        self._router: Final = ResponseRouter(self._locations)
        self._connection = Connection(
            dial,
            token,
            timeout_seconds,
            self._handling(),
            self._when_lost(),
            weakly(self._beat),
            self._nested,
        )
        try:
            self._traffic: Final = self._connection.traffic  # each operation counts itself there
            # The most steps of a graph that the server runs as one task; 0 if it runs none.
            self.graph_steps: Final[int] = self.welcome.limits.get("graph_steps", 0)
            if allowed := self.welcome.limits.get("tensors"):
                self._most_tensors_beside_kept = allowed - KEPT_DROPS - BATCH_TASKS
            self._extensions = self.welcome.device.get(EXTENSIONS_FIELD, {})
            # The answers of ``has_row``.
            self._rows: Final[dict[Row, bool]] = {}
            self._flusher = Flusher(self._connection.close)
            self._flusher.start(self)
            self._connection.receiver.start()
            watch(self)
        except BaseException:  # Ctrl-C, or no thread can be started
            self._connection.close()
            raise

    def _when_lost(self) -> Callable[[BurnRemoteError], None]:
        """Return what to call with the error that ended the session; it refers to no session."""
        return self._router.fail

    @property
    def number(self) -> int | None:
        """The server's number of this session, if servers fetch from it by that number."""
        return self.welcome.session if self.transfer_domain == "servers" else None

    @property
    def traffic(self) -> Traffic:
        """The session's traffic so far."""
        return self._connection.traffic

    # -- operations ---------------------------------------------------------------------------

    # One method, because a call takes a fiftieth of an operation.
    def execute(  # noqa: C901
        self, signature: Signature, inputs: list[int], outputs: Sequence[TensorHandle]
    ) -> None:
        """Issue one operation; see ``Session.execute``."""
        check = self._checked_calls.check  # a slot, which a call would look up in twice the time
        if check():
            raise nested_use(self._connection.address)
        with self._lock:
            if self._connection.error is not None:
                self.check_open()
            try:
                number, _, size, is_short = self._numbered[signature.identity]
            except KeyError as error:
                pass_on_of_signal_handler(error)
                number, _, size, is_short = self._number(signature)
            first = self._next_tensor
            task: EncodedTask
            if is_short:
                # ``_assign_ids`` written out for one output.
                self._next_tensor = first + 1
                outputs[0].id = first
                task = (number, *inputs, first)
            else:
                task = self._long_task(number, signature, inputs, outputs)
            # ``Locations.note`` written out, from the caller's caller on: the caller is part of
            # this package.
            try:
                frame = _frame(2)
            except ValueError as error:  # C code calls the operator as a thread's only frame
                pass_on_of_signal_handler(error)
                frame = _frame(0)
            code = frame.f_code
            # Most operations come from the function of the last one.
            if code is not self._program:
                while frame.f_globals.get("__package__") in PACKAGES and frame.f_back is not None:
                    frame = frame.f_back
                self._program = code = frame.f_code
            self._positions[first % RING_LENGTH] = (first, code, frame.f_lasti)
            self._traffic.operations += 1
            dropped = self._dropped
            self._undropped_bytes += size
            if dropped and (self._undropped_bytes >= DROP_BYTES or len(dropped) >= DROP_TENSORS):
                self._append_drops()
                self._undropped_bytes = size
            # ``_append`` written out: a call takes a fiftieth of an operation.
            tasks = self._tasks
            tasks.append(task)
            if len(tasks) >= BATCH_TASKS or self._task_bytes >= ENCODED_BYTES:
                self._flush()
            elif self._flusher.armed is None:
                self._flusher.schedule(self)

    def _long_task(
        self, number: int, signature: Signature, inputs: list[int], outputs: Sequence[TensorHandle]
    ) -> EncodedTask:
        """Assign ids to the outputs of an operation; return its task and count its bytes."""
        task = (number, *inputs, *self._assign_ids(outputs))
        if number == IN_FULL:
            encoded = encode_task(Execute(Operation(signature, task[1:])))
            self._task_bytes += len(encoded)
            return encoded
        self._task_bytes += MOST_BYTES * len(task)
        return task

    def has_row(self, row: Row) -> bool:
        """Return whether the server has a row of the table of operations."""
        found = self._rows.get(row)
        if found is None:
            found = self._rows[row] = announces(self._extensions, row)
        return found

    def _number(self, signature: Signature, *, even_if_long: bool = False) -> Numbered:
        check_announced(signature, self._extensions, self._connection.address)
        numbered, definition = self._signature_table.take(signature, even_if_long=even_if_long)
        if definition is not None:
            self._append(definition)
            self._signature_table.keep(numbered)
        return numbered

    def execute_graph(
        self,
        graph: Graph,
        inputs: list[int],
        numbers: list[Any],
        outputs: Sequence[TensorHandle],
    ) -> None:
        """Issue a graph; see ``Session.execute_graph``."""
        connection = self._connection
        self._check_not_nested()
        with self._lock:
            self._end_sequence()
            if connection.error is not None:
                self.check_open()
            number = self._graphs.known.get(id(graph)) or self._define_graph(graph)
            first = self._next_tensor
            task: EncodedTask
            # ``_assign_ids`` written out for one output.
            if len(outputs) == 1:
                self._next_tensor = first + 1
                outputs[0].id = first
                task = (number, *inputs, first)
            else:
                task = (number, *inputs, *self._assign_ids(outputs))
            if numbers:
                task = self._with_numbers(task, numbers)
            self._positions[first % RING_LENGTH] = (first, graph)
            connection.traffic.operations += len(graph.steps)
            undropped = self._undropped_bytes + graph.nbytes
            if self._dropped and (undropped >= DROP_BYTES or len(self._dropped) >= DROP_TENSORS):
                self._append_drops()
            self._undropped_bytes += graph.nbytes
            self._task_bytes += MOST_BYTES * len(task)
            # ``_append`` written out, as in ``execute``.
            tasks = self._tasks
            tasks.append(task)
            if len(tasks) >= BATCH_TASKS or self._task_bytes >= ENCODED_BYTES:
                self._flush()
            elif self._flusher.armed is None:
                self._flusher.schedule(self)

    def _with_numbers(self, task: tuple[int, ...], numbers: list[Any]) -> bytes:
        """Return the task of a graph with the call's numbers. Raises ``UsageError``."""
        try:
            return self._pack([*task, numbers])
        except OverflowError:
            raise _unfit(numbers) from None

    def _define_graph(self, graph: Graph) -> int:
        signatures = {step.signature.identity: step.signature for step in graph.steps}
        # Numbering a signature may take the number of another one of this graph, which then gets a
        # new number in the next round. The loop ends, because a graph has at most as many steps as
        # there are numbers.
        while missing := [key for key in signatures if key not in self._numbered]:
            for key in missing:
                self._number(signatures[key], even_if_long=True)
        numbers = [self._numbered[step.signature.identity][0] for step in graph.steps]
        number, encoded = self._graphs.take(graph, numbers)
        self._append(encoded)
        self._graphs.keep(graph, number)
        return number

    def reserve(self, count: int = 1) -> int:
        """Return the first of ``count`` new tensor ids; see ``Session.reserve``."""
        self._check_not_nested()
        with self._lock:
            self._end_sequence()
            self.check_open()
            tensor = self._next_tensor
            self._next_tensor = tensor + count
            self._locations.note(tensor, 3)
            return tensor

    def upload(self, tensor: int, data: TensorData) -> None:
        """Send a tensor's elements; see ``Session.upload``."""
        check_announced_dtype(data.dtype, self._extensions, self._connection.address)
        view = memoryview(data.bytes).cast("B")
        self._check_not_nested()
        with self._lock:
            self.check_open()
            if len(view) <= INLINE_BYTES:
                whole = TensorData(bytes(view), data.shape, data.dtype)
                self._append(encode_task(Upload(tensor, whole)))
                return
            self._append_drops()
            self._append(encode_task(BeginUpload(tensor, data.spec, len(view))))
            self._flush()
        # The lock is free between chunks, so that other threads' operations go in between.
        connection, start, begin = self._connection, 0, self._clock()
        large = connection.large_chunk_bytes
        while start < len(view):
            # A large chunk begins where one would if all were large, as the server's memory for
            # them does.
            is_fast = (
                start >= PROVEN_BYTES
                and not start % large
                and start >= FAST_BYTES_PER_SECOND * (self._clock() - begin)
            )
            size = large if is_fast else connection.chunk_bytes
            connection.send(chunk_head(tensor, start), view[start : start + size])
            start += size

    # -- requests -----------------------------------------------------------------------------

    def read(self, tensor: int, spec: TensorSpec) -> Pending[TensorData]:
        """Request a tensor's elements; see ``Session.read``."""
        return self._ask(lambda request: read_task(request, tensor, spec), spec)

    def sync(self) -> Pending[None]:
        """Request a reply once everything issued so far, including drops, has been executed.

        Its result raises the first failure that no read has raised, with the others attached.
        """
        return self._ask(_sync)

    def fence(self) -> Pending[None]:
        """Request a reply once everything issued so far has been executed, whatever failed."""
        return self._ask(_sync, reports_failures=False)

    def fence_soon(self) -> Pending[None]:
        """Request the same as ``fence``, without blocking while the server reads nothing."""
        return fence_in_thread(self._flusher, self.fence)

    def line_of(self, tensor: int) -> str:
        """Return ``file:line`` of the program that made a tensor; empty if it is not recorded."""
        return self._locations.find(tensor)

    def note_position(self, tensor: int, position: CodePosition) -> None:
        """Record the code position that made a tensor; see ``Session.note_position``."""
        self._locations.note_at(tensor, *position)

    def take_failures(self) -> OperationFailed | None:
        """Return and forget the failures that no read and no sync has raised, as one error."""
        return self._router.take_failures()

    def dtype_usage(self, dtype: DType) -> Pending[DTypeUsage]:
        """Ask what the device supports for a dtype."""
        if dtype.is_complex and "BaseComplex" not in self._extensions:
            return completed(self, DTypeUsage(0))
        return self._ask(lambda request: encode_task(QueryDType(request, dtype)))

    def _ask(
        self,
        task_of: Callable[[int], EncodedTask],
        read: TensorSpec | None = None,
        *,
        reports_failures: bool = True,
    ) -> Pending[Any]:
        pending: Pending[Any] = Pending(self)
        connection = self._connection
        if self._nested.check():
            raise nested_use(connection.address)
        with self._lock:
            self._end_sequence()
            if connection.error is not None:
                self.check_open()
            request = self._next_request
            self._next_request = request + 1
            self._traffic.requests += 1
            self._router.expect(request, pending, read, reports_failures=reports_failures)
            if self._undropped_bytes >= DROP_BYTES or (read is None and self._dropped):
                # Queued before the request, so that the server frees large tensors before a read,
                # and everything that was dropped before a sync.
                self._append_drops()
            self._append(task_of(request))
        if connection.error is not None:
            self._fail_late()
        return pending

    def _fail_late(self) -> None:
        # The connection fails pending requests when it ends; one may have been added later.
        if self._connection.error is not None:
            self._router.fail(self._connection.error)

    # -- tasks without a reply ----------------------------------------------------------------

    def seed(self, seed: int) -> None:
        """Set the seed of this session's random numbers."""
        self._enqueue(Seed(seed))

    def memory_cleanup(self) -> None:
        """Have the device return cached memory to its system."""
        self._enqueue(Cleanup())

    @property
    def peer_address(self) -> str:
        """The address at which other servers reach this session's server."""
        return self.welcome.peer_address

    def expose(
        self, tensor: int, spec: TensorSpec, transfer: bytes | int, expires_seconds: float
    ) -> None:
        """Permit anyone who knows ``transfer`` to fetch a tensor once. Sent at once."""
        self._check_not_nested()
        with self._lock:
            self._end_sequence()
            self._append(encode_task(Expose(tensor, spec, 1, transfer, expires_seconds)))
            self._flush()

    def fetch(self, tensor: int, transfer: bytes | int, address: str, spec: TensorSpec) -> None:
        """Have the server fetch an exposed tensor from the server at ``address``."""
        check_announced_dtype(spec.dtype, self._extensions, self._connection.address)
        if type(transfer) is int:  # from a session of one of Burn's dialects
            self._fetched.append(transfer)
        self._enqueue(Fetch(transfer, address, tensor, spec))

    def may_have_issued(self, kind: type[Expose | Fetch], transfer: bytes | int) -> bool:
        """Return ``False`` only for a transfer number that was never passed to ``fetch``."""
        return kind is Expose or type(transfer) is not int or transfer in self._fetched

    # -- receiving ----------------------------------------------------------------------------

    def wait(self, pending: Pending[Any], timeout_seconds: float | None) -> None:
        """Wait for a reply; see ``Source``."""
        if self._connection.error is not None:
            # In a forked child, the socket belongs to the parent.
            self._fail_late()
            return
        self._prompts = PROMPT_COLLECTIVES
        # Sending checks the room on the stack, and needs more of it than the wait.
        if not (self._tasks and self.flush(self._most_kept_drops)):
            check_stack_room()
        self._connection.receiver.wait(pending, timeout_seconds)

    def send(self) -> None:
        """Send queued tasks without a wait; see ``Source``."""
        if self._tasks:
            self.flush(self._most_kept_drops)

    def attend(self) -> None:
        """Receive replies although no thread waits for them; see ``Source``."""
        if self._connection.error is not None:
            self._fail_late()
            return
        if self._tasks:
            self.flush()
        self._connection.receiver.attend()

    def deferred(self, callback: Callable[[Pending[Any]], object]) -> Callable[..., object]:
        """Return a function that has ``callback`` called in another thread; see ``Source``."""
        return self._connection.receiver.callbacks.deferred(callback)

    def _handling(self) -> Callable[[int, bytes | memoryview], None]:
        """Return ``_handle`` for the connection, which must not keep the session alive."""
        reference = weakref.ref(self)

        def handle(link: int, frame: bytes | memoryview) -> None:
            session = reference()
            if session is not None:
                session._handle(link, frame)

        return handle

    def _handle(self, link: int, frame: bytes | memoryview) -> None:
        """Handle a frame of link number ``link``; called again after an interrupt."""
        connection = self._connection
        received = connection.received
        is_repeated = frame is self._current_frame[0]
        if not is_repeated:
            self._current_frame = (frame, received)
            traffic = self._traffic
            traffic.frames_received += 1
            traffic.bytes_received += len(frame)
        message = decode_frame(frame)
        kind = type(message)
        if kind is Acknowledged:
            connection.note_acknowledged(message.received)
            return
        is_counted = received != self._current_frame[1]
        if kind is not Closing and not is_counted and not connection.note_received(link):
            return
        self._router.take(message, is_repeated=is_repeated)
        if connection.acknowledgement_due:
            self._flush_soon()

    def _beat(self) -> None:
        self._router.memory.expire()
        self._connection.copies.expire()
        self._connection.large_copies.expire()
        self._flush_soon()

    # -- the end ------------------------------------------------------------------------------

    def settle_connection(self, timeout_seconds: float) -> None:
        """Wait until the connection is up or the session has ended; see ``Session``."""
        self._connection.settle(timeout_seconds)

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return self._connection.error is not None

    def is_in_call(self) -> bool:
        """Return whether this thread is inside of a call; see ``Session.is_in_call``."""
        return self._flusher.runs_here() or self._connection.runs_here()

    def close(self, *, discards: bool = False) -> None:
        """Send queued tasks and end the session. A second call does nothing.

        ``discards``: the server skips the tasks that it has not executed, and this call does not
        wait until the server has read the queued ones.
        """
        try:
            if discards:
                self._connection.discard()
            else:
                with contextlib.suppress(BurnRemoteError):
                    self.flush()
                self._connection.close()
        finally:
            # After Ctrl-C, its thread closes the connection.
            self._flusher.stop()

    def abandon_after_fork(self) -> None:
        """Make every use in a forked child raise an error; the parent keeps the connection."""
        self._renew_lock()
        self._connection.abandon(
            ClosedDevice(
                f"the connection to {self._connection.address} belongs to the parent process; "
                "open a RemoteDevice after the fork, or start processes by spawn"
            )
        )
