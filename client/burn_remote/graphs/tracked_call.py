"""Calls of compiled functions with tracked tensors: one task forward, and one task backward.

The function is recorded once on symbols, whose operations nobody executes, with symbols as leaves
in place of its tracked arguments. That gives a tape of symbols. The forward graph computes the
results of the function and the tensors that the tape saves. A call of it becomes one node of the
caller's tape.

A backward pass that reaches the node has the gradients of some results, and needs those of some
arguments. For each such combination, a backward pass over the tape is recorded once, from
placeholders of the gradients. That gives a backward graph, which takes the saved tensors of the
call.

Gradients of gradients cannot pass through the backward graph. To compute them, the function is
called again.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, final

from burn_remote.arguments.containers import rebuilt
from burn_remote.arguments.traced_numbers import NumberProgram
from burn_remote.autodiff.backward_functions import RetainingBackward
from burn_remote.autodiff.backward_pass import BackwardPass
from burn_remote.autodiff.checkpointing import Recomputation, captured_variables
from burn_remote.autodiff.grad_mode import check_random_numbers, refusing_random_numbers
from burn_remote.autodiff.nodes import Leaf, Node, TrackedHandle, Visit, plain, tracked
from burn_remote.autodiff.saved_containers import saved_tree
from burn_remote.autodiff.tracking import record, track, tracker_of
from burn_remote.functions.tensor import Tensor
from burn_remote.graphs.call_values import (
    ARGUMENT,
    OUTPUT,
    ResultLeaf,
    check_unchanged,
    contents_of,
    leaf_of,
    place_of,
    with_handles,
)
from burn_remote.graphs.guards import Guard
from burn_remote.graphs.recorder import Argument, draws_random_numbers
from burn_remote.graphs.structures import Template
from burn_remote.graphs.symbolic_recorder import SymbolicRecorder
from burn_remote.graphs.tensor_names import name_in
from burn_remote.runner.interface import TensorHandle
from burn_remote.runner.issuing import recording
from burn_remote.runner.operation_graph import GraphPart
from burn_remote.runner.stack import RunnerStack
from burn_remote_protocol.errors import UsageError

__all__ = ["NotRecorded", "TrackedFunction", "record_tracked"]


# Backward graphs that one recorded function keeps: one for each combination of results whose
# gradients arrive and of arguments whose gradients are wanted. A training loop uses one or two.
MAX_BACKWARD_GRAPHS: Final = 16


class _Result(NamedTuple):
    """A tensor in a function's result: its symbol, and its handle if it is tracked."""

    symbol: TensorHandle
    tracked: TrackedHandle | None


class _Backward(NamedTuple):
    """A backward graph; ``grads`` has the source of each argument's gradient, if it has one."""

    part: GraphPart
    grads: tuple[int | None, ...]


