"""The runner that records operations on tracked tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from burn_remote.autodiff.backward_functions import (
    FIRST_INPUT,
    OUTPUTS,
    SECOND_INPUT,
    UNRECORDED,
    AliasBackward,
    MoveBackward,
    OperationBackward,
)
from burn_remote.autodiff.grad_mode import is_recording
from burn_remote.autodiff.nodes import (
    TRACKED,
    BackwardFunction,
    Branch,
    Leaf,
    Node,
    Source,
    TrackedHandle,
    orders,
    plain,
    tracked,
)
from burn_remote.runner.forwarding import ForwardingRunner
from burn_remote.runner.interface import OwningHandle, RunnerClient, TensorHandle
from burn_remote.runner.operation_graph import Graph
from burn_remote.runner.pending import Pending
from burn_remote.runner.stack import RunnerStack
from burn_remote_protocol.collectives import CollectiveCall
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorData

__all__ = ["Autodiff", "record", "relabeled", "track", "tracker_of"]


class Autodiff(ForwardingRunner):
    """Records operations on the tracked tensors of one device, and forwards them.

    Operations without a tracked input never reach it. Each stack of runners has one, in
    ``trackers``.
    """

    inner: RunnerStack

    def __init__(self, inner: RunnerStack) -> None:
        super().__init__(inner)
        # Operators issue operations on tracked tensors by this stack themselves.
        self.stack: Final = inner

    def is_around(self, other: RunnerClient) -> bool:
        """Return whether ``other`` is the stack, or inside it."""
        return other is self.inner or self.inner.is_around(other)

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue one operation, and record it if one of its inputs is tracked."""
        count, stack = len(inputs), self.stack
        execute = stack.execute
        if 1 <= count <= 2 and execute is not None and signature.output_count == 1:
            first, second = inputs if count == 2 else (inputs[0], None)
            one, other = first.client, stack if second is None else second.client
            if (one is self and (other is self or other is stack)) or (
                one is stack and other is self
            ):
                # The same as ``SessionRunner.register_op``. Its call, and one more frame to search
                # for the line of the program, would take 0.3 µs.
                out = OwningHandle()
                out.spec = signature.outputs[0]
                out.client = stack
                ids = [first.id] if second is None else [first.id, second.id]
                execute(signature, ids, (out,))
                return (self.record_result(signature, first, second, out),)
        places = [place for place, one in enumerate(inputs) if type(one) is TrackedHandle]
        if not places:
            return self.forward(signature, inputs)
        handles = tuple([plain(handle) for handle in inputs])
        backward = _backward_function(signature, sum([1 << place for place in places]))
        outputs = self.forward(signature, handles)
        if not is_recording() or backward.saves == UNRECORDED:
            return outputs
        return record(backward, inputs, backward.select(handles + outputs), outputs)

    def record_result(  # noqa: C901 - one function, because calls take time
        self,
        signature: Signature,
        first: TensorHandle,
        second: TensorHandle | None,
        out: TensorHandle,
    ) -> TensorHandle:
        """Record an operation with one or two inputs, of which one is tracked, and one output.

        Returns the tracked handle of the output, or the output itself if recording is paused.
        """
        if not is_recording():
            return out
        # Keyed by the set of tracked inputs: one bit for each.
        known: dict[int, OperationBackward] = signature.derived
        sources: Source | tuple[Source | None, ...]
        try:
            if second is None:
                sources = first.source  # type: ignore[attr-defined]
                backward = known[1]
            elif type(first) is not TrackedHandle:
                sources = (None, second.source)  # type: ignore[attr-defined]
                backward = known[2]
            elif type(second) is TrackedHandle:
                sources = (first.source, second.source)
                backward = known[3]
            else:
                sources = first.source
                backward = known[1]
        except KeyError:
            tracked = (type(first) is TrackedHandle) + 2 * (type(second) is TrackedHandle)
            backward = _backward_function(signature, tracked)
        # The bodies of ``record`` and ``tracked``, because each call would take a tenth of the
        # operation's time.
        handle = TrackedHandle()
        handle.source = node = Node()
        node.backward = backward
        node.sources = sources
        saves = backward.saves
        if not saves:
            node.kept = ()
        elif saves == OUTPUTS:
            node.kept = out
        elif saves == FIRST_INPUT:
            node.kept = plain(first)
        elif saves == UNRECORDED:
            return out
        elif second is None:
            node.kept = backward.select((plain(first), out))
        elif saves == SECOND_INPUT:
            node.kept = plain(second)
        else:
            node.kept = backward.select((plain(first), plain(second), out))
        handle.id = node.output = out.id
        node.order = next(orders)
        handle.client = self
        handle.spec = out.spec
        handle.plain = out
        return handle

    def forward(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue an operation on plain handles."""
        inner = self.inner
        for handle in inputs:
            if handle.client is not inner:
                return super().forward(signature, inputs)
        return inner.register_op(signature, inputs)

    def register_graph(
        self, graph: Graph, inputs: Sequence[TensorHandle], numbers: Sequence[Any]
    ) -> tuple[TensorHandle, ...]:
        """Issue the operations of a graph one by one and record them; as one task if paused."""
        if is_recording():
            return super().register_graph(graph, inputs, numbers)
        return self.inner.register_graph(graph, [plain(one) for one in inputs], numbers)

    def read_tensor_async(self, handle: TensorHandle) -> Pending[TensorData]:
        """Request a tensor's elements."""
        return self.inner.read_tensor_async(plain(handle))

    def move(self, handle: TensorHandle, target: RunnerClient) -> TensorHandle:
        """Move a tensor to another device; its gradient will move back."""
        original = plain(handle)
        arrived = original.client.move(original, target)
        if arrived is original:
            return handle
        if type(handle) is not TrackedHandle or not is_recording():
            return arrived
        backward = MoveBackward(self.inner, handle.spec)
        (moved,) = record(backward, [handle], (), [arrived])
        return moved

    def collective(
        self, group: int, call: CollectiveCall, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue a collective on plain tensors. Raises ``UsageError`` if it would be recorded."""
        if is_recording() and any(type(one) is TrackedHandle for one in inputs):
            raise UsageError(
                f"{call.kind} has no gradient; pass x.detach(), or call it under no_grad()"
            )
        return self.inner.collective(group, call, [plain(one) for one in inputs])

    def drop_handle(self, identifier: int) -> None:
        """Do nothing: plain handles free their tensors."""


def tracker_of(client: RunnerClient) -> Autodiff:
    """Return the runner that records operations on the tracked tensors of a device.

    Raises ``UsageError`` for a tensor whose operations another runner receives.
    """
    if type(client) is Autodiff:
        return client
    if isinstance(client, RunnerStack):
        found: Any = client.trackers.get(TrackedHandle)
        # ``setdefault`` is atomic: two threads get the same runner.
        found = found or client.trackers.setdefault(TrackedHandle, Autodiff(client))
        return found  # type: ignore[no-any-return]
    raise UsageError(
        f"a tensor whose operations a {type(client).__name__} receives cannot be tracked; "
        "assign that runner to device.client"
    )


def track(handle: TensorHandle) -> TrackedHandle:
    """Return a handle of the same tensor that is a new leaf."""
    own = plain(handle)
    return tracked(tracker_of(own.client), own, Leaf(own.spec))


def record(
    backward: BackwardFunction,
    inputs: Sequence[TensorHandle],
    saved: tuple[TensorHandle, ...],
    outputs: Sequence[TensorHandle],
) -> tuple[TensorHandle, ...]:
    """Record a computation on tracked inputs as a node; return tracked handles of its outputs."""
    parents = tuple([one.source if type(one) is TrackedHandle else None for one in inputs])
    node = Node()
    node.backward = backward
    node.sources = parents
    node.kept = saved
    node.output = outputs[0].id
    node.order = next(orders)
    return tuple(
        [
            tracked(tracker_of(out.client), out, Branch(node, place) if place else node)
            if out.spec.dtype.category in TRACKED
            else out
            for place, out in enumerate(outputs)
        ]
    )


def relabeled(handle: TrackedHandle) -> TrackedHandle:
    """Return a handle of the same tensor with a source of its own, through which gradients pass."""
    (out,) = record(AliasBackward(handle.spec), [handle], (), [handle.plain])
    return out  # type: ignore[return-value]


def _backward_function(signature: Signature, tracked: int) -> OperationBackward:
    """Return the backward function for a set of tracked inputs; making one takes about 10 µs."""
    backward: OperationBackward | None = signature.derived.get(tracked)
    if backward is None:
        backward = signature.derived[tracked] = OperationBackward(signature, tracked)
    return backward
