"""A member of a group: its collectives in order, its links to its neighbours, and failures.

The members form a ring of links. Each member has two threads. The *worker* takes one collective
after the other: it announces the collective to the next member, and the engine exchanges the
elements. The worker takes elements from the previous member only after that member has announced
the same collective. The *sender* sends to the next member. No session waits for a collective: its
outputs are slots, which are filled later.

**Failures.** A member that notices a failure, or leaves, tells both neighbours (``GroupBroken``),
and each neighbour passes the message on around the ring. The message has the number of the first
collective that cannot be carried out. A member that leaves has done its part of all earlier ones,
so the others can still complete them. Of several failures, the one with the smallest number counts;
of those with the same number, the first one does.

**Liveness.** Both ends of a link between servers send a heartbeat when they have sent nothing for a
quarter of the group's ``bound_seconds``. A member from which nothing arrived for ``bound_seconds``
has failed. Time for which this process was suspended does not count: its neighbours may have been
suspended with it.

**Progress.** A member may be alive but late: its session does not issue the collective, or an input
does not arrive. A late member reports itself ``issue_seconds`` after the previous member's
announcement. The report says what its session is doing. If the previous member is late too, there
is no such announcement; then the next member reports the late one after ``1.5 * issue_seconds``.
Members that wait for elements report a failure only after ``2 * issue_seconds``, so the first
report names the right member.

**Announcements.** A member announces a collective when it has the inputs, because the elements
follow on the same link. If an engine sends elements over other connections, the member announces
each collective early (``announce_ahead``). So neighbours have usually checked that they issued the
same collective before the inputs arrive.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from burn_remote_protocol.bounded_threads import BoundedThread
from burn_remote_protocol.collectives import EngineKind, GroupSpec
from burn_remote_protocol.errors import (
    BurnRemoteError,
    CollectiveFailed,
    ConnectionLost,
    OperationFailed,
    ProtocolViolation,
)
from burn_remote_protocol.messages import BeginCollective, GroupBroken
from burn_remote_server.backends.interface import Backend
from burn_remote_server.collectives.announcements import (
    MAX_REASON,
    EarlyAnnouncements,
    announcement_of,
)
from burn_remote_server.collectives.collective_engine import CollectiveEngine, GroupIsBroken, Job
from burn_remote_server.collectives.links import Incoming, Message, Outgoing, Piece, Place
from burn_remote_server.collectives.ring_schedule import CHUNK_BYTES
from burn_remote_server.collectives.sending import SLICE_SECONDS, Sender
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.telemetry.logs import get_logger
from burn_remote_server.tensors.slots import InFlight

__all__ = ["BEATS_PER_BOUND", "Member"]

logger = get_logger(__name__)

BEATS_PER_BOUND: Final = 4
# How often a member that waits for an input looks for messages of the previous member.
INPUT_SLICE_SECONDS: Final = 0.05
# How long a member that leaves still waits for the links to its neighbours. They exist before the
# first collective, so this concerns only neighbours that have not joined.
LEAVING_SECONDS: Final = 10.0
# The most bytes of elements to keep from a previous member that has left, until the engine takes
# them.
MAX_KEPT_BYTES: Final = 32 * 2**20
# The most announcements of the previous member to read ahead; each has up to 1 KiB.
MAX_AHEAD: Final = 1024

_STOP: Final = object()


class Member:
    """One member of a group; a ``Membership``.

    ``dial(check)`` returns the link from the previous member, and raises ``BurnRemoteError``. The
    link to the next one is passed to ``attach`` once it exists. ``open_engine(member)`` returns
    the engine, in the worker's thread, once both links exist.
    """

    def __init__(
        self,
        spec: GroupSpec,
        backend: Backend,
        open_engine: Callable[[Member], CollectiveEngine],
        dial: Callable[[Callable[[], None]], Incoming],
        counters: Counters,
        ended: Callable[[Member], None],
        join_seconds: float,
        describe_session: Callable[[], str] = lambda: "",
    ) -> None:
        """Prepare a member; ``start`` begins to connect it.

        Its neighbours must join within ``join_seconds``. ``ended`` is called at the end. It must
        not refer to the member: that would be a reference cycle, which only the garbage collector
        frees. ``describe_session`` returns a text for errors: what the session is doing.
        """
        self._join_seconds: Final = join_seconds
        self._join_deadline: Final = time.monotonic() + join_seconds
        self._link_deadline = float("inf")  # of a member that leaves
        self.spec: Final = spec
        self.backend: Final = backend
        self._describe_session: Final = describe_session
        self._open_engine: Final = open_engine
        self._dial: Final = dial
        self._counters: Final = counters
        self._ended: Final = ended
        self.size: Final = len(spec.addresses)
        self._next: Final = (spec.rank + 1) % self.size
        self._previous: Final = (spec.rank - 1) % self.size
        self._lock: Final = threading.Lock()
        self._changed: Final = threading.Condition(self._lock)
        self._jobs: Final[deque[Job | object]] = deque()
        self._open_jobs: Final[dict[int, Job]] = {}  # by sequence
        self._done = 0  # collectives that this member has carried out
        self._broken: GroupBroken | None = None
        self._broken_at = 0.0
        self._reported_by: int | None = None  # the neighbour that reported the failure
        self._gone: Final[set[int]] = set()  # neighbours that left or were given up
        self._has_ended = False
        self._is_excluded = False
        self._incoming: Incoming | None = None
        # Announcements of the previous member for collectives that this one has not begun, and when
        # they arrived.
        self._begun: Final[deque[tuple[BeginCollective, float]]] = deque()
        # Messages that arrived while this member was connecting, from a previous member that has
        # left.
        self._kept: Final[deque[BeginCollective | Piece]] = deque()
        self._announcements: Final = EarlyAnnouncements(self._lock)
        # The announcement that leaves with the first piece, or before this member waits.
        self._unsent_announcement: BeginCollective | None = None
        # The worker waits for the previous member's messages and must be woken for a collective.
        self._is_listening = False
        # The collective that this member has begun, until the previous member has announced it too.
        self._unagreed: BeginCollective | None = None
        self._silence: Final = _Silence()
        # The time from which the previous member counts as failed although it is alive, and what it
        # did not do within how many seconds.
        self._late_at = float("inf")
        self._late_for: tuple[str, float] = ("", 0.0)
        self._sender: Final = Sender(
            spec.bound_seconds / BEATS_PER_BOUND, f"member-{spec.rank}-send"
        )
        self._worker: Final = BoundedThread(target=self._work, name=f"member-{spec.rank}")

    def start(self) -> None:
        """Start to connect to the neighbours, unless the member was rejected before.

        Raises ``OperationFailed`` if the system has no threads for it; then it has left the group.
        """
        self._is_excluded = self._broken is not None
        try:
            if self.size > 1:
                self._sender.start(self)
            # After the sender, because the worker waits for the sender at its end.
            self._worker.start()
        except (RuntimeError, MemoryError) as error:
            reason = f"its server has no thread for it: {error}"
            self._is_excluded = True
            self.report(GroupBroken(0, self.spec.rank, reason[:MAX_REASON]))
            self._finish()
            raise OperationFailed(f"member {self.spec.rank}: {reason}") from None

    def join(self, timeout_seconds: float) -> None:
        """Wait until this member has left the group."""
        self._worker.join(timeout_seconds)

    # -- the session's side -------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Carry out a collective after those submitted before."""
        announcements, is_announced = self._announcements, False
        with self._lock:
            broken = self._broken
            if self._has_ended:  # possibly a collective that the other members can still complete
                broken = broken or self._leave_notice()
            elif broken is None or job.sequence < broken.first:
                self._open_jobs[job.sequence] = job
                self._jobs.append(job)
                is_announced = announcements.is_on and not announcements.leaves_to_worker(job)
                broken = None
            self._changed.notify_all()
            # Waking a worker that is busy would be a system call for nothing. Nor can it start a
            # collective that the previous member has not announced: the announcement wakes it.
            is_awaited = self._is_listening and not announcements.is_beginning
            is_awaited = is_awaited and (bool(self._begun) or not is_announced)
        if broken is not None:
            self._fail_job(job, broken)
        elif is_announced:
            # In this thread, because the sender's would wait for the interpreter lock. They have
            # the order of the jobs: one thread submits these, and the announcements of
            # ``announce_ahead`` were queued under the lock.
            announcements.announce([job], self._send_announcements)
        if is_awaited:
            self._wake()

    def announce_ahead(self) -> None:
        """Announce each collective as soon as it is submitted, from now on."""
        with self._lock:
            self._announcements.turn_on(job for job in self._jobs if isinstance(job, Job))
        self._announcements.stop_beginning(self._send_announcements)

    def _send_announcements(self, begun: Sequence[BeginCollective]) -> None:
        # In this thread if possible, because the sender's would wait for the interpreter lock.
        if not self._sender.begin(begun, self):
            for one in begun:
                self._sender.send(one, 0, self.check)

    def reject(self, sequence: int, reason: str) -> None:
        """Report to all members that this one cannot carry out a collective."""
        self.report(GroupBroken(sequence, self.spec.rank, reason[:MAX_REASON]))

    def reject_aborted(self, sequence: int) -> None:
        """Report that a collective was aborted because the group failed at a later one."""
        broken = self._broken
        if broken is not None:  # else this member left, which it does only once all are done
            self.report(GroupBroken(sequence, broken.member, broken.reason))

    def leave(self, *, has_session: bool = True) -> None:
        """Leave the group once the collectives submitted before are done.

        If there are none, or the session has ended, it waits for links to its neighbours only for
        ``LEAVING_SECONDS``: a client may name neighbours that never join, and join again and again.
        """
        with self._lock:
            self._jobs.append(_STOP)
            if not (self._open_jobs and has_session):
                self._link_deadline = time.monotonic() + LEAVING_SECONDS
            self._changed.notify_all()
        self._wake()

    def abandon(self, reason: str) -> None:
        """Leave the group now; fail the collectives that are not done."""
        self.report(GroupBroken(0, self.spec.rank, reason))
        self.leave()

    def _wake(self) -> None:
        incoming = self._incoming
        if incoming is not None:
            incoming.wake()

    # -- failures -----------------------------------------------------------------------------

    def report(self, broken: GroupBroken, *, reported_by: int | None = None) -> None:
        """Note that a member failed or left, and tell the neighbours. Thread-safe.

        ``reported_by`` is the neighbour that reported it.
        """
        if reported_by is not None and broken.member >= self.size:
            reason = f"it reported a failure of member {broken.member} of {self.size} members"
            broken = GroupBroken(0, reported_by, reason)
        with self._lock:
            if reported_by is not None and broken.member == reported_by:
                self._gone.add(reported_by)
            if self._broken is not None and self._broken.first <= broken.first:
                return
            self._broken_at = time.monotonic()
            self._broken = broken
            self._reported_by = reported_by
            failed = [job for number, job in self._open_jobs.items() if number >= broken.first]
            for job in failed:
                del self._open_jobs[job.sequence]
            self._changed.notify_all()
        for job in failed:
            self._fail_job(job, broken)
        if reported_by != self._next or reported_by == self._previous:
            self._sender.notify(broken)
        self._sender.wake()
        incoming = self._incoming
        if incoming is not None:
            if reported_by != self._previous:
                incoming.notify(broken)
            incoming.wake()

    def lost(self, member: int, reason: str, first: int = 0) -> None:
        """Report that a neighbour failed, unless it has left or been given up.

        ``first`` is the number of the first collective that it cannot carry out.
        """
        with self._lock:
            if member in self._gone or self._has_ended:
                return
            self._gone.add(member)
        self.report(GroupBroken(first, member, reason[:MAX_REASON]))

    def _fail_job(self, job: Job, broken: GroupBroken) -> None:
        member, address = broken.member, self.spec.addresses[broken.member]
        for tensor, slot in zip(job.tensors, job.outputs, strict=True):
            slot.fail(
                CollectiveFailed(
                    f"member {member} at {address}: {broken.reason}",
                    member=member,
                    address=address,
                    operation="Collective",
                    shapes=job.call.describe(),
                    tensor=tensor,
                )
            )

    def check(self) -> None:
        """Raise ``GroupIsBroken`` if this member cannot complete its current collective."""
        broken = self._broken
        if broken is not None and broken.first <= self._done:
            raise GroupIsBroken

    def _check_leaving(self) -> None:
        """Raise ``GroupIsBroken`` if this member leaves and has waited for links long enough."""
        if time.monotonic() > self._link_deadline:
            raise GroupIsBroken

    def _check_connecting(self) -> None:
        self.check()
        self._check_leaving()

    # -- the link to the next member ----------------------------------------------------------

    def attach(self, outgoing: Outgoing) -> bool:
        """Use a link to the next member; ``False`` if there is one already, or none is needed."""
        is_used = self._sender.attach(outgoing)
        self.wake()
        return is_used

    @property
    def final_message(self) -> GroupBroken | None:
        """The message that says why this member has left the group; ``None`` while it has not."""
        return (self._broken or self._leave_notice()) if self._has_ended else None

    def receive_from_next(self, message: GroupBroken | None) -> None:
        """Take a message or a heartbeat of the next member."""
        if message is not None:
            self.report(message, reported_by=self._next)

    def next_lost(self, reason: str) -> None:
        """Note that the link to the next member broke."""
        self.lost(self._next, reason)

    def send(
        self, item: BeginCollective | Piece, scratch_bytes: int = 0, *, directly: bool = False
    ) -> None:
        """Send a message or a piece; wait while too much scratch memory is queued.

        ``directly``: in this thread if possible, which is the worker's. Otherwise, the sender's
        thread sends, while the caller goes on.
        """
        announcement, self._unsent_announcement = self._unsent_announcement, None
        items = (item,) if announcement is None else (announcement, item)
        if directly and self.may_send(item.sequence) and self._sender.begin(items, self):
            return
        if announcement is not None:
            self._sender.send(announcement, 0, self.check)
        self._sender.send(item, scratch_bytes, self.check)

    def may_send(self, sequence: int) -> bool:
        """Whether the next member still needs the elements of a collective."""
        broken = self._broken
        return broken is None or sequence < broken.first

    @property
    def is_broken(self) -> bool:
        """Whether a member has failed or left."""
        return self._broken is not None

    def cannot_carry_out(self, sequence: int) -> bool:
        """Whether a collective has failed, at least ``bound_seconds`` ago."""
        is_failed = not self.may_send(sequence)  # ``_broken_at`` is set before ``_broken``
        return is_failed and time.monotonic() - self._broken_at > self.spec.bound_seconds

    def sent(self, size: int) -> None:
        """Count bytes of elements that were sent."""
        if self.spec.engine is not EngineKind.MEMORY:
            self._counters.peer_sent_bytes += size

    def while_sending(self) -> None:
        """Raise ``GroupIsBroken`` if the next member is gone.

        It counts as gone if sending still waits for it ``bound_seconds`` after a failure.
        """
        self.beat()
        is_broken = self._broken is not None  # ``_broken_at`` is set before ``_broken``
        is_late = is_broken and time.monotonic() - self._broken_at > self.spec.bound_seconds
        if self._next in self._gone or is_late:
            raise GroupIsBroken

    def beat(self) -> None:
        """Send a heartbeat to the previous member."""
        incoming = self._incoming
        if incoming is not None:
            incoming.notify(None)

    # -- the worker ---------------------------------------------------------------------------

    def _work(self) -> None:
        self.backend.prepare_thread()
        engine: CollectiveEngine | None = None
        try:
            self.check()
            if self.size > 1:
                self._connect()
            engine = self._open_engine(self)
            while (job := self._next_job(engine)) is not None:
                self._carry_out(engine, job)
            engine.finish()
            self.report(GroupBroken(self._done, self.spec.rank, "it left the group"))
        except GroupIsBroken:
            if engine is not None:
                # An abort would end earlier collectives, which have not failed.
                with contextlib.suppress(GroupIsBroken, BurnRemoteError):
                    engine.finish()
        except ConnectionLost as error:
            self.lost(self._previous, str(error))
        except BurnRemoteError as error:
            self.report(GroupBroken(0, self.spec.rank, str(error)[:MAX_REASON]))
        except MemoryError:
            reason = "its server does not have enough memory for the elements"
            self.report(GroupBroken(0, self.spec.rank, reason))
        except Exception as error:  # a defect: the other members must learn that this one ends
            logger.exception("collective failed unexpectedly", rank=self.spec.rank)
            self.report(
                GroupBroken(0, self.spec.rank, f"its server failed: {error!r}"[:MAX_REASON])
            )
        finally:
            if engine is not None:
                engine.close()
            self._finish()

    def _connect(self) -> None:
        try:
            incoming = self._dial(self._check_connecting)
        except BurnRemoteError as error:
            self.lost(self._previous, str(error))
            raise GroupIsBroken from None
        with self._lock:
            self._incoming = incoming
            broken = self._broken
        if broken is not None:
            incoming.notify(broken)
        deadline = time.monotonic() + self._join_seconds
        while not self._sender.has_link and time.monotonic() < deadline:
            self._check_leaving()
            # The previous member may report why the next one cannot link itself. That report raises
            # here, so it is the failure's reason, and not the timeout below.
            self.serve_links(SLICE_SECONDS, lambda: self._sender.has_link)
            self._receive_final_messages()
        if not self._sender.has_link:
            self.lost(
                self._next,
                f"it did not join the group within {self._join_seconds:g} seconds, or it joined a "
                "group with other members or another secret",
            )
            raise GroupIsBroken

    def _receive_final_messages(self) -> None:
        """Take the messages of a previous member that left; keep its elements for later.

        Until the next member has linked itself, only the previous one can report a failure.
        Announcements and elements may come before its report, so these are read and kept.
        """
        incoming, size = self._incoming, 0
        if incoming is None or not self._begun or self._kept or not incoming.has_ended():
            return
        with contextlib.suppress(ConnectionLost):
            while size < MAX_KEPT_BYTES:  # the socket buffers of both systems may hold so much
                message = self._receive_from(incoming, _new_piece)
                if isinstance(message, BeginCollective | Piece):
                    self._kept.append(message)
                    size += len(message.elements) if isinstance(message, Piece) else 0

    def _next_job(self, engine: CollectiveEngine) -> Job | None:
        """Wait for the next collective; ``None`` if this member leaves."""
        since = time.monotonic()
        self._silence.end()
        while True:
            with self._lock:
                self.check()
                if self._jobs:
                    job = self._jobs.popleft()
                    self._announcements.begin()
                    return job if isinstance(job, Job) else None
            self._announcements.stop_beginning(self._send_announcements)
            engine.examine()
            self._check_own_progress(since, "did not issue")
            self.serve_links(SLICE_SECONDS, lambda: bool(self._jobs))

    def _await_inputs(self, engine: CollectiveEngine, job: Job) -> None:
        """Wait until all inputs have arrived or failed. Raises ``GroupIsBroken``."""
        since = time.monotonic()
        self._silence.end()
        for one in job.inputs:
            if isinstance(one, InFlight) and not one.arrived():
                self._announcements.stop_beginning(self._send_announcements)
            while isinstance(one, InFlight) and not one.wait(INPUT_SLICE_SECONDS):
                engine.examine()
                self._check_own_progress(since, "did not get the inputs of")
                self.serve_links(0.0, lambda: True)

    def _check_own_progress(self, since: float, what: str) -> None:
        """Report this member if it is late for a collective that the previous one announced."""
        if not self._begun:
            return
        (begun, told_at), seconds = self._begun[0], self.spec.issue_seconds
        if time.monotonic() - max(since, told_at) <= seconds:
            return
        reason = (
            f"it is alive, but {what} collective {begun.sequence}, {begun.description}, "
            f"within {seconds:g} seconds after member {self._previous} began it; "
            f"{self._describe_session()}"
        )
        self.reject(begun.sequence, reason)
        self.check()

    def serve_links(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Receive messages of the previous member for ``seconds``, or until ``is_over()``.

        Code that makes ``is_over()`` true must call ``wake``. Raises ``GroupIsBroken``.
        """
        # Unless members announce ahead, elements follow an announcement on the link, and only the
        # engine may receive these.
        has_announcement = len(self._begun) >= (MAX_AHEAD if self._announcements.is_on else 1)
        if self._incoming is None or has_announcement or self._previous in self._gone:
            with self._lock:
                self.check()
                if not is_over():
                    self._changed.wait(seconds)
        elif self._listen(seconds, is_over):
            self._take_idle_message()
        else:
            self._check_silence()
        self.check()

    def _listen(self, seconds: float, is_over: Callable[[], bool]) -> bool:
        """Wait until a message of the previous member may have arrived."""
        assert self._incoming is not None
        with self._lock:  # ``submit`` either adds its job before this, or wakes this thread
            self._is_listening = True
            if is_over():
                seconds = 0.0
        try:
            return self._incoming.wait(seconds)
        finally:
            self._is_listening = False

    def wake(self) -> None:
        """Make ``serve_links`` return."""
        with self._lock:
            self._changed.notify_all()
        self._wake()

    def _take_idle_message(self) -> None:
        try:
            message = self._receive(_refuse_piece)
        except ConnectionLost as error:
            self.lost(self._previous, str(error))
            return
        if isinstance(message, BeginCollective):
            self._begun.append((message, time.monotonic()))

    def _receive(self, place: Place) -> Message:
        """Receive one message; failures of members are reported. Raises ``GroupIsBroken``."""
        if self._kept:
            kept = self._kept.popleft()
            if isinstance(kept, Piece):
                memory = place(kept.sequence, kept.offset, len(kept.elements))
                memory[:] = kept.elements
                kept = kept._replace(elements=memory)
            return kept
        assert self._incoming is not None
        return self._receive_from(self._incoming, place)

    def _receive_from(self, incoming: Incoming, place: Place) -> Message:
        message = incoming.receive(place, self._check_neighbour)
        self._silence.end()
        if message is None:
            self._check_late()
        if isinstance(message, GroupBroken):
            self.report(message, reported_by=self._previous)
            self.check()
            return None
        return message

    def _check_neighbour(self) -> None:
        self._check_silence()
        self._check_late()

    def _check_silence(self) -> None:
        self.check()
        seconds = self.spec.bound_seconds
        if self._incoming is None or not self._incoming.has_beats:
            return
        if self._previous not in self._gone and self._silence.measure() > seconds:
            self.lost(self._previous, f"nothing arrived from it for {seconds:g} seconds")
            self.check()

    def _expect(self, what: str, seconds: float) -> None:
        """Let the previous member count as failed unless it acts within ``seconds``."""
        self._late_at = time.monotonic() + seconds
        self._late_for = what, seconds

    def _check_late(self) -> None:
        if time.monotonic() > self._late_at:
            self._late_at = float("inf")
            what, seconds = self._late_for
            reason = f"it is alive, but {what} within {seconds:g} seconds"
            self.lost(self._previous, reason, self._done)
            self.check()

    # -- one collective -----------------------------------------------------------------------

    def _carry_out(self, engine: CollectiveEngine, job: Job) -> None:
        self._await_inputs(engine, job)
        try:
            inputs = [one.array() if isinstance(one, InFlight) else one.array for one in job.inputs]
        except OperationFailed as error:
            self.reject(job.sequence, f"an input of {job.call.describe()} failed: {error}")
            error.with_traceback(None)  # its frames refer to the job, which refers to the error
            raise GroupIsBroken from None
        if self.size > 1:
            is_early = self._announcements.is_on
            if is_early and job.begun is None:
                self._announcements.announce_left(self._send_announcements)
            begun = job.begun or announcement_of(job)
            if not is_early:
                self._unsent_announcement = begun
            self._unagreed = begun
        arrays = engine.carry_out(job, inputs)
        self.await_agreement()  # no effect if the engine received a piece, which waits for it
        self._late_at = float("inf")
        if arrays is not None:
            self.complete(job, arrays)

    def complete(self, job: Job, arrays: Sequence[Any]) -> None:
        """Deliver the outputs of a collective, unless it has failed. Any thread may call it."""
        with self._lock:
            # ``report`` removes each job that it fails, under the lock, so an aborted collective
            # has no entry.
            if self._open_jobs.pop(job.sequence, None) is None:
                return
            self._done = max(self._done, job.sequence + 1)
        for slot, array in zip(job.outputs, arrays, strict=True):
            slot.complete(array)

    def can_begin_next(self) -> bool:
        """Whether the next collective can begin without a wait.

        Its inputs are there, and the previous member has announced it, so ``await_agreement`` will
        not wait. Only for engines that announce ahead.
        """
        with self._lock:
            job = self._jobs[0] if self._jobs else None
        if not isinstance(job, Job) or self._incoming is None:
            return False
        if any(isinstance(one, InFlight) and not one.arrived() for one in job.inputs):
            return False
        while not self._begun and self._incoming.wait(0.0):
            self._take_idle_message()
        return bool(self._begun)

    def agree(self, sequence: int, digest: bytes, own: str) -> None:
        """Announce a collective, and check that the previous member announced the same one.

        ``digest`` identifies the collective; ``own`` describes it in error messages. Raises
        ``GroupIsBroken``.
        """
        begun = BeginCollective(sequence, digest, own[:MAX_REASON])
        self._unsent_announcement = self._unagreed = begun
        self.await_agreement()

    def await_agreement(self) -> None:
        """Wait until the previous member has announced the collective that this one has begun.

        ``receive_piece`` does this too. A member sends its own elements without waiting for this,
        because the next member reads them only after it has begun the same collective. Raises
        ``GroupIsBroken``.
        """
        announcement, self._unsent_announcement = self._unsent_announcement, None
        if announcement is not None:
            self.send(announcement, directly=True)
        unagreed = self._unagreed
        if unagreed is None:
            return
        sequence, digest, own = unagreed.sequence, unagreed.digest, unagreed.description
        if not self._begun:
            self._announcements.stop_beginning(self._send_announcements)
            self._silence.end()
            self._expect(
                f"did not issue collective {sequence}, {own}, for which member {self.spec.rank} "
                "waits,",
                1.5 * self.spec.issue_seconds,
            )
        while not self._begun:
            message = self._receive(_refuse_piece)
            if isinstance(message, BeginCollective):
                self._begun.append((message, time.monotonic()))
        begun, _ = self._begun.popleft()
        if (begun.sequence, begun.digest) != (sequence, digest):
            self.report(
                GroupBroken(
                    sequence,
                    self._previous,
                    f"it issued {begun.description} as collective {begun.sequence}, but member "
                    f"{self.spec.rank} issued {own} as collective {sequence}"[:MAX_REASON],
                )
            )
            raise GroupIsBroken
        self._unagreed = None

    def receive_piece(self, place: Place) -> memoryview:
        """Return the elements of the next piece.

        Raises ``GroupIsBroken``, ``ConnectionLost`` and ``ProtocolViolation``.
        """
        self.await_agreement()
        self._expect("sent no elements of a collective", 2 * self.spec.issue_seconds)
        while True:
            message = self._receive(place)
            if isinstance(message, Piece):
                if self.spec.engine is not EngineKind.MEMORY:
                    self._counters.peer_received_bytes += len(message.elements)
                return message.elements
            if message is not None:
                raise ProtocolViolation("a collective was announced before the previous one ended")

    # -- the end ------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Send what is queued, tell both neighbours that this member leaves, and end the links."""
        if self.size > 1 and not self._is_excluded and self._reported_by != self._next:
            # The next member may not have linked itself yet, and must receive the failure.
            with contextlib.suppress(GroupIsBroken):
                self._sender.await_link(self._join_deadline, self._check_leaving)
        notice = self._leave_notice()
        with self._lock:
            self._has_ended = True
            open_jobs = [*self._open_jobs.values()]
            self._open_jobs.clear()
            self._jobs.clear()  # they refer to the arrays of their inputs
            self._changed.notify_all()
        for job in open_jobs:
            self._fail_job(job, self._broken or notice)
        if self.size > 1:
            # A failure that another thread noted may not have been sent yet. It must arrive before
            # the message that this member leaves.
            broken = self._broken or notice
            self._sender.notify(broken)
            self._sender.finish(notice, self.spec.bound_seconds)
            if self._incoming is not None:
                self._incoming.notify(broken)
                self._incoming.notify(notice)
                self._incoming.close()
        self._ended(self)

    def _leave_notice(self) -> GroupBroken:
        # Without this message, the end of a link would look like the failure of this member.
        return GroupBroken(self._done, self.spec.rank, "it left the group")


def _new_piece(sequence: int, offset: int, size: int) -> memoryview:
    if size > CHUNK_BYTES:
        raise ProtocolViolation(f"a piece has {size:,} bytes; the maximum is {CHUNK_BYTES:,}")
    return memoryview(bytearray(size))


def _refuse_piece(sequence: int, offset: int, size: int) -> memoryview:
    raise ProtocolViolation(f"a piece of collective {sequence} arrived before its announcement")


class _Silence:
    """The time for which nothing arrived while this thread examined that time and again.

    The thread examines it at least every ``SLICE_SECONDS`` while it waits. More than that passes
    between two examinations only if it works or is suspended.
    """

    def __init__(self) -> None:
        self.end()

    def end(self) -> None:
        """Begin anew: something has arrived, or nothing is expected yet."""
        self._seconds = 0.0
        self._examined_at = time.monotonic()

    def measure(self) -> float:
        """Return its length in seconds so far."""
        before, self._examined_at = self._examined_at, time.monotonic()
        self._seconds += min(self._examined_at - before, SLICE_SECONDS)
        return self._seconds
