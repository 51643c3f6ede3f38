"""Recording of one call of a compiled function, and the use of its graph in later calls."""

from __future__ import annotations

import functools
import gc
import operator
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from burn_remote.arguments.containers import leaves, rebuilt
from burn_remote.arguments.traced_numbers import NumberProgram, TracedNumber
from burn_remote.autodiff.grad_mode import check_random_numbers
from burn_remote.autodiff.nodes import plain
from burn_remote.autodiff.saved_containers import tensors_in
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
from burn_remote.graphs.recorder import Argument, Recorder, draws_random_numbers
from burn_remote.graphs.structures import Template
from burn_remote.graphs.tensor_names import name_in
from burn_remote.runner.interface import OwningHandle, RunnerClient, TensorHandle
from burn_remote.runner.issuing import recording
from burn_remote.runner.operation_graph import Graph
from burn_remote.runner.stack import RunnerStack
from burn_remote_protocol.errors import UsageError

__all__ = ["RecordedCall", "record_call", "run_updating", "untracked"]

_new: Final = object.__new__
_id_of: Final = operator.attrgetter("id")


@final
@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A graph, the inputs that a call passes to it, and the form of the function's result."""

    graph: Graph
    used: tuple[int, ...] | None  # tensor arguments that are inputs; ``None`` for all, in order
    constants: tuple[TensorHandle, ...]
    numbers: NumberProgram
    computes: bool  # whether the number program has instructions; else its registers are its inputs
    registers: tuple[int, ...]  # of the number program, for the graph's numbers
    result: Template | None  # ``None`` if the result is the graph's only output
    draws: bool  # whether it draws random numbers
    # Each guard, with its function ``read`` and its value ``seen``, which a call compares first.
    guards: tuple[tuple[Callable[[], Any] | None, object, Guard], ...]

    def issue(
        self,
        client: RunnerClient,
        tensors: Sequence[Tensor],
        handles: list[TensorHandle],
        registers: Sequence[Any],
    ) -> Any:
        """Issue the graph for the arguments and numbers of a call; return the function's result."""
        if self.draws:
            check_random_numbers()
        if self.used is not None:
            handles = [handles[place] for place in self.used]
            handles += self.constants
        values: Sequence[Any] = ()
        if self.registers:
            values = [registers[place] for place in self.registers]
        graph = self.graph
        made = []
        execute = client.execute_graph if type(client) is RunnerStack else None
        if execute is None or graph.fits_in != client.session.graph_steps:
            for handle in client.register_graph(graph, handles, values):
                tensor = _new(Tensor)  # ``Tensor(handle)`` would take twice the time
                tensor.handle = handle
                made.append(tensor)
        else:
            # The same as ``SessionRunner.register_graph``, whose call, and a second loop, would
            # take 0.2 µs.
            outputs = []
            for spec in graph.outputs:
                out = OwningHandle()
                out.spec = spec
                out.client = client
                outputs.append(out)
                tensor = _new(Tensor)
                tensor.handle = out
                made.append(tensor)
            execute(graph, [*map(_id_of, handles)], [*values], outputs)
        if self.result is None:
            return made[0]
        return self.result.build((tensors, made, registers))


def record_call(
    function: Callable[..., Any],
    stack: RunnerStack,
    call: Any,
    tensors: Sequence[Tensor],
    numbers: Sequence[Any],
    guards: tuple[Guard, ...],
    updated: tuple[int, ...],
) -> tuple[Any, RecordedCall]:
    """Run a function for a call and record its operations.

    ``call`` has the positional and the keyword arguments; ``tensors`` and ``numbers`` are those
    among them; ``updated`` as for ``run_updating``. Returns the result of this call, and the record
    for later calls. Raises ``UsageError`` if a graph cannot repeat what the function does.
    """
    program = NumberProgram(numbers)
    arguments = [Argument(tensor.handle, place) for place, tensor in enumerate(tensors)]
    recorder = Recorder(
        stack.outermost,
        arguments,
        program,
        functools.partial(name_in, function, (call[0][1:], call[1]) if updated else call),
    )
    given, lent = with_handles(call, arguments, program)
    before = contents_of(given)
    try:
        recording.runner = recorder
        stack.put_around(recorder, is_transparent=True)
        value = run_updating(function, updated, *given[0], **given[1])
        returned = _references(value)
        # Results are not tracked, because those of later calls cannot be. This frees the tensors
        # that were saved for gradients, and the gradients of arguments, while the recorder still
        # sees drops.
        value = rebuilt(value, untracked)
        for reference in lent:
            argument = reference()
            if argument is not None:
                argument.handle = plain(argument.handle)
                if not recorder.has_argument(argument.handle):
                    raise UsageError(
                        "the compiled function assigns to elements of an argument, and later "
                        "calls would not; write y = x.set(index, value) and return y"
                    )
        argument = None
        if recorder.line_of_kept(_handle_ids(value)) is not None:
            gc.collect()  # reference cycles may keep tensors for a while
    finally:
        recording.runner = None
        stack.take_away(recorder)
        program.finish()
    check_unchanged(before)
    del given, before
    result, recorded = _finished(value, recorder, tensors, program, guards)
    del value
    _check_kept(recorder, result, lent, returned)
    return result, recorded


