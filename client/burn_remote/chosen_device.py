"""Which device is meant where a call names one, and where it names none?"""

from __future__ import annotations

import threading

from burn_remote.device import Device, RemoteDevice
from burn_remote.diagnostics.foreign_names import device_advice
from burn_remote_protocol.errors import ConnectionFailed, UsageError

__all__ = ["checked_device", "default_device"]


def checked_device(device: Device) -> Device:
    """Return a device. Raises ``UsageError`` for what is none, such as its address."""
    if isinstance(device, Device):
        return device
    advice = device_advice(device)
    raise UsageError(f"a device is a RemoteDevice or a LocalDevice, not {device!r}{advice}")


_default: Device | None = None
_default_lock = threading.Lock()


def default_device() -> Device:
    """Return the device of tensors made without one: ``RemoteDevice()``, opened at first need.

    Raises ``ConnectionFailed`` and whatever else ``RemoteDevice`` does.
    """
    global _default
    with _default_lock:
        if _default is None or _default.session.closed:
            try:
                _default = RemoteDevice()
            except ConnectionFailed as error:
                raise ConnectionFailed(
                    f"{error}; a tensor made without device= goes there: start burn-remote-server, "
                    "set BURN_REMOTE_ADDRESS, or write device=burn_remote.LocalDevice()"
                ) from error
        return _default
