"""The device of calls with ``device=None``."""

from __future__ import annotations

from collections.abc import Callable

from burn_remote.functions.device_class import Device
from burn_remote_protocol.errors import ConnectionFailed

__all__ = ["default_device", "open_default_with"]

_openers: list[Callable[[], Device]] = []
_default: Device | None = None


def open_default_with(open_device: Callable[[], Device]) -> None:
    """Register the function that opens the default device: ``RemoteDevice`` registers itself."""
    _openers[:] = [open_device]


def default_device() -> Device:
    """Return the device of calls with ``device=None``: ``RemoteDevice()``, opened at first use.

    Raises what ``RemoteDevice()`` raises.
    """
    global _default
    # No lock: concurrent first calls share one session, so either device is right.
    device = _default
    if device is None or device.session.closed:
        try:
            device = _default = _openers[0]()
        except ConnectionFailed as error:
            raise ConnectionFailed(
                f"{error}; this is the default device: start burn-remote-server there, "
                "set BURN_REMOTE_ADDRESS, or pass device=burn_remote.LocalDevice()"
            ) from None
    return device
