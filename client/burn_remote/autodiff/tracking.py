"""The runner that records operations on tracked tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from burn_remote.autodiff.grad_mode import is_recording
from burn_remote.autodiff.nodes import (
    TRACKED,
    Branch,
    Leaf,
    Node,
    Recipe,
    Source,
    TrackedHandle,
    orders,
    plain,
    tracked,
)
from burn_remote.autodiff.recipes import (
    INPUTS,
    NOTHING,
    OUTPUTS,
    AliasRecipe,
    MoveRecipe,
    OperationRecipe,
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

# Calling the class would take twice the time.
_new: Final = object.__new__


class Autodiff(ForwardingRunner):
    """Records operations on the tracked tensors of one device, and forwards them.

    Operations without a tracked input never reach it. Each stack of runners has one, in
    ``trackers``.
    """

    inner: RunnerStack

    def is_around(self, other: RunnerClient) -> bool:
        """Return whether ``other`` is the stack, or inside it."""
        return other is self.inner or self.inner.is_around(other)

    # One function, because it takes 4 µs, and each further call would add 0.1 µs.
    def register_op(  # noqa: C901
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue one operation, and record it if one of its inputs is tracked."""
        inner = self.inner
        # Keyed by the set of tracked inputs: one bit for each.
        recipes: dict[int, OperationRecipe] = signature.derived
        handles: tuple[TensorHandle, ...]
        parents: tuple[Source | None, ...]
        # Written out for one and two inputs, which halves the time.
        count = len(inputs)
        is_inside = True  # whether the untracked inputs belong to the inner runner
        if count == 1:
            (first,) = inputs
            if type(first) is not TrackedHandle:
                return self.forward(signature, inputs)
            handles, parents = (first.plain,), (first.source,)
            ids = [first.id]
            recipe = recipes.get(1) or _recipe(signature, 1)
        elif count == 2:
            first, second = inputs
            ids = [first.id, second.id]
            if type(first) is TrackedHandle:
                if type(second) is TrackedHandle:
                    handles, parents = (first.plain, second.plain), (first.source, second.source)
                    recipe = recipes.get(3) or _recipe(signature, 3)
                else:
                    handles, parents = (first.plain, second), (first.source, None)
                    recipe = recipes.get(1) or _recipe(signature, 1)
                    is_inside = second.client is inner
            elif type(second) is TrackedHandle:
                handles, parents = (first, second.plain), (None, second.source)
                recipe = recipes.get(2) or _recipe(signature, 2)
                is_inside = first.client is inner
            else:
                return self.forward(signature, inputs)
        else:
            parents = tuple([one.source if type(one) is TrackedHandle else None for one in inputs])
            tracked = sum([1 << place for place, one in enumerate(parents) if one is not None])
            if not tracked:
                return self.forward(signature, inputs)
            handles = tuple([plain(one) for one in inputs])
            recipe = recipes.get(tracked) or _recipe(signature, tracked)
            ids, is_inside = [], False
        execute = inner.execute
        if is_inside and execute is not None and recipe.output_count == 1:
            # The same as ``SessionRunner.register_op``. Its call, and one more frame to search for
            # the line of the program, would take 0.3 µs.
            out: TensorHandle = _new(OwningHandle)
            out.spec = spec = signature.outputs[0]
            out.client = inner
            execute(signature, ids, (out,))
            identifier = out.id
            if not is_recording() or not recipe.is_recorded:
                return (out,)
        else:
            outputs = (inner.register_op if is_inside else self.forward)(signature, handles)
            if not is_recording() or not recipe.is_recorded:
                return outputs
            if len(outputs) != 1:
                saved = recipe.select(handles + outputs)
                return record(recipe, inputs, saved, outputs)
            (out,) = outputs
            identifier, spec = out.id, out.spec
        # The bodies of ``record`` and ``tracked``, because each call would take a tenth of the
        # operation's time.
        node = Node()
        node.recipe = recipe
        node.parents = parents
        kept = recipe.saves
        if kept == NOTHING:
            node.saved = ()
        elif kept == OUTPUTS:
            node.saved = (out,)
        elif kept == INPUTS:
            node.saved = handles
        else:
            node.saved = recipe.select((*handles, out))
        node.output = identifier
        node.order = next(orders)
        handle = TrackedHandle()
        handle.client = self
        handle.id = identifier
        handle.spec = spec
        handle.plain = out
        handle.source = node
        return (handle,)

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
        recipe = MoveRecipe(self.inner, handle.spec)
        (moved,) = record(recipe, [handle], (), [arrived])
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
    recipe: Recipe,
    inputs: Sequence[TensorHandle],
    saved: tuple[TensorHandle, ...],
    outputs: Sequence[TensorHandle],
) -> tuple[TensorHandle, ...]:
    """Record a computation on tracked inputs as a node; return tracked handles of its outputs."""
    parents = tuple([one.source if type(one) is TrackedHandle else None for one in inputs])
    node = Node()
    node.recipe = recipe
    node.parents = parents
    node.saved = saved
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
    (out,) = record(AliasRecipe(handle.spec), [handle], (), [handle.plain])
    return out  # type: ignore[return-value]


def _recipe(signature: Signature, tracked: int) -> OperationRecipe:
    """Make a recipe and cache it in its signature; takes about 10 µs."""
    recipe = signature.derived[tracked] = OperationRecipe(signature, tracked)
    return recipe