@final
class TrackedFunction:
    """A function that was recorded for tracked arguments: its forward and its backward graphs."""

    def __init__(
        self,
        function: Callable[..., Any],
        recorder: SymbolicRecorder,
        numbers: NumberProgram,
        guards: tuple[Guard, ...],
        results: Sequence[_Result],
        template: Template | None,
        leaves: Sequence[TrackedHandle | None],
    ) -> None:
        self.numbers: Final = numbers
        self.guards: Final = guards
        self._function = function
        self._recorder = recorder
        # For each result, whether it is tracked.
        self._are_tracked: Final = [one.tracked is not None for one in results]
        self._template = template
        self._leaves: Final = tuple([None if one is None else one.source for one in leaves])
        # The tape keeps copies of the symbols. So a symbol that is still alive after the recording
        # was stored by the function.
        self._roots: Final = [
            tracked(one.tracked.client, recorder.copied(one.symbol), one.tracked.source)
            for one in results
            if one.tracked is not None
        ]
        nodes = BackwardPass(self._roots).nodes
        for node in nodes:
            node.saved = tuple([recorder.copied(one) for one in node.saved or ()])
        if any(type(node.backward) is RetainingBackward for node in nodes):
            raise UsageError(
                "the compiled function calls retain_grad(); return the gradient that "
                "burn_remote.autograd.grad(loss, x) returns"
            )
        saved = [recorder.source_of(handle) for node in nodes for handle in node.saved or ()]
        sources = [recorder.source_of(one.symbol) for one in results]
        # The results first: a failure of the graph is reported for its first output.
        self._forward: Final = recorder.part(
            (0, 0), [*dict.fromkeys(source for source in [*sources, *saved] if source >= 0)]
        )
        self._sources: Final = sources
        self.draws: Final = draws_random_numbers(self._forward.graph)
        self._end: Final = recorder.mark
        # The gradients of the tracked results in a backward pass.
        self._arriving: Final = [recorder.placeholder(root.spec) for root in self._roots]
        # All symbols, whose client is the device only while something is recorded: a function may
        # live longer than the device.
        self._kept: Final = [
            *[root.plain for root in self._roots],
            *[one for node in nodes for one in node.saved or () if one.id < 0],
            *self._arriving,
        ]
        self._backward: dict[tuple[tuple[bool, ...], tuple[bool, ...]], _Backward] = {}

    def is_of(self, stack: RunnerStack) -> bool:
        """Return whether this was recorded on a device."""
        return self._recorder.is_of(stack)

    def attach(self, stack: RunnerStack | None) -> None:
        """Make a device the client of all symbols; ``None`` removes it."""
        for one in self._kept:
            one.client = stack  # type: ignore[assignment]
        tracker = None if stack is None else tracker_of(stack)
        for root in self._roots:
            root.client = tracker  # type: ignore[assignment]
        self._recorder.attach(stack)

    def issue(
        self, stack: RunnerStack, call: Any, tensors: Sequence[Tensor], numbers: Sequence[Any]
    ) -> Any:
        """Issue the forward graph for a call; return the function's result, with a tape node."""
        registers = self.numbers.run(numbers)
        assert registers is not None  # the caller has checked the guards of the numbers
        if self.draws:
            check_random_numbers()
        inputs = [plain(tensor.handle) for tensor in tensors]
        held = self._issue_part(stack, self._forward, dict(_by_source(inputs)), registers)
        saved = [*inputs, *[held[source] for source in self._forward.outputs]]
        roots = [
            held[source]
            for source, is_tracked in zip(self._sources, self._are_tracked, strict=True)
            if is_tracked
        ]
        made: dict[int, TensorHandle] = {}
        if roots:
            backward = _TrackedCall(self, stack, numbers, call, inputs, roots)
            outputs = iter(record(backward, [one.handle for one in tensors], tuple(saved), roots))
            made = {
                place: next(outputs)
                for place, is_tracked in enumerate(self._are_tracked)
                if is_tracked
            }
        handles = [made.get(place, held[source]) for place, source in enumerate(self._sources)]
        values = [Tensor(handle) for handle in handles]
        if self._template is None:
            return values[0]
        return self._template.build((tensors, values, registers))

    def gradients(
        self,
        stack: RunnerStack,
        saved: Sequence[TensorHandle],
        numbers: Sequence[Any],
        visit: Visit,
    ) -> list[Any] | None:
        """Return the gradient of each argument by a backward graph.

        Returns ``None`` if no backward graph has these gradients of the call.
        """
        grads, kind, is_wanted, _ = visit
        key = (tuple([one is not None for one in grads]), is_wanted)
        backward = self._backward.get(key)
        if backward is None:
            with stack.recording:
                backward = self._record_backward(stack, *key)
                while len(self._backward) >= MAX_BACKWARD_GRAPHS:
                    del self._backward[next(iter(self._backward))]
                self._backward[key] = backward
        registers = self.numbers.run(numbers)
        if registers is None:
            return None
        count = len(self._leaves)
        held = dict(_by_source(saved[:count]))
        held.update(zip(self._forward.outputs, saved[count:], strict=True))
        for symbol, gradient in zip(self._arriving, grads, strict=True):
            if gradient is not None:
                held[self._recorder.source_of(symbol)] = gradient.handle
        held = self._issue_part(stack, backward.part, held, registers)
        return [None if source is None else kind(held[source]) for source in backward.grads]

    def _record_backward(
        self, stack: RunnerStack, arrived: tuple[bool, ...], is_wanted: tuple[bool, ...]
    ) -> _Backward:
        """Record a backward pass over the tape. The caller holds the lock ``stack.recording``."""
        recorder = self._recorder
        pairs = zip(self._roots, self._arriving, arrived, strict=True)
        chosen = [(root, symbol) for root, symbol, is_given in pairs if is_given]
        wanted = [leaf if one else None for leaf, one in zip(self._leaves, is_wanted, strict=True)]
        recorder.rewind(self._end)
        self.attach(stack)
        try:
            with recorder.recording(stack):
                backward_pass = BackwardPass(
                    [root for root, _ in chosen], wanted=[one for one in wanted if one is not None]
                )
                backward_pass.run([Tensor(symbol) for _, symbol in chosen], retains=True)
                found = [None if one is None else backward_pass.gradient_of(one) for one in wanted]
                grads = tuple(
                    [None if x is None else recorder.source_of(plain(x.handle)) for x in found]
                )
        finally:
            self.attach(None)
        end = self._end[1]
        outputs = [*dict.fromkeys(one for one in grads if one is not None and one >= end)]
        part = recorder.part(self._end, outputs)
        known = {*self._forward.outputs}
        for source in (*part.inputs, *[one for one in grads if one is not None]):
            if 0 <= source < end and source not in known:
                raise UsageError("a gradient uses a tensor that no recorded operation saves")
        return _Backward(part, grads)

    def _issue_part(
        self,
        stack: RunnerStack,
        part: GraphPart,
        held: dict[int, TensorHandle],
        registers: Sequence[Any],
    ) -> dict[int, TensorHandle]:
        """Issue a graph; return ``held``, the tensors by their sources, with its outputs."""
        recorder = self._recorder
        for place, constant in enumerate(recorder.constants):
            held.setdefault(-1 - len(self._leaves) - place, constant)
        places = [*recorder.number_places]
        values = [registers[places[number]] for number in part.numbers]
        inputs = [held[source] for source in part.inputs]
        made = stack.register_graph(part.graph, inputs, values)
        held.update(zip(part.outputs, made, strict=True))
        return held


