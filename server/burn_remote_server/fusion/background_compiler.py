"""Compilation of kernels in a background thread.

The thread compiles the queued sources, and ends when the queue is empty. Programs never wait for a
kernel: they run without it until it is compiled, and again after it was evicted.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Final, Generic, TypeVar

from burn_remote_protocol.bounded_threads import BoundedThread
from burn_remote_server.fusion.counts import KernelCounts
from burn_remote_server.telemetry.logs import get_logger

__all__ = ["BackgroundCompiler"]

logger = get_logger(__name__)

# Most compiled sources of a compiler, about 100 KB each with their machine code.
MAX_KERNELS: Final = 256
# Most sources that wait for compilation. LLVM takes 10 to 60 ms for each, and NVIDIA's compiler 150
# to 280 ms, so an exiting process waits for up to 1 second, or 4.5 seconds.
MAX_WAITING: Final = 16

Compiled = TypeVar("Compiled")


class BackgroundCompiler(ABC, Generic[Compiled]):
    """Compiled sources, the least recently used of which are evicted. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # ``None`` for a source that could not be compiled.
        self._compiled: OrderedDict[str, Compiled | None] = OrderedDict()
        self._waiting: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._worker: threading.Thread | None = None
        self._counts = KernelCounts()
        os.register_at_fork(after_in_child=self._forked)

    @abstractmethod
    def _compile(self, source: str, names: tuple[str, ...]) -> Compiled:
        """Return the functions with these names of a source. Called by one thread at a time."""

    @property
    def counts(self) -> KernelCounts:
        """What this compiler has done so far."""
        return self._counts

    def __len__(self) -> int:
        return len(self._compiled)

    def found(self, source: str, names: tuple[str, ...]) -> Compiled | None:
        """Return the functions with these names, or start to compile them and return ``None``."""
        with self._lock:
            if source in self._compiled:
                self._compiled.move_to_end(source)
                return self._compiled[source]
            if source not in self._waiting and len(self._waiting) < MAX_WAITING:
                self._waiting[source] = names
                # A thread that ended for lack of memory is replaced.
                if self._worker is None or not self._worker.is_alive():
                    self._start_worker()
        return None

    def _start_worker(self) -> None:
        # Not a daemon: at exit, a thread inside the compiler's library could crash the process.
        worker = BoundedThread(target=self._work, name="kernel-compiler", daemon=False)
        try:
            worker.start()
        except (RuntimeError, MemoryError):
            return  # programs run without the kernel; the next source tries again
        self._worker = worker

    def is_final(self, source: str) -> bool:
        """Whether a source is compiled, or could not be."""
        return source in self._compiled

    def _forked(self) -> None:
        # Called in a forked child. The parent's thread may have held locks of the compiler library
        # during the fork, so the child must not compile. A queue that counts as full accepts no
        # sources.
        self._lock = threading.Lock()
        self._worker = None
        self._waiting = OrderedDict((str(place), ()) for place in range(MAX_WAITING))

    def wait(self) -> None:
        """Wait until all queued sources are compiled."""
        worker = self._worker
        if worker is not None:
            worker.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._worker = None
                    return
                source, names = next(iter(self._waiting.items()))
            started = time.perf_counter()
            kernels = None
            try:
                kernels = self._compile(source, names)
            except Exception:  # a bug in the server: the programs run without the kernel
                logger.exception("kernel not compiled", functions=len(names))
            seconds = time.perf_counter() - started
            if kernels is not None:
                logger.debug("kernel compiled", functions=len(names), seconds=round(seconds, 4))
            with self._lock:
                del self._waiting[source]
                self._compiled[source] = kernels
                compiled, evicted, spent = self._counts
                if len(self._compiled) > MAX_KERNELS:
                    self._compiled.popitem(last=False)
                    evicted += 1
                self._counts = KernelCounts(compiled + 1, evicted, spent + seconds)
