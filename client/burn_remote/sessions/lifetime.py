"""The lifetime of a session: when it sends, and its end at exit, fork and garbage collection."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol

from burn_remote.runner.pending import Pending
from burn_remote_protocol import interrupted_finalizers
from burn_remote_protocol.errors import BurnRemoteError, OperationFailed, SessionLost, UsageError
from burn_remote_protocol.interrupted_finalizers import call_when_freed
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_protocol.snapshots import living_keys
from burn_remote_protocol.timed_queue import TimedQueue

__all__ = [
    "BATCH_BYTES",
    "BATCH_TASKS",
    "DROP_BYTES",
    "DROP_TENSORS",
    "EXIT_SECONDS",
    "FLUSH_SECONDS",
    "Flushable",
    "Flusher",
    "fence_in_thread",
    "flush_or_end",
    "nested_use",
    "watch",
    "weakly",
]

_logger: Final = logging.getLogger("burn_remote")

# The time for which an operation may be queued, so that more are sent with it. A longer delay would
# leave the server idle while the program does other work.
FLUSH_SECONDS: Final = 0.001

# A batch shares the cost of a frame, some 20 µs on both sides, among its operations. A larger batch
# makes the server start later, and its replies wait behind longer frames.
BATCH_TASKS: Final = 256
BATCH_BYTES: Final = 64 * 1024

# Dropped tensors are freed within a batch once this many are pending, or once the operations since
# the first of them have produced this many bytes. Otherwise a chain of operations on large tensors
# would hold many more of them on the server than the program does. Memory that is freed soon is
# also still in the processor's cache when the next result takes it: a compiled training step
# 784-128-10, which replaces 400 KB of weights, takes 0.88 of the time that it takes with 4 MiB.
DROP_TENSORS: Final = 64
DROP_BYTES: Final = 512 * 1024


# How long the end of the process waits for the work of all its sessions, to learn of failures. A
# server without a backlog replies in milliseconds.
EXIT_SECONDS: Final = 1.0


class Flushable(Protocol):
    """The interface of a session that a flusher needs."""

    def flush_waiting(self) -> None:
        """Send queued tasks. The flusher is disarmed before this call."""
        ...


class Watchable(Flushable, Protocol):
    """The interface of a session that ends with the process."""

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        ...

    def fence_soon(self) -> Pending[None]:
        """Request a reply once all is executed, without blocking."""
        ...

    def close(self, *, discards: bool = False) -> None:
        """End the session; ``discards`` has the server skip the work that it has not executed."""
        ...

    def take_failures(self) -> OperationFailed | None:
        """Return and forget the failures that no read and no sync has raised."""
        ...

    def abandon_after_fork(self) -> None:
        """Make every use in this child process raise an error; touch neither locks nor socket."""
        ...


def nested_use(address: str) -> UsageError:
    """Return the error for what sends or waits inside of the same thread's call."""
    return UsageError(
        f"a finalizer, a signal handler or a callback of the garbage collector used {address} "
        "while its thread was sending to it or waiting for it; let it hand the tensors to another "
        "thread, such as by queue.SimpleQueue"
    )


