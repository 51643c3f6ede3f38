"""The state machine of a session and its connections, used by both ends. Performs no I/O.

Theory of operation
-------------------
A session outlives its connections. Client and server each own one ``SessionEnd``, which tracks the
session's state, the link that serves it, the frames that the other end may lack, and the next
action. The owner performs the I/O.

**Counting.** A link delivers frames in order, so counting them identifies them. Batches, chunks,
replies and failures are *session frames* and are counted; frames that open, acknowledge or close
are not. Each end keeps a session frame in its replay window until the other end acknowledges it.
After a break, each end reports how many it has received, and the other sends the rest again.

**Acknowledgements are maxima.** A count means "at least this many". A replayed batch carries the
count of the time when it was encoded, which may be lower than a later one; the lower count is
ignored. A count above the number of frames sent is a protocol violation.

**Links are numbered.** Each attempt to resume begins a new link, with the next number, *before* the
count of received frames is read for it. From that moment on, frames and errors of older links are
ignored: their frames were not counted, so they are sent again. Without the numbers, a frame that
was still buffered when the count was read would arrive twice, and the failure of an old link would
detach the session from the new one.

**The server resumes in one step.** A valid ``Resume`` moves the session to the new link without
waiting for the old link to close. Of two concurrent resumes, the second replaces the first. A
``Resume`` that is refused changes nothing.

**Bounded retries.** An end that replays the same oldest frame in ``MAX_FRUITLESS_RESUMES``
consecutive resumes gives up: something on the path breaks the connection because of that frame.

States
------
OPENING    no ``Welcome`` yet
ATTACHED   a link serves the session
DETACHED   the link broke; the session waits for a resume until its lease ends
LEAVING    the other end sent ``Closing``; the work that it requested is being finished
ENDED      all state is freed; every later event is ignored

``TRANSITIONS`` has a row for each event that can happen in each state. Any other event is
impossible in that state, and ``SessionEnd.fire`` raises ``SessionLost``.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from burn_remote_protocol.errors import ProtocolViolation, SessionLost

__all__ = [
    "ACKNOWLEDGE_BYTES",
    "ACKNOWLEDGE_EVERY",
    "MAX_FRUITLESS_RESUMES",
    "REPLAY_BYTES",
    "TRANSITIONS",
    "Action",
    "Event",
    "Handover",
    "ReplayWindow",
    "Role",
    "SessionEnd",
    "State",
    "Transition",
]

# Received frames per acknowledgement: few enough to keep the replay window small, many enough that
# acknowledgements are a small part of the traffic.
ACKNOWLEDGE_EVERY: Final = 16
# A server acknowledges long chunks of an upload sooner, after this many bytes. The client copies
# each chunk to memory that an acknowledged one has left. If that is little memory, it is still in
# the processor's cache: on a Xeon, 256 MiB are copied to 16 MiB in turn in 42 ms, to 64 MiB in 62.
ACKNOWLEDGE_BYTES: Final = 8 * 1024 * 1024
# The size of a client's replay window, which bounds how far an upload runs ahead of the server.
REPLAY_BYTES: Final = 64 * 1024 * 1024
# With the client's pauses between attempts, about 15 seconds on a network that delivers nothing. A
# frame of 512 KiB still arrives if the network cuts 50 connections in a row after 60 KB each.
MAX_FRUITLESS_RESUMES: Final = 100

F = TypeVar("F")


class Role(enum.Enum):
    """One of the two ends of a session."""

    CLIENT = enum.auto()
    SERVER = enum.auto()


class State(enum.Enum):
    """The state of a session; the module's docstring describes each."""

    OPENING = enum.auto()
    ATTACHED = enum.auto()
    DETACHED = enum.auto()
    LEAVING = enum.auto()
    ENDED = enum.auto()


class Event(enum.Enum):
    """An event in the life of a session."""

    OPENED = enum.auto()  # the server sent ``Welcome``, the client received it
    BROKE = enum.auto()  # the link that serves the session failed, or delivered garbled bytes
    RESUMED = enum.auto()  # like OPENED, for a resumed session
    EXPIRED = enum.auto()  # the lease ran out, or the client gave up
    CLOSING = enum.auto()  # the other end sent ``Closing``
    FINISHED = enum.auto()  # the work that was requested before ``Closing`` is done
    CLOSE = enum.auto()  # this end ends the session: by choice, or because of an error


class Action(enum.Flag):
    """Actions that the owner must perform after an event, in this order."""

    NOTHING = 0
    STOP_LEASE = enum.auto()
    CLOSE_LINK = enum.auto()  # close the link that served the session
    SEND_WELCOME = enum.auto()
    REPLAY = enum.auto()  # send the frames that the other end lacks, oldest first
    RESUME = enum.auto()  # dial, and send ``Hello`` with ``Resume``
    START_LEASE = enum.auto()
    FINISH = enum.auto()  # wait for the session's queue to drain
    SEND_CLOSING = enum.auto()
    FREE = enum.auto()  # drop the session; fail every pending request


