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
import operator
import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import fx

import burn_remote as br
from burn_remote.arguments.traced_numbers import definite
from burn_remote.torch.aten.shapes import strided_positions
from burn_remote.torch.aten.table import TABLE, overload
from burn_remote.torch.burn_tensor import (
    alias,
    upload,
    value_of,
    values_of,
    wrap,
    wrap_strided,
    write,
)
from burn_remote.torch.compiling.output_layouts import Layout, roots_of
from burn_remote.torch.device_registry import BACKEND, wire_device
from burn_remote.torch.dtypes import dtype_from_torch
from burn_remote.torch.errors import UnsupportedOperation

__all__ = ["is_on_device", "lower"]

_COPY: Final = overload("copy_")
_SIZE: Final = (overload("sym_size.int"), overload("sym_stride.int"))

# Code that calls a function. ``_located`` gives it another file and line, so that failures name the
# line of the program.
_CALL: Final = (lambda function, args, kwargs: function(*args, **kwargs)).__code__

_FRAME: Final = re.compile(r'File "(.+?)", line (\d+)')
_TORCH: Final = str(Path(torch.__file__).parent)


# --- what a node computes ----------------------------------------------------------------------


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [x for one in value for x in _tensors(one)]
    return []


def is_on_device(value: Any) -> bool:
    """Return whether a value, or a member of a list, is a tensor on a burn device."""
    return any(x.device.type == BACKEND for x in _tensors(value))


def _value(node: Any) -> Any:
    return node.meta.get("val")


def line_of(node: Any) -> tuple[str, int]:
    """Return the file and line of the program that a node comes from.

    This is that of the innermost frame outside of PyTorch, or of the innermost frame if all are
    PyTorch's.
    """
    frames = _FRAME.findall(node.meta.get("stack_trace") or node.stack_trace or "")
    outside = [frame for frame in frames if not frame[0].startswith(_TORCH)]
    file, line = (outside or frames or [("<graph of torch.compile>", 1)])[-1]
    return file, int(line)


def _located(node: Any) -> Callable[..., Any]:
    """Return a function that calls another one from the line of a node."""
    file, line = line_of(node)
    code = _CALL.replace(co_filename=file, co_firstlineno=line, co_name=node.name)
    return types.FunctionType(code, {"__name__": "program", "__package__": ""})


def _refused(node: Any, why: str) -> UnsupportedOperation:
    file, line = line_of(node)
    return UnsupportedOperation(f"{file}:{line}: {node.target} {why}")


def _function_of(node: Any) -> Callable[..., Any]:
    """Return the function of ``burn_remote`` tensors that a node on the device calls."""
    func = node.target
    if func in TABLE:
        return TABLE[func]
    if func is operator.getitem:
        return operator.getitem
    if func in _SIZE:
        return lambda x, axis: x.shape[axis]
    if func in _STRIDED:
        source = _value(node.args[0])
        if source.is_contiguous() and source.storage_offset() == 0:
            return _STRIDED[func]
        raise _refused(node, "of a view is not available in graphs; use view, permute or slices")
    raise _refused(
        node,
        "is not available on burn devices; call the function that uses it outside of "
        "torch.compile, or mark it with torch.compiler.disable",
    )


def _strided_changed(
    x: br.Tensor, new: br.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0
) -> br.Tensor:
    places = strided_positions(x, size, stride, offset or 0)
    flat = br.update_along(br.flatten(x), 0, places, br.flatten(new))
    return br.reshape(flat, x.shape)


# Operations on the storage of a tensor. A graph has the whole storage only if the tensor is
# contiguous and has the offset 0.
_STRIDED: Final = {
    overload("as_strided"): TABLE[overload("as_strided_copy")],
    torch.ops.prims.as_strided_scatter.default: _strided_changed,
}


# Operations that compute the same with a number as with a 0-d tensor on the CPU.
_WITH_SCALAR: Final = {
    overload("add.Tensor"): br.add,
    overload("sub.Tensor"): br.subtract,
    overload("mul.Tensor"): br.multiply,
    overload("div.Tensor"): br.divide,
}


