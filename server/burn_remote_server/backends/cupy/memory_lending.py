"""Copies between the GPU memory of two processes of one host, through CUDA IPC.

A CUDA IPC handle of 64 bytes lets another process map a whole allocation and write to it. Therefore
a tensor is copied before it is lent, to a separate block that contains no session's tensors.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import cupy
from cupy.cuda import runtime

from burn_remote_protocol.errors import TransferFailed
from burn_remote_server.backends.cupy.device import Gpu, new_event
from burn_remote_server.backends.cupy.host_identity import host_identity
from burn_remote_server.backends.interface import Loan

__all__ = ["Lender", "borrow", "domain"]

HANDLE_BYTES: Final = 64

# CUDA may place several smaller allocations in one block, all of which a handle would expose
# (reference of cudaIpcGetMemHandle). 2 MiB is the block size.
BLOCK_UNIT_BYTES: Final = 2 * 2**20

# Blocks kept for later loans: allocating one maps memory, and freeing one waits for all sessions.
# Each spare block is idle memory.
MAX_SPARE: Final = 8


def domain() -> str | None:
    """Return the identity of the processes that can open each other's memory, or ``None``."""
    identity = host_identity()
    return None if identity is None else f"cuda {identity}"


class _CudaLoan:
    """A block that is lent as long as this object lives."""

    __slots__ = ("_block", "_spare", "handle")

    def __init__(self, block: Any, spare: deque[Any]) -> None:
        self._block = block
        self._spare = spare
        self.handle = runtime.ipcGetMemHandle(block.ptr)

    def __del__(self) -> None:
        # Any thread may run this, so it neither calls CUDA, which could block, nor takes a lock.
        self._spare.append(self._block)


class Lender:
    """The blocks of one GPU that other processes may open. Thread-safe."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu: Final = gpu
        with gpu.device:
            # Copies on this stream wait for the session that computes the tensor. Uploads and
            # borrowed copies use another stream and do not wait.
            self.stream: Final = cupy.cuda.Stream()
        self._spare: Final[deque[Any]] = deque()
        self._lock: Final = threading.Lock()
        self._total_bytes = 0  # of all blocks, lent and spare

    @property
    def spare_bytes(self) -> int:
        """Bytes of the spare blocks."""
        return sum(int(block.size) for block in self._spare.copy())

    @property
    def lent_bytes(self) -> int:
        """Bytes of the lent blocks."""
        return self._total_bytes - self.spare_bytes

    def lend(self, array: Any) -> Loan | None:
        """Copy a C-ordered array into a block of its own and return the loan.

        Returns ``None`` if there is no memory for the copy, or if this machine has no CUDA IPC.
        """
        size = -(-array.nbytes // BLOCK_UNIT_BYTES) * BLOCK_UNIT_BYTES
        try:
            block = self._block(size)
            if block is None:
                return None
            loan = _CudaLoan(block, self._spare)
            target = cupy.cuda.MemoryPointer(block, 0)
            target.copy_from_device_async(array.data, array.nbytes, self.stream)
            self.stream.record(new_event()).synchronize()
        except runtime.CUDARuntimeError:
            return None
        return loan

    def cleanup(self) -> None:
        """Free the spare blocks."""
        with self._lock, self._gpu.device:
            self._shrink(0)

    def _block(self, size: int) -> Any:
        with self._lock:
            for block in self._spare.copy():
                # Do not use a much larger block: the next loan of that size would need it.
                if size <= block.size <= 2 * size:
                    self._spare.remove(block)
                    return block
            self._shrink(MAX_SPARE - 1)
            if not self._made_space(size):
                return None
            block = cupy.cuda.Memory(size)
            self._total_bytes += size
            return block

    def _shrink(self, count: int) -> None:
        """Free the oldest spare blocks until ``count`` are left."""
        while len(self._spare) > count:
            self._total_bytes -= int(self._spare.popleft().size)

    def _made_space(self, size: int) -> bool:
        """Return whether a new block of ``size`` bytes fits, after freeing cached memory."""
        found = self._gpu.memory()
        allowed = found.total - found.used - self.lent_bytes
        if size > allowed:
            return False
        free = min(allowed - found.cached - self.spare_bytes, int(self._gpu.device.mem_info[0]))
        if size > free:
            self._shrink(0)
            self._gpu.cleanup()
        return True


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


def borrow(array: Any, handle: bytes, stream: Any) -> None:
    """Fill an array of the current device from another process's loan. Waits for the copy.

    Raises ``TransferFailed`` for a handle that cannot be opened, or whose block is too small.
    """
    if len(handle) != HANDLE_BYTES:
        raise TransferFailed(f"a CUDA IPC handle has {HANDLE_BYTES} bytes, not {len(handle)}")
    try:
        # Creating an event also binds the device's context to this thread, which the driver needs.
        copied = new_event()
        with _opened(handle) as address:
            _check_range(address, array.nbytes)
            runtime.memcpyAsync(
                array.data.ptr, address, array.nbytes, runtime.memcpyDefault, stream.ptr
            )
            stream.record(copied)
            copied.synchronize()
    except runtime.CUDARuntimeError as error:
        raise TransferFailed(f"CUDA cannot copy from memory that was lent: {error}") from error


@contextlib.contextmanager
def _opened(handle: bytes) -> Iterator[int]:
    """Map another process's loan for the duration of the context."""
    address = ctypes.c_uint64()
    _ask("cuIpcOpenMemHandle_v2", ctypes.byref(address), _Handle.from_buffer_copy(handle),
         ctypes.c_uint(runtime.cudaIpcMemLazyEnablePeerAccess))  # fmt: skip
    try:
        yield address.value
    finally:
        _ask("cuIpcCloseMemHandle", address)


def _check_range(address: int, size: int) -> None:
    """Check that an allocation of at least ``size`` bytes starts at the address.

    Raises ``TransferFailed`` if not, because a copy could then read beyond the allocation, where a
    session of this process may have its memory.
    """
    start, held = ctypes.c_uint64(), ctypes.c_size_t()
    _ask("cuMemGetAddressRange_v2", ctypes.byref(start), ctypes.byref(held),
         ctypes.c_uint64(address))  # fmt: skip
    if start.value != address or held.value < size:
        raise TransferFailed(f"the lent memory has {held.value:,} bytes, not {size:,}")


def _ask(function: str, *arguments: Any) -> None:
    """Call a function of the CUDA driver without holding Python's interpreter lock.

    Opening and closing a handle may wait for all work of the GPU, and CuPy's functions would hold
    the lock meanwhile. CuPy also lacks one of the functions used here. Raises ``TransferFailed``.
    """
    status = getattr(_driver(), function)(*arguments)
    if status:
        raise TransferFailed(f"the CUDA driver's {function} returned error {status}")


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise TransferFailed(f"the CUDA driver cannot be called: {error}") from error
