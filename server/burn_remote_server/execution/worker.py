"""The worker thread of a session, which runs work that would delay the event loop.

Each session has one thread, started on first use. One thread keeps the session's work in order, and
NumPy and CuPy release the interpreter lock inside their kernels, so sessions run in parallel. A
thread pool would also need a queue per session to keep its work in order.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from burn_remote_protocol.bounded_threads import BoundedThread
from burn_remote_protocol.errors import SessionLost
from burn_remote_server.access.quota import Pool

__all__ = ["THREAD_ENDED", "Worker", "is_any_running"]

THREAD_ENDED: Final = (
    "the server ended the session, because the session's thread has ended for lack of memory"
)

# How long a thread that lacks memory waits before it tries again.
PAUSE_SECONDS: Final = 0.001
# The number of times that a thread tries a call that fails for lack of memory.
TRIES: Final = 100


class _WorkerThread(BoundedThread):
    """The thread of a worker. Its class distinguishes it from the process's other threads."""


def is_any_running() -> bool:
    """Return whether a worker of this process has a thread, idle or inside a call."""
    return any(isinstance(thread, _WorkerThread) for thread in threading.enumerate())


class Worker:
    """Runs calls in order on one thread.

    ``memory`` counts the bytes of queued calls. The thread first calls ``prepare``. After each call
    it calls ``progress``. If ``prepare`` or a call raises, it calls ``failed`` with the exception
    and continues. The methods belong to the event loop's thread. Any thread may read the
    properties.
    """

    def __init__(
        self,
        name: str,
        prepare: Callable[[], None],
        progress: Callable[[], None],
        failed: Callable[[BaseException], None],
        memory: Pool | None = None,
    ) -> None:
        self._name = name
        self._prepare = prepare
        self._progress = progress
        self._failed = failed
        self._memory = memory
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # Each counter has one writing thread: the event loop's submits, the worker completes.
        # Public, because each round trip asks ``Session.queued``, which is quicker than a property
        # that asks a property.
        self.submitted = 0
        self.completed = 0
        self._busy_since = 0.0
        self._submitted_bytes = 0
        self._completed_bytes = 0
        self._is_stopped = False

    @property
    def queued(self) -> int:
        """Number of calls that have not finished."""
        return self.submitted - self.completed

    @property
    def busy_since(self) -> float | None:
        """Time (``time.monotonic``) since which calls are queued without a pause."""
        return self._busy_since if self.queued else None

    @property
    def queued_bytes(self) -> int:
        """Bytes held by calls that have not finished."""
        return self._submitted_bytes - self._completed_bytes

    @property
    def is_dead(self) -> bool:
        """Whether the thread has ended before it was told to, so that its calls never finish.

        A new thread ends before its first call if Python has no memory to register it.
        """
        if self._thread is None or self._thread.is_alive():
            return False
        return not self._is_stopped or self.queued > 0

    def discard_calls(self) -> None:
        """Count the queued calls of a dead thread as finished."""
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is not None and self._memory is not None:
                self._memory.give_back_urgent(item[1])
        self.completed, self._completed_bytes = self.submitted, self._submitted_bytes

    def submit(self, call: Callable[[], None], size: int = 0) -> None:
        """Run a call that holds ``size`` bytes, after all earlier ones.

        Raises ``SessionLost`` if the thread cannot be started.
        """
        if self.is_dead:
            raise SessionLost(THREAD_ENDED)
        if self._thread is None:
            thread = _WorkerThread(target=self._work, name=self._name)
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:
                reason = f"the server ended the session, because it has no thread for it: {error}"
                raise SessionLost(reason) from error
            self._thread = thread
        if not self.queued:
            self._busy_since = time.monotonic()
        if self._memory is not None and size:
            self._memory.add_urgent(size)
        submitted, submitted_bytes = self.submitted, self._submitted_bytes
        try:
            # Before ``put``, because the thread may complete the call at once.
            self.submitted, self._submitted_bytes = submitted + 1, submitted_bytes + size
            self._queue.put((call, size))
        except MemoryError:  # the thread did not get the call
            self.submitted, self._submitted_bytes = submitted, submitted_bytes
            if self._memory is not None and size:
                self._memory.give_back_urgent(size)
            raise

    def stop(self) -> None:
        """End the thread after the calls submitted so far."""
        self._is_stopped = True
        if self._thread is not None:
            _put_end(self._queue)

    def _work(self) -> None:
        self._try(self._prepare)
        while True:
            try:
                item = self._queue.get()
            except (MemoryError, SystemError):  # no item was taken
                continue
            if item is None:
                return
            call, size = item
            self._try(call)
            # A call references arrays; free them now, not when the next call arrives.
            del call, item
            self._complete(size)

    def _complete(self, size: int) -> None:
        """Count a call as finished, and tell the event loop.

        If a lack of memory ended the thread in between, the session would wait forever.
        """
        memory = self._memory
        is_counted, is_returned = False, memory is None or not size
        while True:
            try:
                if not is_counted:
                    completed, held_bytes = self.completed + 1, self._completed_bytes + size
                    self.completed, self._completed_bytes = completed, held_bytes
                    is_counted = True
                if memory is not None and not is_returned:
                    memory.give_back_urgent(size)  # does nothing if it raises
                    is_returned = True
                self._progress()
                return
            except (MemoryError, SystemError):
                time.sleep(PAUSE_SECONDS)

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # if the thread ended, its session would wait forever
            self._report(error)

    def _report(self, error: BaseException) -> None:
        for _ in range(TRIES):
            try:
                self._failed(error)
                return
            except Exception:  # mostly for lack of memory
                time.sleep(PAUSE_SECONDS)


def _put_end(calls: queue.SimpleQueue[tuple[Callable[[], None], int] | None]) -> None:
    for _ in range(TRIES):
        try:
            calls.put(None)
            return
        except MemoryError:
            time.sleep(PAUSE_SECONDS)
