"""Tracked tensors, and the runner that records operations on them.

A tracked tensor has a ``TrackedHandle``. Its elements belong to the plain handle inside it, and its
``source`` says where it comes from: a ``Leaf``, or an output of a ``Node``, which is one recorded
operation. A node keeps only the plain handles that the formulas of its tracked inputs take, so a
node that keeps an output of its own is in no reference cycle, and tensors are freed at once when
the program drops the results.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, final

from burn_remote.arguments.traced_numbers import TracedScalar
from burn_remote.autodiff.pausing import is_recording
from burn_remote.autodiff.rules import (
    GRADIENT,
    GRADIENT_SPEC,
    NUMBER,
    RULES,
    SPEC,
    Formula,
    JointRule,
    Never,
    PastCall,
    Rule,
)
from burn_remote.autodiff.uniform import Uniform
from burn_remote.runner.forwarding import ForwardingRunner
from burn_remote.runner.interface import RunnerClient, TensorHandle
from burn_remote.runner.operation_graph import Graph
from burn_remote.runner.pending import Pending
from burn_remote.runner.stack import RunnerStack
from burn_remote_protocol.dtypes import Category
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.operations.fields import Role
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = [
    "Autodiff",
    "Branch",
    "Leaf",
    "Node",
    "OperationRecipe",
    "Recipe",
    "Source",
    "TrackedHandle",
    "next_order",
    "node_of",
    "plain",
    "record",
    "relabeled",
    "saved_handle",
    "track",
    "tracker_of",
]

# Most recipes in each of a device's tables. Making one takes about 10 µs.
MAX_RECIPES: Final = 4096

# In place of the only place of a saved handle.
NONE: Final = -1
SEVERAL: Final = -2

new: Final = object.__new__

# Each node has a greater number than the nodes that it depends on.
next_order: Final = itertools.count(1).__next__

# The dtypes of results that are tracked. Integers and bools have no gradient. Quantized tensors are
# tracked so that a gradient that reaches them raises an error and does not stop silently.
_TRACKED: Final = frozenset({Category.FLOAT, Category.QUANTIZED})


@final
class TrackedHandle(TensorHandle):
    """The handle of a tracked tensor; ``plain`` is the handle of the inner runners."""

    __slots__ = ("plain", "source")

    client: Autodiff

    def __init__(self, client: Autodiff, plain: TensorHandle, source: Source) -> None:
        self.client = client
        self.id = plain.id
        self.spec = plain.spec
        self.plain = plain
        self.source = source


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

    ``parents`` has the source of each input, ``None`` where it is not tracked. ``saved`` has the
    handles that the recipe takes; ``None`` once a walk has used them. ``output`` is the id of the
    first output.
    """

    __slots__ = ("order", "output", "parents", "recipe", "saved")

    def __init__(
        self,
        recipe: Recipe,
        parents: tuple[Source | None, ...],
        saved: tuple[TensorHandle, ...],
        output: int,
    ) -> None:
        self.recipe = recipe
        self.parents = parents
        self.saved: tuple[TensorHandle, ...] | None = saved
        self.output = output
        self.order = next_order()


@final
class Branch:
    """An output of a node other than its first one."""

    __slots__ = ("node", "position")

    def __init__(self, node: Node, position: int) -> None:
        self.node = node
        self.position = position


Source = Leaf | Node | Branch


class Recipe(Protocol):
    """How gradients pass one kind of recorded operation."""

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

    def apply(
        self,
        node: Node,
        grads: Sequence[Any],
        kind: type[Any],
        is_wanted: tuple[bool, ...],
        is_recorded: bool,
    ) -> Sequence[Any]:
        """Return the gradient of each input; ``None`` where there is none or it is not wanted.

        ``grads`` has the gradients of the outputs, ``kind`` is the class of tensors.
        ``is_recorded``: the operations are recorded, for gradients of these gradients.
        """
        ...


def node_of(source: Source) -> Leaf | Node:
    """Return the leaf or the node of a source."""
    return source.node if type(source) is Branch else source


def plain(handle: TensorHandle) -> TensorHandle:
    """Return the handle of the same tensor that is not tracked."""
    return handle.plain if type(handle) is TrackedHandle else handle


