"""A runner that forwards everything: the base class of decorators of a device or of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from burn_remote.runner.interface import RunnerClient, Session, TensorHandle
from burn_remote.runner.pending import Pending
from burn_remote.runner.stack import outermost
from burn_remote_protocol.errors import DeviceMismatch
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

if TYPE_CHECKING:
    from burn_remote_protocol.dtypes import DType, DTypeUsage

__all__ = ["ForwardingRunner"]


class ForwardingRunner:
    """Forwards everything to ``inner``; a subclass overrides what it records or changes.

    ``device.client = MyRunner(device.client)`` puts one around all operations of a device.

    A runner around some tensors only also has that client as ``inner``, but is not assigned to the
    device. The handles that it returns have the runner as their ``client``, so an operation on at
    least one of them goes to it. It replaces its handles in ``inputs`` by the inner ones and calls
    ``forward``, which finds the runner for those.
    """

    def __init__(self, inner: RunnerClient) -> None:
        self.inner = inner

    @property
    def device(self) -> Any:
        """The device of the runners inside."""
        return self.inner.device

    @property
    def session(self) -> Session:
        """The session of the runners inside."""
        return self.inner.session

    def is_around(self, other: RunnerClient) -> bool:
        """Return whether ``other`` is inside."""
        return self.inner is other or self.inner.is_around(other)

    def forward(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue an operation on handles of the runners inside, by the outermost of those.

        Raises ``DeviceMismatch`` where they are of different devices.
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

    def register_tensor_data(self, data: TensorData) -> TensorHandle:
        """Send a tensor's elements."""
        return self.inner.register_tensor_data(data)

    def create_empty_handle(self, spec: TensorSpec) -> TensorHandle:
        """Reserve a tensor id."""
        return self.inner.create_empty_handle(spec)

    def read_tensor_async(self, handle: TensorHandle) -> Pending[TensorData]:
        """Request a tensor's elements."""
        return self.inner.read_tensor_async(handle)

    def move(self, handle: TensorHandle, target: RunnerClient) -> TensorHandle:
        """Move a tensor to another device."""
        return self.inner.move(handle, target)

    def fetch(self, transfer: bytes | int, address: str, spec: TensorSpec) -> TensorHandle:
        """Have the server fetch an exposed tensor."""
        return self.inner.fetch(transfer, address, spec)

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
