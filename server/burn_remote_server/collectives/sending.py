"""The thread of a member that sends to the next one, and the queue before it.

A small collective does without the thread: its member's worker sends to the link itself, as long as
nothing is queued and the link accepts it (``Sender.begin``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from burn_remote_protocol.bounded_threads import BoundedThread
from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.messages import BeginCollective, GroupBroken
from burn_remote_protocol.timed_queue import TimedQueue
from burn_remote_server.collectives.collective_engine import GroupIsBroken
from burn_remote_server.collectives.links import Outgoing, Piece
from burn_remote_server.collectives.ring_schedule import MAX_SCRATCH_BYTES

__all__ = ["Sender", "SenderOwner"]

# The longest wait before a thread checks whether the group is broken.
SLICE_SECONDS: Final = 0.25

_STOP: Final = object()
# Has the thread send the rest of what another thread began.
_REST: Final = object()


class SenderOwner(Protocol):
    """The methods of a member that its sender calls."""

    def may_send(self, sequence: int) -> bool:
        """Whether the next member still needs the elements of a collective."""
        ...

    def sent(self, size: int) -> None:
        """Count bytes of elements that were sent."""
        ...

    def beat(self) -> None:
        """Send a heartbeat to the previous member."""
        ...

    def next_lost(self, reason: str) -> None:
        """Note that the link to the next member broke."""
        ...


class Sender:
    """Sends messages and pieces in order, and heartbeats when there are none.

    ``pause_seconds`` is the longest time between heartbeats. The link is passed to ``attach``
    once it exists. This object does not refer to its owner; only the thread does. Only the garbage
    collector frees a reference cycle, and pieces refer to large arrays.
    """

    def __init__(self, pause_seconds: float, name: str) -> None:
        self._pause: Final = pause_seconds
        self._name: Final = name
        self._unsent: Final[TimedQueue[Any]] = TimedQueue()
        self._changed: Final = threading.Condition()
        # Held while a thread uses the link. Items are taken from the queue under it, so ``begin``
        # overtakes none.
        self._sending: Final = threading.Lock()
        self._is_link_closed = False
        self._outgoing: Outgoing | None = None
        self._has_ended = False
        self._scratch_bytes = 0
        self._thread: BoundedThread | None = None

    def start(self, owner: SenderOwner) -> None:
        """Start the thread. Raises ``RuntimeError`` if the system has none."""
        thread = BoundedThread(target=self._send_all, args=(owner,), name=self._name)
        thread.start()
        self._thread = thread

    def attach(self, outgoing: Outgoing) -> bool:
        """Use a link to the next member; ``False`` if there is one already, or none is needed."""
        with self._changed:
            if self._outgoing is not None or self._has_ended:
                return False
            self._outgoing = outgoing
            self._changed.notify_all()
        return True

    @property
    def has_link(self) -> bool:
        """Whether the link to the next member exists."""
        return self._outgoing is not None

    def await_link(self, deadline: float, check: Callable[[], None]) -> bool:
        """Wait for the link to the next member; ``False`` at the deadline. ``check`` may raise."""
        with self._changed:
            while self._outgoing is None:
                check()
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, SLICE_SECONDS))
        return True

    def notify(self, broken: GroupBroken) -> None:
        """Queue the message about a failure."""
        self._unsent.put(broken)

    def send(
        self, item: BeginCollective | Piece, scratch_bytes: int, check: Callable[[], None]
    ) -> None:
        """Queue a message or a piece; wait while too much scratch memory is queued.

        ``check`` is called while this waits; it may raise.
        """
        if scratch_bytes:
            with self._changed:
                while self._scratch_bytes > MAX_SCRATCH_BYTES:
                    check()
                    self._changed.wait(SLICE_SECONDS)
                self._scratch_bytes += scratch_bytes
        self._unsent.put((item, scratch_bytes))

    def begin(self, items: Sequence[BeginCollective | Piece], owner: SenderOwner) -> bool:
        """Send in this thread, unless something is queued; return ``False`` if nothing was sent.

        Handing an item to the thread takes 20 to 60 µs: two switches between threads that also wait
        for the interpreter's lock. This never waits: the thread sends what the link does not accept
        at once.
        """
        if not self._unsent.empty() or not self._sending.acquire(blocking=False):
            return False
        try:
            outgoing = self._outgoing
            is_free = self._unsent.empty() and not self._is_link_closed
            if outgoing is None or not is_free or not outgoing.accepts:
                return False
            try:
                is_all = outgoing.begin(items)
            except ConnectionLost:
                return False  # the thread gets the same error, and reports it
            for item in items:
                if isinstance(item, Piece):
                    owner.sent(len(item.elements))
        finally:
            self._sending.release()
        if not is_all:
            self._unsent.put((_REST, 0))
        return True

    def wake(self) -> None:
        """Have waiting threads check whether the group is broken."""
        with self._changed:
            self._changed.notify_all()

    def finish(self, notice: GroupBroken, timeout_seconds: float) -> None:
        """Send what is queued, then ``notice``, and end the link."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        self._unsent.put(notice)
        self._unsent.put(_STOP)
        if self._thread is not None:
            self._thread.join(timeout_seconds)
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is not None:
            outgoing.close()

    # -- the thread ---------------------------------------------------------------------------

    def _send_all(self, owner: SenderOwner) -> None:
        outgoing = self._await_outgoing(owner)
        if outgoing is None:
            return
        beat_at = time.monotonic()
        try:
            while True:
                has_item = self._unsent.wait(self._pause)
                if time.monotonic() - beat_at >= self._pause:
                    beat_at = time.monotonic()
                    owner.beat()
                with self._sending:
                    if not has_item:
                        outgoing.send(None)
                        continue
                    item = self._unsent.get_nowait()
                    if item is _STOP:
                        return
                    self._send_item(owner, outgoing, item)
                    item = None  # it refers to an output's memory, which may be freed now
        except GroupIsBroken:
            pass
        except ConnectionLost as error:
            owner.next_lost(str(error))
        finally:
            with self._sending:
                self._is_link_closed = True
                outgoing.close()

    def _await_outgoing(self, owner: SenderOwner) -> Outgoing | None:
        """Wait for the link to the next member, and send heartbeats to the previous one."""
        while True:
            with self._changed:
                if self._outgoing is not None:
                    return self._outgoing
                if self._has_ended:
                    return None
                self._changed.wait(self._pause)
            owner.beat()

    def _send_item(self, owner: SenderOwner, outgoing: Outgoing, item: Any) -> None:
        if isinstance(item, GroupBroken):
            outgoing.send(item)
            return
        message, scratch_bytes = item
        if message is _REST:
            outgoing.finish()
        elif isinstance(message, BeginCollective):
            outgoing.send(message)
        elif owner.may_send(message.sequence):
            outgoing.send_piece(message)
            owner.sent(len(message.elements))
        if scratch_bytes:
            with self._changed:
                self._scratch_bytes -= scratch_bytes
                self._changed.notify_all()
