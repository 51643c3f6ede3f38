"""Runners that tests put around devices or tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burn_remote.dispatch.signatures import infer
from burn_remote.runner.forwarding import ForwardingRunner
from burn_remote.runner.interface import OwningHandle, RunnerClient, StorageTask, TensorHandle
from burn_remote.runner.pending import Pending
from burn_remote_protocol.collectives import CollectiveCall, GroupSpec
from burn_remote_protocol.dtypes import DType, DTypeUsage
from burn_remote_protocol.operations.families import numeric
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = ["Recorder", "SubtractingAdder", "Tracker"]


class Recorder(ForwardingRunner):
    """Records all calls in the form of ``RecordingSession.events``, and changes nothing."""

    def __init__(self, inner: RunnerClient) -> None:
        super().__init__(inner)
        self.events: list[tuple[Any, ...]] = []

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        ids = [handle.id for handle in inputs]
        outputs = super().register_op(signature, inputs)
        ids += [handle.id for handle in outputs]
        self.events.append(("operation", signature.row.name, tuple(ids)))
        return outputs

    def register_tensor_data(self, data: TensorData) -> TensorHandle:
        handle = super().register_tensor_data(data)
        self.events.append(("upload", data.spec, handle.id))
        return handle

    def create_empty_handles(self, specs: Sequence[TensorSpec]) -> list[TensorHandle]:
        handles = super().create_empty_handles(specs)
        self.events += [("empty", handle.spec, handle.id) for handle in handles]
        return handles

    def read_tensor_async(self, handle: TensorHandle) -> Pending[TensorData]:
        self.events.append(("read", handle.id))
        return super().read_tensor_async(handle)

    def move(self, handle: TensorHandle, target: RunnerClient) -> TensorHandle:
        self.events.append(("move", handle.id))
        return super().move(handle, target)

    def fetch(self, transfer: bytes | int, address: str, spec: TensorSpec) -> TensorHandle:
        handle = super().fetch(transfer, address, spec)
        self.events.append(("fetch", spec, handle.id))
        return handle

    def join_group(self, spec: GroupSpec) -> int:
        self.events.append(("join_group", spec.rank))
        return super().join_group(spec)

    def collective(
        self, group: int, call: CollectiveCall, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        ids = [handle.id for handle in inputs]
        outputs = super().collective(group, call, inputs)
        ids += [handle.id for handle in outputs]
        self.events.append(("collective", str(call.kind), tuple(ids)))
        return outputs

    def leave_group(self, group: int) -> None:
        self.events.append(("leave_group", group))
        super().leave_group(group)

    def storage_task(self, task: StorageTask, handles: Sequence[TensorHandle]) -> Any:
        ids = tuple(handle.id for handle in handles)
        self.events.append(("storage", type(task).__name__, ids))
        return super().storage_task(task, handles)

    def sync(self) -> Pending[None]:
        self.events.append(("sync",))
        return super().sync()

    def seed(self, seed: int) -> None:
        self.events.append(("seed", seed))
        super().seed(seed)

    def dtype_usage(self, dtype: DType) -> Pending[DTypeUsage]:
        self.events.append(("dtype_usage", dtype))
        return super().dtype_usage(dtype)

    def memory_cleanup(self) -> None:
        self.events.append(("memory_cleanup",))
        super().memory_cleanup()

    def drop_handle(self, identifier: int) -> None:
        self.events.append(("drop", identifier))
        super().drop_handle(identifier)

    @property
    def made(self) -> list[int]:
        """The ids of all tensors that were created."""
        made: dict[int, None] = {}
        for kind, *rest in self.events:
            if kind in ("operation", "collective"):
                made |= dict.fromkeys(rest[1])
            elif kind in ("upload", "fetch", "empty"):
                made[rest[1]] = None
        return [*made]

    @property
    def dropped(self) -> list[int]:
        """The ids of all tensors that were dropped."""
        return [event[1] for event in self.events if event[0] == "drop"]


class SubtractingAdder(ForwardingRunner):
    """Rewrites ``a + b`` to ``a - (b * -1)``, with the same result and one tensor more."""

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        if signature.row is not numeric.ADD:
            return super().register_op(signature, inputs)
        first, second = inputs
        minus_one = Scalar.of(-1.0 if second.spec.dtype.is_floating else -1)
        multiply = infer(numeric.MUL_SCALAR, (second.spec,), (minus_one,))
        (negative,) = super().register_op(multiply, (second,))
        subtract = infer(numeric.SUB, (first.spec, second.spec))
        return super().register_op(subtract, (first, negative))


class TrackedHandle(OwningHandle):
    """A handle of a tracked tensor; ``plain`` is the handle of the inner runners."""

    __slots__ = ("plain",)

    def __init__(self, tracker: Tracker, plain: TensorHandle) -> None:
        self.client, self.id, self.spec = tracker, plain.id, plain.spec
        self.plain = plain


class Tracker(Recorder):
    """Records operations on the tensors that it tracks; their results are tracked too."""

    def track(self, handle: TensorHandle) -> TensorHandle:
        """Return a handle of the same tensor that belongs to this tracker."""
        return TrackedHandle(self, handle)

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        outputs = self.forward(signature, [self._plain(handle) for handle in inputs])
        if not any(handle.client is self for handle in inputs):
            return outputs
        ids = tuple(handle.id for handle in (*inputs, *outputs))
        self.events.append(("operation", signature.row.name, ids))
        return tuple([self.track(handle) for handle in outputs])

    def read_tensor_async(self, handle: TensorHandle) -> Pending[TensorData]:
        self.events.append(("read", handle.id))
        plain = self._plain(handle)
        return plain.client.read_tensor_async(plain)

    def move(self, handle: TensorHandle, target: RunnerClient) -> TensorHandle:
        self.events.append(("move", handle.id))
        plain = self._plain(handle)
        return plain.client.move(plain, target)

    def drop_handle(self, identifier: int) -> None:
        # A tracked tensor is freed when its plain handle is garbage-collected.
        self.events.append(("drop", identifier))

    def _plain(self, handle: TensorHandle) -> TensorHandle:
        return (
            handle.plain if isinstance(handle, TrackedHandle) and handle.client is self else handle
        )
