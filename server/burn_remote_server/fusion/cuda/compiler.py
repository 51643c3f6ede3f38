"""Compilation of kernels by NVRTC, NVIDIA's compiler at run time.

CuPy keeps compiled kernels on disk by their content, in ``CUPY_CACHE_DIR``, by default in
``~/.cupy/kernel_cache``, so another process finds them there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import cupy

from burn_remote_server.fusion.background_compiler import BackgroundCompiler
from burn_remote_server.fusion.cuda.kernel_cache import trim

__all__ = ["CudaCompiler"]

# Without fused multiply-add: a product and a sum must each be rounded, as in single operations.
OPTIONS: Final = ("--std=c++17", "--fmad=false")


class CudaCompiler(BackgroundCompiler[Any]):
    """Compiled kernels of one GPU."""

    def __init__(self, index: int) -> None:
        super().__init__()
        trim(Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache"))
        self._device: Final = cupy.cuda.Device(index)

    def _compile(self, source: str, names: tuple[str, ...]) -> Any:
        (name,) = names
        with self._device:
            return cupy.RawModule(code=source, options=OPTIONS).get_function(name)
