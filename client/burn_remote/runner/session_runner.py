"""The innermost runner of a device, which passes every call to the session."""

from __future__ import annotations

import contextlib
import operator
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

from burn_remote.runner.interface import (
    OwningHandle,
    RunnerClient,
    Session,
    StorageTask,
    TensorHandle,
    distinction,
)
from burn_remote.runner.issuing import issue_each, issue_parts, recording
from burn_remote.runner.operation_graph import Graph
from burn_remote.runner.pending import Pending
from burn_remote_protocol.collectives import CollectiveCall, GroupSpec
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import BurnRemoteError, DeviceMismatch, UsageError
from burn_remote_protocol.ids import new_transfer_id, new_transfer_number
from burn_remote_protocol.messages import Expose, Fetch
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_protocol.snapshots import living_keys
from burn_remote_protocol.tensors import TensorData, TensorSpec

if TYPE_CHECKING:
    from burn_remote_protocol.dtypes import DType, DTypeUsage

__all__ = ["SessionRunner"]

# An exposed tensor that nobody has fetched is freed after this time. A longer time would hold
# tensors longer for a target that died; a shorter one would fail the fetches of a target with a
# long queue.
EXPIRES_SECONDS: Final = 300.0
# How long an interrupted move waits for a server of one of Burn's dialects, to withdraw the tensor
# from it. A server that takes longer keeps the tensor until it expires.
WITHDRAW_SECONDS: Final = 5.0

_id_of: Final = operator.attrgetter("id")