class Transition(NamedTuple):
    """The next state, and the actions of each end."""

    state: State
    client: Action
    server: Action


_NOTHING: Final = Action.NOTHING
_CLOSE_LINK_AND_FREE: Final = Action.CLOSE_LINK | Action.FREE
_CLOSE: Final = Action.SEND_CLOSING | Action.CLOSE_LINK | Action.FREE
_WELCOME_AND_REPLAY: Final = Action.SEND_WELCOME | Action.REPLAY

# fmt: off
TRANSITIONS: Final[Mapping[tuple[State, Event], Transition]] = {
    # state, event                    next state      the client does     the server does
    (State.OPENING, Event.OPENED):
        Transition(State.ATTACHED, _NOTHING, Action.SEND_WELCOME),
    (State.OPENING, Event.BROKE):
        Transition(State.ENDED, _CLOSE_LINK_AND_FREE, _CLOSE_LINK_AND_FREE),
    (State.OPENING, Event.CLOSE):
        Transition(State.ENDED, _CLOSE_LINK_AND_FREE, _CLOSE_LINK_AND_FREE),

    (State.ATTACHED, Event.BROKE):
        Transition(State.DETACHED, Action.CLOSE_LINK | Action.RESUME, Action.START_LEASE),
    # The client noticed a broken link before the server did. Only clients resume.
    (State.ATTACHED, Event.RESUMED):
        Transition(State.ATTACHED, _NOTHING, Action.CLOSE_LINK | _WELCOME_AND_REPLAY),
    (State.ATTACHED, Event.CLOSING):
        Transition(State.LEAVING, Action.FINISH, Action.FINISH),
    (State.ATTACHED, Event.CLOSE):
        Transition(State.ENDED, _CLOSE, _CLOSE),

    # A second report of the same broken link.
    (State.DETACHED, Event.BROKE):
        Transition(State.DETACHED, _NOTHING, _NOTHING),
    (State.DETACHED, Event.RESUMED):
        Transition(State.ATTACHED, Action.REPLAY, Action.STOP_LEASE | _WELCOME_AND_REPLAY),
    (State.DETACHED, Event.EXPIRED):
        Transition(State.ENDED, Action.FREE, Action.FREE),
    # The frame was buffered when the link broke.
    (State.DETACHED, Event.CLOSING):
        Transition(State.LEAVING, Action.FINISH, Action.FINISH),
    (State.DETACHED, Event.CLOSE):
        Transition(State.ENDED, Action.FREE, Action.STOP_LEASE | Action.FREE),

    # The client closes the link right after ``Closing``; the lease bounds how long its tasks still
    # run.
    (State.LEAVING, Event.BROKE):
        Transition(State.LEAVING, _NOTHING, Action.START_LEASE),
    (State.LEAVING, Event.EXPIRED):
        Transition(State.ENDED, Action.FREE, Action.FREE),
    (State.LEAVING, Event.CLOSING):
        Transition(State.LEAVING, _NOTHING, _NOTHING),
    (State.LEAVING, Event.FINISHED):
        Transition(State.ENDED, _CLOSE_LINK_AND_FREE, Action.STOP_LEASE | _CLOSE_LINK_AND_FREE),
    (State.LEAVING, Event.CLOSE):
        Transition(State.ENDED, _CLOSE_LINK_AND_FREE, Action.STOP_LEASE | _CLOSE_LINK_AND_FREE),

    **{(State.ENDED, event): Transition(State.ENDED, _NOTHING, _NOTHING) for event in Event
       if event is not Event.RESUMED},
}
# fmt: on


class Handover:
    """A record of whether the replay window has a frame, even if an interrupt stops ``append``."""

    __slots__ = ("is_done",)

    def __init__(self) -> None:
        self.is_done = False


class ReplayWindow(Generic[F]):
    """The frames that the other end may lack. Not thread-safe.

    ``sent`` is the number of session frames sent since the session opened. A ``KeyboardInterrupt``
    may come at any line. Each method can be called again after it, and a frame is in the window
    once ``sent`` includes it.
    """

    def __init__(self) -> None:
        self._frames: deque[tuple[F, int, int]] = deque()  # with their sizes and numbers
        self.acknowledged = 0
        self.sent = 0
        self.bytes = 0

    def __len__(self) -> int:
        return self.sent - self.acknowledged

    def append(self, frame: F, size: int, handover: Handover | None = None) -> None:
        """Keep a frame that is about to be sent."""
        number = self.sent + 1
        while self._frames and self._frames[-1][2] >= number:
            self._frames.pop()  # an interrupt came before ``sent`` included it
        self.bytes += size
        self._frames.append((frame, size, number))
        if handover is None:
            self.sent = number
        else:
            # One statement without a call: no interrupt comes in between.
            self.sent, handover.is_done = number, True

    def check(self, received: int) -> None:
        """Raise ``ProtocolViolation`` if this count of received frames exceeds the frames sent."""
        if received > self.sent:
            raise ProtocolViolation(
                f"the other end acknowledges {received:,} frames; {self.sent:,} were sent"
            )

    def acknowledge(self, received: int) -> None:
        """Discard the first ``received`` frames; a count below an earlier one changes nothing.

        Raises ``ProtocolViolation`` if the count exceeds the frames sent.
        """
        if received <= self.acknowledged:
            return
        self.check(received)
        self.acknowledged = received
        frames = self._frames
        while frames and frames[0][2] <= received:
            self.bytes -= frames.popleft()[1]
        if not frames:
            self.bytes = 0  # corrects deviations that interrupts caused

    def frames(self) -> Iterator[F]:
        """Return the frames that must be sent again, oldest first."""
        return (frame for frame, _, number in [*self._frames] if number <= self.sent)


