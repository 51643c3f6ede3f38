"""A device whose operations are recorded and never executed."""

from __future__ import annotations

from burn_remote.device import Device
from burn_remote.runner.pending import Pending
from burn_remote.runner.stack import RunnerStack
from burn_remote_protocol.dtypes import DType, DTypeUsage
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = ["RecordingDevice", "RecordingSession"]


class RecordingSession:
    """A ``Session`` that answers nothing by itself: reads stay pending in ``reads``."""

    closed = False
    transfer_domain = None
    has_secret_transfers = True
    peer_address = ""

    def __init__(self) -> None:
        self.specs: dict[int, TensorSpec] = {}
        self.operations: list[Operation] = []
        self.uploads: dict[int, TensorData] = {}
        self.reads: list[tuple[int, Pending[TensorData]]] = []
        self.dropped: list[int] = []
        self._next = 1

    def execute(self, signature: Signature, inputs: list[int]) -> int:
        assert [use.spec for use in signature.input_uses] == [self.specs[one] for one in inputs]
        outputs = [self.reserve() for _ in signature.outputs]
        self.specs |= dict(zip(outputs, signature.outputs, strict=True))
        self.operations.append(Operation(signature, (*inputs, *outputs)))
        return outputs[0]

    def reserve(self) -> int:
        tensor = self._next
        self._next += 1
        return tensor

    def upload(self, tensor: int, data: TensorData) -> None:
        self.specs[tensor] = data.spec
        self.uploads[tensor] = TensorData(bytes(data.bytes), data.shape, data.dtype)

    def read(self, tensor: int, spec: TensorSpec) -> Pending[TensorData]:
        pending: Pending[TensorData] = Pending()
        self.reads.append((tensor, pending))
        return pending

    def drop(self, tensor: int) -> None:
        self.dropped.append(tensor)

    def expose(
        self, tensor: int, spec: TensorSpec, transfer: bytes | int, expires_seconds: float
    ) -> None:
        raise AssertionError("nothing here exposes a tensor")

    def fetch(self, tensor: int, transfer: bytes | int, address: str, spec: TensorSpec) -> None:
        raise AssertionError("nothing here fetches a tensor")

    def sync(self) -> Pending[None]:
        raise AssertionError("nothing here asks for a sync")

    def settle(self) -> Pending[None]:
        raise AssertionError("nothing here asks for a sync")

    def seed(self, seed: int) -> None:
        raise AssertionError("nothing here sets a seed")

    def dtype_usage(self, dtype: DType) -> Pending[DTypeUsage]:
        raise AssertionError("nothing here asks about dtypes")

    def memory_cleanup(self) -> None:
        raise AssertionError("nothing here frees memory")

    def close(self) -> None:
        """Nothing is open."""

    @property
    def names(self) -> list[str]:
        """What was executed so far, as ``NumericFloat.Add``."""
        return [f"{op.signature.kind}.{op.signature.row.name}" for op in self.operations]


class RecordingDevice(Device):
    """A device whose operations are recorded and never executed."""

    def __init__(self, name: str = "recording") -> None:
        self.name = name
        self.runner = RecordingSession()
        self._use_runners(RunnerStack(self.runner))

    def __str__(self) -> str:
        return self.name
