"""Tracked handles, and where they come from.

A tracked tensor has a ``TrackedHandle``. Its elements belong to the plain handle inside it, and its
``source`` says where it comes from: a ``Leaf``, or an output of a ``Node``, which is one recorded
operation. A node keeps only the plain handles that the formulas of its tracked inputs take. So a
node that keeps an output of its own is in no reference cycle, and tensors are freed at once when
the program drops the results.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, final

from burn_remote.runner.interface import RunnerClient, TensorHandle
from burn_remote_protocol.dtypes import Category
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "TRACKED",
    "BackwardFunction",
    "Branch",
    "Leaf",
    "Node",
    "Source",
    "TrackedHandle",
    "Visit",
    "node_of",
    "orders",
    "plain",
    "saved_handle",
    "tracked",
]

# The dtypes of results that are tracked. Integers and bools have no gradient. Quantized tensors are
# tracked so that a gradient that reaches them raises an error and does not stop silently.
TRACKED: Final = frozenset({Category.FLOAT, Category.COMPLEX, Category.QUANTIZED})

# Each node has a greater number than the nodes that it depends on.
orders: Final = itertools.count(1)


@final
class TrackedHandle(TensorHandle):
    """The handle of a tracked tensor; ``plain`` is the handle of the inner runners.

    ``tracked`` makes one.
    """

    __slots__ = ("plain", "source")

    plain: TensorHandle
    source: Source

    # The constructor takes no arguments, because assigning the attributes after it takes a third of
    # the time of a call with arguments.
    if TYPE_CHECKING:

        def __init__(self) -> None: ...
    else:
        __init__ = object.__init__


@final
class Leaf:
    """A tensor that the program declared to be tracked; gradients are accumulated here.

    ``hooks`` has the functions that are called with each gradient; ``None`` until there is one.
    """

    __slots__ = ("__weakref__", "grad", "hooks", "spec")

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.grad: Any = None
        self.hooks: dict[int, Callable[[Any], Any]] | None = None


@final
class Node:
    """One recorded operation.

    ``sources`` has the source of each input, ``None`` where it is not tracked. If only the first
    input is tracked, it may be the source itself. ``kept`` has the handles that ``backward`` takes,
    or is the only one itself; ``None`` once a backward pass has used them. ``parents`` and
    ``saved`` are the same as tuples. A tape without these tuples has half as many objects for
    Python's garbage collector, which took a tenth of the time of recording.

    ``output`` is the id of the first output. The code that makes a node assigns all attributes, as
    for ``TrackedHandle``.
    """

    __slots__ = ("backward", "kept", "order", "output", "sources")

    backward: BackwardFunction
    sources: Source | tuple[Source | None, ...]
    kept: TensorHandle | tuple[TensorHandle, ...] | None
    output: int
    order: int

    @property
    def parents(self) -> tuple[Source | None, ...]:
        """The source of each input; ``None`` where it is not tracked."""
        sources = self.sources
        if isinstance(sources, tuple):
            return sources
        return (sources, *[None] * (len(self.backward.specs) - 1))

    @property
    def saved(self) -> tuple[TensorHandle, ...] | None:
        """The handles that ``backward`` takes; ``None`` once a backward pass has used them."""
        kept = self.kept
        return kept if kept is None or isinstance(kept, tuple) else (kept,)

    @saved.setter
    def saved(self, handles: tuple[TensorHandle, ...] | None) -> None:
        self.kept = handles


@final
class Branch:
    """An output of a node other than its first one."""

    __slots__ = ("node", "position")

    def __init__(self, node: Node, position: int) -> None:
        self.node = node
        self.position = position


Source = Leaf | Node | Branch


class Visit(NamedTuple):
    """The visit of a node by a backward pass, from the results to the leaves.

    ``grads`` has the gradients of the outputs, ``None`` where there is none; ``kind`` is the class
    of tensors. ``is_wanted`` says for each input whether its gradient is needed. ``is_recorded``:
    the operations are recorded, for gradients of these gradients.
    """

    grads: Sequence[Any]
    kind: type[Any]
    is_wanted: tuple[bool, ...]
    is_recorded: bool


class BackwardFunction(Protocol):
    """Computes the gradients of one kind of recorded operation."""

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The shapes and dtypes of the inputs."""
        ...

    @property
    def output_count(self) -> int:
        """The number of outputs."""
        ...

    def describe(self) -> str:
        """Return the name of the operation, with the shapes of its tensors."""
        ...

    def apply(self, node: Node, visit: Visit) -> Sequence[Any]:
        """Return the gradient of each input; ``None`` where there is none or it is not wanted."""
        ...


def node_of(source: Source) -> Leaf | Node:
    """Return the leaf or the node of a source."""
    return source.node if type(source) is Branch else source


def tracked(client: RunnerClient, plain: TensorHandle, source: Source) -> TrackedHandle:
    """Return a handle whose operations ``client`` records."""
    handle = TrackedHandle()
    handle.client = client
    handle.id = plain.id
    handle.spec = plain.spec
    handle.plain = plain
    handle.source = source
    return handle


def plain(handle: TensorHandle) -> TensorHandle:
    """Return the untracked handle of the same tensor."""
    return handle.plain if type(handle) is TrackedHandle else handle


def saved_handle(handle: TensorHandle, place: int, node: Node, is_recorded: bool) -> TensorHandle:
    """Return the handle of a tensor that a node saved, tracked if the backward pass is recorded.

    ``place`` is its place among the inputs and, after them, the outputs.
    """
    if not is_recorded:
        return handle
    count = len(node.parents)
    if place < count:
        source = node.parents[place]
    else:
        source = node if place == count else Branch(node, place - count)
        if handle.spec.dtype.category not in TRACKED:
            source = None
    if source is None:
        return handle
    # The stack has a tracker, because the tensor was tracked when the node was recorded.
    client: Any = handle.client
    return tracked(client.trackers[TrackedHandle], handle, source)
