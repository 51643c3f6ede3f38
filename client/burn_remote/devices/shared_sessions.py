"""Registry of the sessions that devices of this process share."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Final, Generic, Protocol, TypeVar

from burn_remote_protocol.errors import BurnRemoteError, ConnectionFailed, UsageError, fresh
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = ["SharedSessions", "Use"]


class Closable(Protocol):
    """The interface of a session that the registry uses."""

    @property
    def closed(self) -> bool:
        """Whether the session has ended."""
        ...

    def close(self) -> None:
        """End the session."""
        ...

    def settle_connection(self, timeout_seconds: float) -> None:
        """Wait until a session whose connection broke is connected again or has ended."""
        ...


S = TypeVar("S", bound=Closable)


class _Shared(Generic[S]):
    """A session that is open or being opened, and its uses. The uses keep it alive."""

    def __init__(self, key: Hashable) -> None:
        self.key: Final = key
        self.opening: Final[Future[S]] = Future()
        self.opener: Final = threading.get_ident()
        # Weak references: a garbage-collected device no longer counts, but does not close the
        # session.
        self.uses: Final[weakref.WeakSet[Use[S]]] = weakref.WeakSet()

    @property
    def is_usable(self) -> bool:
        """Whether the session is being opened, or open."""
        opening = self.opening
        if not opening.done():
            return True
        has_failed = opening.cancelled() or opening.exception() is not None
        return not has_failed and not opening.result().closed


class Use(Generic[S]):
    """One device's use of a session."""

    def __init__(self, sessions: SharedSessions[S], shared: _Shared[S]) -> None:
        self._sessions: Final = sessions
        self.shared: Final = shared

    @property
    def session(self) -> S:
        """The session, which is open."""
        return self.shared.opening.result(0)

    def end(self, close: Callable[[S], None] | None = None) -> None:
        """End this use. If it is the last one, close the session by ``close``.

        Without ``close``, this calls the session's ``close`` method. A second call does nothing.
        """
        if not self._sessions.give_back(self):
            return
        if close is None:
            self.session.close()
        else:
            close(self.session)


class SharedSessions(Generic[S]):
    """Sessions by key. Thread-safe; no lock is held while a session is opened or closed.

    One thread opens each session; only threads that want the same session wait for it.
    """

    def __init__(self) -> None:
        # Re-entrant, because a signal handler may close a device while its thread holds the lock.
        self._lock = threading.RLock()
        self._shared: weakref.WeakValueDictionary[Hashable, _Shared[S]] = (
            weakref.WeakValueDictionary()
        )
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def use(self, key: Hashable, open_session: Callable[[], S], timeout_seconds: float) -> Use[S]:
        """Return a use of the session with this key, which is opened if there is none.

        If the session's connection is broken, this waits at most ``timeout_seconds`` until the
        session is resumed or has ended. A session that has ended is opened anew.

        Raises what ``open_session`` raises, also in the threads that wait for it, and
        ``ConnectionFailed`` if another thread takes longer than ``timeout_seconds``.
        """
        while True:
            wanted: _Shared[S] = _Shared(key)
            try:
                use = self._join(wanted)
                if use.shared is wanted:
                    wanted.opening.set_result(open_session())
            except BaseException as error:
                # Ctrl-C may come at any line above. Other threads wait for the outcome.
                self._give_up(wanted, error)
                raise
            opening = use.shared.opening
            if not opening.done() and use.shared.opener == threading.get_ident():
                raise UsageError(
                    "a finalizer, a signal handler or a callback of the garbage collector opened a "
                    "device that its own thread is opening"
                )
            try:
                failure = opening.exception(timeout_seconds)
            except concurrent.futures.CancelledError:
                continue  # the thread that opened it was interrupted, so open it here
            except TimeoutError as error:
                pass_on_of_signal_handler(error)
                raise ConnectionFailed(
                    f"another thread has been opening this device for {timeout_seconds:g} seconds"
                ) from None
            if isinstance(failure, BurnRemoteError):
                raise fresh(failure)
            if use.shared is not wanted:
                use.session.settle_connection(timeout_seconds)
                if use.session.closed:  # its server lost it; the next round opens another one
                    self.give_back(use)
                    continue
            return use

    def use_again(self, shared: _Shared[S]) -> Use[S]:
        """Return another use of a session, which may have ended."""
        use = Use(self, shared)
        with self._lock:
            shared.uses.add(use)
        return use

    def give_back(self, use: Use[S]) -> bool:
        """End a use; return whether it was the last one."""
        shared = use.shared
        with self._lock:
            if use not in shared.uses:
                return False
            shared.uses.discard(use)
            if shared.uses:
                return False
            if self._shared.get(shared.key) is shared:
                del self._shared[shared.key]
            return True

    def _join(self, wanted: _Shared[S]) -> Use[S]:
        """Return a use of the session with this key; if there is none, of ``wanted``."""
        with self._lock:
            shared = self._shared.get(wanted.key)
            if shared is None or not shared.is_usable:
                shared = self._shared[wanted.key] = wanted
            use = Use(self, shared)
            shared.uses.add(use)
            return use

    def _give_up(self, wanted: _Shared[S], error: BaseException) -> None:
        """End the opening of a session; threads that wait for it get the error, or try again."""
        with self._lock:
            if self._shared.get(wanted.key) is wanted:
                del self._shared[wanted.key]
        if isinstance(error, BurnRemoteError):
            # A copy: the traceback of ``error`` refers to the frames of the program.
            wanted.opening.set_exception(fresh(error))
        else:
            wanted.opening.cancel()

    def _forget(self) -> None:
        # A forked child calls this: a thread of the parent may have held the lock, or have been
        # opening a session.
        self._lock = threading.RLock()
        self._shared = weakref.WeakValueDictionary()
