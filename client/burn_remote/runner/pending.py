"""Values that a server has not sent yet, and how a program waits for them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final, Generic, Protocol, TypeVar

__all__ = ["Pending", "Source"]

T = TypeVar("T")

_logger: Final = logging.getLogger("burn_remote")


class Source(Protocol):
    """Where pending values come from."""

    def wait(self, pending: Pending[Any], timeout_seconds: float | None) -> None:
        """Return when ``pending`` is done or the time is over; the waiting thread may help."""
        ...

    def attend(self) -> None:
        """Make sure that values arrive although no thread waits for them."""
        ...


class Pending(Generic[T]):
    """A future value: wait for it with ``result()`` or ``await``, from any thread or event loop."""

    __slots__ = ("_callbacks", "_done", "_error", "_lock", "_source", "_value")

    def __init__(self, source: Source | None = None) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._callbacks: deque[Callable[[Pending[T]], object]] = deque()
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        state = "done" if self._done else "not done"
        return f"<Pending: {state}; wait with result() or await>"

    def done(self) -> bool:
        """Whether the value or the error has arrived."""
        return self._done

    def complete(self, value: T) -> None:
        """Deliver the value; later deliveries are ignored."""
        self._finish(value, None)

    def fail(self, error: BaseException) -> None:
        """Deliver an error instead of a value; later deliveries are ignored."""
        self._finish(None, error)

    def on_done(self, callback: Callable[[Pending[T]], object]) -> None:
        """Call ``callback(self)`` once: now if the value is here, else in the thread that delivers.

        An exception that the callback raises is logged and otherwise ignored, as
        ``concurrent.futures`` does: that thread delivers the values of others too.
        """
        self._callbacks.append(callback)
        if self._done:
            self._call_back()

    def attend(self) -> None:
        """Have the value delivered soon although no thread waits for it."""
        if self._source is not None:
            self._source.attend()

    def result(self, timeout_seconds: float | None = None) -> T:
        """Wait for the value.

        Raises the error that was delivered, and ``TimeoutError`` after ``timeout_seconds``.
        """
        if not self._done:
            if self._source is not None:
                self._source.wait(self, timeout_seconds)
            else:
                self.wait(timeout_seconds)
        if not self._done:
            raise TimeoutError(f"no answer within {timeout_seconds} seconds")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # done without error: the value is set

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Block until done, without reading any socket; return whether it is done."""
        event = threading.Event()
        self.on_done(lambda _: event.set())
        return event.wait(timeout_seconds)

    def __await__(self) -> Generator[Any, None, T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        def deliver(_: Pending[T]) -> None:
            # A program may have closed the loop before the answer arrived.
            if not loop.is_closed():
                loop.call_soon_threadsafe(wake)

        self.on_done(deliver)
        self.attend()
        yield from future
        return self.result()

    def _finish(self, value: T | None, error: BaseException | None) -> None:
        with self._lock:
            if self._done:
                return
            self._value, self._error = value, error
            self._done = True
        self._call_back()

    def _call_back(self) -> None:
        """Call each callback that no other thread has taken."""
        # ``on_done`` appends before it looks at ``_done``, and ``_done`` is set before this looks
        # at the callbacks: whichever comes second calls. Popping from a deque is atomic.
        while self._callbacks:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return
            try:
                callback(self)
            except Exception:  # the outermost line of the caller's code
                _logger.exception("a callback of %r raised", self)
            except BaseException:
                # Ctrl-C in the main thread: others wait for the callbacks that remain.
                self._call_back()
                raise
