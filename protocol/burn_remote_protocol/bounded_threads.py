"""Threads whose ``start`` never waits forever.

``threading.Thread.start`` waits without a limit until the new thread says that it runs. A thread
that has no memory for its first steps never does, so the thread that started it, such as an event
loop, would hang.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from burn_remote_protocol.latches import Latch

__all__ = ["START_SECONDS", "BoundedThread", "BoundedThreadPool"]

P = ParamSpec("P")
T = TypeVar("T")

# A thread starts within a millisecond, or within seconds if the machine is very busy.
START_SECONDS: Final = 5.0

# How often, and after which pauses, a thread that lacks memory tries to fail a call.
TRIES: Final = 100
PAUSE_SECONDS: Final = 0.001

# Not formatted when it is raised: memory may lack then.
_NOT_STARTED: Final = (
    f"a new thread did not start within {START_SECONDS:g} seconds; the system may lack memory"
)


class _NotInTime(RuntimeError):
    """A thread did not start in time."""


class BoundedThread(threading.Thread):
    """A daemon thread whose ``start`` raises ``RuntimeError`` if it does not run in time.

    ``start`` also raises ``RuntimeError`` if the system has no thread, and ``MemoryError``. A
    thread whose ``start`` raised never calls its function, also if it begins later.
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        """Prepare a thread, as ``threading.Thread`` does."""
        super().__init__(*arguments, **{"daemon": True, **options})  # type: ignore[arg-type]
        self._started = _BoundedEvent()
        # Acquired by ``run``, or by a ``start`` that gives up: by whichever comes first.
        self._is_decided: Final = threading.Lock()

    def start(self) -> None:
        """Start the thread, and wait until it runs. Raises ``RuntimeError``, ``MemoryError``."""
        try:
            super().start()
        except (_NotInTime, MemoryError):
            # Otherwise the thread began at the end of the wait, and runs.
            if self._is_decided.acquire(blocking=False):
                raise

    def run(self) -> None:
        """Call the thread's function, unless ``start`` has given up."""
        if self._is_decided.acquire(blocking=False):
            super().run()


class _BoundedEvent(Latch):
    """An event for which nobody waits longer than ``START_SECONDS``.

    Also not if the new thread ends inside of ``set``.
    """

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the event. Raises ``RuntimeError`` if it does not happen in time."""
        if not super().wait(START_SECONDS if timeout_seconds is None else timeout_seconds):
            raise _NotInTime(_NOT_STARTED)
        return True

    def _at_fork_reinit(self) -> None:
        """Do nothing: after a fork, only the thread that forked goes on, and it was started."""


class BoundedThreadPool(ThreadPoolExecutor):
    """A pool of bounded threads, for ``asyncio.to_thread``: an event loop's default executor.

    ``submit`` starts a thread if all others work. It raises ``RuntimeError`` or ``MemoryError`` if
    no thread of the pool runs and none can be started.
    """

    def __init__(self, most_threads: int, name: str) -> None:
        """Create a pool without threads."""
        super().__init__(most_threads)  # event loops take no other class
        self._name: Final = name
        self._most_threads: Final = most_threads
        self._calls: Final[queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]] = (
            queue.SimpleQueue()
        )
        self._workers: Final[list[BoundedThread]] = []
        self._lock: Final = threading.Lock()
        self._unfinished = 0  # calls that wait or run
        self._is_closed = False

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function in a thread of the pool."""
        future: Future[T] = Future()
        item = future, partial(call, *args, **kwargs)
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the pool of threads was shut down")
            self._unfinished += 1
            workers = len(self._workers)
            needs_thread = workers < min(self._unfinished, self._most_threads)
        try:
            if needs_thread:
                self._start_thread()
            self._calls.put(item)
        except BaseException:
            self._finish()
            raise
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after the calls that were submitted; wait for that if ``wait``."""
        with self._lock:
            self._is_closed = True
        if cancel_futures:
            self._cancel_calls()
        for _ in self._workers:
            self._calls.put(None)
        if wait:
            for each in self._workers:
                each.join()

    def _start_thread(self) -> None:
        thread = BoundedThread(target=self._work, name=f"{self._name}-{len(self._workers)}")
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            if not self._workers:
                raise
            return  # another thread will run the call
        self._workers.append(thread)

    def _work(self) -> None:
        while True:
            try:
                item = self._calls.get()
            except (MemoryError, SystemError):  # no item was taken
                continue
            if item is None:
                return
            future, call = item
            try:
                _complete(future, call)
            except MemoryError as error:
                _fail(future, error)
            del item, future, call  # else they would stay in memory until the next call
            self._finish()

    def _finish(self) -> None:
        with self._lock:
            self._unfinished -= 1

    def _cancel_calls(self) -> None:
        while True:
            try:
                item = self._calls.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                item[0].cancel()


def _complete(future: Future[Any], call: Callable[[], Any]) -> None:
    """Make a call, and set the future to its result or its exception."""
    if future.set_running_or_notify_cancel():
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)


def _fail(future: Future[Any], error: MemoryError) -> None:
    """Set the exception of a future, also if memory for that lacks for a moment."""
    for _ in range(TRIES):
        try:
            if not future.done():
                future.set_exception(error)
            return
        except MemoryError:
            time.sleep(PAUSE_SECONDS)
