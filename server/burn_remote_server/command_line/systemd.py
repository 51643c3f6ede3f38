"""What does a server tell the service manager that started it? The protocol of sd_notify(3)."""

from __future__ import annotations

import os
import socket
from typing import Final

from burn_remote_server.telemetry.logs import get_logger

__all__ = ["READY", "STOPPING", "notify"]

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"

# The manager reads at once or never: larger holds up the event loop of a server beside a dead one.
TIMEOUT_SECONDS: Final = 1.0

logger = get_logger(__name__)


def notify(state: str, status: str) -> None:
    """Tell a state and a text that ``systemctl status`` shows; nothing where nobody listens.

    A manager that cannot be told is logged: it is no reason not to serve.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # Linux's abstract names, as systemd writes them
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.settimeout(TIMEOUT_SECONDS)
            manager.connect(address)
            manager.send(f"{state}\nSTATUS={status}".encode())
    except OSError as error:
        logger.warning("service manager not told", state=state, reason=str(error))