def _by_source(handles: Sequence[TensorHandle]) -> list[tuple[int, TensorHandle]]:
    """Return the arguments of a call with their sources."""
    return [(-1 - place, handle) for place, handle in enumerate(handles)]


@final
class _TrackedCall:
    """The backward function of one call of a ``TrackedFunction``."""

    __slots__ = ("_again", "_numbers", "_stack", "_traced", "output_count", "specs")

    def __init__(
        self,
        traced: TrackedFunction,
        stack: RunnerStack,
        numbers: Sequence[Any],
        call: Any,
        inputs: Sequence[TensorHandle],
        outputs: Sequence[TensorHandle],
    ) -> None:
        self._traced = traced
        self._stack = stack
        self._numbers = numbers
        function = traced._function
        name = getattr(function, "__qualname__", repr(function))
        self._again = Recomputation(
            name, function, captured_variables(function), saved_tree(call, []), inputs, outputs
        )
        self.specs: Final = self._again.specs
        self.output_count: Final = len(outputs)

    def describe(self) -> str:
        """Return the name of the function, with the shapes of its tensors."""
        return self._again.describe()

    def apply(self, node: Node, visit: Visit) -> Sequence[Any]:
        """Return the gradient of each input; see ``BackwardFunction.apply``."""
        # While another function is recorded, its graph has to contain the single operations.
        if not visit.is_recorded and recording.runner is None:
            found = self._traced.gradients(self._stack, node.saved or (), self._numbers, visit)
            if found is not None:
                return found
        with refusing_random_numbers(f"{self.describe()}, which this gradient calls again,"):
            return self._again.apply(node, visit)