class Flusher:
    """The thread that flushes one session ``FLUSH_SECONDS`` after ``schedule``, and closes it.

    A session calls ``schedule`` with the first task of a batch, and ``disarm`` when it sends the
    batch itself: because it is full or because the program waits for a reply. The thread then
    needs no lock of the session. In a program that goes on issuing operations, the thread wakes
    once per ``FLUSH_SECONDS``, finds a newer batch, and sleeps until that one is due. It waits
    without a timeout only after a period without a ``schedule``. So ``schedule`` rarely has to wake
    the thread, which would take more time than a small operation.

    Each session has its own flusher: a flush may block on a socket that nobody reads, and on a
    local device it executes the operations. While nothing is queued, the thread does not keep the
    session alive.
    """

    def __init__(
        self, end: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare the thread; ``end`` closes the connection when the session is closed or gone."""
        # The session, while a flush is scheduled.
        self.armed: Flushable | None = None
        self._end: Final = end
        self._clock: Final = clock
        self._due = 0.0
        self._seen_due = 0.0  # ``_due`` when the thread last woke up
        # Whether the thread waits without a timeout. Only the thread sets it.
        self._is_idle = False
        self._asked: Final[TimedQueue[Callable[[], None] | None]] = TimedQueue()
        self._thread: Final = threading.Thread(
            target=self._run, name="burn-remote-flush", daemon=True
        )

    def start(self, session: Flushable) -> None:
        """Start the thread; it ends with the session."""
        try:
            self._thread.start()
            # Not at exit: ``_close_all`` closes the sessions that are alive then.
            call_when_freed(session, self.stop)
        except BaseException:  # Ctrl-C: nothing else would end the thread
            self.stop()
            raise

    def schedule(self, session: Flushable) -> None:
        """Schedule a flush in ``FLUSH_SECONDS``. Never blocks; safe in ``__del__``."""
        try:
            self._due = self._clock() + FLUSH_SECONDS
            # Set ``armed``, then read ``_is_idle``; ``advance`` sets ``_is_idle``, then reads
            # ``armed``. So at least one of the two threads sees what the other has set.
            self.armed = session
            if self._is_idle:
                self._asked.put(_nothing)
        except BaseException:
            # Ctrl-C: the next task schedules the flush.
            self.armed = None
            raise

    def disarm(self) -> None:
        """Cancel the flush. Call it before taking the queue, so that a later drop schedules one."""
        self.armed = None

    def advance(self) -> float | None:
        """Flush if it is time; return the seconds until the next call, ``None`` if it can wait.

        The thread calls this after each request and each timeout.
        """
        self._is_idle = False
        was_scheduled = self._due != self._seen_due
        self._seen_due = self._due
        session = self.armed
        if session is not None:
            remaining = self._due - self._clock()
            if remaining > 0:
                return remaining
            self.armed = None
            try:
                session.flush_waiting()
            except MemoryError:
                self.armed = session  # nothing was sent: try again in ``FLUSH_SECONDS``
            return FLUSH_SECONDS
        if was_scheduled:
            return FLUSH_SECONDS
        self._is_idle = True
        # ``schedule`` may have come before it could see that the thread is idle.
        return None if self.armed is None else 0.0

    def call(self, function: Callable[[], None]) -> None:
        """Call a function, which must not raise, in the thread. Never blocks."""
        self._asked.put(function)

    def runs_here(self) -> bool:
        """Return whether this thread is the flusher's."""
        return threading.get_ident() == self._thread.ident

    def stop(self) -> None:
        """Tell the thread to end the connection and itself. Never blocks."""
        self._asked.put(None)

    def _run(self) -> None:
        while True:
            try:
                request = self._asked.get(self.advance())
            except (queue.Empty, MemoryError):  # then no request was taken
                continue
            if request is None:
                break
            request()
            del request  # it may refer to the session
        self._end()


def _nothing() -> None:
    """Do nothing. As a request, this wakes a flusher's thread."""


def flush_or_end(flush: Callable[[], None], end: Callable[[SessionLost], None]) -> None:
    """Send queued tasks in the flush thread; an unexpected error ends the session by ``end``.

    Raises ``MemoryError`` if there is no memory to encode the tasks, which stay queued.
    """
    try:
        flush()
    except BurnRemoteError:
        pass  # the connection keeps the error; the next use of the session raises it
    except MemoryError:
        raise
    except Exception as error:
        # If the flush thread ended, the session would keep tasks that other devices wait for.
        _logger.exception("sending queued tasks failed unexpectedly")
        end(SessionLost(f"sending queued tasks failed with {type(error).__name__}: {error}"))


def fence_in_thread(flusher: Flusher, fence: Callable[[], Pending[None]]) -> Pending[None]:
    """Call a session's ``fence`` in its flusher's thread; return a ``Pending`` for its reply.

    The caller does not block. ``fence`` itself blocks while the server reads nothing.
    """
    passed: Pending[None] = Pending()

    def deliver(pending: Pending[None]) -> None:
        try:
            pending.result()
        except BurnRemoteError as error:
            passed.fail(error)
        else:
            passed.complete(None)

    def request() -> None:
        try:
            pending = fence()
            pending.when_done(deliver)
            pending.attend()
        except BurnRemoteError as error:
            passed.fail(error)
        except Exception as error:  # it would end the flusher's thread, and nobody would answer
            _logger.exception("requesting a reply failed unexpectedly")
            passed.fail(
                SessionLost(f"requesting a reply failed with {type(error).__name__}: {error}")
            )

    flusher.call(request)
    return passed


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a bound method while its object lives, and does nothing after.

    Threads hold such functions of a session that they must not keep alive.
    """
    # Not ``WeakMethod``, which is implemented in Python; this function is called for each frame.
    reference = weakref.ref(method.__self__)  # type: ignore[attr-defined]
    function = method.__func__  # type: ignore[attr-defined]

    def call(*arguments: Any) -> Any:
        owner = reference()
        return None if owner is None else function(owner, *arguments)

    return call


_watched: Final[weakref.WeakKeyDictionary[Watchable, None]] = weakref.WeakKeyDictionary()


def watch(session: Watchable) -> None:
    """Close this session when the process exits, and abandon it in forked children.

    At exit, failures that nobody read are a ``RuntimeWarning``.
    """
    interrupted_finalizers.install()
    _watched[session] = None


def _close_all() -> None:
    deadline = time.monotonic() + EXIT_SECONDS
    watched = living_keys(_watched)
    sessions = [(each, None if each.closed else each.fence_soon()) for each in watched]
    for session, passed in sessions:
        is_done = True
        if passed is not None:
            try:
                passed.result(max(0.0, deadline - time.monotonic()))
            except (BurnRemoteError, TimeoutError) as error:
                pass_on_of_signal_handler(error)
                is_done = False
        with contextlib.suppress(Exception):  # the interpreter is ending; nobody can act on it
            session.close(discards=not is_done)
        if failure := session.take_failures():
            notes = "\n".join(["", *getattr(failure, "__notes__", ())])
            warnings.warn(
                f"an operation failed and nobody read its result: {failure}{notes}",
                RuntimeWarning,
                stacklevel=1,
            )


def _after_fork() -> None:
    for session in living_keys(_watched):
        session.abandon_after_fork()
    _watched.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
