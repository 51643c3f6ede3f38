"""Parameters of modules that move to burn devices and back stay the same objects.

PyTorch makes a new parameter where it cannot put a tensor of the new device into the old object.
Then layers that shared a parameter have two, and an optimizer updates the old one. On CUDA neither
happens, and programs rely on that.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import Any, Final

import torch

from burn_remote.torch.burn_tensor import BurnTensor
from burn_remote.torch.lazy_parameters import moving_lazily

__all__ = ["keep_identity"]

_original: Final = torch.nn.Module._apply
_this_thread: Final = threading.local()


def keep_identity() -> None:
    """Have ``nn.Module.to`` and similar methods keep the objects of parameters that move."""
    torch.nn.Module._apply = _apply


@functools.wraps(_original)
def _apply(self: Any, fn: Any, recurse: bool = True) -> Any:
    if getattr(_this_thread, "is_inside", False):  # PyTorch calls it for each module inside
        return _original(self, fn, recurse)
    before = list(_places(self, recurse))
    _this_thread.is_inside = True
    try:
        return _original(self, moving_lazily(fn), recurse)
    finally:
        _this_thread.is_inside = False
        _restore(before)


def _places(module: Any, recurse: bool) -> Iterator[tuple[dict[str, Any], str, Any]]:
    for one in module.modules() if recurse else (module,):
        for name, parameter in one._parameters.items():
            if parameter is not None:
                yield one._parameters, name, parameter


def _restore(before: list[tuple[dict[str, Any], str, Any]]) -> None:
    kept: dict[int, Any] = {}
    for parameters, name, old in before:
        new = parameters[name]
        if new is old or BurnTensor not in (type(new), type(old)):
            continue
        if id(old) not in kept:
            try:
                torch.utils.swap_tensors(old, new)
                kept[id(old)] = old
            except RuntimeError:  # something else refers to its elements, such as a graph
                kept[id(old)] = new
        parameters[name] = kept[id(old)]
