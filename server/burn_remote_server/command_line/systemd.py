"""Service manager notifications, by the protocol of sd_notify(3)."""

from __future__ import annotations

import os
import socket
from typing import Final

from burn_remote_server.telemetry.logs import get_logger

__all__ = ["READY", "STOPPING", "notify"]

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"

# The longest time that a service manager that does not respond can block the event loop.
TIMEOUT_SECONDS: Final = 1.0

logger = get_logger(__name__)


def notify(state: str, status: str) -> None:
    """Send a state, and a text for ``systemctl status``, to the service manager if there is one.

    A failure is logged and otherwise ignored.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # systemd's notation for a Linux abstract socket
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.settimeout(TIMEOUT_SECONDS)
            manager.connect(address)
            manager.send(f"{state}\nSTATUS={status}".encode())
    except OSError as error:
        logger.warning("service manager not notified", state=state, reason=str(error))
