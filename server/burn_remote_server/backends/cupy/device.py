"""What of a GPU do its sessions share: memory, streams, and what somebody still uses?

Every session computes on a stream of its own. CuPy's memory pool keeps freed memory by stream and
hands it out again at once, because what comes later on that stream comes later on the GPU too. So
whatever another stream uses must be kept until that stream has passed the use: it is lent.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import cupy

from burn_remote_server.backends.cupy.faults import Faults
from burn_remote_server.backends.cupy.watch import Watch
from burn_remote_server.backends.interface import Memory

__all__ = ["Gpu", "Shared", "new_event"]


class Shared(NamedTuple):
    """An array and the event after which any stream may use it."""

    array: Any
    ready: Any


def new_event() -> Any:
    """Return an event for streams to wait for."""
    return cupy.cuda.Event(disable_timing=True)


def _answer(query: Callable[[int], int], pointer: int) -> int:
    try:
        return int(query(pointer))
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return int(error.status)


class _Loan:
    """Keeps something until the work that its stream was given so far is done."""

    __slots__ = ("_gpu", "_stream", "_what")

    def __init__(self, gpu: Gpu, what: Any, stream: Any) -> None:
        self._gpu = gpu
        self._what = what
        self._stream = stream

    def __del__(self) -> None:
        self._gpu.keep_until_passed(self._what, self._stream)


class Gpu:
    """One GPU. Thread-safe."""

    def __init__(self, index: int, memory_limit: int | None = None) -> None:
        self.index: Final = index
        self.device: Final = cupy.cuda.Device(index)
        with self.device:
            # Streams that wait for the null stream and it for them: what runs outside of any
            # session, in tests and while a server starts, is in order with everything.
            self.transfers: Final = cupy.cuda.Stream()
            self.pool: Final = cupy.get_default_memory_pool()
            self.pool.set_limit(size=memory_limit or 0)
            properties = cupy.cuda.runtime.getDeviceProperties(index)
            total = int(self.device.mem_info[1])
        self.name: Final = str(properties["name"], "utf-8")
        self.faults: Final = Faults(f"GPU {index} ({self.name})", self._status)
        self.watch: Final = Watch(self.device, self._event_status)
        self.memory_bytes: Final = min(total, memory_limit or total)
        self._persistent: Final = cupy.cuda.MemoryPool()
        self._idle: Final[deque[Any]] = deque()
        # Appended to by any thread, in destructors too, where neither CUDA nor locks should be
        # asked for.
        self._passed_on: Final[deque[tuple[Any, Any]]] = deque()
        self._kept: Final[deque[tuple[Any, Any]]] = deque()
        self._tidying: Final = threading.Lock()

    def _status(self) -> int:
        """Return what the GPU says of itself, without waiting for it."""
        return _answer(cupy.cuda.runtime.streamQuery, self.transfers.ptr)

    def _event_status(self, event: Any) -> int:
        return self.faults.event_status(_answer, cupy.cuda.runtime.eventQuery, event.ptr)

    # -- streams ------------------------------------------------------------------------------

    def take_stream(self) -> Any:
        """Return a stream for one session, one that a session gave back where there is one.

        So there is freed memory for as many streams as there were sessions at once, not more.
        """
        try:
            return self._idle.pop()
        except IndexError:
            with self.device:
                return cupy.cuda.Stream()

    def give_back_stream(self, stream: Any) -> None:
        """Take a stream for the next session."""
        self._idle.append(stream)

    # -- arrays between streams ---------------------------------------------------------------

    def shared(self, array: Any, stream: Any) -> Shared:
        """Return an array for others to use, once a stream has made it."""
        return Shared(array, stream.record(new_event()))

    def lent(self, shared: Shared, stream: Any) -> Any:
        """Return an array for a stream to use, in the memory of another one."""
        array = shared.array
        stream.wait_event(shared.ready)
        if not array.size:
            return array
        memory = cupy.cuda.UnownedMemory(
            array.data.ptr, array.nbytes, _Loan(self, array, stream), self.index
        )
        pointer = cupy.cuda.MemoryPointer(memory, 0)
        return cupy.ndarray(array.shape, array.dtype, pointer, strides=array.strides)

    def keep_until_passed(self, what: Any, stream: Any) -> None:
        """Keep something until a stream has done what it was given so far."""
        self._passed_on.append((what, stream))

    def tidy(self) -> None:
        """Free what no stream uses any more; next to nothing where nothing was kept."""
        while self._passed_on:
            try:
                what, stream = self._passed_on.popleft()
            except IndexError:
                break
            self._kept.append((stream.record(new_event()), what))
        if self._kept and self._tidying.acquire(blocking=False):
            try:
                while self._kept and self._kept[0][0].done:
                    self._kept.popleft()
            finally:
                self._tidying.release()

    # -- memory -------------------------------------------------------------------------------

    def cleanup(self) -> None:
        """Give all memory that nobody uses back to the system. Waits for the GPU."""
        with self.device:
            self.device.synchronize()
            self.tidy()
            self.pool.free_all_blocks()
            self._persistent.free_all_blocks()
            cupy.get_default_pinned_memory_pool().free_all_blocks()

    @contextlib.contextmanager
    def persistent_allocations(self) -> Iterator[None]:
        """Let the calling thread's arrays come from a pool of their own, so that what stays does
        not lie between what comes and goes."""
        with self.device:
            room = self.memory_bytes - self.pool.used_bytes()
            self._persistent.set_limit(size=max(room, 1))
            with cupy.cuda.using_allocator(self._persistent.malloc):
                yield

    def memory(self) -> Memory:
        """Return how the memory is used. Raises ``DeviceLost``."""
        with self.faults, self.device:
            used = self.pool.used_bytes() + self._persistent.used_bytes()
            cached = self.pool.free_bytes() + self._persistent.free_bytes()
        return Memory(self.memory_bytes, int(used), int(cached))
