"""Which array libraries are there, and how is one opened?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from burn_remote_protocol.errors import UsageError
from burn_remote_server.backends.interface import Backend

__all__ = ["open_backends"]


def _open_numpy(count: int) -> list[Backend]:
    from burn_remote_server.backends.numpy import NumpyBackend

    return [NumpyBackend() for _ in range(count)]


# Imported only when asked for: a server needs no library that it does not compute with.
_OPENERS: Final[dict[str, Callable[[int], list[Backend]]]] = {"numpy": _open_numpy}


def open_backends(name: str, device_count: int) -> list[Backend]:
    """Return the backends of a process, one per device.

    Raises ``UsageError`` for a library that is not known.
    """
    opener = _OPENERS.get(name)
    if opener is None:
        raise UsageError(f"unknown backend {name!r}; known are {', '.join(sorted(_OPENERS))}")
    return opener(device_count)