class NotRecorded(UsageError):
    """A function that graphs cannot repeat for tracked tensors; the text says why."""


def record_tracked(
    function: Callable[..., Any],
    stack: RunnerStack,
    call: Any,
    tensors: Sequence[Tensor],
    numbers: Sequence[Any],
    guards: tuple[Guard, ...],
) -> TrackedFunction:
    """Record a function for a call with tracked arguments, without executing it.

    The arguments are those of ``record_call``. Raises ``NotRecorded`` if graphs cannot repeat what
    the function does, and ``UsageError`` if it stores tensors elsewhere than in its result.
    """
    program = NumberProgram(numbers)
    arguments = [Argument(plain(tensor.handle), place) for place, tensor in enumerate(tensors)]
    recorder = SymbolicRecorder(
        stack, arguments, program, functools.partial(name_in, function, call)
    )
    handles: list[TensorHandle] = [
        track(own) if type(tensor.handle) is TrackedHandle else own
        for own, tensor in zip(arguments, tensors, strict=True)
    ]
    refused = ""
    try:
        traced = _traced(function, stack, recorder, call, handles, program, guards)
    except UsageError as error:
        if type(error) is not UsageError:
            raise  # such as ShapeMismatch, which the function raises uncompiled too
        refused = str(error)
    if refused:
        recorder.abandon()
        raise NotRecorded(refused)
    line = recorder.line_of_kept()
    if line is not None:
        gc.collect()  # reference cycles may keep tensors for a while
        line = recorder.line_of_kept()
    if line is not None:
        recorder.abandon()
        raise UsageError(
            f"the compiled function stores the tensor made at {line} outside (in an attribute, a "
            "list or a variable), and later calls would not; return it"
        )
    traced.attach(None)
    return traced


def _traced(
    function: Callable[..., Any],
    stack: RunnerStack,
    recorder: SymbolicRecorder,
    call: Any,
    handles: Sequence[TensorHandle],
    program: NumberProgram,
    guards: tuple[Guard, ...],
) -> TrackedFunction:
    """Call a function on symbols; return what was recorded."""
    given, lent = with_handles(call, handles, program)
    before = contents_of(given)
    with recorder.recording(stack):
        value = function(*given[0], **given[1])
    check_unchanged(before)
    for reference, handle in zip(lent, handles, strict=True):
        argument = reference()
        leaf = getattr(handle, "source", None)
        if (argument is not None and argument.handle is not handle) or (
            type(leaf) is Leaf and (leaf.grad is not None or leaf.hooks is not None)
        ):
            raise UsageError(
                "the compiled function changes a tracked argument (its elements, .grad or hooks); "
                "return the new tensor, or gradients by burn_remote.autograd.grad(loss, w)"
            )
    results: dict[tuple[int, Any], _Result] = {}
    places: dict[tuple[int, Any], int] = {}

    def of_tensor(tensor: Tensor) -> ResultLeaf:
        handle = tensor.handle
        own = plain(handle)
        for place, one in enumerate(handles):
            if one is handle:
                return ResultLeaf(ARGUMENT, place)
        if recorder.has_argument(own):
            raise UsageError(
                "the compiled function returns a tracked argument as another tensor, for example "
                "by x.detach(); return x, and detach it outside"
            )
        recorder.check_result(own)
        own_tracked = handle if type(handle) is TrackedHandle else None
        key = (own.id, None if own_tracked is None else id(own_tracked.source))
        results.setdefault(key, _Result(own, own_tracked))
        return ResultLeaf(OUTPUT, places.setdefault(key, len(places)))

    template = rebuilt(value, lambda leaf: leaf_of(leaf, program, of_tensor))
    is_single = template == ResultLeaf(OUTPUT, 0)
    return TrackedFunction(
        function,
        recorder,
        program,
        guards,
        [*results.values()],
        None if is_single else Template(template, place_of),
        [one if type(one) is TrackedHandle else None for one in handles],
    )
