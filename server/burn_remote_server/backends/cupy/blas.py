"""cuBLAS calls while a stream captures.

CuPy refuses these calls, because cuBLAS may allocate memory for them. If we pass memory as its
workspace, cuBLAS allocates none and can be captured. The library and the handle are CuPy's, so the
calls choose the algorithms that CuPy's own calls choose.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from ctypes import c_int, c_longlong, c_size_t, c_void_p
from functools import cache
from typing import Any, Final

import cupy
from cupy.cuda import cublas

from burn_remote_server.backends.interface import NotCaptured

__all__ = ["WORKSPACE_BYTES", "CapturedBlas", "captured_by", "capturing"]

# The size of cuBLAS's own workspace: 32 MiB on GPUs of compute capability 9.0 (Hopper) or more, 4
# MiB on others. With a smaller one, cuBLAS would choose other algorithms than outside of captures.
HOPPER: Final = 90
WORKSPACE_BYTES: Final = {True: 32 * 2**20, False: 4 * 2**20}

_current: Final = threading.local()

_MATRIX: Final = (c_void_p, c_int, c_int)
_STRIDED_MATRIX: Final = (*_MATRIX, c_longlong)


@cache
def _library() -> Any:
    """Return the cuBLAS library that CuPy has loaded. Raises ``NotCaptured``."""
    major = cublas.getVersion(cupy.cuda.device.get_cublas_handle()) // 10_000
    try:
        library = ctypes.CDLL(f"libcublas.so.{major}")
        library.cublasSetStream_v2.argtypes = (c_void_p, c_void_p)
        library.cublasSetWorkspace_v2.argtypes = (c_void_p, c_void_p, c_size_t)
        sizes = (c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p)
        library.cublasGemmEx.argtypes = (
            *sizes, *_MATRIX, *_MATRIX, c_void_p, *_MATRIX, c_int, c_int,
        )  # fmt: skip
        library.cublasGemmStridedBatchedEx.argtypes = (
            *sizes, *_STRIDED_MATRIX, *_STRIDED_MATRIX, c_void_p, *_STRIDED_MATRIX,
            c_int, c_int, c_int,
        )  # fmt: skip
    except (OSError, AttributeError) as error:
        raise NotCaptured(f"cuBLAS {major} cannot be called: {error}") from error
    return library


class CapturedBlas:
    """cuBLAS on a stream that captures.

    The methods take the arguments of CuPy's functions after the handle. ``workspace()`` returns
    the address and the bytes of memory that nothing else uses while the kernels run.
    """

    def __init__(self, stream: Any, workspace: Callable[[], tuple[int, int]]) -> None:
        self._stream: Final = stream
        self._workspace: Final = workspace

    def gemm(self, *arguments: int) -> None:
        """Multiply two matrices (``cublasGemmEx``)."""
        self._call(_library().cublasGemmEx, arguments)

    def gemm_strided_batched(self, *arguments: int) -> None:
        """Multiply the matrices of two batches (``cublasGemmStridedBatchedEx``)."""
        self._call(_library().cublasGemmStridedBatchedEx, arguments)

    def _call(self, function: Callable[..., int], arguments: tuple[int, ...]) -> None:
        library, handle = _library(), cupy.cuda.device.get_cublas_handle()
        # Setting the stream resets the workspace. CuPy sets the stream before each of its own
        # calls, so those do not use this workspace.
        statuses = [
            library.cublasSetStream_v2(handle, self._stream.ptr),
            library.cublasSetWorkspace_v2(handle, *self._workspace()),
            function(handle, *arguments),
        ]
        if any(statuses):
            raise NotCaptured(f"cuBLAS reports the errors {statuses}")


def capturing() -> CapturedBlas | None:
    """Return cuBLAS for the run that the calling thread captures; ``None`` outside of captures."""
    return getattr(_current, "blas", None)


@contextlib.contextmanager
def captured_by(blas: CapturedBlas) -> Iterator[None]:
    """Use ``blas`` for the matrix products of the calling thread."""
    _current.blas = blas
    try:
        yield
    finally:
        _current.blas = None
