"""PyTorch programs on burn devices: ``model.to("burn")``.

Each ``connect`` adds a server as a device: ``torch.device("burn", 0)``, ``("burn", 1)`` and so on.
Tensors, modules, autograd and optimizers are PyTorch's own; their operations run on the server.
Nothing else in this package imports this folder, which needs PyTorch: ``burn-remote[torch]``.
"""

from __future__ import annotations

import importlib
import importlib.util
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, NoReturn

if importlib.util.find_spec("torch") is None:
    raise ModuleNotFoundError(
        'burn_remote.torch needs PyTorch, which is not installed: pip install "burn-remote[torch]"',
        name="torch",
    )

import burn_remote as br
from burn_remote.torch import device_registry
from burn_remote.torch.compiling.default_compiler import compile_for_burn_devices
from burn_remote.torch.dispatching import allow_fallback
from burn_remote.torch.errors import UnsupportedOperation
from burn_remote.torch.registration import register
from burn_remote_protocol.errors import UsageError

__all__ = ["UnsupportedOperation", "add", "connect", "fallback", "local"]

# Names that other libraries have -> what to write instead.
_ADVICE: Final = {
    "close": "device = burn_remote.RemoteDevice(address), then add(device) and device.close()",
    "current_device": "torch.burn.current_device()",
    "device_count": "torch.burn.device_count()",
    "devices": "torch.burn.device_count() devices, torch.device('burn', 0) and so on",
    "disconnect": "device = burn_remote.RemoteDevice(address), then add(device) and device.close()",
    "is_available": "torch.burn.is_available()",
    "synchronize": "torch.burn.synchronize()",
}

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names

    def __getattr__(name: str) -> NoReturn:
        text = f"; write {_ADVICE[name]}" if name in _ADVICE else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{text}", name=name)


register()
compile_for_burn_devices()
# PyTorch finds the backend of an installed package by its entry point, and then imports dynamo only
# when a program uses it. Without the entry point, the backend must be registered here.
if not entry_points(group="torch_dynamo_backends", name="burn_remote"):
    dynamo_backend = importlib.import_module("burn_remote.torch.compiling.dynamo_backend")
    dynamo_backend.register()


def connect(address: str | None = None, **options: Any) -> Any:
    """Connect to a server and return its ``torch.device``: the next index of ``burn``.

    The default address is ``$BURN_REMOTE_ADDRESS``, else ``ws://127.0.0.1:3000``. ``options`` are
    those of ``burn_remote.RemoteDevice``, whose errors this raises. An address that is already
    connected keeps its index.
    """
    return add(br.RemoteDevice(address, **options))


def local(**options: Any) -> Any:
    """Open a device in this process and return its ``torch.device``.

    ``options`` are those of ``burn_remote.LocalDevice``.
    """
    return add(br.LocalDevice(**options))


def add(device: br.Device) -> Any:
    """Return the ``torch.device`` of an open ``burn_remote`` device."""
    return device_registry.add_device(device)


def fallback(device: str | None) -> None:
    """Permit (``"cpu"``) or forbid (``None``) that operations without a row run on the CPU.

    Each such operation copies its tensors to this process and back, and warns once. Raises
    ``UsageError`` for another argument.
    """
    if device not in ("cpu", None):
        raise UsageError(f"fallback takes 'cpu' or None, not {device!r}")
    allow_fallback(device == "cpu")
