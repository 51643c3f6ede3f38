"""Validation of device arguments, and the default device."""

from __future__ import annotations

from burn_remote.devices.device import Device, RemoteDevice
from burn_remote.diagnostics.foreign_names import device_advice
from burn_remote_protocol.errors import ConnectionFailed, UsageError

__all__ = ["checked_device", "default_device"]


def checked_device(device: Device) -> Device:
    """Return ``device``. Raises ``UsageError`` if it is not a device, for example an address."""
    if isinstance(device, Device):
        return device
    advice = device_advice(device)
    raise UsageError(f"a device must be a RemoteDevice or a LocalDevice, not {device!r}{advice}")


_default: Device | None = None


def default_device() -> Device:
    """Return the device of calls with ``device=None``: ``RemoteDevice()``, opened at first use.

    Raises the errors of ``RemoteDevice``.
    """
    global _default
    # No lock: concurrent first calls share one session, so either device is right.
    device = _default
    if device is None or device.session.closed:
        try:
            device = _default = RemoteDevice()
        except ConnectionFailed as error:
            raise ConnectionFailed(
                f"{error}; this is the default device: start burn-remote-server there, "
                "set BURN_REMOTE_ADDRESS, or pass device=burn_remote.LocalDevice()"
            ) from error
    return device
