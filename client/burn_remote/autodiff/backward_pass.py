"""The backward pass, from results to the tensors that they were computed from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NoReturn, final

from burn_remote.autodiff.backward_functions import OperationBackward
from burn_remote.autodiff.grad_mode import is_recording, set_recording
from burn_remote.autodiff.nodes import (
    BackwardFunction,
    Branch,
    Leaf,
    Node,
    Source,
    TrackedHandle,
    Visit,
    node_of,
)
from burn_remote.autodiff.transposed_gradients import Transposed
from burn_remote.autodiff.uniform_gradients import Uniform, tensor_of
from burn_remote.dispatch.operators import Operator, reshaped
from burn_remote_protocol.errors import BurnRemoteError, DTypeMismatch, ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import numeric

__all__ = ["BackwardPass", "sources_of"]

ADD: Final = Operator(numeric.ADD)
SUM_DIM: Final = Operator(numeric.SUM_DIM)

_by_order: Final = attrgetter("order")


@final
class BackwardPass:
    """One backward pass from ``roots``, with one gradient for each of them.

    ``wanted`` are the sources whose gradients are wanted; all leaves if it is ``None``. The pass
    visits only nodes that lead to them. A pass runs once. ``finish_leaf`` is called with each
    wanted leaf and its gradient as soon as the gradient is complete, before the pass ends; it
    returns the gradient to use.
    """

    def __init__(
        self,
        roots: Sequence[TrackedHandle],
        *,
        wanted: Collection[Source] | None = None,
        finish_leaf: Callable[[Leaf, Any], Any] | None = None,
    ) -> None:
        self._roots = roots
        self._wanted = None if wanted is None else {node_of(source) for source in wanted}
        self._retains = False
        self._is_recorded = False
        self._finish_leaf = finish_leaf
        # For each leaf, the number of recorded uses that the pass has not visited yet.
        self._uses: dict[Leaf, int] = {}
        self._nodes = self._reached()
        if self._wanted is not None:
            self._leading = self._leading_to(self._wanted)
            self._nodes = [node for node in self._nodes if node in self._leading]
        # Gradients that are not complete: of the outputs of nodes, and of leaves.
        self._pending: dict[Node, list[Any]] = {}
        self._leaf_grads: dict[Leaf, Any] = {}
        self._result: dict[Leaf | Node, list[Any]] = {}

    @property
    def leaves(self) -> Collection[Leaf]:
        """The leaves that the pass reaches."""
        return self._uses.keys()

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes still to visit, inputs before results; the pass visits the last one first."""
        return self._nodes

    def gradient_of(self, source: Source) -> Any:
        """Return the gradient that the pass found; ``None`` if there is none.

        It is a new object. For example, the gradients of ``a`` and ``b`` in ``a + b`` are one
        tensor, but the caller may track or update the gradient of ``a`` alone.
        """
        held = self._result.get(node_of(source))
        position = source.position if type(source) is Branch else 0
        found = None if held is None else held[position]
        return None if found is None else found.__class__(found.handle)

    def run(
        self, seeds: Sequence[Any], *, retains: bool = False, is_recorded: bool = False
    ) -> Mapping[Leaf | Node, list[Any]]:
        """Run the pass with one gradient for each root; return the gradients that it found.

        ``seeds`` are tensors or ``Uniform`` objects; the results are tensors. ``retains``: the
        recorded operations can be differentiated again. ``is_recorded``: the pass's own operations
        are recorded, so its results can be differentiated.
        """
        self._retains = retains
        self._is_recorded = is_recorded
        kind = seeds[0].kind if type(seeds[0]) is Uniform else type(seeds[0])
        before = is_recording()
        try:
            set_recording(self._is_recorded)
            for root, seed in zip(self._roots, seeds, strict=True):
                self._give(root.source, seed)
            for leaf in [leaf for leaf, uses in self._uses.items() if not uses]:
                self._complete(leaf)
            while self._nodes:
                self._visit(self._nodes.pop(), kind)
        finally:
            set_recording(before)
        return self._result

    def _reached(self) -> list[Node]:
        """Return the nodes that lead to the roots, inputs before results."""
        found: set[Node] = set()
        stack: list[Node] = []

        def reach(source: Source | None, uses: int) -> None:
            if type(source) is Leaf:
                self._uses[source] = self._uses.get(source, 0) + uses
            elif source is not None:
                node = source.node if type(source) is Branch else source
                if node not in found:
                    found.add(node)
                    stack.append(node)

        for root in self._roots:
            reach(root.source, 0)
        while stack:
            for parent in stack.pop().parents:
                reach(parent, 1)
        return sorted(found, key=_by_order)

    def _leading_to(self, wanted: Collection[Leaf | Node]) -> set[Leaf | Node]:
        """Return the wanted nodes and leaves, and the nodes that were computed from them."""
        leading = set(wanted)
        # Inputs come before results.
        for node in self._nodes:
            if any(parent is not None and node_of(parent) in leading for parent in node.parents):
                leading.add(node)
        return leading

    def _visit(self, node: Node, kind: type[Any]) -> None:
        grads = self._pending.pop(node, None)
        found: Sequence[Any] = ()
        if grads is not None:
            if self._wanted is not None and node in self._wanted:
                grads = self._result[node] = [tensor_of(one) for one in grads]
            found = self._apply(node, grads, kind)
        del grads
        for place, parent in enumerate(node.parents):
            if parent is None:
                continue
            if found and found[place] is not None:
                self._give(parent, _fitted(found[place], node, place))
            if type(parent) is Leaf:
                self._uses[parent] -= 1
                if not self._uses[parent]:
                    self._complete(parent)

    def _apply(self, node: Node, grads: Sequence[Any], kind: type[Any]) -> Sequence[Any]:
        """Return the gradients of a node's inputs."""
        if self._wanted is None:
            is_wanted = tuple([parent is not None for parent in node.parents])
        else:
            leading = self._leading
            is_wanted = tuple(
                [parent is not None and node_of(parent) in leading for parent in node.parents]
            )
            if True not in is_wanted:
                return ()
        if node.saved is None:
            self._refuse_second_pass(node, grads)
        try:
            found = self._without_tensors(node.backward, grads, is_wanted)
            if found is None:
                tensors = [tensor_of(one) for one in grads]
                visit = Visit(tensors, kind, is_wanted, self._is_recorded)
                found = node.backward.apply(node, visit)
        except BurnRemoteError as error:
            line = _line_of(node, grads).removesuffix(",")
            error.add_note(f"in the gradient of {node.backward.describe()}{line}")
            raise
        if not self._retains:
            node.saved = None
        return [one if wanted else None for one, wanted in zip(found, is_wanted, strict=True)]

    def _without_tensors(
        self, backward: BackwardFunction, grads: Sequence[Any], is_wanted: tuple[bool, ...]
    ) -> Sequence[Any] | None:
        """Return the gradients of inputs that need no operation; ``None`` if others are needed."""
        if len(grads) != 1 or type(backward) is not OperationBackward:
            return None
        (gradient,) = grads
        if type(gradient) is Uniform:
            return backward.of_uniform(gradient, is_wanted)
        if type(gradient) is Transposed and backward.transposes:
            return [gradient.matrix]
        return None

    def _give(self, source: Source, gradient: Any) -> None:
        """Add a gradient to those that have arrived at a source."""
        if type(source) is Leaf:
            held = self._leaf_grads.get(source)
            self._leaf_grads[source] = gradient if held is None else _sum(held, gradient)
            return
        node, position = (
            (source.node, source.position) if isinstance(source, Branch) else (source, 0)
        )
        arrived = self._pending.get(node)
        if arrived is None:
            arrived = self._pending[node] = [None] * node.backward.output_count
        before = arrived[position]
        arrived[position] = gradient if before is None else _sum(before, gradient)

    def _complete(self, leaf: Leaf) -> None:
        gradient = self._leaf_grads.pop(leaf, None)
        if gradient is None or (self._wanted is not None and leaf not in self._wanted):
            return
        gradient = tensor_of(gradient)
        if self._finish_leaf is not None:
            gradient = self._finish_leaf(leaf, gradient)
        self._result[leaf] = [gradient.__class__(gradient.handle)]

    def _refuse_second_pass(self, node: Node, grads: Sequence[Any]) -> NoReturn:
        raise UsageError(
            f"the recorded {node.backward.describe()}{_line_of(node, grads)} was used by an "
            "earlier backward pass, which freed the tensors that its gradient needs; compute the "
            "result again, or pass retain_graph=True to the first backward pass"
        )


