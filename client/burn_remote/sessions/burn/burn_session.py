"""Sessions in one of Burn's dialects, with a real Burn server or ours.

They behave like native sessions as far as the dialect allows. The dialect has one message per
operation, cannot resume after a broken connection, and has room for a failure only in the reply to
a read or a sync.
"""

from __future__ import annotations

import collections
import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

from burn_remote.runner.interface import TensorHandle
from burn_remote.runner.operation_graph import CodePosition, Graph
from burn_remote.runner.pending import Pending, completed
from burn_remote.sessions.burn.burn_connection import BurnConnection, DialRoute
from burn_remote.sessions.burn.burn_response_router import BurnResponseRouter
from burn_remote.sessions.burn.burn_version_differences import Burn021, BurnRelease
from burn_remote.sessions.burn.flush_policy import FlushPolicy
from burn_remote.sessions.burn.outgoing_queue import Outgoing
from burn_remote.sessions.burn.server_facts import facts, find_bool_store
from burn_remote.sessions.lifetime import Flusher, fence_in_thread, watch, weakly
from burn_remote.sessions.source_locations import Locations
from burn_remote.sessions.stack_room import check_stack_room
from burn_remote.sessions.traffic import Traffic
from burn_remote_protocol.collectives import CollectiveCall, GroupSpec
from burn_remote_protocol.dtypes import F32, DType, DTypeUsage
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ClosedDevice,
    OperationFailed,
    Unsupported,
    UsageError,
)
from burn_remote_protocol.messages import (
    Expose,
    Fetch,
    QueryDType,
    Read,
    Seed,
    Sync,
)
from burn_remote_protocol.operations.row import Row, Signature
from burn_remote_protocol.operations.vocabularies import check_dtype
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = ["BurnSession"]

# An upload up to this size is queued like an operation. Until it is sent, its elements
# are in memory twice. With a smaller limit, small tensors would be sent one by one.
SMALL_UPLOAD_BYTES: Final = 16 * 2**10
# The exposes and fetches that a session remembers: more than other threads issue while one thread
# handles an interrupt.
REMEMBERED_TRANSFERS: Final = 4096