def run_updating(
    function: Callable[..., Any], updated: tuple[int, ...], *args: Any, **kwargs: Any
) -> Any:
    """Return the result of a function.

    ``updated`` has the places of those tensors among the arguments that are leaves during the call.
    If it has any, the first of ``args`` is a list of their gradients, which is not passed on to the
    function. The return value is then a pair: the function's result, and the new elements of each
    leaf, ``None`` for one that was not updated. Raises ``UsageError`` if the function sets their
    gradients or adds to them.
    """
    if not updated:
        return function(*args, **kwargs)
    grads, *args = args  # type: ignore[assignment]
    tensors = tensors_in((args, kwargs))
    leaves = [tensors[place] for place in updated]
    before = [leaf.handle for leaf in leaves]
    for leaf, grad in zip(leaves, grads, strict=True):
        leaf.requires_grad_().grad = grad
    result = function(*args, **kwargs)
    if any(leaf.grad is not grad for leaf, grad in zip(leaves, grads, strict=True)):
        raise UsageError(
            "the compiled function changes the .grad of an argument, by backward() or an "
            "assignment, and later calls would not; return the gradients that "
            "burn_remote.autograd.grad(loss, w) returns, and set w.grad outside"
        )
    # An updated leaf in the result has its new elements.
    result = rebuilt(
        result, lambda one: one.detach() if any(one is leaf for leaf in leaves) else one
    )
    after = [leaf.handle for leaf in leaves]
    for leaf, handle in zip(leaves, before, strict=True):
        leaf.handle = handle
    made = [
        None if plain(new) is old else Tensor(plain(new))
        for old, new in zip(before, after, strict=True)
    ]
    return result, made


def _check_kept(
    recorder: Recorder, result: Any, lent: Sequence[Any], returned: Sequence[Any]
) -> None:
    """Raise ``UsageError`` if the function stored a tensor elsewhere than in its result."""
    line = recorder.line_of_kept(_handle_ids(result))
    if line is None and any(reference() is not None for reference in (*lent, *returned)):
        gc.collect()
    advice = "return it"
    if line is not None:
        what = f"the tensor made at {line}"
    elif any(reference() is not None for reference in lent):
        what = "an argument"
    elif any(reference() is not None for reference in returned):
        what, advice = "one of its results", "store what the call returns"
    else:
        return
    raise UsageError(
        f"the compiled function stores {what} outside (in an attribute, a list or a variable), "
        f"and later calls would not; {advice}"
    )


def _finished(
    value: Any,
    recorder: Recorder,
    tensors: Sequence[Tensor],
    program: NumberProgram,
    guards: tuple[Guard, ...],
) -> tuple[Any, RecordedCall]:
    """Return the result of the recorded call, and the record for later calls."""
    outputs: dict[int, TensorHandle] = {}
    places: dict[int, int] = {}

    def of_tensor(tensor: Tensor) -> ResultLeaf:
        handle: Any = tensor.handle
        if recorder.has_argument(handle):
            return ResultLeaf(ARGUMENT, handle.slot)
        recorder.check_result(handle)
        outputs.setdefault(handle.id, handle)
        return ResultLeaf(OUTPUT, places.setdefault(handle.id, len(places)))

    template = rebuilt(value, lambda leaf: leaf_of(leaf, program, of_tensor))
    graph, used, constants = recorder.graph([*outputs.values()])
    is_single = template == ResultLeaf(OUTPUT, 0)
    takes_all = used == (*range(len(tensors)),) and not constants
    recorded = RecordedCall(
        graph,
        None if takes_all else used,
        constants,
        program,
        program.has_instructions,
        tuple(recorder.number_places),
        None if is_single else Template(template, place_of),
        draws_random_numbers(graph),
        tuple([(guard.read, guard.seen, guard) for guard in guards]),
    )
    return _given(value, recorder, tensors), recorded


def _given(value: Any, recorder: Recorder, tensors: Sequence[Tensor]) -> Any:
    """Return the result of a recorded call in the form in which the caller gets it.

    Its tensors are new objects, so those of the function are freed unless the function stores them.
    """
    copies: dict[int, Tensor] = {}

    def replaced(leaf: Any) -> Any:
        if type(leaf) is TracedNumber:
            return leaf.value
        if type(leaf) is not Tensor:
            return leaf
        # Results are not tracked, because those of later calls cannot be.
        handle: Any = leaf.handle
        if recorder.has_argument(handle):
            return tensors[handle.slot]
        return copies.setdefault(handle.id, Tensor(handle))

    return rebuilt(value, replaced)


def untracked(leaf: Any) -> Any:
    """Return a leaf of an argument or result; a tensor is detached."""
    return leaf.detach() if type(leaf) is Tensor else leaf


def _references(result: Any) -> list[Any]:
    """Return weak references to the tensors in a result."""
    return [weakref.ref(leaf) for leaf in leaves(result) if type(leaf) is Tensor]


def _handle_ids(result: Any) -> set[int]:
    """Return the ids of the tensors in a result."""
    return {leaf.handle.id for leaf in leaves(result) if type(leaf) is Tensor}