def _takes_scalar(node: Any, operand: Any) -> bool:
    """Return whether a node may take its second operand, a value of the CPU, as a number."""
    if node.target not in _WITH_SCALAR or node.kwargs or node.args[1] is not operand:
        return False
    tensor, made, number = _value(node.args[0]), _value(node), _value(operand)
    return (
        is_on_device(tensor)
        and tensor.dim() > 0
        and tensor.dtype.is_floating_point
        and tensor.dtype is made.dtype
        and isinstance(number, torch.Tensor)
        and not (number.is_complex() or number.dtype is torch.bool)
    )


# --- graphs ------------------------------------------------------------------------------------


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


class _Form(NamedTuple):
    """A graph as functions.

    ``local`` computes the nodes ``returned`` in this process, if there are any. ``compiled`` takes
    ``None``, the tensors on the device, and the values of the nodes ``numbers``.
    """

    local: Callable[..., Any] | None
    returned: Sequence[Any]
    numbers: Sequence[Any]
    compiled: Callable[..., Any]


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
        x = _value(node)
        is_number = isinstance(x, torch.Tensor) and not is_on_device(x) and x.dim() == 0
        if is_number and not x.is_complex():
            same[node] = first.setdefault(x.dtype, node)
    for node in own:
        if _is_pure(node.target) and node not in wanted:
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


def _is_pure(func: Any) -> bool:
    """Return whether an aten operation returns new elements that depend on its operands only."""
    schema = getattr(func, "_schema", None)
    return (
        schema is not None
        and torch.Tag.nondeterministic_seeded not in func.tags
        and all(one.alias_info is None for one in (*schema.arguments, *schema.returns))
    )


