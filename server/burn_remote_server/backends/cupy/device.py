"""The resources of a GPU that its sessions share: memory, streams and arrays.

Each session computes on a stream of its own. CuPy's memory pool reuses freed memory on the same
stream at once, because later work on a stream also runs later on the GPU. Another stream may still
use that memory. So memory that one stream *lends* to another stays allocated until the other stream
has passed its last use.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import cupy

from burn_remote_server.backends.cupy.event_poller import EventPoller
from burn_remote_server.backends.cupy.faults import Faults
from burn_remote_server.backends.interface import CapturedRun, Memory

__all__ = ["Gpu", "OnStream", "Shared", "new_event"]


# Most CUDA events that are kept for reuse: more than a program has in use at once.
MAX_IDLE_EVENTS: Final = 1024


class Shared(NamedTuple):
    """An array and the event after which any stream may use it."""

    array: Any
    ready: Any


class OnStream:
    """A context in which a stream is the thread's current one for the current device.

    Afterwards, the previous one is current again. CuPy's own ``with stream`` ends with the stream
    of the ``with`` statement around it, not with that of ``use``: a session's later operations
    would run on the null stream, which waits for the streams of all sessions.
    """

    __slots__ = ("_previous", "_stream")

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __enter__(self) -> Any:
        self._previous = cupy.cuda.get_current_stream()
        return self._stream.use()

    def __exit__(self, *error: object) -> None:
        self._previous.use()


def new_event() -> Any:
    """Return a CUDA event for streams to wait on."""
    return cupy.cuda.Event(disable_timing=True)


def _query_status(query: Callable[[int], int], pointer: int) -> int:
    try:
        return int(query(pointer))
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return int(error.status)


class _ReusedEvent:
    """A CUDA event for streams to wait on, which is reused when nothing refers to it any more.

    A wait of a stream refers to the recording, not to the event. Creating and destroying an event
    are two calls that release the interpreter lock, for which other threads wait.

    The GPU must own ``event``. If only this referred to it, the garbage collector could destroy
    the event of a cycle before it calls this destructor, and the destroyed event would be reused.
    """

    __slots__ = ("_event", "_idle", "ptr")

    def __init__(self, event: Any, idle: deque[Any]) -> None:
        self._event = event
        self._idle = idle
        self.ptr = event.ptr

    def __del__(self) -> None:
        self._idle.append(self._event)  # in any thread

    @property
    def done(self) -> bool:
        """Whether the work before the recording is done."""
        return bool(self._event.done)


class _Loan:
    """Keeps an object alive until its stream has finished the work queued so far."""

    __slots__ = ("_gpu", "_stream", "_what")

    def __init__(self, gpu: Gpu, what: Any, stream: Any) -> None:
        self._gpu = gpu
        self._what = what
        self._stream = stream

    def __del__(self) -> None:
        self._gpu.keep_until_finished(self._what, self._stream)


class Gpu:
    """One GPU. Thread-safe."""

    def __init__(self, index: int, memory_limit: int | None = None) -> None:
        self.index: Final = index
        self.device: Final = cupy.cuda.Device(index)
        with self.device:
            # A blocking stream, which is ordered with the null stream. So work outside of sessions
            # (at server start and in tests), which uses the null stream, is ordered with transfers.
            self.transfers: Final = cupy.cuda.Stream()
            self.pool: Final = cupy.get_default_memory_pool()
            self.pool.set_limit(size=memory_limit or 0)
            properties = cupy.cuda.runtime.getDeviceProperties(index)
            total = int(self.device.mem_info[1])
        self.name: Final = str(properties["name"], "utf-8")
        self.faults: Final = Faults(f"GPU {index} ({self.name})", self._status)
        self.event_poller: Final = EventPoller(self.device, self._event_status)
        self.memory_bytes: Final = min(total, memory_limit or total)
        self._persistent: Final = cupy.cuda.MemoryPool()
        # All streams of sessions, so that no destructor passes a destroyed one to
        # ``keep_until_finished``; see ``_ReusedEvent``.
        self._streams: Final[list[Any]] = []
        self._idle: Final[deque[Any]] = deque()
        self._events: Final[dict[int, Any]] = {}  # by their pointers, in use and idle
        self._idle_events: Final[deque[Any]] = deque()
        # For each session's stream, the stream on which its graphs are captured. It is not ordered
        # with the null stream: otherwise, a use of the null stream elsewhere would end the capture.
        self._capture_streams: Final[dict[int, Any]] = {}
        self._captures: Final[weakref.WeakValueDictionary[int, CapturedRun]] = (
            weakref.WeakValueDictionary()
        )
        # Any thread may append to this queue, also in a destructor, where a call of CUDA or a lock
        # could deadlock.
        self._to_keep: Final[deque[tuple[Any, Any]]] = deque()
        self._kept: Final[deque[tuple[Any, Any]]] = deque()
        self._releasing: Final = threading.Lock()

    def _status(self) -> int:
        """Return the GPU's CUDA status, without waiting for queued work."""
        return _query_status(cupy.cuda.runtime.streamQuery, self.transfers.ptr)

    def _event_status(self, event: Any) -> int:
        return self.faults.event_status(_query_status, cupy.cuda.runtime.eventQuery, event.ptr)

    # -- streams ------------------------------------------------------------------------------

    def take_stream(self) -> Any:
        """Return a stream for one session, reusing a returned one if there is any.

        This bounds the pools of freed memory by the highest number of concurrent sessions.
        """
        try:
            return self._idle.pop()
        except IndexError:
            with self.device:
                self._streams.append(stream := cupy.cuda.Stream())
            return stream

    def give_back_stream(self, stream: Any) -> None:
        """Return a session's stream for reuse."""
        self._idle.append(stream)

    # -- captured runs ------------------------------------------------------------------------

    def capture_stream(self, stream: Any) -> Any:
        """Return the stream on which the work of a session's stream is captured."""
        found = self._capture_streams.get(stream.ptr)
        if found is None:
            with self.device:
                found = self._capture_streams[stream.ptr] = cupy.cuda.Stream(non_blocking=True)
        return found

    def note_capture(self, captured: CapturedRun) -> None:
        """Register a captured run, to release it when the GPU's memory is exhausted."""
        self._captures[id(captured)] = captured

    # -- arrays between streams ---------------------------------------------------------------

    def shared(self, array: Any, stream: Any) -> Shared:
        """Return an array with the event after which other streams may use it."""
        return Shared(array, self.recorded(stream))

    def recorded(self, stream: Any) -> Any:
        """Return an event that is recorded on a stream, for others to wait on."""
        try:
            event = self._idle_events.pop()
        except IndexError:
            event = new_event()
            self._events[event.ptr] = event
        stream.record(event)
        return _ReusedEvent(event, self._idle_events)

    def lent(self, shared: Shared, stream: Any) -> Any:
        """Return a shared array for use on ``stream``, which waits for its event already.

        Its memory belongs to another stream.
        """
        array = shared.array
        if not array.size:
            return array
        memory = cupy.cuda.UnownedMemory(
            array.data.ptr, array.nbytes, _Loan(self, array, stream), self.index
        )
        pointer = cupy.cuda.MemoryPointer(memory, 0)
        return cupy.ndarray(array.shape, array.dtype, pointer, strides=array.strides)

    def keep_until_finished(self, what: Any, stream: Any) -> None:
        """Keep an object alive until a stream has finished the work queued so far."""
        self._to_keep.append((what, stream))

    def release_finished(self) -> None:
        """Free the objects that no stream uses any more. Returns at once if there are none."""
        self._destroy_idle_events()
        # One event for all objects of a stream: it is recorded after the last use of each.
        last: dict[int, tuple[Any, list[Any]]] = {}
        while self._to_keep:
            try:
                what, stream = self._to_keep.popleft()
            except IndexError:
                break
            last.setdefault(stream.ptr, (stream, []))[1].append(what)
        for stream, kept in last.values():
            self._kept.append((self.recorded(stream), kept))
        if self._kept and self._releasing.acquire(blocking=False):
            try:
                while self._kept and self._kept[0][0].done:
                    self._kept.popleft()
            finally:
                self._releasing.release()

    def _destroy_idle_events(self) -> None:
        while len(self._idle_events) > MAX_IDLE_EVENTS:
            with contextlib.suppress(IndexError):  # another thread took the last ones
                self._events.pop(self._idle_events.popleft().ptr, None)

    # -- memory -------------------------------------------------------------------------------

    def cleanup(self) -> None:
        """Return unused memory and the memory of captured runs to the driver. Waits for the GPU."""
        with self.device:
            for reference in self._captures.valuerefs():
                captured = reference()
                if captured is not None:
                    captured.release()
            self.device.synchronize()
            self.release_finished()
            self.pool.free_all_blocks()
            self._persistent.free_all_blocks()
            cupy.get_default_pinned_memory_pool().free_all_blocks()

    @contextlib.contextmanager
    def persistent_allocations(self) -> Iterator[None]:
        """Allocate the calling thread's arrays from a separate pool for long-lived arrays.

        Long-lived arrays would fragment the pool of short-lived ones.
        """
        with self.device:
            free_bytes = self.memory_bytes - self.pool.used_bytes()
            self._persistent.set_limit(size=max(free_bytes, 1))
            with cupy.cuda.using_allocator(self._persistent.malloc):
                yield

    def memory(self) -> Memory:
        """Return the GPU's memory use. Raises ``DeviceLost``."""
        with self.faults, self.device:
            used = self.pool.used_bytes() + self._persistent.used_bytes()
            cached = self.pool.free_bytes() + self._persistent.free_bytes()
        return Memory(self.memory_bytes, int(used), int(cached))
