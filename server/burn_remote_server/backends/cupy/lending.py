"""How do two processes of a host copy from one GPU memory to the other's, without the host's?

By CUDA IPC: a handle of 64 bytes lets another process map an allocation, all of it, and write there
too. So what is lent is a copy in a block of its own, which no session's tensors lie in.
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

# CUDA may cut smaller allocations from one block, all of which a handle would open (the reference
# of ``cudaIpcGetMemHandle``). Larger: more is wasted per loan.
BLOCK_UNIT_BYTES: Final = 2 * 2**20

# Blocks kept for the next loan: CUDA maps memory for a new one, and waits for all sessions to free
# one. Larger: more memory lies idle. Smaller: many moves at once allocate each time.
MAX_SPARE: Final = 8


def domain() -> str | None:
    """Name those whose memory can be opened here, and who can open ours."""
    identity = host_identity()
    return None if identity is None else f"cuda {identity}"


class _CudaLoan:
    """A block that is lent for as long as this lives."""

    __slots__ = ("_block", "_spare", "handle")

    def __init__(self, block: Any, spare: deque[Any]) -> None:
        self._block = block
        self._spare = spare
        self.handle = runtime.ipcGetMemHandle(block.ptr)

    def __del__(self) -> None:
        # Any thread may come here: CUDA, which waits to free, and locks are not asked for.
        self._spare.append(self._block)


class Lender:
    """The blocks of one GPU that other processes may open. Thread-safe."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu: Final = gpu
        with gpu.device:
            # Copies wait here for the session that computes the tensor; uploads, and what is
            # borrowed, are on another stream and need not.
            self.stream: Final = cupy.cuda.Stream()
        self._spare: Final[deque[Any]] = deque()
        self._lock: Final = threading.Lock()
        self._total_bytes = 0  # of all blocks, lent or spare

    @property
    def spare_bytes(self) -> int:
        """What is kept for the next loans."""
        return sum(int(block.size) for block in self._spare.copy())

    @property
    def lent_bytes(self) -> int:
        """What others may be copying from now."""
        return self._total_bytes - self.spare_bytes

    def lend(self, array: Any) -> Loan | None:
        """Return a loan of a C-ordered array's elements, once they are copied.

        ``None`` where there is no room for the copy, or CUDA lends nothing on this machine.
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
        """Free what is not lent."""
        with self._lock, self._gpu.device:
            self._shrink(0)

    def _block(self, size: int) -> Any:
        with self._lock:
            for block in self._spare.copy():
                # A block of a much larger loan would be missed by the next one of that size.
                if size <= block.size <= 2 * size:
                    self._spare.remove(block)
                    return block
            self._shrink(MAX_SPARE - 1)
            if not self._made_room(size):
                return None
            block = cupy.cuda.Memory(size)
            self._total_bytes += size
            return block

    def _shrink(self, count: int) -> None:
        """Free the oldest spare blocks until only so many are left."""
        while len(self._spare) > count:
            self._total_bytes -= int(self._spare.popleft().size)

    def _made_room(self, size: int) -> bool:
        """Whether a new block is allowed, after what is kept to be used again made way for it."""
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
    """Fill an array, of the current device, with what another process lends; wait until it is done.

    Raises ``TransferFailed`` for a handle that cannot be opened here, or of too small a block.
    """
    if len(handle) != HANDLE_BYTES:
        raise TransferFailed(f"a handle of CUDA has {HANDLE_BYTES} bytes, not {len(handle)}")
    try:
        # Making it also binds the device's context to this thread: the driver asks for one.
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
    """Map what another process lends while the context lasts."""
    address = ctypes.c_uint64()
    _ask("cuIpcOpenMemHandle_v2", ctypes.byref(address), _Handle.from_buffer_copy(handle),
         ctypes.c_uint(runtime.cudaIpcMemLazyEnablePeerAccess))  # fmt: skip
    try:
        yield address.value
    finally:
        _ask("cuIpcCloseMemHandle", address)


def _check_range(address: int, size: int) -> None:
    """Raise ``TransferFailed`` unless an allocation begins there that has so many bytes: behind it
    may lie what a session of this process holds."""
    start, held = ctypes.c_uint64(), ctypes.c_size_t()
    _ask("cuMemGetAddressRange_v2", ctypes.byref(start), ctypes.byref(held),
         ctypes.c_uint64(address))  # fmt: skip
    if start.value != address or held.value < size:
        raise TransferFailed(f"{held.value:,} bytes of memory were lent, not {size:,}")


def _ask(function: str, *arguments: Any) -> None:
    """Call CUDA's driver, which needs no hold of Python's interpreter lock for it.

    CuPy would hold it, and opening and closing may wait for all that the GPU is doing; one function
    it does not have. Raises ``TransferFailed``.
    """
    status = getattr(_driver(), function)(*arguments)
    if status:
        raise TransferFailed(f"{function} of CUDA's driver answers with error {status}")


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise TransferFailed(f"CUDA's driver cannot be called: {error}") from error
