"""The devices behind ``torch.device("burn", index)``, and which of them is the current one."""

from __future__ import annotations

import threading
from typing import Any, Final

import torch

import burn_remote as br
from burn_remote_protocol.errors import UsageError

__all__ = [
    "BACKEND",
    "add_device",
    "current_index",
    "device_count",
    "index_of",
    "set_current_index",
    "torch_device",
    "wire_device",
]

# The name of the backend: ``torch.device("burn")``.
BACKEND: Final = "burn"

_devices: list[br.Device] = []
_torch_devices: list[Any] = []
_lock = threading.Lock()
_current = threading.local()


def add_device(device: br.Device) -> Any:
    """Return the ``torch.device`` of a device, with the next free index unless it has one."""
    with _lock:
        for index, known in enumerate(_devices):
            if known == device:
                return _torch_devices[index]
        _devices.append(device)
        _torch_devices.append(torch.device(BACKEND, len(_devices) - 1))
        return _torch_devices[-1]


def device_count() -> int:
    """Return the number of devices that were connected."""
    return len(_devices)


def current_index() -> int:
    """Return the index that ``torch.device("burn")`` means in this thread."""
    return getattr(_current, "index", 0)


def set_current_index(index: int) -> None:
    """Set the index that ``torch.device("burn")`` means in this thread."""
    wire_device(torch.device(BACKEND, index))
    _current.index = index


def index_of(device: Any) -> int:
    """Return the index of a ``torch.device``, ``"burn:1"`` or ``1``; ``None`` is the current."""
    if device is None:
        return current_index()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return current_index() if index is None else index


def torch_device(device: br.Device) -> Any:
    """Return the ``torch.device`` of a device. Raises ``UsageError`` if it was not added."""
    for index, known in enumerate(_devices):
        if known == device:
            return _torch_devices[index]
    raise UsageError(f"{device} is no burn device; add it with burn_remote.torch.add({device!r})")


def wire_device(device: Any) -> br.Device:
    """Return the device behind a ``torch.device``. Raises ``UsageError`` if there is none."""
    index = index_of(device)
    if not 0 <= index < len(_devices):
        match len(_devices):
            case 0:
                connected = "no device is"
            case 1:
                connected = "only burn:0 is"
            case count:
                connected = f"only burn:0 to burn:{count - 1} are"
        raise UsageError(
            f"burn:{index} is not connected, {connected}; "
            'call burn_remote.torch.connect("ws://host:3000") first'
        )
    return _devices[index]
