"""Conversion of arguments and results between PyTorch's tensors and *values*, our own tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

import burn_remote as br
from burn_remote.torch.argument_checks import checked
from burn_remote.torch.burn_tensor import BurnTensor, upload, value_of, wrap, wrap_as, wrap_strided
from burn_remote.torch.call_plans import Planner
from burn_remote.torch.device_registry import index_of, wire_device
from burn_remote.torch.result_strides import is_row_major, strides_of_results

__all__ = ["Handler", "Values", "functional", "laid_out", "name_of", "wrapped_strided"]

Handler = Callable[[Any, dict[str, Any]], Any]


def name_of(func: Any) -> str:
    """Return the name of an overload as in the table: ``add.Tensor``, ``exp``."""
    name: str = func.name().removeprefix("aten::")
    return name


class Values:
    """Converts arguments to values, and finds the device that they are on."""

    __slots__ = ("is_contiguous", "place")

    def __init__(self) -> None:
        self.place: Any = None
        self.is_contiguous = True

    def one(self, x: Any) -> Any:
        kind = type(x)
        if kind is BurnTensor:
            if self.place is None:
                self.place = x._place
            if not x.is_contiguous():
                self.is_contiguous = False
            return value_of(x)
        if kind is list or kind is tuple:
            return [self.one(item) for item in x]
        return x

    def all(self, args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        values = [self.one(x) for x in args]
        named = {name: self.one(x) for name, x in kwargs.items()} if kwargs else kwargs
        if "device" in named:
            named = self._on_device(named)
        if self._has_cpu_tensors(args) or (kwargs and self._has_cpu_tensors(kwargs.values())):
            values = [self._uploaded(x) for x in values]
            named = {name: self._uploaded(x) for name, x in named.items()}
        return values, named

    def _on_device(self, named: dict[str, Any]) -> dict[str, Any]:
        wanted = named["device"]
        if wanted is not None:
            self.place = torch.device("burn", index_of(wanted))
        return {**named, "device": wire_device(self.place)}

    def _has_cpu_tensors(self, values: Iterable[Any]) -> bool:
        for x in values:
            kind = type(x)
            if kind is list or kind is tuple:
                if self._has_cpu_tensors(x):
                    return True
            elif kind is not BurnTensor and isinstance(x, torch.Tensor):
                return True
        return False

    def _uploaded(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if x.device.type != "cpu" or (x.dim() and x.is_floating_point()):
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, {self.place} and {x.device}!"
                )
            return upload(x, self.place)
        return [self._uploaded(one) for one in x] if type(x) is list else x


def _wrapped(result: Any, place: Any) -> Any:
    kind = type(result)
    if kind is br.Tensor:
        return wrap(result, place)
    if kind is list or isinstance(result, tuple):
        return _same_kind(result, [_wrapped(x, place) for x in result])
    return result


def _same_kind(example: Any, items: list[Any]) -> Any:
    return items if type(example) is list else tuple.__new__(type(example), items)


def wrapped_strided(result: Any, strides: Any, place: Any) -> Any:
    """Wrap results with strides of the same nesting; results without strides are contiguous."""
    if type(result) is br.Tensor and strides is not None:
        return wrap_strided(result, strides, place)
    if isinstance(result, list | tuple) and strides is not None:
        items = zip(result, strides, strict=True)
        return _same_kind(result, [wrapped_strided(x, one, place) for x, one in items])
    return _wrapped(result, place)


def functional(func: Any, function: Callable[..., Any]) -> Handler:
    """Return the handler of an overload of the table. Its results are new tensors."""
    always = not is_row_major(func)
    check = checked(func)
    planner = Planner(function, check=check)

    def wrapped(result: Any, args: Any, kwargs: dict[str, Any], place: Any, plain: bool) -> Any:
        if always or not plain or kwargs.get("memory_format") is not None:
            return wrapped_strided(result, strides_of_results(func, args, kwargs), place)
        return _wrapped(result, place)

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        found = planner.find(args, kwargs)
        # Another thread may have recorded the plan, but not yet described its outputs.
        if found is None or not (found[2] or found[0].is_described):
            converter = Values()
            values, named = converter.all(args, kwargs)
            if check is not None:
                check(args, kwargs)
            result = function(*values, **named)
            return wrapped(result, args, kwargs, converter.place, converter.is_contiguous)
        plan, values, is_new = found
        place = plan.place
        if is_new:
            given = pytree.arg_tree_leaves(*args, **kwargs)
            plain = all(x.is_contiguous() for x in given if type(x) is BurnTensor)
            made = wrapped(values, args, kwargs, place, plain)
            plan.outputs = _metadata_of(made)
            plan.is_described = True
            return made
        result = plan.issue(values)
        if type(result) is br.Tensor:
            return wrap_as(result, plan.outputs, place)
        return _wrapped_as(result, plan.outputs, place)

    return handle


def _metadata_of(result: Any) -> Any:
    """Return the metadata of results, nested as they are."""
    if type(result) is BurnTensor:
        return result._metadata
    return [_metadata_of(x) for x in result] if isinstance(result, list | tuple) else None


def _wrapped_as(result: Any, metadata: Any, place: Any) -> Any:
    if type(result) is br.Tensor:
        return wrap_as(result, metadata, place)
    if isinstance(result, list | tuple):
        pairs = zip(result, metadata, strict=True)
        return _same_kind(result, [_wrapped_as(x, one, place) for x, one in pairs])
    return result


def laid_out(func: Any, handler: Handler) -> Handler:
    """Return a handler whose new tensors have the strides of PyTorch's."""
    if func._schema.is_mutable or any(one.alias_info is not None for one in func._schema.returns):
        return handler
    always = not is_row_major(func)

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        result = handler(args, kwargs)
        given = [x for x in pytree.arg_tree_leaves(*args, **kwargs) if type(x) is BurnTensor]
        if always or not all(x.is_contiguous() for x in given):
            shared = {id(x._storage) for x in given}
            return _restrided(result, strides_of_results(func, args, kwargs), shared)
        return result

    return handle


def _restrided(result: Any, strides: Any, shared: set[int]) -> Any:
    if strides is None:
        return result
    if type(result) is BurnTensor:
        if id(result._storage) in shared or result.stride() == strides:
            return result
        return wrap_strided(value_of(result), strides, result._place)
    if isinstance(result, list | tuple):
        items = zip(result, strides, strict=True)
        return _same_kind(result, [_restrided(x, one, shared) for x, one in items])
    return result