def _constant(node: Any, number: Any, device: Any) -> Any:
    """Convert a number of this process for a step that takes no traced number.

    The number of a 0-d tensor becomes a 0-d tensor on the device. Any other becomes a constant of
    the graph.
    """
    example = _value(node)
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
        constants = [node for node in nodes if node.op == "get_attr" and is_on_device(_value(node))]
        self._constants = {node: getattr(module, node.target) for node in constants}
        # Node that writes to an input -> the input and the node with its new elements.
        self._writes = {
            node: (node.args[0], node.args[1])
            for node in nodes
            if node.target is _COPY and is_on_device(_value(node))
        }
        self._steps = [
            node
            for node in nodes
            if node.op == "call_function" and node not in self._writes and self._is_step(node)
        ]
        # Output that shares elements with another one -> the node that made them.
        self._roots = roots_of(self._outputs, self._steps)
        wanted = [*self._outputs, *[new for _, new in self._writes.values()]]
        wanted += self._roots.values()
        self._steps = _by_chains(self._steps, wanted)
        steps = {*self._steps}
        for node in self._steps:
            if node.target not in _SIZE and not is_on_device(_value(node)):
                raise _refused(node, "copies a tensor to the CPU; do it outside of torch.compile")
        self._functions = {node: (_located(node), _function_of(node)) for node in self._steps}
        made = [node for node in dict.fromkeys(wanted) if node in steps]
        self._made = made
        self._layouts = {node: Layout(_value(node), self._inputs) for node in made}
        # Outputs that share no elements with another one, and are contiguous: nearly all.
        self._plain = {
            node
            for node in self._outputs
            if node in self._layouts
            and node not in self._writes
            and node not in self._roots
            and self._layouts[node].is_contiguous
        }
        # The inputs of the function on the device: tensors there, and values of this process.
        used = dict.fromkeys(x for node in self._steps for x in node.all_input_nodes)
        self._taken = [node for node in used if node not in steps and is_on_device(_value(node))]
        local = [node for node in used if node not in steps and not is_on_device(_value(node))]
        self._uploaded = [node for node in local if self._is_uploaded(node)]
        self._numbers = [node for node in local if not self._is_uploaded(node)]
        self._scalars = {
            node
            for node in self._numbers
            if all(_takes_scalar(user, node) for user in node.users if user in steps)
        }
        for user in [user for node in self._scalars for user in node.users if user in steps]:
            self._functions[user] = self._functions[user][0], _WITH_SCALAR[user.target]
        own = [
            node
            for node in nodes
            if node.op in ("call_function", "get_attr")
            and node not in steps
            and not is_on_device(_value(node))
        ]
        self._any = self._form(module, own, [*local, *wanted], {})
        repeated = _repetitions(self._inputs, own, wanted)
        self._equal_inputs: list[tuple[int, ...]] = []
        self._repeating: _Form | None = None
        if any(repeated[node] is not node for node in own if node in repeated):
            self._repeating = self._form(module, own, [*local, *wanted], repeated)
            self._equal_inputs = _equal_inputs(self._inputs, repeated)

    def _common_place(self, nodes: Sequence[Any]) -> Any:
        places = {x.device for node in nodes for x in _tensors(_value(node))}
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
        return is_on_device(_value(node)) or any(
            is_on_device(_value(x)) for x in node.all_input_nodes
        )

    @staticmethod
    def _is_uploaded(node: Any) -> bool:
        value = _value(node)
        if not isinstance(value, torch.Tensor):
            return False
        return value.dim() > 0 or value.dtype is torch.bool or value.dtype.is_complex

    def _form(
        self, module: Any, own: Sequence[Any], wanted: Sequence[Any], same: Mapping[Any, Any]
    ) -> _Form:
        """Return the graph as functions, in which ``same`` replaces nodes of this process."""
        numbers = [*dict.fromkeys(same.get(node, node) for node in self._numbers)]
        function = self._function(numbers, same)
        if not own:
            return _Form(None, (), numbers, br.compile(function))
        graph = fx.Graph()
        copies = {node: graph.placeholder(node.name) for node in self._inputs}
        for node in own:
            first = same.get(node, node)
            copies[node] = (
                graph.node_copy(node, copies.__getitem__) if first is node else copies[first]
            )
        returned = [*dict.fromkeys(same.get(node, node) for node in wanted)]
        returned = [node for node in returned if node in {*own}]
        graph.output(tuple([copies[node] for node in returned]))
        return _Form(fx.GraphModule(module, graph), returned, numbers, br.compile(function))

    def _function(self, taken: Sequence[Any], same: Mapping[Any, Any]) -> Callable[..., Any]:
        """Return the steps as a function of a device, the tensors, and the numbers ``taken``."""
        steps, made = self._steps, self._made
        tensors, numbers = [*self._taken, *self._uploaded], self._numbers
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
            values = [args[place].item() for place in places]
            if len({(value, math.copysign(1, value)) for value in values}) > 1:
                return False
        return True

    def call(self, args: list[Any]) -> list[Any]:
        """Issue the graph, write to inputs, and return the outputs."""
        env: dict[Any, Any] = dict(zip(self._inputs, args, strict=True))
        form = self._any
        if self._repeating is not None and self._is_repeating(args):
            form = self._repeating
        if form.local is not None:
            env.update(zip(form.returned, form.local(*args), strict=True))
        args.clear()
        env.update(self._constants)
        values: list[Any] = values_of([env[node] for node in self._taken])
        values += [upload(env[node], self._place) for node in self._uploaded]
        for node in form.numbers:
            value = env[node]
            values.append(value.item() if isinstance(value, torch.Tensor) else value)
        made = dict(zip(self._made, form.compiled(None, *values), strict=True))
        for target, new in self._writes.values():
            write(env[target], made[new] if new in made else value_of(env[new]))
        place, plain = self._place, self._plain
        return [
            wrap(made[node], place)
            if node in plain and type(made[node]) is br.Tensor
            else self._output(node, env, made)
            for node in self._outputs
        ]

    def _output(self, node: Any, env: dict[Any, Any], made: dict[Any, Any]) -> Any:
        if node in self._writes:
            return env[self._writes[node][0]]
        if node in made:
            root = self._roots.get(node)
            if root is None or root is node:
                return self._wrapped(node, env, made)
            # Two outputs share elements: a write to one must change the other.
            if root not in env:
                env[root] = self._wrapped(root, env, made)
            return alias(env[root], self._layouts[node].geometry(env), made[node])
        return env.get(node, node)  # an input, a value of this process, or a constant

    def _wrapped(self, node: Any, env: dict[Any, Any], made: dict[Any, Any]) -> Any:
        if node in env:
            return env[node]
        value = made[node]
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
