"""What does every device give its tensors? The one place through which all operations pass.

Automatic differentiation, fusion, graph capture and other frontends are decorators around a
``RunnerClient``: they see each operation as a ``Signature`` with its input handles and may record,
change or forward it. The names are those of Burn's ``RunnerClient``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, final

from burn_remote.sessions.pending import Pending
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

if TYPE_CHECKING:
    from burn_remote.device import Device
    from burn_remote_protocol.dtypes import DType, DTypeUsage

__all__ = ["RunnerClient", "TensorHandle"]


@final
class TensorHandle:
    """The program's hold on one tensor of a session; when it is dropped, the server frees it."""

    __slots__ = ("client", "id", "spec")

    def __init__(self, client: RunnerClient, identifier: int, spec: TensorSpec) -> None:
        self.client = client
        self.id = identifier
        self.spec = spec

    def __del__(self) -> None:
        # May run in any thread, even inside our own locks: only a lock-free append happens here.
        self.client.drop_handle(self.id)


class RunnerClient(Protocol):
    """Runs operations on one device, in the order in which they are registered.

    Only reads and syncs give something to wait for; everything else returns at once and reports
    failure through the tensors it concerns.
    """

    @property
    def device(self) -> Device:
        """The device on which this client runs operations."""
        ...

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue one operation and return the handles of its outputs, in wire order.

        ``inputs`` are the present input tensors in wire order. Raises ``ConnectionLost`` when the
        session is gone.
        """
        ...

    def register_tensor_data(self, data: TensorData) -> TensorHandle:
        """Send a tensor's elements; when this returns, the caller may change its buffer."""
        ...

    def create_empty_handle(self, spec: TensorSpec) -> TensorHandle:
        """Reserve a tensor id without telling the server (an operation or a move will fill it)."""
        ...

    def read_tensor_async(self, handle: TensorHandle) -> Pending[TensorData]:
        """Ask for a tensor's elements."""
        ...

    def sync(self) -> Pending[None]:
        """Ask to be told when everything issued so far has been executed."""
        ...

    def seed(self, seed: int) -> None:
        """Set the seed of this session's random numbers (0 ≤ seed < 2⁶⁴)."""
        ...

    def dtype_usage(self, dtype: DType) -> Pending[DTypeUsage]:
        """Ask what the device can do with a dtype."""
        ...

    def drop_handle(self, identifier: int) -> None:
        """Free the tensor with the next message. Never blocks, never raises."""
        ...
