"""The device that a call names, and the default device of calls that name none."""

from __future__ import annotations

from burn_remote.device import Device, RemoteDevice
from burn_remote.diagnostics.foreign_names import device_advice
from burn_remote_protocol.errors import ConnectionFailed, UsageError

__all__ = ["checked_device", "default_device"]


def checked_device(device: Device) -> Device:
    """Return a device. Raises ``UsageError`` for anything else, such as its address."""
    if isinstance(device, Device):
        return device
    advice = device_advice(device)
    raise UsageError(f"a device is a RemoteDevice or a LocalDevice, not {device!r}{advice}")


_default: Device | None = None


def default_device() -> Device:
    """Return the device of tensors made without one: ``RemoteDevice()``, opened at first use.

    Raises ``ConnectionFailed`` and whatever else ``RemoteDevice`` does.
    """
    global _default
    # No lock: threads that come here together share one session, and either device will do.
    device = _default
    if device is None or device.session.closed:
        try:
            device = _default = RemoteDevice()
        except ConnectionFailed as error:
            raise ConnectionFailed(
                f"{error}; a tensor made without device= goes there: start burn-remote-server, "
                "set BURN_REMOTE_ADDRESS, or write device=burn_remote.LocalDevice()"
            ) from error
    return device
