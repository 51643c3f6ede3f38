"""Interfaces of runners and sessions, and the handles of tensors that runners exchange.

A device has a stack of runners. The innermost one (``session_runner.py``) converts handles to the
tensor ids of a ``Session``. The runners that record graphs, and the one for automatic
differentiation, are around it. Each operation of the program calls a ``RunnerClient`` method of the
outermost runner, which may record, change or forward the call. The method names are Burn's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from burn_remote.runner.pending import Pending
from burn_remote_protocol.collectives import CollectiveCall, GroupSpec
from burn_remote_protocol.interrupted_finalizers import repeatable
from burn_remote_protocol.operations.row import Row, Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

if TYPE_CHECKING:
    from burn_remote.runner.following import Follower
    from burn_remote.runner.operation_graph import CodePosition, Graph
    from burn_remote_protocol.dtypes import DType, DTypeUsage
    from burn_remote_protocol.errors import OperationFailed
    from burn_remote_protocol.messages import Expose, Fetch

__all__ = [
    "DerivedData",
    "OwningHandle",
    "RunnerClient",
    "Session",
    "StorageTask",
    "TensorHandle",
    "distinction",
]


class DerivedData(TensorData):
    """Elements that follow from the arguments of one call, such as the indices of ``x[[0, 2]]``.

    A recorded graph keeps them as constants. It refuses other uploads, because the program may
    upload different elements in each call.
    """

    __slots__ = ()


class TensorHandle:
    """The program's reference to one tensor of a session.

    ``client`` receives the operations on the tensor: it is the device's ``RunnerStack``, or a
    runner that tracks this tensor. The handles of such a runner are of a subclass, and keep the
    ``OwningHandle``. So the tensor lives as long as such a handle does.
    """

    __slots__ = ("client", "id", "spec")

    def __init__(self, client: RunnerClient, identifier: int, spec: TensorSpec) -> None:
        self.client = client
        self.id = identifier
        self.spec = spec


# Its own class, because Python takes 0.2 µs to call a ``__del__`` that does nothing.
class OwningHandle(TensorHandle):
    """A handle that frees its tensor on the server when Python frees the handle.

    The handle exists before its tensor: the session assigns ``id`` before it queues the operation.
    So a Ctrl-C at any instruction leaves no tensor without a handle. The code that makes a handle
    assigns its attributes.
    """

    __slots__ = ()

    # The constructor takes no arguments, because assigning the attributes after it takes a third of
    # the time of a call with arguments.
    if TYPE_CHECKING:

        def __init__(self) -> None: ...
    else:
        __init__ = object.__init__

    @repeatable
    def __del__(self) -> None:
        # May run in any thread, even inside our own locks: only a lock-free append happens here.
        try:
            # CPython 3.11 looks up a method of a slot in more than twice the time of an attribute.
            drop = self.client.drop_handle
            drop(self.id)
        except KeyboardInterrupt:
            # It may have come before the append. Dropping a tensor twice has no effect.
            self.client.drop_handle(self.id)
            raise
        except AttributeError:
            # Without an id, no operation was queued: there is no tensor.
            if hasattr(self, "id"):
                raise


class StorageTask(Protocol):
    """A task about what a server stores beyond a session; ``storage_tasks.py`` has them all."""

    def describe(self) -> str:
        """Return what the task does, such as "publishes a tensor"."""
        ...

    def issue(self, session: Any, handles: Sequence[TensorHandle]) -> Any:
        """Pass the task to the session; return the pending reply, ``None`` if there is none."""
        ...


def distinction(*devices: Any) -> str:
    """Return why devices differ although two have the same name, in parentheses, for errors.

    Returns ``""`` if all names differ.
    """
    names = [str(device) for device in devices]
    alike = next((one for one in devices if names.count(str(one)) > 1), None)
    return "" if alike is None else f" ({alike.distinction})"


class RunnerClient(Protocol):
    """Runs operations on one device, in the order in which they are issued.

    Only reads, syncs, dtype queries and some storage tasks return a value to wait for. No other
    method waits until the server has executed something, except for some moves (see
    ``SessionRunner.move``). The failure of an operation is raised when its outputs are read.
    """

    @property
    def device(self) -> Any:
        """The ``Device`` on which this runner runs operations."""
        ...

    @property
    def session(self) -> Session:
        """The session that carries out the operations; the same for all runners of a device."""
        ...

    def is_around(self, other: RunnerClient) -> bool:
        """Return whether operations of this runner reach ``other``, directly or through others."""
        ...

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue one operation and return the handles of its outputs, in wire order.

        ``inputs`` are the input tensors in wire order, without optional ones that are absent.
        Raises ``ConnectionLost`` if the session has ended.
        """
        ...

    def register_graph(
        self, graph: Graph, inputs: Sequence[TensorHandle], numbers: Sequence[Any]
    ) -> tuple[TensorHandle, ...]:
        """Issue the operations of a graph and return the handles of its outputs.

        ``numbers`` has the graph's changing numbers. A runner that has to see every operation
        calls ``issue_each(graph, self, inputs, numbers)``.
        """
        ...

    def register_tensor_data(self, data: TensorData) -> TensorHandle:
        """Send a tensor's elements; when this returns, the caller may change its buffer."""
        ...

    def create_empty_handles(self, specs: Sequence[TensorSpec]) -> list[TensorHandle]:
        """Reserve consecutive tensor ids, of which the server learns from the task that fills them.

        The tensors may come from the server itself: from its files, or from another session.
        """
        ...

    def read_tensor_async(self, handle: TensorHandle) -> Pending[TensorData]:
        """Request a tensor's elements."""
        ...

    def move(self, handle: TensorHandle, target: RunnerClient) -> TensorHandle:
        """Move a tensor to another device, whose runner is ``target``; return its handle there.

        The target's runners see it arrive, by ``fetch`` or ``register_tensor_data``.
        """
        ...

    def fetch(self, transfer: bytes | int, address: str, spec: TensorSpec) -> TensorHandle:
        """Have the server fetch the tensor that was exposed as ``transfer`` at ``address``."""
        ...

    def join_group(self, spec: GroupSpec) -> int:
        """Make the session a member of a group; return the group's number in this session.

        Returns at once: servers connect meanwhile, and a failure is raised when the outputs of a
        collective are read. Raises ``Unsupported`` if the server knows no groups, and
        ``UsageError`` if the session is a member of too many.
        """
        ...

    def collective(
        self, group: int, call: CollectiveCall, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue this member's part of a collective; return the handles of its outputs.

        Their specs are ``call.output_specs``. All members of a group must issue the same calls in
        the same order. If one member fails, reading the outputs raises ``CollectiveFailed``, and
        the group can only be left. Raises ``UsageError`` for inputs that do not match the call.
        """
        ...

    def leave_group(self, group: int) -> None:
        """Leave a group once the collectives issued so far are done."""
        ...

    def storage_task(self, task: StorageTask, handles: Sequence[TensorHandle]) -> Any:
        """Issue a task about published tensors, files of the server, or shared uploads.

        ``handles`` are the tensors that the task reads, or those of ``create_empty_handles`` that
        it fills. Returns the pending reply, ``None`` if there is none.
        """
        ...

    def sync(self) -> Pending[None]:
        """Request a reply once everything issued so far has been executed."""
        ...

    def seed(self, seed: int) -> None:
        """Set the seed of this session's random numbers (0 ≤ seed < 2⁶⁴)."""
        ...

    def dtype_usage(self, dtype: DType) -> Pending[DTypeUsage]:
        """Ask what the device supports for a dtype."""
        ...

    def memory_cleanup(self) -> None:
        """Have the device return cached memory to its system."""
        ...

    def drop_handle(self, identifier: int) -> None:
        """Free the tensor with the next message. Never blocks, never raises."""
        ...


class Session(Protocol):
    """A device's session over a connection. It uses tensor ids, and keeps no handles.

    The methods that issue operations take the handles of the outputs, and assign their ids before
    they queue the operation. After an interrupt, the handles free tensors that nobody received;
    a server ignores drops of ids that were never used.
    """

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        ...

    def is_in_call(self) -> bool:
        """Return whether this thread is inside of a call of the session, which was interrupted.

        Signal handlers, finalizers and callbacks of the garbage collector interrupt calls. Threads
        of the session are always inside of one.
        """
        ...

    @property
    def transfer_domain(self) -> str | None:
        """The domain in which sessions fetch tensors by transfer id; ``None`` if none can."""
        ...

    @property
    def has_secret_transfers(self) -> bool:
        """Whether transfer ids are 32 secret bytes; in Burn's dialects, they are numbers."""
        ...

    @property
    def number(self) -> int | None:
        """The server's number of this session, if servers fetch from it by that number."""
        ...

    @property
    def peer_address(self) -> str:
        """The address at which other servers reach this session's server; empty if none."""
        ...

    def has_row(self, row: Row) -> bool:
        """Return whether the session's server executes a row of the table of operations."""
        ...

    def execute(
        self, signature: Signature, inputs: list[int], outputs: Sequence[TensorHandle]
    ) -> None:
        """Issue an operation; assign consecutive ids to the handles of its outputs."""
        ...

    @property
    def follower(self) -> Follower | None:
        """The operation that the session expects next; ``None`` if it never expects one."""
        ...

    @property
    def graph_steps(self) -> int:
        """The most steps of a graph that the server runs as one task; 0 if it runs none."""
        ...

    def execute_graph(
        self,
        graph: Graph,
        inputs: list[int],
        numbers: list[Any],
        outputs: Sequence[TensorHandle],
    ) -> None:
        """Issue a graph; assign consecutive ids to the handles of its outputs."""
        ...

    def reserve(self, count: int = 1) -> int:
        """Return the first of ``count`` new tensor ids, which are consecutive."""
        ...

    def upload(self, tensor: int, data: TensorData) -> None:
        """Fill a reserved tensor with elements; the caller may change its buffer afterwards."""
        ...

    def read(self, tensor: int, spec: TensorSpec) -> Pending[TensorData]:
        """Request a tensor's elements."""
        ...

    def drop(self, tensor: int) -> None:
        """Free a tensor with the next message. Lock-free, because ``__del__`` calls it."""
        ...

    def check_open(self) -> None:
        """Raise the error that ended the session, if it has ended."""
        ...

    def settle_connection(self, timeout_seconds: float) -> None:
        """Wait until a session whose connection broke is connected again or has ended.

        Returns after ``timeout_seconds`` in any case.
        """
        ...

    def expose(
        self, tensor: int, spec: TensorSpec, transfer: bytes | int, expires_seconds: float
    ) -> None:
        """Permit anyone who knows ``transfer`` to fetch a tensor once. Returns once it is sent."""
        ...

    def fetch(self, tensor: int, transfer: bytes | int, address: str, spec: TensorSpec) -> None:
        """Fill a reserved tensor with one that is exposed at another server."""
        ...

    def may_have_issued(self, kind: type[Expose | Fetch], transfer: bytes | int) -> bool:
        """Return ``False`` if the expose or the fetch of a transfer will certainly never be sent.

        Called after an interrupt, when ``expose`` or ``fetch`` may not have returned.
        """
        ...

    def join_group(self, spec: GroupSpec) -> int:
        """Make the session a member of a group; return its number in this session."""
        ...

    def collective(
        self,
        group: int,
        call: CollectiveCall,
        inputs: list[int],
        outputs: Sequence[TensorHandle],
    ) -> None:
        """Issue a collective; assign consecutive ids to the handles of its outputs."""
        ...

    def leave_group(self, group: int) -> None:
        """Leave a group once the collectives issued so far are done."""
        ...

    def group_size(self, group: int) -> tuple[int, int]:
        """Return the number of members of a group, and the rank of this session in it.

        Raises ``UsageError`` if the session is no member.
        """
        ...

    def group_number(self, spec: GroupSpec) -> int | None:
        """Return the number of the group that was joined with this object, and not left."""
        ...

    def collectives_issued(self, group: int) -> int:
        """Return how many collectives this session has issued in a group.

        Raises ``UsageError`` if the session is no member.
        """
        ...

    def sync(self) -> Pending[None]:
        """Request a reply once all is executed; its result raises a failure that no read raised."""
        ...

    def fence(self) -> Pending[None]:
        """Request a reply once all is executed, whatever failed: its result raises no failure."""
        ...

    def fence_soon(self) -> Pending[None]:
        """Request the same as ``fence``, without blocking while the server reads nothing."""
        ...

    def line_of(self, tensor: int) -> str:
        """Return ``file:line`` of the program that made a tensor; empty if it is not recorded."""
        ...

    def note_position(self, tensor: int, position: CodePosition) -> None:
        """Record the code position that made a tensor, in place of the one that was found."""
        ...

    def take_failures(self) -> OperationFailed | None:
        """Return and forget the failures that no read and no sync has raised, as one error."""
        ...

    def seed(self, seed: int) -> None:
        """Set the seed of the session's random numbers."""
        ...

    def dtype_usage(self, dtype: DType) -> Pending[DTypeUsage]:
        """Ask what the device supports for a dtype."""
        ...

    def memory_cleanup(self) -> None:
        """Have the device return cached memory to its system."""
        ...

    def close(self, *, discards: bool = False) -> None:
        """Send queued tasks and end the session. A second call does nothing.

        ``discards``: end it at once, and have the server skip what it has not executed.
        """
        ...
