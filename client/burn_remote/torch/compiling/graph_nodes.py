"""The nodes of a graph of aten operations: what they compute, and where the program calls them."""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch

import burn_remote as br
from burn_remote.torch.aten.shapes import strided_positions
from burn_remote.torch.aten.table import TABLE, overload
from burn_remote.torch.device_registry import BACKEND
from burn_remote.torch.errors import UnsupportedOperation

__all__ = [
    "SIZES",
    "WITH_SCALAR",
    "example_of",
    "function_of",
    "is_on_device",
    "is_pure",
    "line_of",
    "located",
    "refused",
    "takes_scalar",
    "tensors_in",
]

# Operations that return a size or a stride.
SIZES: Final = (overload("sym_size.int"), overload("sym_stride.int"))

# Code that calls a function. ``located`` gives it another file and line, so that failures name the
# line of the program.
_CALL: Final = (lambda function, args, kwargs: function(*args, **kwargs)).__code__

_FRAME: Final = re.compile(r'File "(.+?)", line (\d+)')
_TORCH: Final = str(Path(torch.__file__).parent)


def tensors_in(value: Any) -> list[Any]:
    """Return a value, or the members of a list, as far as they are tensors."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [x for one in value for x in tensors_in(one)]
    return []


def is_on_device(value: Any) -> bool:
    """Return whether a value, or a member of a list, is a tensor on a burn device."""
    return any(x.device.type == BACKEND for x in tensors_in(value))


def example_of(node: Any) -> Any:
    """Return the value of a node when the graph was traced; a tensor of it has no elements."""
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


def located(node: Any) -> Callable[..., Any]:
    """Return a function that calls another one from the line of a node."""
    file, line = line_of(node)
    code = _CALL.replace(co_filename=file, co_firstlineno=line, co_name=node.name)
    return types.FunctionType(code, {"__name__": "program", "__package__": ""})


def refused(node: Any, why: str) -> UnsupportedOperation:
    """Return the error for a node that cannot be lowered, with its line of the program."""
    file, line = line_of(node)
    return UnsupportedOperation(f"{file}:{line}: {node.target} {why}")


def function_of(node: Any) -> Callable[..., Any]:
    """Return the function of ``burn_remote`` tensors that a node on the device calls."""
    func = node.target
    if func in TABLE:
        return TABLE[func]
    if func is operator.getitem:
        return operator.getitem
    if func in SIZES:
        return lambda x, axis: x.shape[axis]
    if func in _STRIDED:
        source = example_of(node.args[0])
        if source.is_contiguous() and source.storage_offset() == 0:
            return _STRIDED[func]
        raise refused(node, "of a view is not available in graphs; use view, permute or slices")
    raise refused(
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
WITH_SCALAR: Final = {
    overload("add.Tensor"): br.add,
    overload("sub.Tensor"): br.subtract,
    overload("mul.Tensor"): br.multiply,
    overload("div.Tensor"): br.divide,
}


def takes_scalar(node: Any, operand: Any) -> bool:
    """Return whether a node may take its second operand, a value of the CPU, as a number."""
    if node.target not in WITH_SCALAR or node.kwargs or node.args[1] is not operand:
        return False
    tensor, made, number = example_of(node.args[0]), example_of(node), example_of(operand)
    return (
        is_on_device(tensor)
        and tensor.dim() > 0
        and tensor.dtype.is_floating_point
        and tensor.dtype is made.dtype
        and isinstance(number, torch.Tensor)
        and not (number.is_complex() or number.dtype is torch.bool)
    )


def is_pure(func: Any) -> bool:
    """Return whether an aten operation returns new elements that depend on its operands only."""
    schema = getattr(func, "_schema", None)
    return (
        schema is not None
        and torch.Tag.nondeterministic_seeded not in func.tags
        and all(one.alias_info is None for one in (*schema.arguments, *schema.returns))
    )
