"""A simulation of CuPy's streams, events and NCCL, for tests and profiles without a GPU.

``install`` provides a module ``cupy``: arrays are NumPy's, and each call of CUDA or NCCL is counted
and releases the interpreter lock where CuPy 14 does. A stream knows when its work ends: a
collective ends ``settings.seconds`` after the last member in this process has started it. The other
work takes no time. Members in other processes are not waited for.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

__all__ = ["CALLS", "NEVER", "Event", "install", "settings"]

# How often each function of CUDA and NCCL was called.
CALLS: Final[Counter[str]] = Counter()


@dataclass
class Settings:
    """How long a collective takes, and whether it combines elements or leaves outputs unwritten."""

    seconds: float = 0.0
    combines: bool = True


settings: Final = Settings()

# The C function does nothing; ``ctypes`` releases the interpreter lock while it runs.
_release: Final = ctypes.CDLL(None).getppid
_pointers: Final[Iterator[int]] = itertools.count(1)
# By NCCL's numbers.
_DTYPES: Final = ("i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
_COMBINE: Final[tuple[Callable[..., Any], ...]] = (np.add, np.multiply, np.maximum, np.minimum)
NOT_READY: Final = 600


def _call(name: str) -> None:
    CALLS[name] += 1
    _release()


class _Work:
    """Work on a stream, which ends with a collective or with the last of earlier work."""

    def __init__(self, *before: _Work | _Collective) -> None:
        self._before = before
        self._end: float | None = None

    def end(self) -> float | None:
        """Return when it ends; ``None`` while that is unknown."""
        if self._end is None:
            self._end = _last_end(self._before)
            if self._end is not None:
                self._before = ()
        return self._end


def _last_end(before: Sequence[_Work | _Collective]) -> float | None:
    ends = [one.end() for one in before]
    return None if None in ends else max([0.0, *[end for end in ends if end is not None]])


class _Endless(_Work):
    def end(self) -> None:
        return None


NEVER: Final = _Endless()


@dataclass
class _Collective:
    """A collective of the members in this process."""

    missing: int
    combine: Callable[..., Any]
    begin: float = 0.0
    before: list[_Work] = field(default_factory=list)
    memory: list[tuple[Any, Any]] = field(default_factory=list)

    def join(self, before: _Work, source: Any, target: Any) -> None:
        self.before.append(before)
        self.memory.append((source, target))
        self.missing -= 1
        if self.missing:
            return
        self.begin = time.monotonic()
        if settings.combines:
            total = self.memory[0][0].copy()
            for given, _ in self.memory[1:]:
                self.combine(total, given, out=total)
            for _, made in self.memory:
                made[:] = total
        self.memory.clear()

    def end(self) -> float | None:
        end = None if self.missing else _last_end(self.before)
        return None if end is None else max(self.begin, end) + settings.seconds


class Event:
    """``cupy.cuda.Event``."""

    _events: Final[WeakValueDictionary[int, Event]] = WeakValueDictionary()

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        _call("eventCreateWithFlags")
        self.ptr = next(_pointers)
        self.work = _Work()
        self.is_destroyed = False
        self._events[self.ptr] = self

    def __del__(self) -> None:
        self.is_destroyed = True

    @property
    def done(self) -> bool:
        return query(self.ptr) == 0


def query(pointer: int) -> int:
    """``cupy.cuda.runtime.eventQuery``, which keeps the interpreter lock."""
    CALLS["eventQuery"] += 1
    end = Event._events[pointer].work.end()
    return 0 if end is not None and end <= time.monotonic() else NOT_READY


class Stream:
    """``cupy.cuda.Stream``."""

    _streams: Final[dict[int, Stream]] = {}

    def __init__(self, non_blocking: bool = False) -> None:
        self.ptr = next(_pointers)
        self.last = _Work()
        self._streams[self.ptr] = self

    def use(self) -> Stream:
        return self

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def record(self, event: Event) -> Event:
        _call("eventRecord")
        event.work = _Work(self.last)
        return event

    def wait_event(self, event: Any) -> None:
        _call("streamWaitEvent")
        self.last = _Work(self.last, Event._events[event.ptr].work)

    def synchronize(self) -> None:
        _call("streamSynchronize")


class _Device:
    def __init__(self, index: int = 0) -> None:
        self.id = index
        self.mem_info = (2**36, 2**36)

    def use(self) -> None:
        pass

    def __enter__(self) -> _Device:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Pool:
    def set_limit(self, size: int) -> None:
        pass

    def used_bytes(self) -> int:
        return 0

    free_bytes = used_bytes

    def free_all_blocks(self) -> None:
        pass


class _Array(np.ndarray[Any, Any]):
    @property
    def data(self) -> Any:
        return types.SimpleNamespace(ptr=self.ctypes.data)


def _empty(*given: Any, **options: Any) -> Any:
    return np.empty(*given, **options).view(_Array)


def _zeros(*given: Any, **options: Any) -> Any:
    return np.zeros(*given, **options).view(_Array)


def _contiguous(array: Any) -> Any:
    return np.ascontiguousarray(array).view(_Array)


class NcclCommunicator:
    """``cupy.cuda.nccl.NcclCommunicator``; those of this process with one identifier are a group.

    They must all exist before the first collective.
    """

    _lock: Final = threading.Lock()
    _groups: Final[dict[bytes, list[NcclCommunicator]]] = {}

    def __init__(self, members: int, identifier: bytes, rank: int) -> None:
        with self._lock:
            self._group = self._groups.setdefault(identifier, [])
            self._group.append(self)
        self._issued = 0
        self._incomplete: dict[int, _Collective] = (
            {} if self._group[0] is self else self._group[0]._incomplete
        )

    def allReduce(
        self, source: int, target: int, size: int, dtype: int, operation: int, stream: int
    ) -> None:
        _call("ncclAllReduce")
        found, kind = Stream._streams[stream], np.dtype(_DTYPES[dtype])
        with self._lock:
            number, self._issued = self._issued, self._issued + 1
            collective = self._incomplete.get(number)
            if collective is None:
                collective = _Collective(len(self._group), _COMBINE[operation])
                self._incomplete[number] = collective
            before, found.last = found.last, _Work(collective)
            collective.join(before, _memory(source, size, kind), _memory(target, size, kind))
            if not collective.missing:
                del self._incomplete[number]

    def check_async_error(self) -> None:
        _call("ncclCommGetAsyncError")

    def abort(self) -> None:
        _call("ncclCommAbort")

    def destroy(self) -> None:
        _call("ncclCommDestroy")


def _memory(pointer: int, size: int, dtype: Any) -> Any:
    return np.frombuffer((ctypes.c_char * (size * dtype.itemsize)).from_address(pointer), dtype)


def install() -> dict[str, types.ModuleType]:
    """Make ``import cupy`` return the simulation; return its modules by name."""
    cupy, cuda, nccl = (types.ModuleType(name) for name in ("cupy", "cupy.cuda", "cupy.cuda.nccl"))
    nccl.__dict__.update(
        NcclCommunicator=NcclCommunicator,
        get_unique_id=lambda: bytes(range(128)),
        groupStart=lambda: _call("ncclGroupStart"),
        groupEnd=lambda: _call("ncclGroupEnd"),
        available=True,
    )
    runtime = types.SimpleNamespace(
        CUDARuntimeError=type("CUDARuntimeError", (RuntimeError,), {}),
        eventQuery=query,
        streamQuery=lambda pointer: 0,
        getDeviceProperties=lambda index: {"name": b"simulated GPU"},
    )
    cuda.__dict__.update(
        Device=_Device, Event=Event, Stream=Stream, MemoryPool=_Pool, runtime=runtime, nccl=nccl
    )
    pool = _Pool()
    cupy.__dict__.update(
        cuda=cuda,
        empty=_empty,
        zeros=_zeros,
        ascontiguousarray=_contiguous,
        get_default_memory_pool=lambda: pool,
        __getattr__=lambda name: getattr(np, name),
    )
    modules = {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.nccl": nccl}
    sys.modules.update(modules)
    return modules
