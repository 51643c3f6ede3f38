"""``torch.load(…, map_location="burn")``: tensors are loaded on the CPU and then moved.

Without this, PyTorch would allocate storages on the device, which has no memory in this process,
and crash the process.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import torch

from burn_remote.torch.device_registry import BACKEND
from burn_remote.torch.errors import UnsupportedOperation

__all__ = ["load_to_devices"]

_original: Final = torch.load

# Before PyTorch's own handlers of locations, which begin at 10.
_PRIORITY: Final = 1


def load_to_devices() -> None:
    """Have ``torch.load`` take burn devices as ``map_location``."""
    torch.load = _load
    torch.serialization.register_package(_PRIORITY, lambda storage: None, _refuse)


@functools.wraps(_original)
def _load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    if not (isinstance(map_location, torch.device | str) and _is_ours(map_location)):
        return _original(f, map_location, *args, **kwargs)
    loaded = _original(f, "cpu", *args, **kwargs)
    return _moved(loaded, torch.device(map_location), {})


def _is_ours(location: Any) -> bool:
    return str(location).partition(":")[0] == BACKEND


def _refuse(storage: Any, location: Any) -> None:
    """Refuse a storage whose location a function or a dictionary maps to a burn device."""
    if not _is_ours(location):
        return None
    raise UnsupportedOperation(
        f"torch.load maps a storage to {location}, but burn devices have no memory in this "
        f'process; pass map_location="{BACKEND}", or map_location="cpu" and move the result'
    )


def _moved(value: Any, device: Any, known: dict[int, Any]) -> Any:
    """Move the tensors of a loaded value to a device; ``known`` has those moved so far, by id.

    Tensors in dictionaries, lists, tuples and modules are moved, those in other objects are not.
    Step counts of optimizers stay on the CPU.
    """
    if isinstance(value, torch.nn.Module):
        return value.to(device)
    if isinstance(value, torch.Tensor):
        if id(value) not in known:
            moved = value.detach().to(device)
            if isinstance(value, torch.nn.Parameter):
                moved = torch.nn.Parameter(moved, value.requires_grad)
            else:
                moved.requires_grad_(value.requires_grad)
            known[id(value)] = moved
        return known[id(value)]
    if isinstance(value, dict):
        for key, one in [*value.items()]:
            # The optimizers of PyTorch read their step counts, which would be a round trip each.
            if not (key == "step" and isinstance(one, torch.Tensor) and one.dim() == 0):
                value[key] = _moved(one, device, known)
    elif isinstance(value, list):
        value[:] = [_moved(one, device, known) for one in value]
    elif isinstance(value, tuple):
        items = [_moved(one, device, known) for one in value]
        return tuple.__new__(type(value), items)
    return value
