"""From an aten operation to what carries it out on tensors of a burn device.

PyTorch calls each operation by its overload. The first call of an overload finds its *handler*,
which later calls take from a dictionary:

- an overload of the table: a function of values, whose results become new tensors;
- a view (``geometry.VIEWS``): a tensor that shares the storage;
- an overload that writes (``add_``, ``add.out``): the functional overload, whose results are
  written to the storage, so that all views of it change;
- anything else: PyTorch's own decomposition into other operations;
- with ``fallback("cpu")``: the CPU, through a copy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch._decomp import core_aten_decompositions, decomposition_table
from torch.utils import _pytree as pytree

import burn_remote as br
from burn_remote.torch.aten import (  # noqa: F401 - these fill the table
    creation,
    elementwise,
    indexing,
    layers,
    matrices,
    reductions,
    separable,
    shapes,
    signals,
)
from burn_remote.torch.aten.table import TABLE, overload
from burn_remote.torch.errors import UnsupportedOperation
from burn_remote.torch.geometry import VIEWS, row_major
from burn_remote.torch.layouts import is_row_major, strides_of_results
from burn_remote.torch.places import index_of, wire_device
from burn_remote.torch.tensors import (
    BurnTensor,
    alias,
    geometry_of,
    to_cpu,
    unset,
    upload,
    value_of,
    wrap,
    wrap_strided,
    write,
)

__all__ = ["HANDLERS", "allow_fallback", "resolve"]

Handler = Callable[[Any, dict[str, Any]], Any]

# Overload -> handler; filled as overloads are first called.
HANDLERS: Final[dict[Any, Handler]] = {}

_CORE: Final = core_aten_decompositions()

# Functional overloads that are not named after the one that writes.
_FUNCTIONAL_NAMES: Final = {
    "normal_": "normal_functional",
    "bernoulli_.float": "bernoulli.p",
    "arange.start_out": "arange.start_step",
    "_index_put_impl_": "index_put",
    "transpose_": "transpose.int",
    "_log_softmax.out": "_log_softmax",
}

_is_fallback_allowed = False


def allow_fallback(allowed: bool) -> None:
    """Permit operations that the device lacks to run on the CPU, or forbid it."""
    global _is_fallback_allowed
    _is_fallback_allowed = allowed
    HANDLERS.clear()


def resolve(func: Any) -> Handler:
    """Find the handler of an overload, and keep it for the next call.

    Raises ``UnsupportedOperation`` if there is none.
    """
    handler = _found(func)
    HANDLERS[func] = handler
    return handler


def _name(func: Any) -> str:
    name: str = func.name().removeprefix("aten::")
    return name


def _found(func: Any) -> Handler:
    special = _SPECIAL.get(_name(func))
    if special is not None:
        return special
    if func.namespace == "aten" and _name(func) in VIEWS:
        return _view(func)
    if func in TABLE:
        return _functional(func, TABLE[func])
    if _name(func).startswith("_foreach_"):
        handler = _foreach(func)
        if handler is not None:
            return handler
    if torch.Tag.inplace_view in func.tags:
        return _reshaping(func)
    if func._schema.is_mutable:
        return _writing(func)
    return _laid_out(func, _decomposed(func))


# --- arguments ---------------------------------------------------------------------------------


class _Values:
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


def _wrapped_strided(result: Any, strides: Any, place: Any) -> Any:
    """Wrap results with strides of the same nesting; results without strides are contiguous."""
    if type(result) is br.Tensor and strides is not None:
        return wrap_strided(result, strides, place)
    if isinstance(result, list | tuple) and strides is not None:
        items = zip(result, strides, strict=True)
        return _same_kind(result, [_wrapped_strided(x, one, place) for x, one in items])
    return _wrapped(result, place)


# --- handlers ----------------------------------------------------------------------------------


def _functional(func: Any, function: Callable[..., Any]) -> Handler:
    always = not is_row_major(func)

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        converter = _Values()
        values, named = converter.all(args, kwargs)
        result = function(*values, **named)
        if always or not converter.is_contiguous or kwargs.get("memory_format") is not None:
            strides = strides_of_results(func, args, kwargs)
            return _wrapped_strided(result, strides, converter.place)
        return _wrapped(result, converter.place)

    return handle


def _laid_out(func: Any, handler: Handler) -> Handler:
    """Have the new tensors that a handler returns get the strides of PyTorch."""
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


def _view(func: Any) -> Handler:
    geometry = VIEWS[_name(func)]
    function = TABLE.get(func)
    single = len(func._schema.returns) == 1 and str(func._schema.returns[0].type) == "Tensor"

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        x = args[0]
        if type(x) is not BurnTensor:
            raise RuntimeError(f"{_name(func)}: the tensor must be on a burn device")
        shown = geometry(geometry_of(x), *args[1:], **kwargs)
        if not single:
            return [alias(x, one, None) for one in shown]
        value = None
        if function is not None and x._version_seen == x._storage.version and x._value is not None:
            value = function(x._value, *args[1:], **kwargs)
        return alias(x, shown, value)

    return handle


def _decomposed(func: Any) -> Handler:
    decomposition = _decomposition(func)
    if decomposition is not None:
        return lambda args, kwargs: decomposition(*args, **kwargs)
    if _is_fallback_allowed:
        return _on_cpu(func)
    return _refusal(func)


def _refusal(func: Any) -> Handler:
    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        raise UnsupportedOperation(
            f"{func.name()} ({func._overloadname}) is not available on burn devices; "
            'burn_remote.torch.fallback("cpu") runs such operations on the CPU, through copies'
        )

    return handle


def _decomposition(func: Any) -> Callable[..., Any] | None:
    if func in _CORE:
        return _CORE[func]
    if func._can_decompose():
        return lambda *args, **kwargs: func.decompose(*args, **kwargs)
    if func in decomposition_table:
        return decomposition_table[func]
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    if func.has_kernel_for_dispatch_key(key):
        return lambda *args, **kwargs: func._op_dk(key, *args, **kwargs)
    return None


def _on_cpu(func: Any) -> Handler:
    warned = False

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        nonlocal warned
        if not warned:
            warned = True
            warnings.warn(
                f"{func.name()} runs on the CPU: its tensors are copied there and back",
                stacklevel=2,
            )
        place = None

        def down(x: Any) -> Any:
            nonlocal place
            if type(x) is BurnTensor:
                place = place or x._place
                return to_cpu(x)
            if type(x) is torch.device:
                place = torch.device("burn", index_of(x))
                return torch.device("cpu")
            return [down(one) for one in x] if type(x) in (list, tuple) else x

        def up(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                return wrap(upload(x, place), place)
            return type(x)([up(one) for one in x]) if type(x) in (list, tuple) else x

        lowered = [down(x) for x in args]
        return up(func(*lowered, **{name: down(x) for name, x in kwargs.items()}))

    return handle


# --- operations that write ---------------------------------------------------------------------


def _writing(func: Any) -> Handler:
    outputs = [one.name for one in func._schema.arguments if _is_written(one)]
    is_out = all(one.kwarg_only for one in func._schema.arguments if _is_written(one))
    functional = _functional_overload(func, is_out)
    if functional is None:
        decomposition = _decomposition(func)
        if decomposition is not None:
            return lambda args, kwargs: decomposition(*args, **kwargs)
        return _refusal(func)
    if is_out:
        return _into_outputs(functional, outputs)
    if len(outputs) == 1 and outputs[0] == func._schema.arguments[0].name:
        return _in_place(functional)
    return _refusal(func)


def _reshaping(func: Any) -> Handler:
    """Return the handler of ``t_`` and the like: the tensor becomes another view of its storage."""
    view = _functional_overload(func, is_out=False)
    if view is None or _name(view) not in VIEWS:
        return _refusal(func)
    make = _view(view)

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        args[0].data = make(args, kwargs)
        return args[0]

    return handle


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _functional_overload(func: Any, is_out: bool) -> Any:
    name = _name(func)
    if name in _FUNCTIONAL_NAMES:
        return overload(_FUNCTIONAL_NAMES[name])
    packet, _, kind = name.partition(".")
    if not is_out:
        if not packet.endswith("_"):
            return None
        return overload(packet[:-1] + (f".{kind}" if kind else ""))
    wanted = _inputs(func)
    found = getattr(torch.ops.aten, packet)
    for each in found.overloads():
        candidate = getattr(found, each)
        if not candidate._schema.is_mutable and _inputs(candidate) == wanted:
            return candidate
    return None


# Arguments of factories, which an output determines.
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


def _values_of(functional: Any) -> Callable[[Any, dict[str, Any]], Any]:
    """Return a function from arguments to the values of the results of an operation."""
    function = TABLE.get(functional)
    if function is not None:

        def compute(args: Any, kwargs: dict[str, Any]) -> Any:
            values, named = _Values().all(args, kwargs)
            return function(*values, **named)

        return compute

    def carry_out(args: Any, kwargs: dict[str, Any]) -> Any:
        handler = HANDLERS.get(functional) or resolve(functional)
        return _value_or_values(handler(args, kwargs))

    return carry_out


def _value_or_values(result: Any) -> Any:
    if type(result) is BurnTensor:
        return value_of(result)
    if isinstance(result, tuple | list):
        return [_value_or_values(one) for one in result]
    return result


def _in_place(functional: Any) -> Handler:
    compute = _values_of(functional)

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        target = args[0]
        if type(target) is not BurnTensor:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{target.device} and a burn device!"
            )
        value = compute(args, kwargs)
        _check_cast(value, target)
        write(target, value)
        return target

    return handle


def _check_cast(value: br.Tensor, target: Any) -> None:
    wanted = target.dtype
    if value.dtype.is_floating and not (wanted.is_floating_point or wanted.is_complex):
        raise RuntimeError(
            f"result type {value.dtype} can't be cast to the desired output type {wanted}"
        )


def _into_outputs(functional: Any, outputs: list[str]) -> Handler:
    compute = _values_of(functional)
    is_factory = any(one.name == "device" for one in functional._schema.arguments)

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        targets = [kwargs[name] for name in outputs]
        inputs = {name: x for name, x in kwargs.items() if name not in outputs}
        if is_factory:
            inputs |= {"dtype": targets[0].dtype, "device": targets[0].device}
        result = compute(args, inputs)
        results = result if isinstance(result, tuple | list) else [result]
        for at, (target, value) in enumerate(zip(targets, results, strict=True)):
            _check_cast(value, target)
            if tuple(target.shape) != value.shape:
                strides = strides_of_results(functional, args, inputs)
                resize(
                    target, value.shape, strides[at] if len(results) > 1 and strides else strides
                )
            write(target, value)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return handle


def resize(target: BurnTensor, shape: tuple[int, ...], stride: Any) -> None:
    """Give an output another shape, with elements of its own, as PyTorch does if it has none."""
    if target.numel():
        warnings.warn(
            f"An output with one or more elements was resized since it had shape "
            f"{list(target.shape)}, which does not match the required output shape {list(shape)}.",
            stacklevel=3,
        )
    target.data = unset(shape, stride, target.dtype, target._place)


# --- operations on lists of tensors ------------------------------------------------------------

# Kind of a ``_foreach`` overload -> kinds of the overload for one tensor.
_FOREACH_KINDS: Final = {
    "": ("",),
    "List": (".Tensor", ""),
    "Scalar": (".Scalar", ".Tensor_Scalar", ""),
    "ScalarList": (".Scalar", ".Tensor_Scalar", ""),
    "Tensor": (".Tensor",),
}


def _foreach(func: Any) -> Handler | None:
    """Return the handler of ``_foreach_add_`` and the like: one call for all parameters."""
    packet, _, kind = _name(func).removeprefix("_foreach_").partition(".")
    writes = packet.endswith("_")
    names = [packet.removesuffix("_") + one for one in _FOREACH_KINDS.get(kind, ())]
    single = next((found for found in map(overload, names) if found in TABLE), None)
    if single is None:
        return None
    function = TABLE[single]
    arguments = func._schema.arguments
    keyword = next((one.name for one in arguments if one.name in ("value", "alpha")), None)
    if keyword == "alpha" and kind != "List":
        return None

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        targets = args[0]
        if any(type(x) is not BurnTensor for x in targets):
            raise RuntimeError("the tensors of a list must all be on burn devices")
        last = kwargs.get(keyword) if keyword else None
        columns = list(args[1:])
        if keyword in ("value",) and len(columns) == 3:
            last = columns.pop()
        if kind == "ScalarList" and "scalars" in kwargs:
            columns.append(kwargs["scalars"])
        if kind == "ScalarList" and len(columns) == 3:
            last = columns.pop()
        results = []
        for at, target in enumerate(targets):
            row = [_one_value(x[at] if isinstance(x, list | tuple) else x, target) for x in columns]
            each = last[at] if isinstance(last, list | tuple) else last
            named = {} if each is None else {keyword or "value": each}
            value = function(value_of(target), *row, **named)
            if writes:
                write(target, value)
            else:
                given = [x[at] if isinstance(x, list | tuple) else x for x in (targets, *columns)]
                results.append(_result_of(single, given, named, value))
        return None if writes else results

    return handle


def _result_of(func: Any, args: list[Any], kwargs: dict[str, Any], value: br.Tensor) -> BurnTensor:
    given = [x for x in args if type(x) is BurnTensor]
    if all(x.is_contiguous() for x in given):
        return wrap(value, given[0]._place)
    made: BurnTensor = _wrapped_strided(
        value, strides_of_results(func, args, kwargs), given[0]._place
    )
    return made


def _one_value(x: Any, target: BurnTensor) -> Any:
    if type(x) is BurnTensor:
        return value_of(x)
    return upload(x, target._place) if isinstance(x, torch.Tensor) else x


# --- operations with handlers of their own -----------------------------------------------------


def _copy(args: Any, kwargs: dict[str, Any]) -> Any:
    target, source = args[0], args[1]
    if type(target) is not BurnTensor:
        target.copy_(to_cpu(source))
        return target
    if type(source) is BurnTensor:
        value = value_of(source)
        if source._place is not target._place and source._place != target._place:
            value = value.to(wire_device(target._place))
    else:
        value = upload(source, target._place)
    if value.shape != tuple(target.shape):
        value = br.broadcast_to(value, tuple(target.shape))
    write(target, value)
    return target


def _copy_from(args: Any, kwargs: dict[str, Any]) -> Any:
    return _copy((args[1], args[0]), kwargs)


def _to_copy(args: Any, kwargs: dict[str, Any]) -> Any:
    x = args[0]
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    stride = _stride_of_copy(x, kwargs.get("memory_format"))
    if type(x) is not BurnTensor:
        place = torch.device("burn", index_of(device))
        return _copied(upload(x if dtype is None else x.to(dtype), place), stride, place)
    if device is not None and device.type != "burn":
        copied = to_cpu(x)
        if stride is not None:
            copied = torch.empty_strided(x.shape, stride, dtype=x.dtype).copy_(copied)
        return copied.to(device, dtype or x.dtype)
    value = TABLE[torch.ops.aten._to_copy.default](value_of(x), dtype=dtype)
    if device is None or index_of(device) == x._place.index:
        return _copied(value, stride, x._place)
    place = torch.device("burn", index_of(device))
    return _copied(value.to(wire_device(place)), stride, place)


def _copied(value: br.Tensor, stride: Any, place: Any) -> BurnTensor:
    return wrap(value, place) if stride is None else wrap_strided(value, stride, place)


def _stride_of_copy(x: Any, memory_format: Any) -> Any:
    """Return the strides of a copy of a tensor, ``None`` if it is contiguous."""
    preserved = memory_format in (None, torch.preserve_format)
    if memory_format is torch.contiguous_format or (preserved and x.is_contiguous()):
        return None
    shown = torch.empty_strided(x.shape, x.stride(), device="meta")
    return torch.empty_like(shown, memory_format=memory_format).stride()


def _item(args: Any, kwargs: dict[str, Any]) -> Any:
    return value_of(args[0]).item()


def _empty(args: Any, kwargs: dict[str, Any]) -> Any:
    place = torch.device("burn", index_of(kwargs.get("device")))
    memory_format = kwargs.get("memory_format")
    stride = None
    if memory_format is not None:
        stride = torch.empty(args[0], device="meta", memory_format=memory_format).stride()
    return unset(args[0], stride, kwargs.get("dtype") or torch.get_default_dtype(), place)


def _empty_strided(args: Any, kwargs: dict[str, Any]) -> Any:
    place = torch.device("burn", index_of(kwargs.get("device")))
    return unset(args[0], args[1], kwargs.get("dtype") or torch.get_default_dtype(), place)


def _new_empty_strided(args: Any, kwargs: dict[str, Any]) -> Any:
    x, device = args[0], kwargs.get("device")
    place = x._place if device is None else torch.device("burn", index_of(device))
    return unset(args[1], args[2], kwargs.get("dtype") or x.dtype, place)


def _empty_like(args: Any, kwargs: dict[str, Any]) -> Any:
    x, device, dtype = args[0], kwargs.get("device"), kwargs.get("dtype") or args[0].dtype
    stride = _stride_of_copy(x, kwargs.get("memory_format"))
    if device is not None and device.type != "burn":
        return torch.empty_strided(
            x.shape, stride or row_major(x.shape), dtype=dtype, device=device
        )
    place = x._place if device is None else torch.device("burn", index_of(device))
    return unset(x.shape, stride, dtype, place)


def _nonzero(args: Any, kwargs: dict[str, Any]) -> Any:
    found = TABLE[torch.ops.aten.nonzero.default](value_of(args[0]))
    # PyTorch stores the indices along each axis one after the other.
    return wrap_strided(found, (1, found.shape[0]), args[0]._place)


# Name of an overload -> its handler.
_SPECIAL: Final[dict[str, Handler]] = {
    "_copy_from": _copy_from,
    "_local_scalar_dense": _item,
    "_to_copy": _to_copy,
    "copy_": _copy,
    "empty.memory_format": _empty,
    "empty_like": _empty_like,
    "empty_strided": _empty_strided,
    "new_empty_strided": _new_empty_strided,
    "nonzero": _nonzero,
}
