"""Opening of backends by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from burn_remote_protocol.errors import UsageError
from burn_remote_server.backends.interface import Backend

__all__ = ["open_backends"]


def _open_numpy(count: int, memory_limit: int | None, tf32: bool) -> list[Backend]:
    if tf32:
        raise UsageError("only NVIDIA GPUs have TF32: use the backend 'cupy', or leave out --tf32")
    from burn_remote_server.backends.numpy.backend import NumpyBackend

    return [NumpyBackend(memory_limit) for _ in range(count)]


def _open_cupy(count: int, memory_limit: int | None, tf32: bool) -> list[Backend]:
    try:
        from burn_remote_server.backends.cupy.backend import CupyBackend

        first = CupyBackend(0, memory_limit, tf32=tf32)
    except ImportError as error:
        raise UsageError(
            "the backend 'cupy' needs CuPy, which cannot be imported "
            f'({error}); run pip install "burn-remote[cuda13]", or "burn-remote[cuda12]"'
        ) from error
    except Exception as error:  # CuPy's own error classes cannot be imported here
        raise UsageError(f"the backend 'cupy' found no GPU that it can use: {error}") from error
    if count > first.device_count:
        raise UsageError(f"device_count is {count}, but this machine has {first.device_count} GPUs")
    others = range(1, count)
    return [first, *(CupyBackend(index, memory_limit, tf32=tf32) for index in others)]


# Imported on demand: a server needs only the array library that it computes with.
_OPENERS: Final[dict[str, Callable[[int, int | None, bool], list[Backend]]]] = {
    "cupy": _open_cupy,
    "numpy": _open_numpy,
}


# Names of devices in other libraries -> the backend that computes on them.
_OTHER_NAMES: Final = {
    **dict.fromkeys(("cuda", "gpu", "nvidia"), "; write cupy for an NVIDIA GPU"),
    "cpu": "; write numpy for the CPU",
}


def open_backends(
    name: str, device_count: int, memory_limit: int | None = None, *, tf32: bool = False
) -> list[Backend]:
    """Return one backend per device; its arrays may use ``memory_limit`` bytes of the device.

    With ``tf32``, GPUs may round ``float32`` operands of products and convolutions to TF32. Raises
    ``UsageError`` for an unknown backend, for one that cannot be used on this machine, for more
    devices than it has, and for ``tf32`` without a GPU.
    """
    opener = _OPENERS.get(name)
    if opener is None:
        advice = _OTHER_NAMES.get(name.partition(":")[0].lower(), "")
        raise UsageError(
            f"unknown backend {name!r}; known are {', '.join(sorted(_OPENERS))}{advice}"
        )
    return opener(device_count, memory_limit, tf32)
