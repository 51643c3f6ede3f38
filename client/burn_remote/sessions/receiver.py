"""Reception of a session's frames, by the waiting thread or an attendant thread.

The thread that waits for a reply reads the socket itself: handing the reply over from a reader
thread costs about 40 µs, a third of a round trip. While nobody waits, an attendant thread blocks on
the socket, so that pings are answered, failures are noticed, and ``await`` and callbacks work.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from burn_remote.runner.pending import Pending
from burn_remote.sessions.callback_thread import CallbackThread
from burn_remote.sessions.lifetime import nested_use
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionLost,
    SessionLost,
    detached,
)
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_protocol.waiters import Waiters

__all__ = ["Receiver"]

_logger: Final = logging.getLogger("burn_remote")

# How long the attendant pauses after another thread has read: in a loop of reads, both would wake
# up for each reply. Messages that nobody requested are delayed by up to this time.
AWAY_SECONDS: Final = 0.02

# Most frames that a waiting thread reads after its reply, so that it returns although finalizers
# that run meanwhile request further replies without end. Leaving the others to the attendant costs
# about 50 µs.
MAX_FURTHER_FRAMES: Final = 64

# A note of the ``KeyboardInterrupt`` that ends a wait for a server.
INTERRUPTED: Final = (
    "Ctrl-C ended this wait, but the server goes on with the operations that were sent, and the "
    "next read waits for them; device.close(timeout_seconds=0) abandons them"
)

# The key of ``Receiver._reader``.
READER: Final = "reader"


class _Signal:
    """A flag for which one thread waits.

    A ``threading.Event`` holds a lock while ``set`` runs Python code. A finalizer that runs then,
    in the same thread, and sets the event too would wait for this lock for good.
    """

    def __init__(self) -> None:
        self._unset: Final = threading.Lock()  # held while the flag is not set
        self._unset.acquire()

    def is_set(self) -> bool:
        return not self._unset.locked()

    def set(self) -> None:
        try:
            self._unset.release()
        except RuntimeError as error:  # it is set already
            pass_on_of_signal_handler(error)

    def clear(self) -> None:
        self._unset.acquire(blocking=False)

    def wait(self, timeout_seconds: float) -> None:
        """Wait until the flag is set, and leave it set."""
        if self._unset.acquire(timeout=timeout_seconds):
            self.set()


class Receiver:
    """Passes each frame of a link to ``handle``, in whichever thread reads it, one at a time.

    ``lost`` is called when the link ends. Then ``use`` supplies another link with its ``handle``,
    or ``close`` ends the receiver.
    """

    def __init__(
        self,
        link: BlockingLink,
        handle: Callable[[Any], None],
        lost: Callable[[Any, BurnRemoteError], None],
    ) -> None:
        # Calls the program's callbacks: in a thread that receives, they would have to return before
        # any value that they wait for can arrive.
        self.callbacks: Final = CallbackThread()
        # One attribute, so that no thread passes a link's frame to another link's ``handle``.
        self._source = (link, handle)
        self._lost = lost
        # The frame that is being handled, and its handler.
        self._frame: Any = None
        self._handle_frame = handle
        # The call of ``_read_alone`` that reads now, if any. Not a lock: Ctrl-C may come after
        # ``acquire`` has taken a lock and before it has returned, and then nobody releases it. A
        # call finds itself in this dict, however it was interrupted.
        self._reader: dict[str, list[int]] = {}  # the values have the number of their thread
        self._wanted = _Signal()
        self._left_at = 0.0
        self._waiters: set[object] = set()
        self._closed = False
        self._broken = False
        # Guards ``_source``, ``_broken`` and ``_closed``.
        self._state_lock = threading.RLock()
        self._changed = Waiters()
        self._attendant = threading.Thread(
            target=self._attend, name="burn-remote-receive", daemon=True
        )

    def start(self) -> None:
        """Start the attendant."""
        self._attendant.start()

    def wait(self, pending: Pending[Any], timeout_seconds: float | None) -> None:
        """Return when ``pending`` is done or the timeout is over; read if no other thread does.

        Call ``check_stack_room`` before. Raises ``UsageError`` if this interrupted a wait of the
        same thread.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        waiter = object()
        try:
            self._waiters.add(waiter)
            while not pending.done() and not self._closed:
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return
                if not self._read_alone(self._read_until, pending, deadline):
                    if self.is_receiving():
                        raise nested_use(self._source[0].address)
                    # The current reader may leave before this reply arrives; the attendant then
                    # reads.
                    self._wanted.set()
                    pending.wait(remaining)
        except KeyboardInterrupt as interruption:
            # A local device stops computing; a server does not.
            if "://" in self._source[0].address:
                interruption.add_note(INTERRUPTED)
            raise
        finally:
            self._waiters.discard(waiter)
            # A frame is left if its handler raised an exception. The attendant handles it again,
            # and ends the session if that raises too.
            if self._waiters or self._frame is not None:
                self._wanted.set()

    def is_receiving(self) -> bool:
        """Whether this thread receives, so was interrupted."""
        return self._reader.get(READER) == [threading.get_ident()]

    def runs_here(self) -> bool:
        """Return whether this thread receives, or is the attendant."""
        return self.is_receiving() or threading.get_ident() == self._attendant.ident

    def attend(self) -> None:
        """Have the attendant read now, because no thread waits for a reply that is expected."""
        self._wanted.set()

    def poll(self) -> None:
        """Read what has arrived, so that a broken link is noticed; do not wait for more.

        If another thread is reading, that thread notices the break.
        """
        self._read_alone(self._read_waiting)

    def use(self, link: BlockingLink, handle: Callable[[Any], None]) -> None:
        """Continue with another link after one broke."""
        with self._state_lock:
            self._source = (link, handle)
            self._broken = False
            self._changed.wake()
        self._wanted.set()

    def close(self) -> None:
        """Stop receiving. Does not close the link."""
        with self._state_lock:
            self._closed = True
            self._changed.wake()
        self._wanted.set()
        self.callbacks.close()
        self._source[0].interrupt()
        if self._attendant is not threading.current_thread() and self._attendant.is_alive():
            # The attendant no longer blocks; the bound is for an interpreter that is shutting down.
            self._attendant.join(1.0)

    def _read_alone(self, read: Callable[..., None], *arguments: Any) -> bool:
        """Call ``read`` unless another thread is reading; return whether it was called."""
        this_call = [threading.get_ident()]
        try:
            if self._reader.setdefault(READER, this_call) is not this_call:
                return False
            read(*arguments)
            return True
        finally:
            # Without function calls, because Ctrl-C may be raised when a call returns.
            try:
                if self._reader[READER] is this_call:
                    del self._reader[READER]
            except KeyError:
                pass  # the other thread has left meanwhile

    def _read_until(self, pending: Pending[Any], deadline: float | None) -> None:
        try:
            while not pending.done():
                remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._read_frame(remaining):
                    return
            # The link's buffer may hold further frames. The attendant, which may already be blocked
            # on the socket, would not notice them.
            for _ in range(MAX_FURTHER_FRAMES):
                if self._closed or not self._source[0].has_buffered() or not self._read_frame(0):
                    return
            self._wanted.set()
            self._source[0].interrupt()
        finally:
            self._left_at = time.monotonic()

    def _read_frame(self, timeout_seconds: float | None) -> bool:
        link, handle = self._source
        try:
            if self._frame is None:
                self._handle_frame = handle
                # Kept until it is handled: after Ctrl-C in between, the next reader handles it,
                # possibly a second time.
                try:
                    self._frame = link.receive(timeout_seconds)
                except MemoryError as error:
                    # The link may keep half a message, and would raise this in every later call.
                    raise ConnectionLost(
                        f"this process has no memory for a message of {link.address}"
                    ) from detached(error)
                if self._frame is None:
                    return False
            self._handle_frame(self._frame)
            self._frame = None
        except BurnRemoteError as error:
            self._frame = None
            with self._state_lock:
                self._broken = self._source[0] is link
            self._lost(link, error)
            return self._wait_for_link(timeout_seconds)
        return True

    def _wait_for_link(self, timeout_seconds: float | None) -> bool:
        self._changed.wait_until(lambda: self._closed or not self._broken, timeout_seconds)
        with self._state_lock:
            return not self._closed and not self._broken

    def _attend(self) -> None:
        failure: BaseException | None = None
        while not self._closed:
            try:
                if failure is None:
                    self._attend_once()
                else:
                    self._fail(failure)
                    failure = None
            except BaseException as error:  # SystemExit too would end the thread
                # There may not even be memory to fail; then try again.
                if failure is not None and not isinstance(error, MemoryError):
                    raise
                failure = failure or error

    def _attend_once(self) -> None:
        wanted = self._wanted.is_set()
        away = bool(self._reader) or time.monotonic() - self._left_at < AWAY_SECONDS
        if away and not wanted:
            self._wanted.wait(AWAY_SECONDS)
            return
        self._wanted.clear()
        if not self._wait_for_link(None):
            return
        if self._frame is None and not self._source[0].wait_readable(None):
            return
        if not self._read_alone(self._read_waiting):
            # A waiting thread reads; without this pause both would poll the same bytes.
            self._wanted.wait(AWAY_SECONDS)

    def _fail(self, error: BaseException) -> None:
        """End the session: without the attendant, waiting threads might wait for ever."""
        self._frame = None
        link, _ = self._source
        self._lost(link, SessionLost(f"receiving failed with {type(error).__name__}: {error}"))
        _logger.error("receiving failed unexpectedly", exc_info=error)

    def _read_waiting(self) -> None:
        while not self._closed and self._read_frame(0):
            pass
