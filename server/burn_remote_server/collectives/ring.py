"""A member of a group whose members exchange elements in a ring.

Each member has two threads. The *worker* takes one collective after the other. It receives from the
member before, combines, and hands what goes on to the *sender*, so that receiving, combining and
sending overlap. No session waits: the outputs are slots in flight.

**Failures.** A member that notices a failure, or leaves, tells both neighbours (``GroupBroken``),
and each passes it on: to the next one what came from the one before, and the other way round. The
message has the number of the first collective that cannot be carried out. A member that leaves has
done its part of all earlier ones, so the others can still complete them. The first failure counts.

**Liveness.** Both ends of a link send a sign of life when they have sent nothing for a quarter of
the group's bound. A member from which nothing came for a whole bound has failed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, GroupSpec
from burn_remote_protocol.errors import (
    BurnRemoteError,
    CollectiveFailed,
    ConnectionLost,
    ProtocolViolation,
)
from burn_remote_protocol.messages import BeginCollective, GroupBroken
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.interface import Backend, Combine
from burn_remote_server.collectives.engine import Job
from burn_remote_server.collectives.links import Incoming, Message, Outgoing, Piece
from burn_remote_server.collectives.packing import Packing
from burn_remote_server.collectives.schedule import (
    CHUNK_BYTES,
    ROUND_BYTES,
    Copy,
    Receive,
    Send,
    Span,
    schedule,
)
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.telemetry.logs import get_logger
from burn_remote_server.tensors.slots import InFlight, Lent

__all__ = ["BEATS_PER_BOUND", "Ring"]

logger = get_logger(__name__)

BEATS_PER_BOUND: Final = 4
# The longest wait before a thread looks whether the group is broken.
SLICE_SECONDS: Final = 0.25
# Scratch memory that waits to be sent: two rounds. With less than one round and a chunk, members
# could wait for each other.
MAX_SCRATCH_BYTES: Final = 2 * ROUND_BYTES + CHUNK_BYTES
# The most characters of a reason that is sent to others.
MAX_REASON: Final = 900

_STOP: Final = object()


class _Broken(Exception):
    """The group is broken or this member has left: the worker ends."""


class Ring:
    """One member of a ring; a ``CollectiveEngine``.

    ``dial(check)`` returns the link from the member before, and raises ``BurnRemoteError``. The
    link to the next one is passed to ``attach`` once it exists.
    """

    name: Final = "ring"

    def __init__(
        self,
        spec: GroupSpec,
        backend: Backend,
        dial: Callable[[Callable[[], None]], Incoming],
        counters: Counters,
        ended: Callable[[], None],
        join_seconds: float,
    ) -> None:
        """Prepare a member; ``start`` begins to connect it.

        Its neighbours must join within ``join_seconds``.
        """
        self._join_seconds: Final = join_seconds
        self.spec: Final = spec
        self._backend: Final = backend
        self._dial: Final = dial
        self._counters: Final = counters
        self._ended: Final = ended
        self._members: Final = len(spec.addresses)
        self._next: Final = (spec.rank + 1) % self._members
        self._previous: Final = (spec.rank - 1) % self._members
        self._lock: Final = threading.Lock()
        self._changed: Final = threading.Condition(self._lock)
        self._jobs: Final[deque[Job | object]] = deque()
        self._unsettled: Final[dict[int, Job]] = {}  # by sequence
        self._done = 0  # collectives that this member has carried out
        self._broken: GroupBroken | None = None
        self._broken_at = 0.0
        self._gone: Final[set[int]] = set()  # neighbours that left or were given up
        self._has_ended = False
        self._incoming: Incoming | None = None
        self._outgoing: Outgoing | None = None
        self._unsent: Final[queue.SimpleQueue[Any]] = queue.SimpleQueue()
        self._scratch_bytes = 0
        self._begun: BeginCollective | None = None  # of a collective not submitted here yet
        self._heard = time.monotonic()
        self._worker: Final = threading.Thread(
            target=self._work, name=f"ring-{spec.rank}", daemon=True
        )
        self._sender: Final = threading.Thread(
            target=self._send_all, name=f"ring-{spec.rank}-send", daemon=True
        )

    def start(self) -> None:
        """Start to connect to the neighbours."""
        if self._members > 1:
            self._sender.start()
        self._worker.start()  # the last: it waits for the sender when it ends

    def join(self, timeout_seconds: float) -> None:
        """Wait until this member has left the group."""
        self._worker.join(timeout_seconds)

    # -- the session's side -------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Carry out a collective after those submitted before."""
        with self._lock:
            broken = self._broken
            if broken is None or job.sequence < broken.first:
                self._unsettled[job.sequence] = job
                self._jobs.append(job)
                broken = None
            self._changed.notify_all()
        if broken is not None:
            self._fail_job(job, broken)
        self._wake()

    def reject(self, sequence: int, reason: str) -> None:
        """Report to all members that this one cannot carry out a collective."""
        self.report(GroupBroken(sequence, self.spec.rank, reason[:MAX_REASON]))

    def leave(self) -> None:
        """Leave the group once the collectives submitted before are done."""
        with self._lock:
            self._jobs.append(_STOP)
            self._changed.notify_all()
        self._wake()

    def abandon(self, reason: str) -> None:
        """Leave the group now; fail what is not done."""
        self.report(GroupBroken(0, self.spec.rank, reason))
        self.leave()

    def _wake(self) -> None:
        incoming = self._incoming
        if incoming is not None:
            incoming.wake()

    # -- failures -----------------------------------------------------------------------------

    def report(self, broken: GroupBroken, *, told_by: int | None = None) -> None:
        """Note that a member failed or left, and tell the neighbours. Thread-safe.

        ``told_by`` is the neighbour that told it.
        """
        with self._lock:
            if told_by is not None and broken.member == told_by:
                self._gone.add(told_by)
            if self._broken is not None and self._broken.first <= broken.first:
                return
            self._broken = broken
            self._broken_at = time.monotonic()
            failed = [job for number, job in self._unsettled.items() if number >= broken.first]
            for job in failed:
                del self._unsettled[job.sequence]
            self._changed.notify_all()
        for job in failed:
            self._fail_job(job, broken)
        if told_by != self._next or told_by == self._previous:
            self._unsent.put(broken)
        incoming = self._incoming
        if incoming is not None:
            if told_by != self._previous:
                incoming.tell(broken)
            incoming.wake()

    def lost(self, member: int, reason: str) -> None:
        """Report that the link to a neighbour broke, unless it has left or been given up."""
        with self._lock:
            if member in self._gone or self._has_ended:
                return
            self._gone.add(member)
        self.report(GroupBroken(0, member, reason[:MAX_REASON]))

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
        """Raise ``_Broken`` if what this member does now cannot be completed."""
        broken = self._broken
        if broken is not None and broken.first <= self._done:
            raise _Broken

    # -- the link to the next member ----------------------------------------------------------

    def attach(self, outgoing: Outgoing) -> bool:
        """Use a link to the next member; ``False`` if there is one already, or none is needed."""
        with self._lock:
            if self._outgoing is not None or self._has_ended:
                return False
            self._outgoing = outgoing
            self._changed.notify_all()
        return True

    def heard_from_next(self, message: GroupBroken | None) -> None:
        """Take a message or a sign of life of the next member."""
        if message is not None:
            self.report(message, told_by=self._next)

    def next_lost(self, reason: str) -> None:
        """Note that the link to the next member broke."""
        self.lost(self._next, reason)

    # -- the worker ---------------------------------------------------------------------------

    def _work(self) -> None:
        self._backend.prepare_thread()
        try:
            self.check()
            if self._members > 1:
                self._connect()
            while (job := self._next_job()) is not None:
                self._carry_out(job)
                with self._lock:
                    self._done = job.sequence + 1
                    self._unsettled.pop(job.sequence, None)
            self.report(GroupBroken(self._done, self.spec.rank, "it left the group"))
        except _Broken:
            pass
        except ConnectionLost as error:
            self.lost(self._previous, str(error))
        except BurnRemoteError as error:
            self.report(GroupBroken(0, self.spec.rank, str(error)[:MAX_REASON]))
        except MemoryError:
            self.report(GroupBroken(0, self.spec.rank, "its server has no memory for the elements"))
        except Exception as error:
            logger.exception("collective failed unexpectedly", rank=self.spec.rank)
            self.report(
                GroupBroken(0, self.spec.rank, f"its server failed: {error!r}"[:MAX_REASON])
            )
        finally:
            self._finish()

    def _connect(self) -> None:
        try:
            incoming = self._dial(self.check)
        except BurnRemoteError as error:
            self.lost(self._previous, str(error))
            raise _Broken from None
        with self._lock:
            self._incoming = incoming
            broken = self._broken
        if broken is not None:
            incoming.tell(broken)
        deadline = time.monotonic() + self._join_seconds
        with self._lock:
            while self._outgoing is None:
                self.check()
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, SLICE_SECONDS))
            else:
                return
        self.lost(
            self._next,
            f"it did not join the group within {self._join_seconds:g} seconds, or with other "
            "members or another secret",
        )
        raise _Broken

    def _next_job(self) -> Job | None:
        """Wait for the next collective; ``None`` if this member leaves."""
        self._heard = time.monotonic()
        while True:
            with self._lock:
                self.check()
                if self._jobs:
                    job = self._jobs.popleft()
                    return job if isinstance(job, Job) else None
                if self._incoming is None or self._begun is not None:
                    self._changed.wait(SLICE_SECONDS)
                    continue
            if self._previous in self._gone:
                with self._lock:
                    if not self._jobs:
                        self._changed.wait(SLICE_SECONDS)
                continue
            if self._incoming.wait(SLICE_SECONDS):
                self._take_idle_message()
            else:
                self._check_silence()

    def _take_idle_message(self) -> None:
        assert self._incoming is not None
        try:
            message = self._receive(_refuse_piece)
        except ConnectionLost as error:
            self.lost(self._previous, str(error))
            return
        if isinstance(message, BeginCollective):
            self._begun = message

    def _receive(self, place: Callable[[int, int, int], memoryview]) -> Message:
        """Receive one message; failures of members are reported. Raises ``_Broken``."""
        assert self._incoming is not None
        message = self._incoming.receive(place, self._check_silence)
        self._heard = time.monotonic()
        if isinstance(message, GroupBroken):
            self.report(message, told_by=self._previous)
            self.check()
            return None
        return message

    def _check_silence(self) -> None:
        self.check()
        seconds = self.spec.bound_seconds
        if self._incoming is None or not self._incoming.has_beats:
            return
        if self._previous not in self._gone and time.monotonic() - self._heard > seconds:
            self.lost(self._previous, f"nothing was heard of it for {seconds:g} seconds")
            self.check()

    # -- one collective -----------------------------------------------------------------------

    def _carry_out(self, job: Job) -> None:
        call = job.call
        try:
            inputs = [
                self._backend.to_bytes(_array(one), spec.dtype)
                for one, spec in zip(job.inputs, call.input_specs(self.spec.rank), strict=True)
            ]
        except BurnRemoteError as error:
            self.reject(job.sequence, f"an input of {call.describe()} failed: {error}")
            raise _Broken from None
        if call.kind is CollectiveKind.BARRIER:
            inputs = [memoryview(b"\0")]
        specs = [slot.spec for slot in job.outputs if slot.spec is not None]
        outputs = [_Output(self._backend, spec) for spec in specs]
        if self._members > 1:
            self._agree(job)
        _Execution(self, job, inputs, outputs).run()
        for slot, output in zip(job.outputs, outputs, strict=True):
            slot.complete(output.finished())

    def _agree(self, job: Job) -> None:
        """Exchange the description of the collective with the neighbours."""
        digest = job.call.digest(job.sequence)
        own = job.call.describe()
        self.send(BeginCollective(job.sequence, digest, own[:MAX_REASON]))
        self._heard = time.monotonic()
        while self._begun is None:
            message = self._receive(_refuse_piece)
            if isinstance(message, BeginCollective):
                self._begun = message
        begun, self._begun = self._begun, None
        if (begun.sequence, begun.digest) != (job.sequence, digest):
            self.report(
                GroupBroken(
                    job.sequence,
                    self._previous,
                    f"it issued {begun.description} as collective {begun.sequence}, but member "
                    f"{self.spec.rank} issued {own} as collective {job.sequence}"[:MAX_REASON],
                )
            )
            raise _Broken

    def receive_piece(self, place: Callable[[int, int, int], memoryview]) -> memoryview:
        """Return the elements of the next piece. Raises ``_Broken``, ``ProtocolViolation``."""
        while True:
            message = self._receive(place)
            if isinstance(message, Piece):
                self._counters.peer_received_bytes += len(message.elements)
                return message.elements
            if message is not None:
                raise ProtocolViolation("a collective began within another one")

    # -- the sender ---------------------------------------------------------------------------

    def send(self, item: BeginCollective | Piece, scratch_bytes: int = 0) -> None:
        """Queue a message or a piece; wait while too much scratch memory is queued."""
        if scratch_bytes:
            with self._lock:
                while self._scratch_bytes > MAX_SCRATCH_BYTES:
                    self.check()
                    self._changed.wait(SLICE_SECONDS)
                self._scratch_bytes += scratch_bytes
        self._unsent.put((item, scratch_bytes))

    def _send_all(self) -> None:
        pause = self.spec.bound_seconds / BEATS_PER_BOUND
        if not self._await_outgoing(pause):
            return
        outgoing = self._outgoing
        assert outgoing is not None
        told = time.monotonic()
        try:
            while True:
                try:
                    item = self._unsent.get(timeout=pause)
                except queue.Empty:
                    outgoing.send(None)
                    item = None
                if time.monotonic() - told >= pause:
                    told = time.monotonic()
                    self._beat()
                if item is _STOP:
                    return
                if item is not None:
                    self._send_item(outgoing, item)
                    item = None  # it refers to an output, whose memory may be free by now
        except _Broken:
            pass
        except ConnectionLost as error:
            self.lost(self._next, str(error))
        finally:
            outgoing.close()

    def _await_outgoing(self, pause: float) -> bool:
        """Wait for the link to the next member, with signs of life to the one before."""
        while True:
            with self._lock:
                if self._outgoing is not None:
                    return True
                if self._has_ended:
                    return False
                self._changed.wait(pause)
            self._beat()

    def _send_item(self, outgoing: Outgoing, item: Any) -> None:
        if isinstance(item, GroupBroken):
            outgoing.send(item)
            return
        message, scratch_bytes = item
        broken = self._broken
        if isinstance(message, BeginCollective):
            outgoing.send(message)
        elif broken is None or message.sequence < broken.first:
            outgoing.send_piece(message)
            self._counters.peer_sent_bytes += len(message.elements)
        if scratch_bytes:
            with self._lock:
                self._scratch_bytes -= scratch_bytes
                self._changed.notify_all()

    def while_sending(self) -> None:
        """Raise ``_Broken`` if the next member is gone, or does not even read of a failure."""
        self._beat()
        is_late = time.monotonic() - self._broken_at > self.spec.bound_seconds
        if self._next in self._gone or (self._broken is not None and is_late):
            raise _Broken

    def _beat(self) -> None:
        incoming = self._incoming
        if incoming is not None:
            incoming.tell(None)

    def _finish(self) -> None:
        """Send what is queued, take leave of both neighbours, and end the links."""
        # Without it, the end of a link would look like the failure of this member.
        farewell = GroupBroken(self._done, self.spec.rank, "it left the group")
        with self._lock:
            self._has_ended = True
            unsettled = [*self._unsettled.values()]
            self._unsettled.clear()
            self._changed.notify_all()
        for job in unsettled:
            self._fail_job(job, self._broken or farewell)
        self._unsent.put(farewell)
        self._unsent.put(_STOP)
        if self._members > 1:
            self._sender.join(self.spec.bound_seconds)
            if self._incoming is not None:
                self._incoming.tell(farewell)
                self._incoming.close()
            if self._outgoing is not None:
                self._outgoing.close()
        self._ended()


