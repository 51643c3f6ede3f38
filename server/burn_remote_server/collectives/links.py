"""The links of a ring, by which a member sends to the next one and receives from the previous one.

A queue of references links two members of one server process (``MemoryPipe``). A connection
between their servers links other members (``peer_links``).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.messages import BeginCollective, GroupBroken
from burn_remote_protocol.timed_queue import TimedQueue

__all__ = ["Incoming", "MemoryPipe", "Message", "Outgoing", "Piece", "Place"]


class Piece(NamedTuple):
    """Elements of a collective, and how many bytes of it the link has carried before them."""

    sequence: int
    offset: int
    elements: memoryview


Message = BeginCollective | GroupBroken | Piece | None

# place(sequence, offset, size): returns the memory in which to store the elements of a piece.
# Raises ``ProtocolViolation`` for a piece that is not expected.
Place = Callable[[int, int, int], memoryview]


class Incoming(Protocol):
    """The link from the previous member. One thread receives; any thread may call other methods.

    ``has_beats``: the other end sends heartbeats, because it may stop without a notice.
    """

    has_beats: bool

    def receive(self, place: Place, check: Callable[[], None]) -> Message:
        """Return the next message; ``None`` for a heartbeat.

        The elements of a piece are in the memory that ``place`` returned, or in memory that does
        not change. ``check`` is called whenever nothing has arrived for a while; it may raise.
        Raises ``ConnectionLost`` and ``ProtocolViolation``.
        """
        ...

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until a message may have arrived; ``False`` after a ``wake``."""
        ...

    def wake(self) -> None:
        """Make ``wait`` return."""
        ...

    def has_ended(self) -> bool:
        """Whether the previous member will send nothing more; unread messages may be left."""
        ...

    def notify(self, message: GroupBroken | None) -> None:
        """Send a message, or a heartbeat, to the previous member. Never raises."""
        ...

    def close(self) -> None:
        """End the link."""
        ...


class Outgoing(Protocol):
    """The link to the next member. One thread sends at a time."""

    def send(self, message: BeginCollective | GroupBroken | None) -> None:
        """Send a message, or a heartbeat. Raises ``ConnectionLost``."""
        ...

    def send_piece(self, piece: Piece) -> None:
        """Send elements. Raises ``ConnectionLost``."""
        ...

    @property
    def accepts(self) -> bool:
        """Whether nothing sent earlier waits, so that ``begin`` may be called."""
        ...

    def begin(self, items: Sequence[BeginCollective | Piece]) -> bool:
        """Send as far as that needs no wait; return whether that is all.

        ``finish``, or the next message, sends the rest. Raises ``ConnectionLost``; so does the next
        call.
        """
        ...

    def finish(self) -> None:
        """Wait until what ``begin`` left is sent. Raises ``ConnectionLost``."""
        ...

    def close(self) -> None:
        """End the link after the messages that were sent."""
        ...


class MemoryPipe:
    """Both ends of a link between two members of one process: pieces are passed by reference.

    The memory of a piece does not change after it was sent. ``on_message`` receives the messages of
    the next member.
    """

    has_beats = False

    def __init__(self) -> None:
        self._items: Final[TimedQueue[Any]] = TimedQueue()
        self._waiting: Any = None
        self._is_closed = False
        self.is_linked = False  # the next member receives, or has left
        self._handler: Callable[[GroupBroken], None] | None = None
        self._lock: Final = threading.Lock()
        self._undelivered: list[GroupBroken] = []

    # -- the end that sends -------------------------------------------------------------------

    def on_message(self, handler: Callable[[GroupBroken], None]) -> None:
        """Call ``handler`` with each message of the next member, including earlier ones."""
        with self._lock:
            self._handler, undelivered = handler, self._undelivered
            self._undelivered = []
        for message in undelivered:
            handler(message)

    def send(self, message: BeginCollective | GroupBroken | None) -> None:
        if self._is_closed:
            raise ConnectionLost("the member left")
        if message is not None:
            self._items.put(message)

    def send_piece(self, piece: Piece) -> None:
        self._items.put(piece)

    @property
    def accepts(self) -> bool:
        return True

    def begin(self, items: Sequence[BeginCollective | Piece]) -> bool:
        if self._is_closed:
            raise ConnectionLost("the member left")
        for item in items:
            self._items.put(item)
        return True

    def finish(self) -> None:
        """Do nothing: ``begin`` leaves nothing."""

    def drop_pieces(self) -> None:
        """Keep only the messages, for a next member that links itself later.

        Call this after ``close``, while nobody receives.
        """
        for _ in range(self._items.count):
            item = self._items.get_nowait()
            if not isinstance(item, Piece):
                self._items.put(item)

    # -- the end that receives ----------------------------------------------------------------

    def receive(self, place: Place, check: Callable[[], None]) -> Message:
        while True:
            item, self._waiting = self._waiting, None
            if item is None:
                try:
                    item = self._items.get(0.25)
                except queue.Empty:
                    check()
                    if self._is_closed and self._items.empty():
                        raise ConnectionLost("the member left") from None
                    continue
            if item is _WAKE:
                continue
            if isinstance(item, Piece):
                place(item.sequence, item.offset, len(item.elements))  # refuses unexpected ones
            return item  # type: ignore[no-any-return]

    def wait(self, timeout_seconds: float) -> bool:
        if self._waiting is None:
            try:
                item = self._items.get(timeout_seconds)
            except queue.Empty:
                return self._is_closed
            if item is _WAKE:
                return False
            self._waiting = item
        return True

    def wake(self) -> None:
        self._items.put(_WAKE)

    def has_ended(self) -> bool:
        # Not needed: the reason for leaving also travels the other way around the ring, by
        # ``notify``, and so reaches this member from the next one.
        return False

    def notify(self, message: GroupBroken | None) -> None:
        if message is None:
            return
        with self._lock:
            handler = self._handler
            if handler is None and not self._is_closed:
                self._undelivered.append(message)
        if handler is not None:
            handler(message)

    # -- both ---------------------------------------------------------------------------------

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._handler = None  # it refers to the member, which refers to this link: a cycle
        self._items.put(_WAKE)


_WAKE: Final = object()
