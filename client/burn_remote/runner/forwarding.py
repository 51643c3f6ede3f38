"""A runner that forwards every call: the base class for runners that record or change calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from burn_remote.runner.interface import RunnerClient, Session, StorageTask, TensorHandle
from burn_remote.runner.issuing import issue_each
from burn_remote.runner.operation_graph import Graph
from burn_remote.runner.pending import Pending
from burn_remote.runner.stack import Level, outermost
from burn_remote_protocol.collectives import CollectiveCall, GroupSpec
from burn_remote_protocol.errors import DeviceMismatch
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

if TYPE_CHECKING:
    from burn_remote_protocol.dtypes import DType, DTypeUsage

__all__ = ["ForwardingRunner"]


class ForwardingRunner:
    """Forwards every call to ``inner``; subclasses override methods to record or change calls.

    ``device.client = MyRunner(device.client)`` puts a runner around all operations of a device.

    A runner can also be put around only some tensors, such as those whose gradients are tracked.
    Such a runner is not assigned to the device; its ``inner`` is ``device.client``. It returns
    handles whose ``client`` is the runner itself, and therefore receives every operation with at
    least one of these handles as an input. It replaces them in ``inputs`` by the inner handles and
    calls ``forward``, which passes the operation to the right runner.
    """

    def __init__(self, inner: RunnerClient) -> None:
        self.inner = inner

    @property
    def device(self) -> Any:
        """The device of the inner runner."""
        return self.inner.device

    @property
    def session(self) -> Session:
        """The session of the inner runner."""
        return self.inner.session

    def is_around(self, other: RunnerClient) -> bool:
        """Return whether this runner forwards to ``other``, directly or through others."""
        return self.inner is other or self.inner.is_around(other)

    def forward(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue an operation on handles of inner runners, by the outermost of these runners.

        Raises ``DeviceMismatch`` if the handles belong to different devices.
        """
        runner = outermost(inputs) if inputs else self.inner
        if runner is None:
            raise DeviceMismatch(f"{signature.row}: its tensors are on different devices")
        return runner.register_op(signature, inputs)

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue one operation."""
        return self.inner.register_op(signature, inputs)

    def register_graph(
        self, graph: Graph, inputs: Sequence[TensorHandle], numbers: Sequence[Any]
    ) -> tuple[TensorHandle, ...]:
        """Issue the operations of a graph one by one, so that this runner sees each of them.

        In a stack, this runner also sees when the graph's intermediate tensors are dropped.
        """
        inner = self.inner if type(self.inner) is Level else None
        return issue_each(graph, self, inputs, numbers, inner)

    def register_tensor_data(self, data: TensorData) -> TensorHandle:
        """Send a tensor's elements."""
        return self.inner.register_tensor_data(data)

    def create_empty_handles(self, specs: Sequence[TensorSpec]) -> list[TensorHandle]:
        """Reserve consecutive tensor ids."""
        return self.inner.create_empty_handles(specs)

    def read_tensor_async(self, handle: TensorHandle) -> Pending[TensorData]:
        """Request a tensor's elements."""
        return self.inner.read_tensor_async(handle)

    def move(self, handle: TensorHandle, target: RunnerClient) -> TensorHandle:
        """Move a tensor to another device."""
        return self.inner.move(handle, target)

    def fetch(self, transfer: bytes | int, address: str, spec: TensorSpec) -> TensorHandle:
        """Have the server fetch an exposed tensor."""
        return self.inner.fetch(transfer, address, spec)

    def join_group(self, spec: GroupSpec) -> int:
        """Make the session a member of a group."""
        return self.inner.join_group(spec)

    def collective(
        self, group: int, call: CollectiveCall, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue this member's part of a collective."""
        return self.inner.collective(group, call, inputs)

    def leave_group(self, group: int) -> None:
        """Leave a group."""
        self.inner.leave_group(group)

    def storage_task(self, task: StorageTask, handles: Sequence[TensorHandle]) -> Any:
        """Issue a task about what the server stores."""
        return self.inner.storage_task(task, handles)

    def sync(self) -> Pending[None]:
        """Request a reply once everything issued so far has been executed."""
        return self.inner.sync()

    def seed(self, seed: int) -> None:
        """Set the seed of the session's random numbers."""
        self.inner.seed(seed)

    def dtype_usage(self, dtype: DType) -> Pending[DTypeUsage]:
        """Ask what the device supports for a dtype."""
        return self.inner.dtype_usage(dtype)

    def memory_cleanup(self) -> None:
        """Have the device return cached memory to its system."""
        self.inner.memory_cleanup()

    def drop_handle(self, identifier: int) -> None:
        """Free a tensor with the next message. Never blocks, never raises."""
        self.inner.drop_handle(identifier)
