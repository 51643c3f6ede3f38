"""Graphs of aten operations, without writes, as functions that issue one task.

A graph is divided in two:

- operations on tensors of the CPU, such as the step count of an optimizer, and on numbers: PyTorch
  carries them out in each call;
- operations on the device: functions of the same table as without ``torch.compile``, in a function
  that ``burn_remote.compile`` records. Each later call is one message.

Writes to inputs end a graph: their storages get new elements, which needs no operation.
"""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import fx

import burn_remote as br
from burn_remote.arguments.traced_numbers import definite
from burn_remote.torch.aten.shapes import strided_positions
from burn_remote.torch.aten.table import TABLE, overload
from burn_remote.torch.dtypes import dtype_from_torch
from burn_remote.torch.errors import UnsupportedOperation
from burn_remote.torch.places import BACKEND, wire_device
from burn_remote.torch.tensors import upload, value_of, wrap, write

__all__ = ["is_on_device", "lower"]

_COPY: Final = overload("copy_")
_SIZE: Final = (overload("sym_size.int"), overload("sym_stride.int"))

# Calls a function from another line of a file, so that failures name the line of the program.
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

    This is the innermost one outside of PyTorch, else the innermost one.
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


# Operations on the storage of a tensor, which a graph knows if the tensor is all of it.
_STRIDED: Final = {
    overload("as_strided"): TABLE[overload("as_strided_copy")],
    torch.ops.prims.as_strided_scatter.default: _strided_changed,
}


# --- graphs ------------------------------------------------------------------------------------


def lower(module: Any) -> Callable[[list[Any]], list[Any]]:
    """Return a function that issues a graph of aten operations as one task.

    It takes the inputs as a list, which it clears, and returns the list of outputs.
    """
    lowered = _Lowered(module)

    def call(args: list[Any]) -> list[Any]:
        return lowered.call(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


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
        steps = {*self._steps}
        for node in self._steps:
            if node.target not in _SIZE and not is_on_device(_value(node)):
                raise _refused(node, "copies a tensor to the CPU; do it outside of torch.compile")
        self._functions = {node: (_located(node), _function_of(node)) for node in self._steps}
        wanted = [
            *self._outputs,
            *[new for _, new in self._writes.values()],
        ]
        made = [node for node in dict.fromkeys(wanted) if node in steps]
        self._made = made
        # What the function on the device takes: tensors there, and values of this process.
        used = dict.fromkeys(x for node in self._steps for x in node.all_input_nodes)
        self._taken = [node for node in used if node not in steps and is_on_device(_value(node))]
        local = [node for node in used if node not in steps and not is_on_device(_value(node))]
        self._uploaded = [node for node in local if self._is_uploaded(node)]
        self._numbers = [node for node in local if not self._is_uploaded(node)]
        self._local = self._local_module(module, nodes, steps, [*local, *wanted])
        self._compiled = br.compile(self._function(nodes))

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

    @staticmethod
    def _local_module(
        module: Any, nodes: Sequence[Any], steps: set[Any], wanted: Sequence[Any]
    ) -> tuple[Any, list[Any]] | None:
        """Return the operations of this process as a module, and the nodes that it returns."""
        kept = [
            node
            for node in nodes
            if node.op in ("call_function", "get_attr")
            and node not in steps
            and not is_on_device(_value(node))
        ]
        if not kept:
            return None
        graph = fx.Graph()
        copies = {node: graph.placeholder(node.name) for node in nodes if node.op == "placeholder"}
        for node in kept:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        returned = [node for node in dict.fromkeys(wanted) if node in {*kept}]
        graph.output(tuple([copies[node] for node in returned]))
        return fx.GraphModule(module, graph), returned

    def _function(self, nodes: Sequence[Any]) -> Callable[..., Any]:
        steps, made = self._steps, self._made
        tensors = [*self._taken, *self._uploaded]
        numbers, functions, place = self._numbers, self._functions, self._place

        def graph(device: Any, *values: Any) -> list[Any]:
            if device is None:
                device = wire_device(place)
            env = dict(zip((*tensors, *numbers), values, strict=True))
            for node in numbers:
                example = _value(node)
                if isinstance(example, torch.Tensor):
                    dtype = dtype_from_torch(example.dtype)
                    env[node] = br.full((), env[node], dtype=dtype, device=device)
                else:
                    env[node] = definite(env[node])
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
            # Elements that the device keeps, such as those of ``arange``, are no results of a step.
            return [env[node] if node.all_input_nodes else _computed(env[node]) for node in made]

        if steps:
            file, line = line_of(steps[0])
            graph.__qualname__ = f"the graph of torch.compile that begins at {file}:{line}"
        return graph

    def call(self, args: list[Any]) -> list[Any]:
        """Issue the graph, write to inputs, and return the outputs."""
        env: dict[Any, Any] = dict(zip(self._inputs, args, strict=True))
        if self._local is not None:
            local, returned = self._local
            env.update(zip(returned, local(*args), strict=True))
        args.clear()
        env.update(self._constants)
        values: list[Any] = [value_of(env[node]) for node in self._taken]
        values += [upload(env[node], self._place) for node in self._uploaded]
        for node in self._numbers:
            value = env[node]
            values.append(value.item() if isinstance(value, torch.Tensor) else value)
        made = dict(zip(self._made, self._compiled(None, *values), strict=True))
        for target, new in self._writes.values():
            write(env[target], made[new] if new in made else value_of(env[new]))
        return [self._output(node, env, made) for node in self._outputs]

    def _output(self, node: Any, env: dict[Any, Any], made: dict[Any, Any]) -> Any:
        if node in self._writes:
            return env[self._writes[node][0]]
        if node in made:
            value = made[node]
            return wrap(value, self._place) if type(value) is br.Tensor else value
        return env.get(node, node)  # an input, a value of this process, or a constant


def _computed(x: br.Tensor) -> br.Tensor:
    """Return the same elements as the result of an operation."""
    return br.mask_fill(x, br.zeros(x.shape, dtype=br.bool, device=x.device), 0)
