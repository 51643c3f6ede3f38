"""The device of calls with ``device=None``."""

from __future__ import annotations

from collections.abc import Callable

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.device_class import AnyDevice, Device, checked_device
from burn_remote_protocol.errors import ConnectionFailed

__all__ = ["default_device", "open_default_with", "set_default_device"]

_openers: list[Callable[[], Device]] = []
_chosen: Device | None = None  # by set_default_device
_default: Device | None = None


def open_default_with(open_device: Callable[[], Device]) -> None:
    """Register the function that opens the default device: ``RemoteDevice`` registers itself."""
    _openers[:] = [open_device]


@explained
def set_default_device(device: AnyDevice | None) -> None:
    """Set the device that calls with ``device=None`` use, in all threads of this process.

    ``device`` is a device or its name (see ``burn_remote.device``). ``None`` restores
    ``RemoteDevice()``. A name is opened at once, so this raises what ``burn_remote.device`` raises.
    The device is not closed when another one takes its place. Once the program has closed it, calls
    with ``device=None`` raise ``ClosedDevice``.
    """
    global _chosen
    _chosen = None if device is None else checked_device(device)


def default_device() -> Device:
    """Return the device of calls with ``device=None``.

    It is the one given to ``set_default_device``, else ``RemoteDevice()``, opened at first use.
    Raises what ``RemoteDevice()`` raises.
    """
    global _default
    if _chosen is not None:
        return _chosen
    # No lock: concurrent first calls share one session, so either device is right.
    device = _default
    if device is None or device.session.closed:
        try:
            device = _default = _openers[0]()
        except ConnectionFailed as error:
            raise ConnectionFailed(
                f"{error}; this is the default device: start burn-remote-server there, "
                "set BURN_REMOTE_ADDRESS, call burn_remote.set_default_device(…), or pass "
                "device=burn_remote.LocalDevice()"
            ) from None
    return device
