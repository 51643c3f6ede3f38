"""How does a program wait for something that a server has not sent yet?"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["Pending", "Source"]

T = TypeVar("T")


class Source(Protocol):
    """Where pending values come from."""

    def wait(self, pending: Pending[Any], timeout_seconds: float | None) -> None:
        """Return when ``pending`` is done or the time is over; the waiting thread may help."""
        ...

    def attend(self) -> None:
        """See to it that values arrive although no thread waits."""
        ...


class Pending(Generic[T]):
    """A value on its way: wait for it with ``result()`` or ``await``, from any thread or loop."""

    __slots__ = ("_callbacks", "_done", "_error", "_lock", "_source", "_value")

    def __init__(self, source: Source | None = None) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Pending[T]], None]] = []
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        state = "there" if self._done else "not there yet"
        return f"<Pending: {state}; result() waits for it, or await>"

    def done(self) -> bool:
        """Whether the value or the error is here."""
        return self._done

    def complete(self, value: T) -> None:
        """Deliver the value; later deliveries are ignored."""
        self._finish(value, None)

    def fail(self, error: BaseException) -> None:
        """Deliver an error instead of a value; later deliveries are ignored."""
        self._finish(None, error)

    def on_done(self, callback: Callable[[Pending[T]], None]) -> None:
        """Call ``callback(self)`` once, now or when done, in the thread that delivers."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback(self)

    def attend(self) -> None:
        """Have the value delivered soon although no thread waits for it."""
        if self._source is not None:
            self._source.attend()

    def result(self, timeout_seconds: float | None = None) -> T:
        """Wait for the value.

        Raises whatever error was delivered, and ``TimeoutError`` when ``timeout_seconds`` pass.
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
            # The loop may have been closed while the answer was on its way: nobody waits any more.
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
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)
