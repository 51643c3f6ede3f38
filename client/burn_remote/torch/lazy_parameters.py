"""Parameters and buffers without a shape (``nn.LazyLinear``) on burn devices.

Only PyTorch's own tensors can have no shape. So such a parameter stays on the CPU, remembers the
burn device that it was made on or moved to, and gets its elements there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn.parameter import (
    UninitializedBuffer,
    UninitializedParameter,
    UninitializedTensorMixin,
    is_lazy,
)

from burn_remote.torch.device_registry import BACKEND, index_of, wire_device

__all__ = ["moving_lazily", "remember_devices"]

_KINDS: Final = (UninitializedParameter, UninitializedBuffer)


def remember_devices() -> None:
    """Have lazy parameters remember burn devices."""
    _wrap_materialize()
    for kind in _KINDS:
        _wrap_new(kind)
    _wrap_deepcopy()


def moving_lazily(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function for ``nn.Module._apply`` that also moves lazy parameters and buffers."""

    def apply(x: Any) -> Any:
        if not is_lazy(x):
            return function(x)
        place = _place_of(x)
        held = x.data
        made = function(torch.empty(0, dtype=held.dtype, device=place or held.device))
        if made.device.type != BACKEND:
            x._burn_place = None
            return function(x)
        x._burn_place = made.device
        if made.dtype is not held.dtype:
            x.data = torch.empty(0, dtype=made.dtype, device="cpu")
        return x

    return apply


def _place_of(x: Any) -> Any:
    return getattr(x, "_burn_place", None)


def _wrap_materialize() -> None:
    original = UninitializedTensorMixin.materialize

    @functools.wraps(original)
    def materialize(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        place = _place_of(self) if device is None else torch.device(device)
        if place is None or place.type != BACKEND:
            original(self, shape, device, dtype)
            return
        dtype = self.data.dtype if dtype is None else dtype
        made = torch.empty(shape, device=place, dtype=dtype)
        if self.cls_to_become is torch.nn.Parameter:
            made = torch.nn.Parameter(made, self.requires_grad)
        original(self, (0,), "cpu", dtype)
        torch.utils.swap_tensors(self, made)

    UninitializedTensorMixin.materialize = materialize


def _wrap_new(kind: Any) -> None:
    original = kind.__new__

    @functools.wraps(original)
    def new(
        cls: Any, requires_grad: Any = None, device: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if requires_grad is None:
            requires_grad = kind is UninitializedParameter
        place = torch.get_default_device() if device is None else torch.device(device)
        if place.type != BACKEND:
            return original(cls, requires_grad, device, *args, **kwargs)
        wire_device(place)  # raises an error for a device that was not connected
        made = original(cls, requires_grad, "cpu", *args, **kwargs)
        made._burn_place = torch.device(BACKEND, index_of(place))
        return made

    kind.__new__ = new


def _wrap_deepcopy() -> None:
    original = UninitializedParameter.__deepcopy__

    @functools.wraps(original)
    def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
        made = original(self, memo)
        made._burn_place = _place_of(self)
        return made

    UninitializedParameter.__deepcopy__ = deepcopy