def saved_handle(handle: TensorHandle, place: int, node: Node, is_recorded: bool) -> TensorHandle:
    """Return the handle of a tensor that a node saved, tracked if the walk is recorded.

    ``place`` is its place among the inputs and, after them, the outputs.
    """
    if not is_recorded:
        return handle
    count = len(node.parents)
    if place < count:
        source = node.parents[place]
    else:
        source = node if place == count else Branch(node, place - count)
        if handle.spec.dtype.category not in _TRACKED:
            source = None
    return handle if source is None else TrackedHandle(tracker_of(handle.client), handle, source)


class Autodiff(ForwardingRunner):
    """Records operations on the tracked tensors of one device, and forwards them.

    Operations without a tracked input never reach it. There is one for each stack of runners, which
    holds it.
    """

    inner: RunnerStack

    def __init__(self, inner: RunnerStack) -> None:
        super().__init__(inner)
        # Recipes by the identity of the signature, which the recipe keeps alive. With one or two
        # inputs, there is a table for each set of tracked inputs: the first, the second, or both.
        # With more, the key also has one bit for each tracked input.
        self._first: dict[int, OperationRecipe] = {}
        self._second: dict[int, OperationRecipe] = {}
        self._both: dict[int, OperationRecipe] = {}
        self._others: dict[tuple[int, int], OperationRecipe] = {}

    def is_around(self, other: RunnerClient) -> bool:
        """Return whether ``other`` is the stack, or inside it."""
        return other is self.inner or self.inner.is_around(other)

    # One function, because it takes 4 µs, and each further call would add 0.1 µs.
    def register_op(  # noqa: C901
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue one operation, and record it if one of its inputs is tracked."""
        inner = self.inner
        handles: tuple[TensorHandle, ...]
        parents: tuple[Source | None, ...]
        # Written out for one and two inputs, which halves the time.
        if len(inputs) == 1:
            (first,) = inputs
            if type(first) is not TrackedHandle:
                return self.forward(signature, inputs)
            handles, parents = (first.plain,), (first.source,)
            recipe = self._first.get(id(signature)) or self._recipe(signature, 1)
            outputs = inner.register_op(signature, handles)
        elif len(inputs) == 2:
            first, second = inputs
            other: TensorHandle | None = None
            if type(first) is TrackedHandle:
                if type(second) is TrackedHandle:
                    handles, parents = (first.plain, second.plain), (first.source, second.source)
                    recipe = self._both.get(id(signature)) or self._recipe(signature, 3)
                else:
                    other, handles, parents = second, (first.plain, second), (first.source, None)
                    recipe = self._first.get(id(signature)) or self._recipe(signature, 1)
            elif type(second) is TrackedHandle:
                other, handles, parents = first, (first, second.plain), (None, second.source)
                recipe = self._second.get(id(signature)) or self._recipe(signature, 2)
            else:
                return self.forward(signature, inputs)
            if other is None or other.client is inner:
                outputs = inner.register_op(signature, handles)
            else:
                outputs = self.forward(signature, handles)
        else:
            parents = tuple([one.source if type(one) is TrackedHandle else None for one in inputs])
            tracked = sum([1 << place for place, one in enumerate(parents) if one is not None])
            if not tracked:
                return self.forward(signature, inputs)
            handles = tuple([plain(one) for one in inputs])
            found = self._others.get((id(signature), tracked))
            recipe = found or self._recipe(signature, tracked)
            outputs = self.forward(signature, handles)
        if not is_recording() or not recipe.is_recorded:
            return outputs
        only = recipe.only
        saved: tuple[TensorHandle, ...]
        if only == NONE:
            saved = ()
        elif only >= 0:
            saved = ((handles + outputs)[only],)
        else:
            saved = recipe.take(handles + outputs)
        if len(outputs) == 1:
            (out,) = outputs
            # Without the calls of both classes, which take twice the time of these statements.
            node = new(Node)
            node.recipe = recipe
            node.parents = parents
            node.saved = saved
            node.output = identifier = out.id
            node.order = next_order()
            tracked_out = new(TrackedHandle)
            tracked_out.client = self
            tracked_out.id = identifier
            tracked_out.spec = out.spec
            tracked_out.plain = out
            tracked_out.source = node
            return (tracked_out,)
        node = Node(recipe, parents, saved, outputs[0].id)
        return tuple(
            [
                TrackedHandle(self, out, Branch(node, place) if place else node)
                if out.spec.dtype.category in _TRACKED
                else out
                for place, out in enumerate(outputs)
            ]
        )

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

    def drop_handle(self, identifier: int) -> None:
        """Do nothing: plain handles free their tensors."""

    def _recipe(self, signature: Signature, tracked: int) -> OperationRecipe:
        recipe = OperationRecipe(signature, tracked)
        count = len(signature.input_uses)
        known: dict[Any, OperationRecipe] = self._others
        key: Any = id(signature)
        if count > 2:
            key = (key, tracked)
        else:
            known = (self._first, self._second, self._both)[tracked - 1]
        if len(known) >= MAX_RECIPES:
            known.clear()
        known[key] = recipe
        return recipe


def tracker_of(client: RunnerClient) -> Autodiff:
    """Return the runner that records operations on the tracked tensors of a device.

    Raises ``UsageError`` for a tensor whose operations another runner receives.
    """
    if type(client) is Autodiff:
        return client
    if isinstance(client, RunnerStack):
        found = client.trackers.get(Autodiff)
        # ``setdefault`` is atomic: two threads get the same runner.
        return client.trackers.setdefault(Autodiff, Autodiff(client)) if found is None else found  # type: ignore[return-value]
    raise UsageError(
        f"a tensor whose operations a {type(client).__name__} receives cannot be tracked; "
        "assign that runner to device.client"
    )


def track(handle: TensorHandle) -> TrackedHandle:
    """Return a handle of the same tensor that is a new leaf."""
    own = plain(handle)
    return TrackedHandle(tracker_of(own.client), own, Leaf(own.spec))


def record(
    recipe: Recipe,
    inputs: Sequence[TensorHandle],
    saved: tuple[TensorHandle, ...],
    outputs: Sequence[TensorHandle],
) -> tuple[TensorHandle, ...]:
    """Record something that was computed from tracked inputs; return its outputs, tracked."""
    parents = tuple([one.source if type(one) is TrackedHandle else None for one in inputs])
    node = Node(recipe, parents, saved, outputs[0].id)
    return tuple(
        [
            TrackedHandle(tracker_of(out.client), out, Branch(node, place) if place else node)
            if out.spec.dtype.category in _TRACKED
            else out
            for place, out in enumerate(outputs)
        ]
    )


def relabeled(handle: TrackedHandle) -> TrackedHandle:
    """Return a handle of the same tensor with a source of its own, through which gradients pass."""
    (out,) = record(AliasRecipe(handle.spec), [handle], (), [handle.plain])
    return out  # type: ignore[return-value]


@final
class OperationRecipe:
    """The gradients of one signature with certain inputs tracked, by the table of rules."""

    __slots__ = (
        "_joint", "_names", "_outputs", "_parameters", "_places", "_refusal", "_signature",
        "_steps", "_uniform", "is_recorded", "only", "output_count", "specs", "take",
    )  # fmt: skip

    def __init__(self, signature: Signature, tracked: int) -> None:
        self._signature = signature
        # Whether an output can have a gradient.
        self.is_recorded = any(spec.dtype.category in _TRACKED for spec in signature.outputs)
        self.specs: tuple[TensorSpec, ...] = tuple([use.spec for use in signature.input_uses])
        self.output_count: int = len(signature.outputs)
        # The name of the field of each present input and output.
        self._names = tuple(_present(signature, Role.INPUT))
        self._outputs = tuple(_present(signature, Role.OUTPUT))
        self._parameters = _parameters(signature)
        self._joint: JointRule | None = None
        self._refusal: str | None = None
        self._steps: tuple[_Step, ...] = ()
        entry = RULES.of_call(signature.row, self._parameters)
        wanted: set[str] = set()
        if isinstance(entry, Never):
            self._refusal = entry.reason
        elif isinstance(entry, JointRule):
            self._joint = entry
            wanted = {*entry.uses}
        else:
            for place, name in enumerate(self._names):
                if tracked >> place & 1 and name in entry.formulas:
                    wanted |= {*entry.formulas[name].needs} - {GRADIENT}
        # The places, among inputs and outputs, of the handles that are saved.
        every = (*self._names, *self._outputs)
        self._places = tuple([place for place, name in enumerate(every) if name in wanted])
        # The place if it is only one, else the function that selects them.
        count = len(self._places)
        self.only = NONE if not count else self._places[0] if count == 1 else SEVERAL
        self.take: Callable[[tuple[TensorHandle, ...]], tuple[TensorHandle, ...]]
        self.take = operator.itemgetter(*self._places) if count > 1 else tuple
        if isinstance(entry, Rule):
            self._steps = tuple(self._bind(entry))
        self._uniform = self._bind_uniform(RULES.uniform_formulas(signature.row))

    def describe(self) -> str:
        """Return the row, with the shapes and dtypes of inputs and outputs."""
        return f"{self._signature.row}({self._signature.describe()})"

    def apply(
        self,
        node: Node,
        grads: Sequence[Any],
        kind: type[Any],
        is_wanted: tuple[bool, ...],
        is_recorded: bool,
    ) -> Sequence[Any]:
        """Return the gradient of each input; see ``Recipe.apply``."""
        if self._refusal is not None:
            raise UsageError(f"no gradient passes {self.describe()}: {self._refusal}")
        saved = node.saved or ()
        values = [
            kind(saved_handle(handle, place, node, is_recorded))
            for place, handle in zip(self._places, saved, strict=True)
        ]
        if self._joint is not None:
            return self._apply_jointly(self._joint, values, grads, is_wanted)
        found: list[Any] = [None] * len(self.specs)
        gradient = grads[0]
        if gradient is None:
            return found
        for place, function, template, fills in self._steps:
            if is_wanted[place]:
                arguments = [*template]
                for position, source in fills:
                    arguments[position] = gradient if source < 0 else values[source]
                found[place] = function(*arguments)
        return found

    def of_uniform(self, gradient: Uniform, is_wanted: tuple[bool, ...]) -> list[Any] | None:
        """Return the gradient of each input if all that are wanted are uniform too."""
        found: list[Any] = [None] * len(self.specs)
        for place, wanted in enumerate(is_wanted):
            if wanted:
                step = self._uniform.get(place)
                if step is None:
                    return None
                function, arguments = step
                number = function(gradient.number, *arguments)
                # A number of a compiled function that changes with each call is no float.
                if type(number) is not float:
                    return None
                found[place] = gradient.like(self.specs[place], number)
        return found

    def _bind_uniform(
        self, formulas: Mapping[str, Formula]
    ) -> dict[int, tuple[Callable[..., Any], tuple[Any, ...]]]:
        """Return the formula for uniform gradients of each place, with its arguments."""
        bound: dict[int, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        for place, name in enumerate(self._names):
            if name in formulas:
                function, needs = formulas[name]
                known = {
                    **self._parameters,
                    GRADIENT_SPEC: self._signature.outputs[0],
                    f"{name}{SPEC}": self.specs[place],
                }
                arguments = tuple([known[need] for need in needs if need != NUMBER])
                bound[place] = (function, arguments)
        return bound

    def _bind(self, entry: Rule) -> list[_Step]:
        every = (*self._names, *self._outputs)
        indices = {every[place]: index for index, place in enumerate(self._places)}
        steps: list[_Step] = []
        for place, name in enumerate(self._names):
            if name not in entry.formulas:
                continue
            function, needs = entry.formulas[name]
            template: list[Any] = []
            fills: list[tuple[int, int]] = []
            for position, need in enumerate(needs):
                value = None  # also for an optional input that is absent
                if need == GRADIENT:
                    fills.append((position, -1))
                elif need in indices:
                    fills.append((position, indices[need]))
                elif need in self._parameters:
                    value = self._parameters[need]
                elif need.endswith(SPEC) and need.removesuffix(SPEC) in self._names:
                    value = self.specs[self._names.index(need.removesuffix(SPEC))]
                template.append(value)
            steps.append((place, function, tuple(template), tuple(fills)))
        return steps

    def _apply_jointly(
        self, entry: JointRule, values: list[Any], grads: Sequence[Any], needed: tuple[bool, ...]
    ) -> Sequence[Any]:
        row = self._signature.row
        every = (*self._names, *self._outputs)
        saved = [(every[place], value) for place, value in zip(self._places, values, strict=True)]
        past = PastCall(
            _by_field(self._signature, saved, None),
            grads,
            self._parameters,
            _by_field(self._signature, [*zip(self._names, self.specs, strict=True)], None),
            _by_field(self._signature, [*zip(self._names, needed, strict=True)], False),
        )
        answer = entry.function(past)
        found: list[Any] = []
        for field in row.fields:
            count = self._names.count(field.name)
            given = answer.get(field.name) if field.role is Role.INPUT else None
            if field.role is Role.INPUT:
                found += [None] * count if given is None else _listed(given)
        return found


# The place of an input, its formula, the formula's constant arguments, and the positions of the
# others: the index among the saved tensors, or -1 for the gradient.
_Step = tuple[int, Callable[..., Any], tuple[Any, ...], tuple[tuple[int, int], ...]]


@final
class MoveRecipe:
    """The gradient of a tensor that moved to another device moves back."""

    __slots__ = ("_source", "specs")

    output_count = 1

    def __init__(self, source: RunnerStack, spec: TensorSpec) -> None:
        self._source = source
        self.specs: tuple[TensorSpec, ...] = (spec,)

    def describe(self) -> str:
        """Return what was moved."""
        return f"the move of {self.specs[0]} from {self._source.device}"

    def apply(
        self,
        node: Node,
        grads: Sequence[Any],
        kind: type[Any],
        is_wanted: tuple[bool, ...],
        is_recorded: bool,
    ) -> Sequence[Any]:
        """Move the gradient to the device from which the tensor came."""
        handle = grads[0].handle
        return (kind(handle.client.move(handle, self._source)),)


@final
class AliasRecipe:
    """The same tensor under another source: the gradient is passed on."""

    __slots__ = ("specs",)

    output_count = 1

    def __init__(self, spec: TensorSpec) -> None:
        self.specs: tuple[TensorSpec, ...] = (spec,)

    def describe(self) -> str:
        """Return the tensor."""
        return str(self.specs[0])

    def apply(
        self,
        node: Node,
        grads: Sequence[Any],
        kind: type[Any],
        is_wanted: tuple[bool, ...],
        is_recorded: bool,
    ) -> Sequence[Any]:
        """Return the gradient itself."""
        return grads


def _present(signature: Signature, role: Role) -> list[str]:
    """Return the name of the field of each present tensor, with members of lists."""
    names: list[str] = []
    for field, argument in zip(signature.row.fields, signature.arguments, strict=True):
        if field.role is role and argument is not None:
            names += [field.name] * (len(argument) if type(argument) is tuple else 1)
    return names


def _parameters(signature: Signature) -> dict[str, Any]:
    """Return the parameters by name; numbers of a function that is being compiled are traced."""
    parameters = dict(signature.call.parameters)
    for field, argument in zip(signature.row.fields, signature.arguments, strict=True):
        if type(argument) is TracedScalar:
            parameters[field.name] = argument.number
    return parameters


def _by_field(
    signature: Signature, named: Sequence[tuple[str, Any]], absent: Any
) -> dict[str, Any]:
    """Return values by field: a tuple for a list of tensors, ``absent`` for a missing tensor."""
    found: dict[str, Any] = {}
    for field, argument in zip(signature.row.fields, signature.arguments, strict=True):
        if field.role is not Role.PARAMETER:
            values = tuple([value for name, value in named if name == field.name])
            if type(argument) is tuple:
                found[field.name] = values
            else:
                found[field.name] = values[0] if values else absent
    return found


def _listed(value: Any) -> list[Any]:
    return [*value] if isinstance(value, tuple | list) else [value]
