"""Devices by name: ``burn_remote.device("ws://gpu-box:3000")``, and ``device="local"`` in calls."""

from __future__ import annotations

import threading
from typing import Final

from burn_remote.devices.addresses import normal_address
from burn_remote.devices.local import LocalDevice
from burn_remote.devices.remote import RemoteDevice
from burn_remote.diagnostics.advice import device_advice
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.device_class import AnyDevice, Device, checked_device, open_names_with
from burn_remote_protocol.errors import UsageError

__all__ = ["device"]

LOCAL: Final = "local"

_lock: Final = threading.Lock()

# Devices that were opened by name, so that calls with one name share a session.
_opened: Final[dict[str, Device]] = {}


@explained
def device(name: AnyDevice, /) -> Device:
    """Return the device with this name, which is opened at first use and then stays open.

    ``name`` is an address such as ``"ws://gpu-box:3000/1"`` or ``"gpu-box:3000"``, or ``"local"``
    for a ``LocalDevice()`` that all calls with this name share. Wherever a function takes a device,
    it takes such a name. Once the program has closed the device (``with burn_remote.device(…)``),
    the next use of the name opens another one. A device is returned as it is.

    The session uses ``$BURN_REMOTE_TOKEN``; ``RemoteDevice`` has more options. Raises what
    ``RemoteDevice(name)`` raises, and ``UsageError`` for another library's name, such as
    ``"cuda"``.
    """
    return checked_device(name)


def _open(name: str) -> Device:
    if advice := device_advice(name):
        raise UsageError(f"{name!r} names no device of burn_remote{advice}")
    key = name if name == LOCAL else normal_address(name)
    found = _opened.get(key)
    if found is None or found.session.closed:
        opened = LocalDevice() if key == LOCAL else RemoteDevice(key)
        with _lock:
            # Another thread may have opened one meanwhile, which others may use already.
            if _opened.get(key) is found:
                _opened[key] = opened
            found = _opened[key]
    return found


open_names_with(_open)