def _refuse_piece(sequence: int, offset: int, size: int) -> memoryview:
    raise ProtocolViolation(f"a piece of collective {sequence}, which has not begun")


def _array(value: InFlight | Lent) -> Any:
    """Return an input's array; wait for one that is still arriving. Raises ``OperationFailed``."""
    return value.array() if isinstance(value, InFlight) else value.array


class _Output:
    """An output that is being filled."""

    def __init__(self, backend: Backend, spec: TensorSpec) -> None:
        self._backend: Final = backend
        self._spec: Final = spec
        self._upload: Final = backend.empty(spec)
        memory = backend.upload_memory(self._upload)
        self._is_staged: Final = memory is None
        self.memory: Final = memoryview(bytearray(spec.nbytes)) if memory is None else memory

    def finished(self) -> Any:
        """Return the shared array."""
        if self._is_staged and self._spec.nbytes:
            self._backend.write(self._upload, 0, self.memory)
        return self._backend.finished(self._upload, self._spec.dtype)


class _Execution:
    """The actions of one collective, over the bytes of its inputs and outputs."""

    def __init__(
        self, ring: Ring, job: Job, inputs: list[memoryview], outputs: list[_Output]
    ) -> None:
        self._packing: Final = Packing(job.call)
        call = self._packing.call
        self._call: Final = call
        self._ring: Final = ring
        self._sequence: Final = job.sequence
        self._members: Final = len(ring.spec.addresses)
        self._inputs: Final = self._packing.pack(inputs)
        self._results: Final = [output.memory for output in outputs]
        is_barrier = call.kind is CollectiveKind.BARRIER
        self._outputs: Final = (
            [memoryview(bytearray(self._members))]
            if is_barrier
            else self._packing.room(self._results)
        )
        self._itemsize: Final = call.specs[0].dtype.itemsize if call.specs else 1
        self._combine: Final = self._combiner(ring, call)
        self._sent = 0
        self._received = 0
        self._buffer = memoryview(b"")

    def _combiner(self, ring: Ring, call: CollectiveCall) -> Combine | None:
        if not call.kind.reduces:
            return None
        return ring._backend.combiner(call.specs[0].dtype, call.reduction, self._members)

    def run(self) -> None:
        """Carry out all actions. Raises ``_Broken``, ``ConnectionLost``, ``ProtocolViolation``."""
        ring = self._ring
        for action in schedule(self._call, self._members, ring.spec.rank):
            if isinstance(action, Receive):
                self._receive(action)
            elif isinstance(action, Send):
                self._send(self._bytes(self._inputs, action.source))
            elif isinstance(action, Copy):
                self._bytes(self._outputs, action.target)[:] = self._bytes(
                    self._inputs, action.source
                )
        self._packing.unpack(self._outputs, self._results)

    def _bytes(self, tensors: list[memoryview], span: Span) -> memoryview:
        size = self._itemsize
        return tensors[span.place][span.start * size : span.stop * size]

    def _send(self, elements: memoryview, scratch_bytes: int = 0) -> None:
        piece = Piece(self._sequence, self._sent, elements)
        self._sent += len(elements)
        self._ring.send(piece, scratch_bytes)

    def _receive(self, action: Receive) -> None:
        size = action.length * self._itemsize
        target = None if action.target is None else self._bytes(self._outputs, action.target)
        scratch_bytes = 0
        if target is None:
            target, scratch_bytes = memoryview(bytearray(size)), size
        buffer = target if action.own is None else self._scratch(size)

        def place(sequence: int, offset: int, length: int) -> memoryview:
            if (sequence, offset, length) != (self._sequence, self._received, size):
                raise ProtocolViolation(
                    f"{length:,} bytes at {offset:,} of collective {sequence}; expected {size:,} "
                    f"at {self._received:,} of collective {self._sequence}"
                )
            return buffer

        elements = self._ring.receive_piece(place)
        self._received += size
        if action.own is not None:
            assert self._combine is not None
            own = self._bytes(self._inputs, action.own)
            self._combine(own, elements, target, action.is_last)
        elif elements is not target:
            target[:] = elements
        if action.is_sent:
            self._send(target, scratch_bytes)

    def _scratch(self, size: int) -> memoryview:
        if len(self._buffer) < size:
            self._buffer = memoryview(bytearray(size))
        return self._buffer[:size]