@final
class SessionRunner:
    """The innermost runner: it owns the handles of a session, its drops, moves and fetches.

    Moves need no lock, so a server that does not respond delays no move between other servers.

    Sessions that wait for each other's tensors cannot deadlock. A session waits only at an
    operation that needs a fetched tensor, and the expose for a fetch is issued before the fetch. If
    the source executes that expose only after a fetch of its own, this second fetch was issued even
    earlier. In a cycle of waiting sessions, the issue times would decrease forever.
    """

    __slots__ = ("_execute", "_owner", "_targets", "session")

    def __init__(self, session: Session, owner: RunnerClient) -> None:
        self.session: Final = session
        self._owner: Final = owner
        self._execute: Final = session.execute
        # Sessions that may still be fetching from this one.
        self._targets: Final[weakref.WeakKeyDictionary[Session, None]] = weakref.WeakKeyDictionary()

    @property
    def device(self) -> Any:
        """The device of the session."""
        return self._owner.device

    def is_around(self, other: RunnerClient) -> bool:
        """Return ``False``: this runner forwards to no other."""
        return False

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue one operation; see ``RunnerClient.register_op``."""
        # Unrolled for one and two inputs: a comprehension costs 0.1 µs of an operation's 3 µs.
        if len(inputs) == 2:
            left, right = inputs
            ids = [left.id, right.id]
        elif len(inputs) == 1:
            ids = [inputs[0].id]
        else:
            ids = [handle.id for handle in inputs]
        outputs = signature.outputs
        owner = self._owner
        if len(outputs) == 1:
            out = OwningHandle()
            out.spec = outputs[0]
            out.client = owner
            made: tuple[TensorHandle, ...] = (out,)
        else:
            made = self._without_ids(outputs)
        self._execute(signature, ids, made)
        return made

    def _without_ids(self, specs: Sequence[TensorSpec]) -> tuple[TensorHandle, ...]:
        """Return handles to which the session assigns ids."""
        handles = []
        for spec in specs:
            out = OwningHandle()
            out.spec = spec
            out.client = self._owner
            handles.append(out)
        return tuple(handles)

    def register_graph(
        self, graph: Graph, inputs: Sequence[TensorHandle], numbers: Sequence[Any]
    ) -> tuple[TensorHandle, ...]:
        """Issue the operations of a graph; see ``RunnerClient.register_graph``."""
        session = self.session
        most_steps = session.graph_steps
        if graph.fits_in != most_steps:
            if not graph.steps:
                return ()
            if not most_steps:
                return issue_each(graph, self, inputs, numbers)
            if not graph.fits(most_steps):
                return issue_parts(graph, self, inputs, numbers, most_steps)
        outputs = graph.outputs
        if len(outputs) == 1:
            out = OwningHandle()
            out.spec = outputs[0]
            out.client = self._owner
            made: tuple[TensorHandle, ...] = (out,)
        else:
            made = self._without_ids(outputs)
        session.execute_graph(graph, [*map(_id_of, inputs)], [*numbers], made)
        return made

    def register_tensor_data(self, data: TensorData) -> TensorHandle:
        """Send a tensor's elements; see ``RunnerClient.register_tensor_data``."""
        # The handle first: if Ctrl-C ends the upload, dropping the handle frees what has arrived.
        (handle,) = self.create_empty_handles([data.spec])
        self.session.upload(handle.id, data)
        return handle

    def create_empty_handles(self, specs: Sequence[TensorSpec]) -> list[TensorHandle]:
        """Reserve consecutive tensor ids; see ``RunnerClient.create_empty_handles``."""
        first = self.session.reserve(len(specs))
        handles = self._without_ids(specs)
        for place, handle in enumerate(handles):
            handle.id = first + place
        return [*handles]

    def read_tensor_async(self, handle: TensorHandle) -> Pending[TensorData]:
        """Request a tensor's elements; see ``RunnerClient.read_tensor_async``."""
        if recording.runner is not None:  # of another device; it refuses every read
            recording.runner.read_tensor_async(handle)
        return self.session.read(handle.id, handle.spec)

    def move(self, handle: TensorHandle, target: RunnerClient) -> TensorHandle:
        """Move a tensor to another device; see ``RunnerClient.move``.

        Between servers, the target's server fetches the elements from the source's, and this
        process does not wait, except for the expose if the source speaks Burn's dialect. Two local
        devices exchange them in this process, also without waiting. Between a local device and a
        server, the elements pass through this process, which waits for them.
        """
        source, other = self.session, target.session
        if source is other:
            return handle
        if source.transfer_domain is None or source.transfer_domain != other.transfer_domain:
            return target.register_tensor_data(self.read_tensor_async(handle).result())
        address = source.peer_address
        if not address:
            raise UsageError(f"{self.device} has no address at which other servers can reach it")
        other.check_open()  # otherwise the source would keep an exposed tensor that nobody fetches
        are_secret = source.has_secret_transfers and other.has_secret_transfers
        transfer = new_transfer_id(source.number) if are_secret else new_transfer_number()
        # The expose has been sent when this returns; in Burn's dialect it has been executed. The
        # fetch is issued next, so it never waits for an expose that is queued behind it.
        try:
            source.expose(handle.id, handle.spec, transfer, EXPIRES_SECONDS)
            self._targets[other] = None
            return target.fetch(transfer, address, handle.spec)
        except BaseException:
            if source.has_secret_transfers:
                self._withdraw(transfer, address, handle.spec)
            elif source.may_have_issued(Expose, transfer) and not other.may_have_issued(
                Fetch, transfer
            ):
                self._withdraw_executed(transfer, address, handle.spec)
            raise

    def _withdraw(self, transfer: bytes | int, address: str, spec: TensorSpec) -> None:
        """Free an exposed tensor that nobody will fetch, after an interrupt for example.

        The session fetches it from itself. Otherwise, the server would keep it until it expires. A
        server of Burn may hang if the target has begun to fetch it too.
        """
        with contextlib.suppress(BurnRemoteError):
            self.fetch(transfer, address, spec)

    def _withdraw_executed(self, transfer: bytes | int, address: str, spec: TensorSpec) -> None:
        """Do the same in Burn's dialects, once the expose has been executed.

        A server of Burn may lose a fetch that arrives during the expose.
        """
        with contextlib.suppress(BurnRemoteError):
            is_executed = _has_passed(
                self.session.dtype_usage(F32), time.monotonic() + WITHDRAW_SECONDS
            )
            if is_executed:
                self._withdraw(transfer, address, spec)

    def fetch(self, transfer: bytes | int, address: str, spec: TensorSpec) -> TensorHandle:
        """Have the server fetch an exposed tensor; see ``RunnerClient.fetch``."""
        (handle,) = self.create_empty_handles([spec])
        self.session.fetch(handle.id, transfer, address, spec)
        return handle

    def join_group(self, spec: GroupSpec) -> int:
        """Make the session a member of a group; see ``RunnerClient.join_group``."""
        return self.session.join_group(spec)

    def collective(
        self, group: int, call: CollectiveCall, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue this member's part of a collective; see ``RunnerClient.collective``."""
        members, rank = self.session.group_size(group)
        specs = call.output_specs(members, rank)
        expected = call.input_specs(rank)
        passed = tuple([handle.spec for handle in inputs])
        if passed != expected:
            wanted, given = (", ".join(map(str, specs)) for specs in (expected, passed))
            raise UsageError(
                f"{call.describe()} takes the tensors ({wanted}) from member {rank}, not ({given})"
            )
        for handle in inputs:
            if handle.client.session is not self.session:
                raise DeviceMismatch(
                    f"{call.describe()}: a tensor is on {handle.client.device}, but member {rank} "
                    f"of the group is {self.device}"
                    f"{distinction(handle.client.device, self.device)}"
                )
        made = self._without_ids(specs)
        self.session.collective(group, call, [handle.id for handle in inputs], made)
        return made

    def leave_group(self, group: int) -> None:
        """Leave a group; see ``RunnerClient.leave_group``."""
        self.session.leave_group(group)

    def storage_task(self, task: StorageTask, handles: Sequence[TensorHandle]) -> Any:
        """Issue a task about what the server stores; see ``RunnerClient.storage_task``."""
        if recording.runner is not None:  # of another device; it refuses every such task
            recording.runner.storage_task(task, handles)
        return task.issue(self.session, handles)

    def sync(self) -> Pending[None]:
        """Request a reply once everything issued so far has been executed."""
        return self.session.sync()

    def seed(self, seed: int) -> None:
        """Set the seed of the session's random numbers."""
        self.session.seed(seed)

    def dtype_usage(self, dtype: DType) -> Pending[DTypeUsage]:
        """Ask what the device supports for a dtype."""
        return self.session.dtype_usage(dtype)

    def memory_cleanup(self) -> None:
        """Have the device return cached memory to its system."""
        self.session.memory_cleanup()

    def drop_handle(self, identifier: int) -> None:
        """Free a tensor with the next message."""
        self.session.drop(identifier)

    def is_in_call(self) -> bool:
        """Return whether ``finish`` would wait for a call that this thread is inside of."""
        return any(session.is_in_call() for session in (self.session, *living_keys(self._targets)))

    def finish(self, work_seconds: float, moves_seconds: float) -> bool:
        """Wait until the session has executed everything and no other session fetches from it.

        Returns whether its own work is done.
        """
        if self.session.closed:
            return True
        start = time.monotonic()
        own = self.session.fence_soon()
        arriving: list[Pending[None]] = []
        for target in living_keys(self._targets):
            # The next use of that session raises its error; this one closes anyway.
            with contextlib.suppress(BurnRemoteError):
                if not target.closed:
                    arriving.append(target.fence_soon())
        self._targets.clear()
        for pending in arriving:
            _has_passed(pending, start + moves_seconds)
        return _has_passed(own, start + work_seconds)


def _has_passed(pending: Pending[Any], deadline: float) -> bool:
    """Wait until the deadline; return whether the session has executed everything, or ended."""
    try:
        pending.result(max(0.0, deadline - time.monotonic()))
    except TimeoutError as error:
        pass_on_of_signal_handler(error)
        return False
    except BurnRemoteError:
        return True
    return True