def sources_of(handles: Sequence[Any]) -> list[Source]:
    """Return the sources of tracked handles."""
    return [handle.source for handle in handles]


def _sum(first: Any, second: Any) -> Any:
    """Add two gradients of the same tensor."""
    if type(first) is Uniform and type(second) is Uniform:
        return first.like(first.spec, first.number + second.number)
    return ADD.binary(tensor_of(first), tensor_of(second))


def _fitted(gradient: Any, node: Node, place: int) -> Any:
    """Sum a gradient over the axes along which the input was broadcast."""
    if type(gradient) is Uniform:
        return gradient
    wanted = node.backward.specs[place]
    if type(gradient) is Transposed:
        if gradient.spec == wanted:
            return gradient
        gradient = gradient.tensor()
    spec = gradient.handle.spec
    if spec is wanted or spec == wanted:
        return gradient
    missing = len(spec.shape) - len(wanted.shape)
    kept = spec.shape[max(missing, 0) :]
    if (
        spec.dtype != wanted.dtype
        or missing < 0
        or any(size not in (there, 1) for there, size in zip(kept, wanted.shape, strict=True))
    ):
        error = ShapeMismatch if spec.dtype == wanted.dtype else DTypeMismatch
        raise error(
            f"the gradient of {node.backward.describe()}{_line_of(node, [gradient])} for its input "
            f"{place} is {spec}, but the input is {wanted}"
        )
    for axis, size in enumerate(spec.shape):
        if size != 1 and (axis < missing or wanted.shape[axis - missing] == 1):
            gradient = SUM_DIM.apply((gradient,), (axis, 1))
    return reshaped(gradient, wanted.shape)


def _line_of(node: Node, grads: Sequence[Any]) -> str:
    """Return ``, issued at file:line,`` for an operation; empty if the line is not known."""
    gradient = next(one for one in grads if one is not None)
    is_deferred = type(gradient) in (Uniform, Transposed)
    client = gradient.client if is_deferred else gradient.handle.client
    line = client.session.line_of(node.output)
    return f", issued at {line}," if line else ""
