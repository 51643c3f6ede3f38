"""Opening of backends by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from burn_remote_protocol.errors import UsageError
from burn_remote_server.backends.interface import Backend

__all__ = ["open_backends"]


def _open_numpy(count: int, memory_limit: int | None) -> list[Backend]:
    from burn_remote_server.backends.numpy.backend import NumpyBackend

    return [NumpyBackend(memory_limit) for _ in range(count)]


def _open_cupy(count: int, memory_limit: int | None) -> list[Backend]:
    try:
        from burn_remote_server.backends.cupy.backend import CupyBackend

        first = CupyBackend(0, memory_limit)
    except ImportError as error:
        raise UsageError(
            "the backend 'cupy' needs CuPy: install burn-remote[cuda13] or burn-remote[cuda12]"
        ) from error
    except Exception as error:  # CuPy's own error classes cannot be imported here
        raise UsageError(f"the backend 'cupy' found no GPU that it can use: {error}") from error
    if count > first.device_count:
        raise UsageError(f"{count} devices were asked for; this machine has {first.device_count}")
    return [first, *(CupyBackend(index, memory_limit) for index in range(1, count))]


# Imported on demand: a server needs only the array library that it computes with.
_OPENERS: Final[dict[str, Callable[[int, int | None], list[Backend]]]] = {
    "cupy": _open_cupy,
    "numpy": _open_numpy,
}


def open_backends(name: str, device_count: int, memory_limit: int | None = None) -> list[Backend]:
    """Return one backend per device, whose arrays may use ``memory_limit`` bytes of it.

    Raises ``UsageError`` for an unknown library.
    """
    opener = _OPENERS.get(name)
    if opener is None:
        raise UsageError(f"unknown backend {name!r}; known are {', '.join(sorted(_OPENERS))}")
    return opener(device_count, memory_limit)
