"""What does a device look like that runs nothing and remembers everything?"""

from __future__ import annotations

from collections.abc import Sequence

from burn_remote.device import Device
from burn_remote.runner import TensorHandle
from burn_remote.sessions.pending import Pending
from burn_remote_protocol.dtypes import DType, DTypeUsage
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = ["RecordingDevice", "RecordingRunner"]


class RecordingRunner:
    """A ``RunnerClient`` that answers nothing by itself: reads stay pending in ``reads``."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.operations: list[Operation] = []
        self.uploads: dict[int, TensorData] = {}
        self.reads: list[tuple[int, Pending[TensorData]]] = []
        self.dropped: list[int] = []
        self._next = 1

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        outputs = tuple([self.create_empty_handle(spec) for spec in signature.outputs])
        assert [use.spec for use in signature.input_uses] == [handle.spec for handle in inputs]
        ids = (*[handle.id for handle in inputs], *[handle.id for handle in outputs])
        self.operations.append(Operation(signature, ids))
        return outputs

    def register_tensor_data(self, data: TensorData) -> TensorHandle:
        handle = self.create_empty_handle(data.spec)
        self.uploads[handle.id] = TensorData(bytes(data.bytes), data.shape, data.dtype)
        return handle

    def create_empty_handle(self, spec: TensorSpec) -> TensorHandle:
        handle = TensorHandle(self, self._next, spec)
        self._next += 1
        return handle

    def read_tensor_async(self, handle: TensorHandle) -> Pending[TensorData]:
        pending: Pending[TensorData] = Pending()
        self.reads.append((handle.id, pending))
        return pending

    def sync(self) -> Pending[None]:
        raise AssertionError("nothing here asks for a sync")

    def seed(self, seed: int) -> None:
        raise AssertionError("nothing here sets a seed")

    def dtype_usage(self, dtype: DType) -> Pending[DTypeUsage]:
        raise AssertionError("nothing here asks about dtypes")

    def drop_handle(self, identifier: int) -> None:
        self.dropped.append(identifier)

    @property
    def names(self) -> list[str]:
        """What was registered so far, as ``NumericFloat.Add``."""
        return [f"{op.signature.kind}.{op.signature.row.name}" for op in self.operations]


class RecordingDevice(Device):
    """A device whose operations are recorded and never run."""

    def __init__(self, name: str = "recording") -> None:
        self.name = name
        self.runner = RecordingRunner(self)
        self.client = self.runner

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)
