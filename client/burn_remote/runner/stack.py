"""The stack of runners of one device: the innermost one, and those around it.

The handles of a program belong to the stack, not to one of its runners. So a runner that is added
later also receives operations on tensors that existed before. A runner may create tensors for
itself. Their handles belong to its level of the stack, and the runners around that level see
neither operations on these tensors nor their drops.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final, final

from burn_remote.runner.following import Follower
from burn_remote.runner.interface import RunnerClient, Session, StorageTask, TensorHandle
from burn_remote.runner.operation_graph import Graph
from burn_remote.runner.pending import Pending
from burn_remote.runner.session_runner import SessionRunner
from burn_remote_protocol.collectives import CollectiveCall, GroupSpec
from burn_remote_protocol.errors import BurnRemoteError
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

if TYPE_CHECKING:
    from burn_remote_protocol.dtypes import DType, DTypeUsage

__all__ = ["CLOSE_SECONDS", "Level", "RunnerStack", "outermost"]

_logger: Final = logging.getLogger("burn_remote")

# How long closing a device waits by default for its work, and for the tensors that others still
# fetch from it: as long as a server waits for a tensor to be exposed.
CLOSE_SECONDS: Final = 30.0
# How long closing a device waits for its own work if an error ended the program's ``with`` block.
AFTER_ERROR_SECONDS: Final = 1.0


@final
class Level:
    """One runner of a stack, as seen by the runner around it."""

    __slots__ = ("_stack", "is_transparent", "runner")

    def __init__(
        self, stack: RunnerStack, runner: RunnerClient, *, is_transparent: bool = False
    ) -> None:
        self._stack: Final = stack
        self.runner = runner
        # Whether the runner makes no tensors for itself, so that all belong to the program.
        self.is_transparent: Final = is_transparent

    @property
    def device(self) -> Any:
        """The device of the stack."""
        return self._stack.device

    @property
    def session(self) -> Session:
        """The session of the stack."""
        return self._stack.session

    def is_around(self, other: RunnerClient) -> bool:
        """Return whether ``other`` is the stack, this level's runner, or a runner inside that."""
        return other is self._stack or self.runner is other or self.runner.is_around(other)

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue one operation; its outputs belong to this level."""
        outputs = self.runner.register_op(signature, inputs)
        for handle in outputs:
            self._own(handle)
        return outputs

    def register_graph(
        self, graph: Graph, inputs: Sequence[TensorHandle], numbers: Sequence[Any]
    ) -> tuple[TensorHandle, ...]:
        """Issue the operations of a graph; its outputs belong to this level."""
        outputs = self.runner.register_graph(graph, inputs, numbers)
        for handle in outputs:
            self._own(handle)
        return outputs

    def register_tensor_data(self, data: TensorData) -> TensorHandle:
        """Send a tensor's elements; the tensor belongs to this level."""
        return self._own(self.runner.register_tensor_data(data))

    def create_empty_handles(self, specs: Sequence[TensorSpec]) -> list[TensorHandle]:
        """Reserve consecutive tensor ids; the tensors belong to this level."""
        return [self._own(handle) for handle in self.runner.create_empty_handles(specs)]

    def read_tensor_async(self, handle: TensorHandle) -> Pending[TensorData]:
        """Request a tensor's elements."""
        return self.runner.read_tensor_async(handle)

    def move(self, handle: TensorHandle, target: RunnerClient) -> TensorHandle:
        """Move a tensor to another device; it belongs to the target."""
        return self.runner.move(handle, target)

    def fetch(self, transfer: bytes | int, address: str, spec: TensorSpec) -> TensorHandle:
        """Have the server fetch an exposed tensor, which belongs to this level."""
        return self._own(self.runner.fetch(transfer, address, spec))

    def join_group(self, spec: GroupSpec) -> int:
        """Make the session a member of a group."""
        return self.runner.join_group(spec)

    def collective(
        self, group: int, call: CollectiveCall, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue this member's part of a collective; its outputs belong to this level."""
        outputs = self.runner.collective(group, call, inputs)
        for handle in outputs:
            self._own(handle)
        return outputs

    def leave_group(self, group: int) -> None:
        """Leave a group."""
        self.runner.leave_group(group)

    def storage_task(self, task: StorageTask, handles: Sequence[TensorHandle]) -> Any:
        """Issue a task about what the server stores."""
        return self.runner.storage_task(task, handles)

    def sync(self) -> Pending[None]:
        """Request a reply once everything issued so far has been executed."""
        return self.runner.sync()

    def seed(self, seed: int) -> None:
        """Set the seed of the session's random numbers."""
        self.runner.seed(seed)

    def dtype_usage(self, dtype: DType) -> Pending[DTypeUsage]:
        """Ask what the device supports for a dtype."""
        return self.runner.dtype_usage(dtype)

    def memory_cleanup(self) -> None:
        """Have the device return cached memory to its system."""
        self.runner.memory_cleanup()

    def drop_handle(self, identifier: int) -> None:
        """Free a tensor with the next message."""
        self.runner.drop_handle(identifier)

    def _own(self, handle: TensorHandle) -> TensorHandle:
        stack = self._stack
        # ``owner``, not ``outermost``: another thread may put a transparent level around meanwhile.
        handle.client = stack if self.is_transparent or stack.owner is self else self
        return handle


@final
class RunnerStack:
    """All runners of a device. It is the ``client`` of the handles that programs hold.

    Its methods are the bound methods of the outermost runner, so a stack of a single runner adds no
    cost to a call.
    """

    __slots__ = (
        "__weakref__",
        "_devices",
        "_innermost",
        "_make_device",
        "collective",
        "create_empty_handles",
        "drop_handle",
        "dtype_usage",
        "execute",
        "execute_graph",
        "fetch",
        "follower",
        "join_group",
        "leave_group",
        "memory_cleanup",
        "move",
        "outermost",
        "owner",
        "read_tensor_async",
        "recording",
        "register_graph",
        "register_op",
        "register_tensor_data",
        "seed",
        "session",
        "storage_task",
        "sync",
        "trackers",
    )

    register_op: Callable[[Signature, Sequence[TensorHandle]], tuple[TensorHandle, ...]]
    register_graph: Callable[
        [Graph, Sequence[TensorHandle], Sequence[Any]], tuple[TensorHandle, ...]
    ]
    register_tensor_data: Callable[[TensorData], TensorHandle]
    create_empty_handles: Callable[[Sequence[TensorSpec]], list[TensorHandle]]
    read_tensor_async: Callable[[TensorHandle], Pending[TensorData]]
    move: Callable[[TensorHandle, RunnerClient], TensorHandle]
    fetch: Callable[[bytes | int, str, TensorSpec], TensorHandle]
    join_group: Callable[[GroupSpec], int]
    collective: Callable[[int, CollectiveCall, Sequence[TensorHandle]], tuple[TensorHandle, ...]]
    leave_group: Callable[[int], None]
    storage_task: Callable[[StorageTask, Sequence[TensorHandle]], Any]
    sync: Callable[[], Pending[None]]
    seed: Callable[[int], None]
    dtype_usage: Callable[[DType], Pending[DTypeUsage]]
    memory_cleanup: Callable[[], None]
    drop_handle: Callable[[int], None]
    # ``Session.execute``, if no runner is around the innermost one; else ``None``.
    execute: Callable[[Signature, list[int], Sequence[TensorHandle]], None] | None
    # ``Session.follower``, which is used only if ``execute`` is not ``None``.
    follower: Follower | None
    # The same as ``execute`` for ``Session.execute_graph``.
    execute_graph: Callable[[Graph, list[int], list[Any], Sequence[TensorHandle]], None] | None

    def __init__(self, session: Session) -> None:
        self.session: Final = session
        self._devices: list[weakref.ref[Any]] = []
        self._make_device: Callable[[RunnerStack], Any] = _no_device
        self._innermost: Final = SessionRunner(session, self)
        self.follower = session.follower
        # Runners around only some tensors of the device, by the class of their handles.
        self.trackers: Final[dict[type, RunnerClient]] = {}
        # Held by the thread that records the operations of a function.
        self.recording: Final = threading.Lock()
        self.outermost = Level(self, self._innermost)
        # The level whose tensors belong to the program: the outermost that is not transparent.
        self.owner = self.outermost
        self._bind()

    def add_device(self, device: Any, make_device: Callable[[RunnerStack], Any]) -> None:
        """Add a device object of the session; ``make_device`` makes another one, equal to it.

        The stack keeps only a weak reference: a program may drop all device objects and still use
        their tensors.
        """
        alive = [reference for reference in self._devices if reference() is not None]
        self._devices = [*alive, weakref.ref(device)]
        self._make_device = make_device

    @property
    def device(self) -> Any:
        """A device of the session: one that the program has, else a new one."""
        for reference in self._devices:
            device = reference()
            if device is not None:
                return device
        return self._make_device(self)

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        return self.session.closed

    def settle_connection(self, timeout_seconds: float) -> None:
        """Wait until a session whose connection broke is connected again or has ended."""
        self.session.settle_connection(timeout_seconds)

    def is_around(self, other: RunnerClient) -> bool:
        """Return whether ``other`` is this stack or one of its runners."""
        return self.outermost.is_around(other)

    def put_around(self, runner: RunnerClient, *, is_transparent: bool = False) -> None:
        """Make a runner the outermost one: it sees all later operations.

        The runner must forward to the level that was the outermost before. If ``runner`` is a level
        of this stack, the runners around that level are removed. A transparent runner makes no
        tensors for itself. Unless the runner is transparent, no other thread may use the device
        during this call.
        """
        level = (
            runner
            if isinstance(runner, Level)
            else Level(self, runner, is_transparent=is_transparent)
        )
        if not level.is_transparent:
            self.owner = level
        self.outermost = level
        self._bind()

    def take_away(self, runner: Any) -> None:
        """Remove a runner from any place in the stack. Its inner runner takes its place."""
        level: RunnerClient = self.outermost
        while isinstance(level, Level) and level.runner is not runner:
            level = level.runner.inner if hasattr(level.runner, "inner") else level.runner
        if isinstance(level, Level):
            level.runner = runner.inner
        while isinstance(self.outermost.runner, Level):
            if self.owner is self.outermost:
                self.owner = self.outermost.runner
            self.outermost = self.outermost.runner
        self._bind()

    def close(
        self, timeout_seconds: float = CLOSE_SECONDS, *, is_after_error: bool = False
    ) -> None:
        """End the session once it has executed everything and nobody fetches tensors from it.

        After ``timeout_seconds`` it ends anyway, and the server skips the rest. ``is_after_error``
        shortens the wait for its own work. Raises the failures that no read and no sync has raised.

        Inside of a call of the session, which a signal handler interrupted, this returns at once:
        another thread closes the session, because waiting here would wait for that call.
        """
        if self._innermost.is_in_call():
            threading.Thread(
                target=self._close_in_thread,
                args=(timeout_seconds, is_after_error),
                name="burn-remote-close",
                daemon=True,
            ).start()
            return
        work_seconds = min(timeout_seconds, AFTER_ERROR_SECONDS if is_after_error else inf)
        is_done = False
        try:
            is_done = self._innermost.finish(work_seconds, timeout_seconds)
        finally:
            self.session.close(discards=not is_done)
        if not is_done and work_seconds > 0:
            _logger.warning(
                "a device was closed before its work was done: the server skips what was left "
                "after %g seconds",
                work_seconds,
            )
        failure = self.session.take_failures()
        if failure is not None:
            raise failure

    def _close_in_thread(self, timeout_seconds: float, is_after_error: bool) -> None:
        try:
            self.close(timeout_seconds, is_after_error=is_after_error)
        except BurnRemoteError as error:
            _logger.error("an operation failed and nobody read its result: %s", error)

    def _bind(self) -> None:
        bare = self.outermost.runner is self._innermost
        runner: RunnerClient = self._innermost if bare else self.outermost
        self.register_op = runner.register_op
        self.register_graph = runner.register_graph
        self.register_tensor_data = runner.register_tensor_data
        self.create_empty_handles = runner.create_empty_handles
        self.read_tensor_async = runner.read_tensor_async
        self.move = runner.move
        self.fetch = runner.fetch
        self.join_group = runner.join_group
        self.collective = runner.collective
        self.leave_group = runner.leave_group
        self.storage_task = runner.storage_task
        self.sync = runner.sync
        self.seed = runner.seed
        self.dtype_usage = runner.dtype_usage
        self.memory_cleanup = runner.memory_cleanup
        self.execute = self.session.execute if bare else None
        self.execute_graph = self.session.execute_graph if bare else None
        self.drop_handle = self.session.drop if bare else runner.drop_handle


def _no_device(runners: RunnerStack) -> None:
    """Return ``None``: no device was added to the stack."""


def outermost(handles: Sequence[TensorHandle]) -> RunnerClient | None:
    """Return the runner that receives an operation on these handles.

    It is the one of the handles' clients that is around all others. Returns ``None`` if there is no
    such client, for example because the tensors are on different devices.
    """
    found = handles[0].client
    for handle in handles:
        client = handle.client
        if client is not found and not found.is_around(client):
            if not client.is_around(found):
                return None
            found = client
    return found
