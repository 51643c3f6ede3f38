"""Search for the client process of a connection that comes from this machine.

Linux lists the sockets of a machine in ``/proc/net/tcp``. It lists the open files of a process in
``/proc/PID/fd``, if this user may examine the process. So a process of another user, container or
machine is not found.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Final

__all__ = ["process_at"]

PROC: Final = Path("/proc")

_FAMILIES: Final = ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6"))


def process_at(host: str, port: int, server_port: int) -> int | None:
    """Return the id of the process whose socket ``host:port`` is connected to ``server_port``.

    Returns ``None`` if the process cannot be found.
    """
    inode = _socket_inode(host, port, server_port)
    if inode is None:
        return None
    target = f"socket:[{inode}]"
    for entry in _processes():
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            for descriptor in os.scandir(entry / "fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor.path) == target:
                        return int(entry.name)
    return None


def _processes() -> list[Path]:
    with contextlib.suppress(OSError):
        return [entry for entry in PROC.iterdir() if entry.name.isdigit()]
    return []


def _socket_inode(host: str, port: int, server_port: int) -> str | None:
    for family, name in _FAMILIES:
        try:
            address = _as_listed(host, family)
            lines = (PROC / "net" / name).read_text("ascii").splitlines()[1:]
        except (OSError, ValueError):
            continue
        for line in lines:
            _, local, remote, *rest = line.split()
            if local == f"{address}:{port:04X}" and remote.endswith(f":{server_port:04X}"):
                return rest[6]
    return None


def _as_listed(host: str, family: socket.AddressFamily) -> str:
    """Return an address as the kernel lists it: 32-bit words in the machine's byte order."""
    if family is socket.AF_INET6 and ":" not in host:
        host = f"::ffff:{host}"
    packed = socket.inet_pton(family, host)
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, 'little'):08X}" for word in words)