class BurnSession:
    """The ``Session`` of a device behind the sockets of a release of Burn. Thread-safe."""

    transfer_domain: Final = "servers"
    has_secret_transfers: Final = False
    number: Final = None  # transfer ids of these dialects do not contain a session's number
    graph_steps: Final = 0  # Burn's protocol has no graphs
    follower: Final = None

    def __init__(
        self,
        dial: DialRoute,
        *,
        address: str,
        timeout_seconds: float,
        release: BurnRelease | None = None,
    ) -> None:
        """Open a session over the links that ``dial`` opens.

        ``address`` is where other servers find this one; ``release`` is Burn 0.21 by default.
        Raises ``ConnectionFailed``, ``ConnectionLost``, and ``HandshakeRefused``.
        """
        release = release or Burn021()
        self._release: Final = release
        self.welcome: Final = facts(address, release.dialect, release.max_message_bytes)
        self._locations: Final = Locations()
        self._outgoing: Final = Outgoing(release)
        # On a real server all sessions share one table of tensors. Ids that count from 0, like
        # those of Burn's own clients, would collide.
        self._next_tensor = secrets.randbits(62)
        self._current_frame = b""  # the last frame that was received
        self._last_operation: tuple[Signature, int] | None = None
        self._transfers: Final[collections.deque[tuple[type[Expose | Fetch], bytes | int]]] = (
            collections.deque(maxlen=REMEMBERED_TRANSFERS)
        )
        self._replies: Final = BurnResponseRouter(self._locations)
        self._connection: Final = BurnConnection(
            dial,
            weakly(self._handle),
            self._replies.fail,
            weakly(self._explain),
            release,
            timeout_seconds,
        )
        outgoing, connection = (
            self._outgoing,
            self._connection,
        )  # the thread must not keep the session alive
        self._flusher: Final = Flusher(lambda: connection.close(outgoing.drops))
        self._policy: Final = FlushPolicy(self, self._outgoing, self._connection, self._flusher)
        self._connection.start()
        try:
            # A Burn 0.22 server sends its settings when the session opens. Others are asked.
            store = self._connection.bool_store
            if store is None:
                store = find_bool_store(self.dtype_usage, self._connection.address, timeout_seconds)
            self._outgoing.bool_store = store
        except BaseException:
            self._connection.end(ClosedDevice(f"{address} did not open a session"))
            raise
        self._flusher.start(self)
        watch(self)

    def settle_connection(self, timeout_seconds: float) -> None:
        """Do nothing: Burn's sessions end with their connection; see ``Session``."""

    @property
    def traffic(self) -> Traffic:
        """The session's traffic so far."""
        return self._connection.traffic

    # -- operations ---------------------------------------------------------------------------

    def has_row(self, row: Row) -> bool:
        """Return whether the release of Burn has a row."""
        return row.lifetime.includes(self._release.vocabulary)

    def execute_graph(
        self,
        graph: Graph,
        inputs: list[int],
        numbers: list[Any],
        outputs: Sequence[TensorHandle],
    ) -> None:
        """Raise ``Unsupported``; see ``graph_steps``."""
        raise Unsupported("Burn's protocol has no graphs")

    def execute(
        self, signature: Signature, inputs: list[int], outputs: Sequence[TensorHandle]
    ) -> None:
        """Issue one operation; see ``Session.execute``."""
        with self._policy.free_lock():
            self._connection.raise_error()
            first = self._next_tensor
            self._next_tensor = end = first + len(outputs)
            for tensor, out in enumerate(outputs, first):
                out.id = tensor
            self._outgoing.operation(signature, [*inputs, *range(first, end)])
            self._locations.note(first, 3)
            self._last_operation = signature, first
            self._connection.traffic.operations += 1
            self._policy.added(sum([spec.nbytes for spec in signature.outputs]))

    def reserve(self, count: int = 1) -> int:
        """Return the first of ``count`` new tensor ids; see ``Session.reserve``."""
        with self._policy.free_lock():
            self._connection.raise_error()
            tensor = self._next_tensor
            self._next_tensor = tensor + count
            self._locations.note(tensor, 3)
            return tensor

    def upload(self, tensor: int, data: TensorData) -> None:
        """Send a tensor's elements; see ``Session.upload``.

        Raises ``UsageError`` for a tensor above the size of a Burn server's largest message: this
        dialect sends a tensor in one message.
        """
        with self._policy.free_lock():
            self._connection.raise_error()
            self._outgoing.upload(tensor, data)
            if memoryview(data.bytes).nbytes > SMALL_UPLOAD_BYTES:
                self._policy.send_now()
            else:
                self._policy.added()

    def check_open(self) -> None:
        """Raise the error that ended the session, if it has ended."""
        self._connection.raise_error()

    def drop(self, tensor: int) -> None:
        """Free a tensor with the next message. Lock-free, because ``__del__`` calls it."""
        self._outgoing.drop(tensor)
        self._policy.send_soon()

    # -- requests -----------------------------------------------------------------------------

    def read(self, tensor: int, spec: TensorSpec) -> Pending[TensorData]:
        """Request a tensor's elements; see ``Session.read``."""
        pending: Pending[TensorData] = Pending(self)
        stored = self._outgoing.stored(spec)
        with self._policy.free_lock():
            self._connection.raise_error()
            self._connection.traffic.requests += 1
            request = self._outgoing.next_request()
            # First, because an interrupt may come between the two, and a reply that nothing expects
            # ends the session.
            self._replies.expect(request, pending, read=(tensor, spec))
            self._outgoing.add_request(Read(request, tensor, stored), request)
            self._policy.added()
        self._fail_late()
        return pending

    def sync(self) -> Pending[None]:
        """Request a reply once everything issued so far has been executed.

        Its result raises a failure that no read has raised, if the server is ours. A real Burn
        server does not report such failures.
        """
        return self._ask(Sync)

    def fence(self) -> Pending[None]:
        """Request a reply once everything issued so far has been executed, whatever failed."""
        return self._ask(Sync, reports_failures=False)

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
        """Return and forget a failure that no read and no sync has raised."""
        return self._replies.take_failures()

    def dtype_usage(self, dtype: DType) -> Pending[DTypeUsage]:
        """Ask what the device supports for a dtype. No Burn server supports complex dtypes."""
        if dtype.is_complex:
            return completed(self, DTypeUsage(0))
        return self._ask(lambda request: QueryDType(request, dtype))

    def _ask(
        self, question: Callable[[int], Sync | QueryDType], *, reports_failures: bool = True
    ) -> Pending[Any]:
        pending: Pending[Any] = Pending(self)
        with self._policy.free_lock():
            self._connection.raise_error()
            request = self._outgoing.next_request()
            self._connection.traffic.requests += 1
            self._replies.expect(request, pending, reports_failures=reports_failures)
            self._outgoing.task(question(request), request)
            self._policy.added()
        self._fail_late()
        return pending

    def _fail_late(self) -> None:
        # The connection fails pending requests when it ends; one may have been added later.
        if self._connection.error is not None:
            self._replies.fail(self._connection.error)

    # -- tasks without a reply ----------------------------------------------------------------

    def seed(self, seed: int) -> None:
        """Set the seed of random numbers; a real server has one for all its sessions."""
        with self._policy.free_lock():
            self._connection.raise_error()
            self._outgoing.task(Seed(seed))
            self._policy.added()

    def memory_cleanup(self) -> None:
        """Do nothing: Burn's dialects have no message for it."""

    @property
    def peer_address(self) -> str:
        """The address at which other servers reach this session's server."""
        return self.welcome.peer_address

    def expose(
        self, tensor: int, spec: TensorSpec, transfer: bytes | int, expires_seconds: float
    ) -> None:
        """Permit a server that knows ``transfer`` to fetch a tensor once; return when it can.

        A real server sometimes loses a fetch that arrives during the expose, and the move would
        hang. This therefore waits until the expose has been executed. The dialect has no expiry.
        """
        assert isinstance(transfer, int)  # this dialect has no secret transfer ids
        stored = self._outgoing.stored(spec)
        with self._policy.free_lock():
            self._connection.raise_error()
            expose = Expose(tensor, stored, 1, transfer, expires_seconds)
            request = self._outgoing.next_request()
            self._issue(expose, lambda: self._outgoing.add_request(expose, request))
        # The reply to this query comes after the expose. So would that to a sync, but a sync would
        # also take a failure that the program has not seen.
        self.dtype_usage(F32).result()

    def join_group(self, spec: GroupSpec) -> int:
        """Raise ``Unsupported``: Burn's dialects have no groups of servers."""
        raise Unsupported(
            "Burn's protocol has no groups of servers; connect with the native dialect"
        )

    def collective(
        self,
        group: int,
        call: CollectiveCall,
        inputs: list[int],
        outputs: Sequence[TensorHandle],
    ) -> None:
        """Raise ``UsageError``: no session of this dialect is a member of a group."""
        raise UsageError(f"this session is not a member of group {group}")

    def leave_group(self, group: int) -> None:
        """Raise ``UsageError``: no session of this dialect is a member of a group."""
        raise UsageError(f"this session is not a member of group {group}")

    def group_size(self, group: int) -> tuple[int, int]:
        """Raise ``UsageError``: no session of this dialect is a member of a group."""
        raise UsageError(f"this session is not a member of group {group}")

    def group_number(self, spec: GroupSpec) -> None:
        """Return ``None``: no session of this dialect is a member of a group."""

    def collectives_issued(self, group: int) -> int:
        """Raise ``UsageError``, as ``group_size`` does."""
        raise UsageError(f"this session is not a member of group {group}")

    def fetch(self, tensor: int, transfer: bytes | int, address: str, spec: TensorSpec) -> None:
        """Have the server fetch an exposed tensor from the server at ``address``."""
        check_dtype(spec.dtype, self._release.vocabulary)
        with self._policy.free_lock():
            self._connection.raise_error()
            fetch = Fetch(transfer, address, tensor, None)
            self._issue(fetch, lambda: self._outgoing.task(fetch, made=tensor))
            self._policy.added()

    def may_have_issued(self, kind: type[Expose | Fetch], transfer: bytes | int) -> bool:
        """Return whether the task was queued; see ``Session.may_have_issued``."""
        return (kind, transfer) in self._transfers

    def _issue(self, task: Expose | Fetch, queue: Callable[[], object]) -> None:
        """Queue a task of a transfer, and remember it unless an interrupt prevents the queueing.

        The caller holds the lock, so no other thread changes the queue.
        """
        queued = len(self._outgoing)
        key = (type(task), task.transfer)
        try:
            self._transfers.append(key)
            queue()
        except BaseException:
            if len(self._outgoing) == queued and key in self._transfers:
                self._transfers.remove(key)
            raise

    # -- sending ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send queued tasks now."""
        self._policy.flush()

    def flush_waiting(self) -> None:
        """Send queued tasks; the flusher calls this a millisecond after they were queued."""
        self._policy.flush_waiting()

    # -- receiving ----------------------------------------------------------------------------

    def wait(self, pending: Pending[Any], timeout_seconds: float | None) -> None:
        """Wait for a reply; see ``Source``."""
        if self._connection.error is not None:
            # In a forked child, the socket belongs to the parent.
            self._fail_late()
            return
        check_stack_room()
        if len(self._outgoing):
            self.flush()
        self._connection.receiver.wait(pending, timeout_seconds)

    def send(self) -> None:
        """Send queued tasks without a wait; see ``Source``."""
        if len(self._outgoing):
            self.flush()

    def attend(self) -> None:
        """Receive replies although no thread waits for them; see ``Source``."""
        if self._connection.error is not None:
            self._fail_late()
            return
        if len(self._outgoing):
            self.flush()
        self._connection.receiver.attend()

    def deferred(self, callback: Callable[[Pending[Any]], object]) -> Callable[..., object]:
        """Return a function that has ``callback`` called in another thread; see ``Source``."""
        return self._connection.receiver.callbacks.deferred(callback)

    def _handle(self, frame: bytes) -> None:
        is_repeated = frame is self._current_frame  # after an interrupt
        self._current_frame = frame
        if not is_repeated:
            self.traffic.frames_received += 1
            self.traffic.bytes_received += len(frame)
        self._replies.take(self._release.decode_reply(frame), is_repeated=is_repeated)

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

    def is_in_call(self) -> bool:
        """Return whether this thread is inside of a call; see ``Session.is_in_call``."""
        return self._policy.is_locked() or self._flusher.runs_here() or self._connection.runs_here()

    def close(self, *, discards: bool = False) -> None:
        """Send queued tasks, free all tensors and end the session. A second call does nothing.

        ``discards`` changes nothing: a real Burn server keeps the tensors of a client that does not
        drop them, so the drops are sent behind the queued tasks. Our server skips those anyway when
        the sockets close.
        """
        try:
            with contextlib.suppress(BurnRemoteError), self._policy.free_lock():
                self._policy.send_now()
            self._connection.close(self._outgoing.drops)
        finally:
            # After Ctrl-C, its thread closes the connection.
            self._flusher.stop()

    def abandon_after_fork(self) -> None:
        """Make every use in a forked child raise an error; the parent keeps the sockets."""
        self._policy.renew_lock()
        self._connection.abandon(
            ClosedDevice(
                f"the connection to {self._connection.address} belongs to the parent process; "
                "open a RemoteDevice after the fork, or start processes by spawn"
            )
        )
