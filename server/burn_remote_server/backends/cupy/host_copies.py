"""Asynchronous copies between host memory and a GPU, block by block on separate streams."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import cupy
import cupyx
import numpy as np

from burn_remote_protocol.dialects.native import LARGE_CHUNK_BYTES
from burn_remote_protocol.errors import DeviceLost, OperationFailed
from burn_remote_server.backends.cupy.device import Gpu, OnStream, new_event
from burn_remote_server.backends.cupy.host_blocks import HostBlocks
from burn_remote_server.backends.cupy.pinned_memory import HostMemory, is_pinned
from burn_remote_server.backends.interface import Deliver

__all__ = ["BLOCK_BYTES", "Reads", "Upload", "host_array"]

# Bytes copied to the GPU at once. Larger blocks overlap less with receiving and need more pinned
# memory. With smaller blocks, starting the copies takes longer: about 10 µs each. A block holds
# one large chunk of an upload or a whole number of others, so that each can be received in a block.
BLOCK_BYTES: Final = LARGE_CHUNK_BYTES

# How long a read waits for the GPU before it becomes asynchronous. A callback costs about 100 µs;
# waiting longer would block the thread on large results.
PATIENCE_SECONDS: Final = 50e-6

# Threads for copies into pageable memory. They share one bus, so more threads do not copy faster.
# With fewer threads, one large read would delay other reads.
COPYING_THREADS: Final = 4

_copying: Final = ThreadPoolExecutor(COPYING_THREADS, thread_name_prefix="gpu-copy")


def _pinned(size: int) -> Any:
    return cupyx.empty_pinned(max(size, 1), np.uint8)[:size]


_memory: Final = HostMemory(_pinned)


def host_array(size: int) -> Any:
    """Return host memory for copies to or from a GPU, as a byte array. Raises ``MemoryError``."""
    return _memory.empty(size)


class Upload(HostBlocks):
    """A tensor that arrives in chunks and is copied to the GPU block by block."""

    def __init__(self, gpu: Gpu, shape: tuple[int, ...], dtype: Any) -> None:
        self._gpu = gpu
        with gpu.device, OnStream(gpu.transfers):
            self.array = cupy.empty(shape, dtype)
        super().__init__(self.array.nbytes, BLOCK_BYTES)
        self._sent = 0

    def allocate(self, size: int) -> Any:
        return host_array(size)

    def send(self, block: Any) -> None:
        with self._gpu.device:
            target = self.array.data + self._sent
            target.copy_from_host_async(_address(block), block.size, self._gpu.transfers)
        self._sent += block.size
        self._gpu.keep_until_finished(block, self._gpu.transfers)
        self._gpu.release_finished()


class Reads:
    """The reads of one session that are being copied to the host."""

    def __init__(self, gpu: Gpu, stream: Any) -> None:
        self._gpu = gpu
        self._stream = stream
        with gpu.device:
            self._copies = cupy.cuda.Stream()
            self._computed = new_event()
        self._unpinned: Any = None  # a stream, created on first use

    def read(self, array: Any, later: Callable[[], Deliver]) -> memoryview | None:
        """Return the bytes of a C-ordered array, or ``None`` if they will be delivered later."""
        host = host_array(array.nbytes)
        self._follow()
        if not is_pinned(host):
            return self._read_unpinned(host, array, later)
        if array.nbytes:
            array.data.copy_to_host_async(_address(host), array.nbytes, self._copies)
        return memoryview(host) if self._done(later, memoryview(host), array) else None

    def _read_unpinned(
        self, host: Any, array: Any, later: Callable[[], Deliver]
    ) -> memoryview | None:
        # A copy into pageable memory blocks the calling thread until it is done. So a thread pool
        # runs it, on a separate stream that first waits for the session's earlier work. It blocks
        # neither the session's thread nor the thread that polls events.
        if self._unpinned is None:
            with self._gpu.device:
                self._unpinned = cupy.cuda.Stream(non_blocking=True)
        stream = self._unpinned

        def copied() -> memoryview:
            if array.nbytes:
                with self._gpu.device:
                    array.data.copy_to_host_async(_address(host), array.nbytes, stream)
                    stream.synchronize()
            return memoryview(host)

        def copied_later() -> Deliver:
            deliver = later()

            def copy() -> None:
                value: memoryview | Exception
                try:
                    with self._gpu.faults:
                        value = copied()
                except (OperationFailed, RuntimeError) as error:
                    value = error
                deliver(value)

            def passed(value: memoryview | Exception | None) -> None:
                if isinstance(value, Exception):
                    deliver(value)
                else:
                    _copying.submit(copy)

            return passed

        return copied() if self._done(copied_later, None, None) else None

    def synced(self, later: Callable[[], Deliver]) -> bool:
        """Return whether the session's work is done; if not, deliver ``None`` when it is."""
        self._follow()
        return self._done(later, None, None)

    def _follow(self) -> None:
        self._stream.record(self._computed)
        self._copies.wait_event(self._computed)

    def _done(self, later: Callable[[], Deliver], value: memoryview | None, array: Any) -> bool:
        event = self._copies.record(new_event())
        patience = time.perf_counter() + PATIENCE_SECONDS
        while time.perf_counter() < patience:
            if event.done:
                return True
        # Keep the array until it is copied: the session may drop it and reuse its memory.
        deliver, kept = later(), [array]

        def passed(status: int) -> None:
            kept.clear()
            deliver(value if status == 0 else self._failed(status))

        self._gpu.event_poller.call(event, passed, self._copies.ptr)
        return False

    def _failed(self, status: int) -> OperationFailed:
        if self._gpu.faults.failure is not None:
            return DeviceLost(self._gpu.faults.failure)
        error = cupy.cuda.runtime.CUDARuntimeError(status)
        return OperationFailed(f"the GPU reports error {status} ({error})")


def _address(host: Any) -> Any:
    return int(host.ctypes.data)
