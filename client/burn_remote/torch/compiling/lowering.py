"""Graphs of aten operations, without writes, as functions that issue one task.

A graph is divided in two:

- operations on tensors of the CPU, such as the step count of an optimizer, and on numbers: PyTorch
  computes them in this process in each call;
- operations on the device: functions of the same table as without ``torch.compile``, in a function
  that ``burn_remote.compile`` records. Each later call is one message.

A graph writes to its inputs only at its end, and without an operation: their storages then refer to
the new elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import fx

import burn_remote as br
from burn_remote.arguments.traced_numbers import definite
from burn_remote.torch.aten.table import overload
from burn_remote.torch.burn_tensor import (
    alias,
    upload,
    value_of,
    values_of,
    wrap,
    wrap_strided,
    write,
    write_all,
)
from burn_remote.torch.compiling.graph_nodes import (
    SIZES,
    WITH_SCALAR,
    example_of,
    function_of,
    is_on_device,
    is_pure,
    line_of,
    located,
    refused,
    takes_scalar,
    tensors_in,
)
from burn_remote.torch.compiling.output_layouts import Layout, roots_of
from burn_remote.torch.compiling.saved_values import bundled, made_bundle, member, members_of
from burn_remote.torch.device_registry import BACKEND, wire_device
from burn_remote.torch.dtypes import dtype_from_torch
from burn_remote.torch.errors import UnsupportedOperation

__all__ = ["lower"]

_COPY: Final = overload("copy_")

# The types of numbers that may differ in each call of one graph.
_NUMBERS: Final = frozenset({int, float})


def _by_chains(steps: Sequence[Any], wanted: Sequence[Any]) -> list[Any]:
    """Return steps in an order in which a server fuses more of them.

    A server fuses consecutive element-wise operations on one shape. PyTorch's optimizers apply each
    operation to all parameters before the next one, so that consecutive operations have different
    shapes. Here the steps that a wanted value still needs come directly before it, and views of the
    inputs come first of all.
    """
    own = {*steps}
    if any(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in steps):
        return [*steps]  # random numbers depend on the order in which they are drawn
    ordered = dict.fromkeys(
        node
        for node in steps
        if getattr(node.target, "is_view", False) and own.isdisjoint(node.all_input_nodes)
    )
    for last in (*[node for node in wanted if node in own], *steps):
        waiting = [last]
        while waiting:
            node = waiting[-1]
            missing = [x for x in node.all_input_nodes if x in own and x not in ordered]
            if missing:
                waiting += reversed(missing)
            else:
                ordered[waiting.pop()] = None
    return [*ordered]


def lower(module: Any) -> Callable[[list[Any]], list[Any]]:
    """Return a function that issues a graph of aten operations as one task.

    It takes the inputs as a list, which it clears, and returns the list of outputs.
    """
    lowered = _Lowered(module)

    def call(args: list[Any]) -> list[Any]:
        return lowered.call(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


# Where an output of a graph comes from; see ``_Form.outputs``.
_RESULT, _STRIDED_RESULT, _GIVEN, _CONSTANT, _BUNDLE, _OTHER = range(6)


class _Form(NamedTuple):
    """A graph as functions, and the places of their arguments and results.

    ``local`` computes the nodes ``returned`` in this process, if there are any. ``compiled`` takes
    ``None`` (the device if there are no tensors), the tensors on the device, and the values of the
    nodes ``numbers``. Places are those in the list of a call's values: the inputs, the constants,
    and the results of ``local``.
    """

    local: Callable[..., Any] | None
    returned: Sequence[Any]
    compiled: Any
    # The nodes whose values a call has, in the order of their places.
    nodes: Sequence[Any]
    tensors: Sequence[int]
    uploaded: Sequence[int]
    numbers: Sequence[int]
    # Where each output comes from, by the numbers above, and its details, such as its place there.
    outputs: Sequence[tuple[int, Any]]


def _repetitions(
    inputs: Sequence[Any], own: Sequence[Any], wanted: Sequence[Any]
) -> dict[Any, Any]:
    """Map nodes that run in this process to the first node with the same result.

    This assumes that all 0-d inputs of one dtype are equal, such as the step counts that an
    optimizer keeps for each parameter. PyTorch takes 4 µs for an operation on such a tensor, so
    computing it once saves time.
    """
    first: dict[Any, Any] = {}
    same: dict[Any, Any] = {}
    for node in inputs:
        x = example_of(node)
        is_number = isinstance(x, torch.Tensor) and not is_on_device(x) and x.dim() == 0
        if is_number and not x.is_complex():
            same[node] = first.setdefault(x.dtype, node)
    for node in own:
        if is_pure(node.target) and node not in wanted:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda x: same.get(x, x))
            same[node] = first.setdefault((node.target, str(args), str(kwargs)), node)
    return same


def _equal_inputs(inputs: Sequence[Any], same: Mapping[Any, Any]) -> list[tuple[int, ...]]:
    """Return the places of inputs that ``same`` assumes to be equal, one tuple for each value."""
    first = [same.get(node, node) for node in inputs]
    return [
        tuple([place for place, one in enumerate(first) if one is node])
        for node in dict.fromkeys(first)
        if first.count(node) > 1
    ]


def _constant(node: Any, number: Any, device: Any) -> Any:
    """Convert a number of this process for a step that takes no traced number.

    The number of a 0-d tensor becomes a 0-d tensor on the device. Any other becomes a constant of
    the graph.
    """
    example = example_of(node)
    if not isinstance(example, torch.Tensor):
        return definite(number)
    return br.full((), number, dtype=dtype_from_torch(example.dtype), device=device)


class _Lowered:
    """A graph of aten operations, divided into those on the device and those in this process."""

    def __init__(self, module: Any) -> None:
        nodes = list(module.graph.nodes)
        self._inputs = [node for node in nodes if node.op == "placeholder"]
        (output,) = [node for node in nodes if node.op == "output"]
        self._outputs = list(output.args[0])
        self._place = self._common_place(nodes)
        # Nodes whose values are on the device, but that are not computed there.
        constants = [
            node for node in nodes if node.op == "get_attr" and is_on_device(example_of(node))
        ]
        self._constants = {node: getattr(module, node.target) for node in constants}
        # Node that writes to an input -> the input and the node with its new elements.
        self._writes = {
            node: (node.args[0], node.args[1])
            for node in nodes
            if node.target is _COPY and is_on_device(example_of(node))
        }
        # Values that the forward graph saved: they are on the device, and computed already.
        self._saved = [node for node in nodes if node.target is member]
        # Output that refers to all values which the backward graph needs -> these values.
        self._bundles = {node: node.args for node in nodes if node.target is bundled}
        beside = {*self._writes, *self._saved, *self._bundles}
        self._steps = [
            node
            for node in nodes
            if node.op == "call_function" and node not in beside and self._is_step(node)
        ]
        # Output that shares elements with another one -> the node that made them.
        self._roots = roots_of(self._outputs, self._steps)
        wanted = [*self._outputs, *[new for _, new in self._writes.values()]]
        wanted += self._roots.values()
        wanted += [node for values in self._bundles.values() for node in values]
        self._steps = _by_chains(self._steps, wanted)
        steps = {*self._steps}
        for node in self._steps:
            if node.target not in SIZES and not is_on_device(example_of(node)):
                raise refused(node, "copies a tensor to the CPU; do it outside of torch.compile")
        self._functions = {node: (located(node), function_of(node)) for node in self._steps}
        made = [node for node in dict.fromkeys(wanted) if node in steps]
        # Node whose value the function on the device returns -> its place among the results.
        self._made = {node: place for place, node in enumerate(made)}
        self._layouts = {node: Layout(example_of(node), self._inputs) for node in made}
        # The inputs of the function on the device: tensors there, and values of this process.
        used = dict.fromkeys(x for node in self._steps for x in node.all_input_nodes)
        saved = {*self._saved}
        self._taken = [
            node
            for node in used
            if node not in steps and node not in saved and is_on_device(example_of(node))
        ]
        local = [node for node in used if node not in steps and not is_on_device(example_of(node))]
        self._uploaded = [node for node in local if self._is_uploaded(node)]
        self._numbers = [node for node in local if not self._is_uploaded(node)]
        self._scalars = {
            node
            for node in self._numbers
            if all(takes_scalar(user, node) for user in node.users if user in steps)
        }
        for user in [user for node in self._scalars for user in node.users if user in steps]:
            self._functions[user] = self._functions[user][0], WITH_SCALAR[user.target]
        # The places of the tensors that a call writes to, and of their new elements: among the
        # results, or, for ``_copied``, among the values that the call has.
        known = {node: place for place, node in enumerate([*self._inputs, *self._constants])}
        written = [pair for pair in self._writes.values() if pair[1] in self._made]
        self._written = [known[target] for target, _ in written]
        self._new = [self._made[new] for _, new in written]
        copied = [pair for pair in self._writes.values() if pair[1] not in self._made]
        self._copied = [(known[target], known[new]) for target, new in copied]
        self._bundle_taken = known[self._saved[0].args[0]] if self._saved else -1
        own = [
            node
            for node in nodes
            if node.op in ("call_function", "get_attr")
            and node not in steps
            and not is_on_device(example_of(node))
        ]
        self._any = self._form(module, own, [*local, *wanted], {})
        repeated = _repetitions(self._inputs, own, wanted)
        self._equal_inputs: list[tuple[int, ...]] = []
        self._repeating: _Form | None = None
        if any(repeated[node] is not node for node in own if node in repeated):
            self._repeating = self._form(module, own, [*local, *wanted], repeated)
            self._equal_inputs = _equal_inputs(self._inputs, repeated)

    def _common_place(self, nodes: Sequence[Any]) -> Any:
        places = {x.device for node in nodes for x in tensors_in(example_of(node))}
        places = {place for place in places if place.type == BACKEND}
        if len(places) > 1:
            names = ", ".join(sorted(map(str, places)))
            raise UnsupportedOperation(
                f"a graph has tensors on several devices ({names}); compile a function for each "
                "device, and move tensors between their calls"
            )
        return places.pop() if places else None

    @staticmethod
    def _is_step(node: Any) -> bool:
        return is_on_device(example_of(node)) or any(
            is_on_device(example_of(x)) for x in node.all_input_nodes
        )

    @staticmethod
    def _is_uploaded(node: Any) -> bool:
        value = example_of(node)
        if not isinstance(value, torch.Tensor):
            return False
        return value.dim() > 0 or value.dtype is torch.bool or value.dtype.is_complex

    def _form(
        self, module: Any, own: Sequence[Any], wanted: Sequence[Any], same: Mapping[Any, Any]
    ) -> _Form:
        """Return the graph as functions, in which ``same`` replaces nodes of this process."""
        numbers = [*dict.fromkeys(same.get(node, node) for node in self._numbers)]
        function = br.compile(self._function(numbers, same))
        local, returned = self._local(module, own, wanted, same) if own else (None, [])
        nodes = [*self._inputs, *self._constants, *returned]
        places = {node: place for place, node in enumerate(nodes)}
        return _Form(
            local,
            returned,
            function,
            nodes,
            [places[node] for node in self._taken],
            [places[node] for node in self._uploaded],
            [places[node] for node in numbers],
            [self._output(node, places) for node in self._outputs],
        )

    def _local(
        self, module: Any, own: Sequence[Any], wanted: Sequence[Any], same: Mapping[Any, Any]
    ) -> tuple[Callable[..., Any], Sequence[Any]]:
        """Return a function of the inputs that runs in this process, and the nodes it returns."""
        graph = fx.Graph()
        copies = {node: graph.placeholder(node.name) for node in self._inputs}
        # One call makes the last writes, such as those to the step counts of all parameters.
        last = len(own)
        while last and own[last - 1].target is _COPY and not own[last - 1].users:
            last -= 1
        for node in own[:last]:
            first = same.get(node, node)
            copies[node] = (
                graph.node_copy(node, copies.__getitem__) if first is node else copies[first]
            )
        if last < len(own):
            pairs = [[copies[x] for x in node.args[:2]] for node in own[last:]]
            targets, sources = (list(one) for one in zip(*pairs, strict=True))
            graph.call_function(torch.ops.aten._foreach_copy_.default, (targets, sources))
        returned = [*dict.fromkeys(same.get(node, node) for node in wanted)]
        returned = [node for node in returned if node in {*own}]
        graph.output(tuple([copies[node] for node in returned]))
        # Not the module itself: its call would look for hooks.
        return fx.GraphModule(module, graph).forward, returned

    def _output(self, node: Any, places: Mapping[Any, int]) -> tuple[int, Any]:
        """Return where an output comes from, for ``_Form.outputs``."""
        if node in self._writes:
            return _GIVEN, places[self._writes[node][0]]
        if node in self._bundles:
            return _BUNDLE, [self._made[one] for one in self._bundles[node]]
        if node in self._made:
            layout = self._layouts[node]
            if node in self._roots or not isinstance(example_of(node), torch.Tensor):
                return _OTHER, node
            if layout.is_contiguous:
                return _RESULT, self._made[node]
            if layout.is_static:
                return _STRIDED_RESULT, (self._made[node], layout.geometry({}).stride)
            return _OTHER, node
        return (_GIVEN, places[node]) if node in places else (_CONSTANT, node)

    def _function(self, taken: Sequence[Any], same: Mapping[Any, Any]) -> Callable[..., Any]:
        """Return the steps as a function of a device, the tensors, and the numbers ``taken``."""
        steps, made = self._steps, [*self._made]
        tensors = [*self._taken, *self._saved, *self._uploaded]
        numbers = self._numbers
        scalars, functions, place = self._scalars, self._functions, self._place

        def graph(device: Any, *values: Any) -> list[Any]:
            if device is None:
                device = wire_device(place)
            env = dict(zip(tensors, values, strict=False))
            given = dict(zip(taken, values[len(tensors) :], strict=True))
            for node in numbers:
                number = given[same.get(node, node)]
                # Scalars stay traced numbers, which differ in each call.
                env[node] = number if node in scalars else _constant(node, number, device)
            last = {x: node for node in steps for x in node.all_input_nodes}
            kept = {*made}
            for node in steps:
                args = fx.map_arg(node.args, env.__getitem__)
                kwargs = dict(fx.map_arg(node.kwargs, env.__getitem__))
                if kwargs.get("device") is not None:
                    kwargs["device"] = device
                call, function = functions[node]
                env[node] = call(function, args, kwargs)
                for x in node.all_input_nodes:
                    if last[x] is node and x not in kept:
                        env.pop(x, None)
            # A step without inputs, such as ``arange``, may be a constant of the recorded function,
            # which can only return results of operations.
            return [env[node] if node.all_input_nodes else _computed(env[node]) for node in made]

        if steps:
            file, line = line_of(steps[0])
            graph.__qualname__ = f"the graph of torch.compile that begins at {file}:{line}"
        return graph

    def _is_repeating(self, args: Sequence[Any]) -> bool:
        """Return whether the inputs of this process are equal where ``_repeating`` requires it."""
        for places in self._equal_inputs:
            first, *others = [args[place].item() for place in places]
            if others.count(first) < len(others):
                return False
            # 0.0 and -0.0 are equal too.
            if not first and any(
                math.copysign(1, args[place].item()) != math.copysign(1, first) for place in places
            ):
                return False
        return True

    def call(self, args: list[Any]) -> list[Any]:
        """Issue the graph, write to inputs, and return the outputs."""
        form = self._any
        if self._repeating is not None and self._is_repeating(args):
            form = self._repeating
        given = [*args, *self._constants.values()]
        if form.local is not None:
            given += form.local(*args)
        args.clear()
        made = self._issue(form, given)
        if self._written:
            write_all(
                [given[place] for place in self._written], [made[place] for place in self._new]
            )
        for target, new in self._copied:
            write(given[target], value_of(given[new]))
        return self._results(form, given, made)

    def _issue(self, form: _Form, given: Sequence[Any]) -> Sequence[Any]:
        """Issue the function on the device, and return its results."""
        tensors = values_of([given[place] for place in form.tensors])
        if self._saved:
            members = members_of(given[self._bundle_taken])
            tensors += [members[node.args[1]] for node in self._saved]
        tensors += [upload(given[place], self._place) for place in form.uploaded]
        numbers = [
            value.item() if isinstance(value, torch.Tensor) else value
            for value in [given[place] for place in form.numbers]
        ]
        # Without tensors, only the first argument says on which device to run.
        device = None if tensors else wire_device(self._place)
        if tensors and _NUMBERS.issuperset(map(type, numbers)):
            made: Sequence[Any] | None = form.compiled.call_again(tensors, numbers, (None,))
            if made is not None:
                return made
        found: Sequence[Any] = form.compiled(device, *tensors, *numbers)
        return found

    def _results(self, form: _Form, given: Sequence[Any], made: Sequence[Any]) -> list[Any]:
        """Return the outputs of the graph."""
        place = self._place
        results: list[Any] = []
        env: dict[Any, Any] | None = None
        for kind, at in form.outputs:
            if kind == _RESULT:
                results.append(wrap(made[at], place))
            elif kind == _GIVEN:
                results.append(given[at])
            elif kind == _CONSTANT:
                results.append(at)
            elif kind == _STRIDED_RESULT:
                results.append(wrap_strided(made[at[0]], at[1], place))
            elif kind == _BUNDLE:
                results.append(made_bundle([made[one] for one in at], place))
            else:
                if env is None:
                    env = dict(zip(form.nodes, given, strict=True))
                results.append(self._other(at, env, made))
        return results

    def _other(self, node: Any, env: dict[Any, Any], made: Sequence[Any]) -> Any:
        root = self._roots.get(node)
        if root is None or root is node:
            return self._wrapped(node, env, made)
        # Two outputs share elements: a write to one must change the other.
        if root not in env:
            env[root] = self._wrapped(root, env, made)
        return alias(env[root], self._layouts[node].geometry(env), made[self._made[node]])

    def _wrapped(self, node: Any, env: dict[Any, Any], made: Sequence[Any]) -> Any:
        if node in env:
            return env[node]
        value = made[self._made[node]]
        if type(value) is not br.Tensor:
            return value
        layout = self._layouts[node]
        if layout.is_contiguous:
            result = wrap(value, self._place)
        else:
            result = wrap_strided(value, layout.geometry(env).stride, self._place)
        if node in self._roots:
            env[node] = result
        return result


def _computed(x: br.Tensor) -> br.Tensor:
    """Return a tensor with the same elements that is the result of an operation."""
    return br.mask_fill(x, br.zeros(x.shape, dtype=br.bool, device=x.device), 0)
