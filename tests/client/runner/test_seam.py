"""Runners around a device, or around some of its tensors, see everything exactly once.

The programs are those of the completeness table, which has every row, and those below for what is
no operation. Each runs once on a bare device and once under runners; what the session saw, in which
order, must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import burn_remote as br
from burn_remote.runner.forwarding import ForwardingRunner
from burn_remote.runner.interface import RunnerClient, TensorHandle
from burn_remote.runner.pending import Pending
from burn_remote_protocol.operations.families import numeric
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

Event = tuple[Any, ...]


class Recorder(ForwardingRunner):
    """Records what passes, and changes nothing."""

    def __init__(self, inner: RunnerClient) -> None:
        super().__init__(inner)
        self.events: list[Event] = []

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        outputs = super().register_op(signature, inputs)
        ids = tuple(handle.id for handle in (*inputs, *outputs))
        self.events.append(("operation", signature.row.name, ids))
        return outputs

    def register_tensor_data(self, data: TensorData) -> TensorHandle:
        handle = super().register_tensor_data(data)
        self.events.append(("upload", data.spec, handle.id))
        return handle

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

    def sync(self) -> Pending[None]:
        self.events.append(("sync",))
        return super().sync()

    def seed(self, seed: int) -> None:
        self.events.append(("seed", seed))
        super().seed(seed)

    def dtype_usage(self, dtype: br.DType) -> Pending[br.DTypeUsage]:
        self.events.append(("dtype_usage", dtype))
        return super().dtype_usage(dtype)

    def memory_cleanup(self) -> None:
        self.events.append(("memory_cleanup",))
        super().memory_cleanup()

    def drop_handle(self, identifier: int) -> None:
        self.events.append(("drop", identifier))
        super().drop_handle(identifier)


class Negating(ForwardingRunner):
    """Rewrites ``a + b`` into ``a - (b * -1)``, which makes a tensor of its own."""

    times: Final = br.ones  # only a name for readers: the product below is with a scalar

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        if signature.row is not numeric.ADD:
            return super().register_op(signature, inputs)
        first, second = inputs
        negative = self._apply(lambda x: -x, second)
        return self._subtract(first, negative)

    def _apply(self, function: Callable[[br.Tensor], br.Tensor], handle: TensorHandle) -> Any:
        raise NotImplementedError

    def _subtract(self, first: TensorHandle, second: TensorHandle) -> tuple[TensorHandle, ...]:
        raise NotImplementedError
