"""Fusion of opened backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from burn_remote_server.backends.interface import Backend
from burn_remote_server.fusion.fusing_backend import Fusion, FusionRuntime

__all__ = ["with_fusion"]


def _numpy_runtime(backend: Backend, compiles: bool) -> FusionRuntime:
    from burn_remote_server.fusion.cpu.kernel_compiler import opened_compiler
    from burn_remote_server.fusion.cpu.runtime import NumpyFusionRuntime

    return NumpyFusionRuntime(opened_compiler() if compiles else None)


def _cupy_runtime(backend: Backend, compiles: bool) -> FusionRuntime | None:
    if not compiles:
        return None  # on a GPU, runs are only faster as compiled kernels
    from burn_remote_server.backends.cupy.backend import CupyBackend
    from burn_remote_server.fusion.cuda.runtime import CupyFusionRuntime

    assert isinstance(backend, CupyBackend)
    return CupyFusionRuntime(backend.index)


# Imported on demand, as the backends are.
_RUNTIMES: Final[dict[str, Callable[[Backend, bool], FusionRuntime | None]]] = {
    "numpy": _numpy_runtime,
    "cupy": _cupy_runtime,
}


def with_fusion(backend: Backend, *, compiles: bool = True) -> Backend:
    """Return a backend that fuses operations, or the backend itself if there are no fusers.

    ``compiles``: runs of operations are compiled, if the packages for it are installed.
    """
    open_runtime = _RUNTIMES.get(backend.name)
    runtime = None if open_runtime is None else open_runtime(backend, compiles)
    return backend if runtime is None else Fusion(backend, runtime)
