"""Operations with handlers of their own: copies between devices, and tensors without elements."""

from __future__ import annotations

from typing import Any, Final

import torch

import burn_remote as br
from burn_remote.torch.aten.table import TABLE
from burn_remote.torch.burn_tensor import (
    BurnTensor,
    to_cpu,
    unset,
    upload,
    value_of,
    without_repetition,
    wrap,
    wrap_strided,
    write,
)
from burn_remote.torch.device_registry import index_of, wire_device
from burn_remote.torch.dtypes import dtype_from_torch
from burn_remote.torch.geometry import row_major
from burn_remote.torch.value_conversion import Handler

__all__ = ["COPIES"]


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


def _zero(args: Any, kwargs: dict[str, Any]) -> Any:
    target = args[0]
    once = without_repetition(target)
    write(once, _zeros_of(once))
    return target


def _zeros_of(x: BurnTensor) -> br.Tensor:
    return br.zeros(tuple(x.shape), dtype=dtype_from_torch(x.dtype), device=wire_device(x._place))


def _nonzero(args: Any, kwargs: dict[str, Any]) -> Any:
    found = TABLE[torch.ops.aten.nonzero.default](value_of(args[0]))
    # PyTorch stores the indices along each axis one after the other.
    return wrap_strided(found, (1, found.shape[0]), args[0]._place)


# Name of an overload -> its handler.
COPIES: Final[dict[str, Handler]] = {
    "_copy_from": _copy_from,
    "_local_scalar_dense": _item,
    "_to_copy": _to_copy,
    "copy_": _copy,
    "empty.memory_format": _empty,
    "empty_like": _empty_like,
    "empty_strided": _empty_strided,
    "new_empty_strided": _new_empty_strided,
    "nonzero": _nonzero,
    "zero_": _zero,
}
