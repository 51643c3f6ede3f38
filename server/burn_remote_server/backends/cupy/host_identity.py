"""The identity of this host for processes that could share GPU memory."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

__all__ = ["host_identity"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def host_identity(boot: Path = _BOOT) -> str | None:
    """Return a digest that only this user's processes on this boot of this host can compute.

    Returns ``None`` where the system provides no boot id.

    A host name would not identify the host: machines created from one image may share a name, and
    containers on one machine have different names. The digest includes the user, because another
    user's process cannot open this process's memory. The identity is a digest because remote peers
    receive it too.
    """
    try:
        started = boot.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    known = f"burn-remote {started} {os.getuid()}"
    return hashlib.sha256(known.encode()).hexdigest()[:32]
