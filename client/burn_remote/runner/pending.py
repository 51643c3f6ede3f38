"""Values that a server has not sent yet, and how a program waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

from burn_remote_protocol.errors import ArgumentMismatch, BurnRemoteError, fresh
from burn_remote_protocol.signal_exceptions import is_of_signal_handler, pass_on_of_signal_handler
from burn_remote_protocol.waiters import Waiters

__all__ = ["Pending", "Source", "completed", "sent"]

T = TypeVar("T")

_logger: Final = logging.getLogger("burn_remote")


class Source(Protocol):
    """Where pending values come from."""

    def wait(self, pending: Pending[Any], timeout_seconds: float | None) -> None:
        """Return when ``pending`` is done or the timeout is over; the waiting thread may help."""
        ...

    def send(self) -> None:
        """Send what is queued, without a wait for values."""
        ...

    def attend(self) -> None:
        """Make sure that values arrive although no thread waits for them."""
        ...

    def deferred(self, callback: Callable[[Pending[Any]], object]) -> Callable[..., object]:
        """Return a function that never blocks: it queues ``callback`` for another thread."""
        ...


class Pending(Generic[T]):
    """A future value: wait for it with ``result()`` or ``await``, from any thread or event loop."""

    # Without a lock: an interrupt could leave it locked. Appending to a list, and popping from it,
    # are atomic.
    __slots__ = ("_callbacks", "_outcomes", "_source", "_wakers")

    def __init__(self, source: Source | None = None) -> None:
        self._source = source
        # A list, which takes a third of the time of a deque to make.
        self._callbacks: list[Callable[[Pending[T]], object]] = []
        # They wake waiting callers, which remove them. Unlike callbacks, they are called again
        # after an interrupt.
        self._wakers: list[Callable[[], object]] = []
        # Values and errors that were delivered; only the first counts.
        self._outcomes: list[tuple[T | None, BaseException | None]] = []

    def __repr__(self) -> str:
        state = "done" if self._outcomes else "not done"
        return f"<Pending: {state}; wait with result() or await>"

    def __reduce__(self) -> NoReturn:
        # ``copy`` calls this too.
        raise ArgumentMismatch(
            "a value that may not have arrived can be neither pickled nor copied; pickle what its "
            "result() returns"
        )

    def done(self) -> bool:
        """Whether the value or the error has arrived."""
        return bool(self._outcomes)

    def complete(self, value: T) -> None:
        """Deliver the value; later deliveries are ignored."""
        self._finish(value, None)

    def fail(self, error: BaseException) -> None:
        """Deliver an error instead of a value; later deliveries are ignored."""
        self._finish(None, error)

    def on_done(self, callback: Callable[[Pending[T]], object]) -> None:
        """Call ``callback(self)`` once: now if the value has arrived, else soon after it.

        Callbacks are called one at a time, in a thread of the session. A callback may wait for
        other values and close the device. An exception that it raises is logged and otherwise
        ignored, as ``concurrent.futures`` does.
        """
        self.when_done(callback if self._outcomes else self.deferred(callback))

    def deferred(self, callback: Callable[[Pending[T]], object]) -> Callable[..., object]:
        """Return a function that never blocks: it queues ``callback`` for a thread of the source.

        Values without a source have no such thread. Then this returns ``callback`` itself, which
        the thread that delivers the value calls.
        """
        return callback if self._source is None else self._source.deferred(callback)

    def when_done(self, callback: Callable[[Pending[T]], object]) -> None:
        """Call ``callback(self)`` once: now if the value has arrived, else when it arrives.

        The thread that delivers the value then makes the call. It delivers the values of others
        too, so ``callback`` must not wait for anything.
        """
        self._callbacks.append(callback)
        if self._outcomes:
            self._call_back()

    def send(self) -> None:
        """Send the request of the value now, if it is still queued.

        Raises no ``BurnRemoteError``: ``result`` does.
        """
        if self._source is not None and not self._outcomes:
            try:
                self._source.send()
            except BurnRemoteError as error:
                pass_on_of_signal_handler(error)

    def attend(self) -> None:
        """Make sure that the value is delivered soon, although no thread waits for it."""
        if self._source is not None:
            self._source.attend()

    def result(self, timeout_seconds: float | None = None) -> T:
        """Wait for the value.

        Raises the error that was delivered, and ``TimeoutError`` after ``timeout_seconds``.
        """
        if not self._outcomes:
            if self._source is not None:
                self._source.wait(self, timeout_seconds)
            else:
                self.wait(timeout_seconds)
        if not self._outcomes:
            raise TimeoutError(f"no reply within {timeout_seconds} seconds")
        value, error = self._outcomes[0]
        if error is not None:
            raise fresh(error) if isinstance(error, BurnRemoteError | MemoryError) else error
        return value  # type: ignore[return-value]  # done without error: the value is set

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Block until done, without reading any socket; return whether it is done."""
        waiters = Waiters()
        with self._waking(waiters.wake):
            return waiters.wait_until(self.done, timeout_seconds)

    def __await__(self) -> Generator[Any, None, T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        def deliver() -> None:
            # A program may have closed the loop before the value arrived.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(wake)

        with self._waking(deliver):
            self.attend()
            yield from future
        return self.result()

    @contextlib.contextmanager
    def _waking(self, waker: Callable[[], object]) -> Iterator[None]:
        """Have ``waker`` called when the value is here, until the block ends."""
        try:
            self._wakers.append(waker)
            # ``_finish`` appends an outcome before it looks for wakers, so either it or the next
            # line calls this waker.
            if self._outcomes:
                waker()
            yield
        finally:
            try:
                self._wakers.remove(waker)
            except ValueError as error:
                pass_on_of_signal_handler(error)

    def _finish(self, value: T | None, error: BaseException | None) -> None:
        if not self._outcomes:
            self._outcomes.append((value, error))
        # Also with an earlier outcome: an interrupt may have prevented these calls then.
        for waker in [*self._wakers]:
            waker()
        if self._callbacks:
            self._call_back()

    def _call_back(self) -> None:
        """Call each callback that no other thread has taken."""
        # ``when_done`` appends a callback and then looks for an outcome. A delivery appends the
        # outcome and then looks for callbacks. So whichever of the two comes second makes the call.
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return
            try:
                callback(self)
            except Exception as error:  # the outermost line of the caller's code
                if is_of_signal_handler(error):  # other waiters depend on the other callbacks
                    self._call_back()
                    raise
                _logger.exception("a callback of %r raised", self)
            except BaseException:
                # Ctrl-C in the main thread: other waiters depend on the remaining callbacks.
                self._call_back()
                raise


def completed(source: Source, value: T) -> Pending[T]:
    """Return a ``Pending`` for a value that is known without a request."""
    pending: Pending[T] = Pending(source)
    pending.complete(value)
    return pending


def sent(values: Sequence[Pending[T]]) -> Sequence[Pending[T]]:
    """Send the requests of values, and return the values.

    A wait for a value sends only the request to its own session, and others would stay queued until
    their flushers send them.
    """
    for one in values:
        one.send()
    return values
