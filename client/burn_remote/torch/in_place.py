"""Handlers of operations that write to their arguments (``add_``, ``add.out``).

A handler runs the functional operation and stores its results in the storages of the targets, so
all views of them change. ``resolve`` finds the handler of the functional overload.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

from burn_remote.sessions.source_locations import caller_and_depth
from burn_remote.torch.argument_checks import checked
from burn_remote.torch.aten.table import TABLE, overload
from burn_remote.torch.burn_tensor import (
    BurnTensor,
    check_cast,
    unset,
    value_of,
    write,
)
from burn_remote.torch.call_plans import Planner
from burn_remote.torch.decompositions import decomposed, refusal
from burn_remote.torch.expanded_writes import EXPANDED_WRITES, is_expanded
from burn_remote.torch.result_strides import strides_of_results
from burn_remote.torch.value_conversion import Handler, Values, name_of

__all__ = ["functional_overload", "writing"]

Resolve = Callable[[Any], Handler]

# Functional overloads that are not named after the one that writes.
_FUNCTIONAL_NAMES: Final = {
    "normal_": "normal_functional",
    "bernoulli_.float": "bernoulli.p",
    "arange.start_out": "arange.start_step",
    "_index_put_impl_": "index_put",
    "transpose_": "transpose.int",
    "_log_softmax.out": "_log_softmax",
}


def writing(func: Any, resolve: Resolve) -> Handler:
    """Return the handler of an overload that writes to its arguments (``add_``, ``add.out``)."""
    outputs = [one.name for one in func._schema.arguments if _is_written(one)]
    is_out = all(one.kwarg_only for one in func._schema.arguments if _is_written(one))
    functional = functional_overload(func, is_out)
    if functional is None:
        return decomposed(func)
    if is_out:
        return _into_outputs(functional, outputs, resolve)
    if len(outputs) == 1 and outputs[0] == func._schema.arguments[0].name:
        return _in_place(func, functional, resolve)
    return refusal(func)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def functional_overload(func: Any, is_out: bool) -> Any:
    """Return the overload with the same results that writes nothing, or ``None``."""
    name = name_of(func)
    if name in _FUNCTIONAL_NAMES:
        return overload(_FUNCTIONAL_NAMES[name])
    packet, _, kind = name.partition(".")
    if not is_out:
        if not packet.endswith("_"):
            return None
        named = overload(packet[:-1] + (f".{kind}" if kind else ""))
        if named is not None and any("Tensor" in str(one.type) for one in named._schema.arguments):
            return named
        # ``ldexp_`` is ``ldexp.Tensor``: ``ldexp`` without a name takes Python's numbers.
        packet = packet[:-1]
    wanted = _inputs(func)
    found = getattr(torch.ops.aten, packet, None)
    if found is None:
        return None
    for each in found.overloads():
        candidate = getattr(found, each)
        if not candidate._schema.is_mutable and _inputs(candidate) == wanted:
            return candidate
    return None


# Arguments of factories such as ``zeros`` that are not needed if there is an output.
_OF_FACTORIES: Final = frozenset({"dtype", "layout", "device", "pin_memory"})


def _inputs(func: Any) -> list[tuple[str, str]]:
    arguments = func._schema.arguments
    is_factory = any(one.name == "device" for one in arguments)
    return [
        (one.name, str(one.type))
        for one in arguments
        if not (_is_written(one) and one.kwarg_only)
        and not (is_factory and one.name in _OF_FACTORIES)
    ]


def _values_of(functional: Any, resolve: Resolve) -> Callable[[Any, dict[str, Any]], Any]:
    """Return a function from arguments to the values of the results of an operation."""
    function = TABLE.get(functional)
    if function is not None:
        check = checked(functional)
        planner = Planner(function, check=check)

        def compute(args: Any, kwargs: dict[str, Any]) -> Any:
            found = planner.find(args, kwargs)
            if found is None:
                values, named = Values().all(args, kwargs)
                if check is not None:
                    check(args, kwargs)
                return function(*values, **named)
            plan, values, is_new = found
            return values if is_new else plan.issue(values)

        return compute

    def carry_out(args: Any, kwargs: dict[str, Any]) -> Any:
        return _value_or_values(resolve(functional)(args, kwargs))

    return carry_out


def _value_or_values(result: Any) -> Any:
    if type(result) is BurnTensor:
        return value_of(result)
    if isinstance(result, tuple | list):
        return [_value_or_values(one) for one in result]
    return result


def _own_defaults(func: Any, functional: Any) -> dict[int, Any]:
    """Return the defaults of ``func`` that its functional overload lacks, by argument position.

    PyTorch leaves out arguments that are defaults: ``bernoulli_(0.5)`` is called without 0.5.
    """
    others = {one.name: one.default_value for one in functional._schema.arguments}
    return {
        place: one.default_value
        for place, one in enumerate(func._schema.arguments)
        if one.default_value is not None
        and not one.kwarg_only
        and others.get(one.name) != one.default_value
    }


def _in_place(func: Any, functional: Any, resolve: Resolve) -> Handler:
    compute = _values_of(functional, resolve)
    defaults = _own_defaults(func, functional)
    to_expanded = EXPANDED_WRITES.get(name_of(func))
    # ``polygamma(n, x)`` is ``x.polygamma_(n)``.
    names = [one.name for one in func._schema.arguments]
    order = [names.index(one.name) for one in functional._schema.arguments if one.name in names]
    is_reordered = order != sorted(order)
    is_absolute = name_of(func) == "abs_"

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        target = args[0]
        if type(target) is not BurnTensor:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{target.device} and a burn device!"
            )
        if len(args) in defaults:
            args = (*args, *[x for place, x in sorted(defaults.items()) if place >= len(args)])
        if to_expanded is not None and is_expanded(target):
            to_expanded(target, *args[1:], **kwargs)
            return target
        if is_absolute and target.is_complex():
            raise RuntimeError("In-place abs is not supported for complex tensors.")
        value = compute([args[at] for at in order] if is_reordered else args, kwargs)
        check_cast(value, target)
        write(target, value)
        return target

    return handle


def _into_outputs(functional: Any, outputs: list[str], resolve: Resolve) -> Handler:
    compute = _values_of(functional, resolve)
    is_factory = any(one.name == "device" for one in functional._schema.arguments)

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        targets = [kwargs[name] for name in outputs]
        inputs = {name: x for name, x in kwargs.items() if name not in outputs}
        if is_factory:
            inputs |= {"dtype": targets[0].dtype, "device": targets[0].device}
        result = compute(args, inputs)
        results = result if isinstance(result, tuple | list) else [result]
        for at, (target, value) in enumerate(zip(targets, results, strict=True)):
            check_cast(value, target)
            if tuple(target.shape) != value.shape:
                strides = strides_of_results(functional, args, inputs)
                resize(
                    target, value.shape, strides[at] if len(results) > 1 and strides else strides
                )
            write(target, value)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return handle


def resize(target: BurnTensor, shape: tuple[int, ...], stride: Any) -> None:
    """Give an output another shape and new elements. Warns, as PyTorch does, if it had elements."""
    if target.numel():
        warnings.warn(
            f"An output with one or more elements was resized since it had shape "
            f"{list(target.shape)}, which does not match the required output shape {list(shape)}.",
            stacklevel=caller_and_depth(1)[2],
        )
    target.data = unset(shape, stride, target.dtype, target._place)