class SessionEnd(Generic[F]):
    """One end of a session. Not thread-safe.

    ``link`` is the number of the link whose frames count; ``received`` is the number of session
    frames that have arrived; ``window`` holds the sent frames that the other end may lack.
    """

    def __init__(self, role: Role, window: ReplayWindow[F] | None = None) -> None:
        self.state = State.OPENING
        self.link = 1
        self.received = 0
        self.window: Final[ReplayWindow[F]] = ReplayWindow() if window is None else window
        # Consecutive resumes between which no frame arrived, in either direction.
        self.idle_resumes = 0
        self._role: Final = role
        # An acknowledgement is due once ``received`` is at least this.
        self.due_at = ACKNOWLEDGE_EVERY
        self._chunk_bytes = 0  # of chunks, since the last acknowledgement
        self._fruitless_resumes = 0
        self._at_last_resume = (0, 0)

    # -- state --------------------------------------------------------------------------------

    def fire(self, event: Event) -> Action:
        """Enter the next state; return this end's actions.

        Raises ``SessionLost`` for an event that is impossible in this state.
        """
        transition = TRANSITIONS.get((self.state, event))
        if transition is None:
            raise SessionLost(
                f"the event {event.name} is impossible in a session that is "
                f"{self.state.name.lower()}"
            )
        self.state = transition.state
        return transition.client if self._role is Role.CLIENT else transition.server

    def broke(self, link: int) -> Action:
        """Report that a link is broken; ignored if a later link serves the session."""
        return self.fire(Event.BROKE) if link == self.link else Action.NOTHING

    def begin_link(self) -> int:
        """Return the number of a new link; from now on, frames of older links are ignored."""
        self.link += 1
        return self.link

    def check_resume(self, received: int) -> None:
        """Check that a resume can succeed; change nothing.

        ``received`` is the number of this end's frames that the other end has received. Raises
        ``SessionLost``.
        """
        if (self.state, Event.RESUMED) not in TRANSITIONS:
            raise SessionLost("the session has ended")
        window = self.window
        if not window.acknowledged <= received <= window.sent:
            raise SessionLost(
                f"the other end has {received:,} frames; this end keeps those "
                f"from {window.acknowledged:,} to {window.sent:,}"
            )
        if received == window.acknowledged < window.sent and (
            self._fruitless_resumes >= MAX_FRUITLESS_RESUMES
        ):
            raise SessionLost(
                f"the connection broke {MAX_FRUITLESS_RESUMES} times in a row "
                "before one frame had arrived"
            )

    def resumed(self, received: int) -> Action:
        """Attach the session to the newest link; replay ``window.frames()`` to it.

        Raises ``SessionLost`` like ``check_resume``.
        """
        self.check_resume(received)
        window = self.window
        is_fruitless = received == window.acknowledged < window.sent
        self._fruitless_resumes = self._fruitless_resumes + 1 if is_fruitless else 0
        progress = (self.received, received)
        self.idle_resumes = self.idle_resumes + 1 if progress == self._at_last_resume else 0
        self._at_last_resume = progress
        window.acknowledge(received)
        self.take_received()
        return self.fire(Event.RESUMED)

    # -- frames -------------------------------------------------------------------------------

    def receive(self, link: int) -> bool:
        """Count a session frame; return whether to deliver it.

        A frame must be ignored if a later link serves the session, which will deliver it again.
        """
        if link != self.link:
            return False
        self.received += 1
        return True

    def note_chunk(self, size: int) -> None:
        """Note the bytes of a chunk that ``receive`` has counted as a frame."""
        self._chunk_bytes += size
        if self._chunk_bytes >= ACKNOWLEDGE_BYTES:
            self.due_at = self.received

    def acknowledge(self, received: int) -> None:
        """Discard frames that the other end has received, whichever link reports it.

        Raises ``ProtocolViolation`` if the count exceeds the frames sent.
        """
        self.window.acknowledge(received)

    def take_received(self) -> int:
        """Return the number of received frames, for a frame that acknowledges them."""
        self.due_at = self.received + ACKNOWLEDGE_EVERY
        self._chunk_bytes = 0
        return self.received

    @property
    def owes_acknowledgement(self) -> bool:
        """Whether an acknowledgement is due."""
        return self.received >= self.due_at
