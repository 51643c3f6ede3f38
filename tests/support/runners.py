"""A device whose operations are recorded and never executed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from burn_remote.functions.device_class import Device
from burn_remote.runner.interface import TensorHandle
from burn_remote.runner.operation_graph import CodePosition, Graph
from burn_remote.runner.pending import Pending
from burn_remote.runner.stack import RunnerStack
from burn_remote_protocol.collectives import CollectiveCall, GroupSpec
from burn_remote_protocol.dtypes import DType, DTypeUsage
from burn_remote_protocol.messages import Expose, Fetch, Welcome
from burn_remote_protocol.operations.row import Operation, Row, Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

T = TypeVar("T")

__all__ = ["RecordingDevice", "RecordingSession"]


class RecordingSession:
    """A ``Session`` that executes nothing.

    Reads stay pending in ``reads``, or return zeros if ``answers_reads`` is true.
    """

    closed = False
    transfer_domain = "recording"
    has_secret_transfers = True
    number: int | None = None
    peer_address = "ws://recording"
    welcome = Welcome(1, 1, b"", 0.0, {}, {"groups": 16}, peer_address)

    def __init__(self) -> None:
        self.specs: dict[int, TensorSpec] = {}
        self.answers_reads = False
        # The calls of this session, in order.
        self.events: list[tuple[object, ...]] = []
        self.issued: dict[int, int] = {}
        self.operations: list[Operation] = []
        self.uploads: dict[int, TensorData] = {}
        self.reads: list[tuple[int, Pending[TensorData]]] = []
        self.dropped: list[int] = []
        self.groups: list[GroupSpec] = []
        self._next = 1

    graph_steps = 0
    follower = None

    def has_row(self, row: Row) -> bool:
        return True

    def execute_graph(
        self,
        graph: Graph,
        inputs: list[int],
        numbers: list[Any],
        outputs: Sequence[TensorHandle],
    ) -> None:
        raise AssertionError("graph_steps is 0")

    def execute(
        self, signature: Signature, inputs: list[int], outputs: Sequence[TensorHandle]
    ) -> None:
        assert [use.spec for use in signature.input_uses] == [self.specs[one] for one in inputs]
        tensors = (*inputs, *self._assign_ids(outputs))
        self.operations.append(Operation(signature, tensors))
        self.events.append(("operation", signature.row.name, tensors))

    def _assign_ids(self, outputs: Sequence[TensorHandle]) -> list[int]:
        for handle in outputs:
            handle.id = self.reserve()
            self.specs[handle.id] = handle.spec
        return [handle.id for handle in outputs]

    def reserve(self, count: int = 1) -> int:
        tensor = self._next
        self._next += count
        return tensor

    def check_open(self) -> None:
        """Do nothing: it has not ended."""

    def settle_connection(self, timeout_seconds: float) -> None:
        """Do nothing: there is no connection."""

    def upload(self, tensor: int, data: TensorData) -> None:
        self.specs[tensor] = data.spec
        self.uploads[tensor] = TensorData(bytes(data.bytes), data.shape, data.dtype)
        self.events.append(("upload", data.spec, tensor))

    def read(self, tensor: int, spec: TensorSpec) -> Pending[TensorData]:
        pending: Pending[TensorData] = Pending()
        if self.answers_reads:
            pending.complete(TensorData(bytes(spec.nbytes), spec.shape, spec.dtype))
        self.reads.append((tensor, pending))
        self.events.append(("read", tensor))
        return pending

    def drop(self, tensor: int) -> None:
        self.dropped.append(tensor)
        self.events.append(("drop", tensor))

    def expose(
        self, tensor: int, spec: TensorSpec, transfer: bytes | int, expires_seconds: float
    ) -> None:
        self.events.append(("expose", tensor))

    def fetch(self, tensor: int, transfer: bytes | int, address: str, spec: TensorSpec) -> None:
        self.specs[tensor] = spec
        self.events.append(("fetch", spec, tensor))

    def may_have_issued(self, kind: type[Expose | Fetch], transfer: bytes | int) -> bool:
        return True

    def join_group(self, spec: GroupSpec) -> int:
        self.events.append(("join_group", spec.rank))
        self.groups.append(spec)
        return len(self.groups) - 1

    def group_size(self, group: int) -> tuple[int, int]:
        return len(self.groups[group].addresses), self.groups[group].rank

    def group_number(self, spec: GroupSpec) -> int | None:
        return next((number for number, one in enumerate(self.groups) if one is spec), None)

    def collectives_issued(self, group: int) -> int:
        return self.issued.get(group, 0)

    def collective(
        self,
        group: int,
        call: CollectiveCall,
        inputs: list[int],
        outputs: Sequence[TensorHandle],
    ) -> None:
        made = self._assign_ids(outputs)
        self.issued[group] = self.collectives_issued(group) + 1
        self.events.append(("collective", str(call.kind), (*inputs, *made)))

    def leave_group(self, group: int) -> None:
        self.events.append(("leave_group", group))

    def sync(self) -> Pending[None]:
        self.events.append(("sync",))
        return _done(None)

    def fence(self) -> Pending[None]:
        return _done(None)

    def seed(self, seed: int) -> None:
        self.events.append(("seed", seed))

    def dtype_usage(self, dtype: DType) -> Pending[DTypeUsage]:
        self.events.append(("dtype_usage", dtype))
        return _done(DTypeUsage(0))

    def memory_cleanup(self) -> None:
        self.events.append(("memory_cleanup",))

    def is_in_call(self) -> bool:
        return False

    def fence_soon(self) -> Pending[None]:
        return _done(None)

    def line_of(self, tensor: int) -> str:
        return ""

    def note_position(self, tensor: int, position: CodePosition) -> None:
        """Do nothing: this session records no positions."""

    def take_failures(self) -> None:
        """Return ``None``: nothing fails."""

    def close(self, *, discards: bool = False) -> None:
        """Do nothing."""

    @property
    def names(self) -> list[str]:
        """The names of the executed operations, such as ``NumericFloat.Add``."""
        return [f"{op.signature.kind}.{op.signature.row.name}" for op in self.operations]


def _done(value: T) -> Pending[T]:
    pending: Pending[T] = Pending()
    pending.complete(value)
    return pending


class RecordingDevice(Device):
    """A device whose operations are recorded and never executed."""

    def __init__(self, name: str = "recording") -> None:
        self.name = name
        self.runner = RecordingSession()
        self._use_runners(RunnerStack(self.runner))

    def __str__(self) -> str:
        return self.name
