"""The engine ``nccl``: GPUs exchange elements by NCCL, supervised over the links of the members.

NCCL waits for an absent member forever and does not report a dead one. So the members first pass
the communicator's identifier around the ring, and then a start signal, which proves that all
members are present. While collectives are in progress, the links report failures. After a report,
the member fails the outputs and then aborts the communicator, which ends the collectives. So no
program sees the elements that an aborted collective left in its outputs.

Members announce a collective as soon as their sessions issue it, and start it once the previous
member has announced the same one. So the announcements cost no time between collectives that were
issued together. A member whose inputs never arrive reports itself, and then the other members abort
the collectives that they have started. The outputs of a collective are delivered when the GPU has
finished it, so the next collective can start before that. Collectives that can start at once one
after the other are watched by one event, because each event takes the interpreter lock several
times. But if another collective takes an output as an input, that output is delivered alone: the
next collective may wait for it, by way of other members and groups.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from burn_remote_protocol.collectives import DIGEST_BYTES
from burn_remote_protocol.errors import BurnRemoteError, OperationFailed, ProtocolViolation
from burn_remote_server.backends.interface import Communicator
from burn_remote_server.collectives.collective_engine import GroupIsBroken, Job
from burn_remote_server.collectives.links import Piece
from burn_remote_server.collectives.member import Member
from burn_remote_server.telemetry.logs import get_logger

__all__ = ["MAX_IN_FLIGHT", "RESUME_IN_FLIGHT", "START_SECONDS", "NcclEngine"]

logger = get_logger(__name__)

IDENTIFIER_BYTES: Final = 128
START_DIGEST: Final = b"start of NCCL".ljust(DIGEST_BYTES, b"\0")

# How long NCCL may take to connect the members after all of them have joined. It loads kernels the
# first time, which takes seconds.
START_SECONDS: Final = 60.0
# How often a waiting thread checks whether the group is broken.
SLICE_SECONDS: Final = 0.05
# Collectives that may be in flight: each holds its inputs and outputs.
MAX_IN_FLIGHT: Final = 32
# A member with that many goes on when it has this many, so that it wakes seldom and then issues
# several together. The GPU has enough to do meanwhile.
RESUME_IN_FLIGHT: Final = 16
# The most collectives whose outputs are delivered together, when the last one has finished.
MAX_TOGETHER: Final = 8
# For errors of which NCCL says nothing. With this variable, it writes what it does to the server's
# output.
ADVICE: Final = (
    "run the servers with NCCL_DEBUG=INFO to see why, or use Group(devices, engine='ring')"
)

# How often to ask NCCL for errors while no collective waits for this.
EXAMINE_SECONDS: Final = 0.02


class _Watched:
    """Collectives in flight that one event watches.

    ``begin`` is when the first one started, ``last`` the number of the last one, and ``hurry`` what
    to call if somebody waits for them.
    """

    __slots__ = ("begin", "hurry", "last")

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.last = 0
        self.hurry: Callable[[], None] | None = None


class NcclEngine:
    """Starts collectives on a GPU (``CollectiveEngine``)."""

    name: Final = "nccl"

    def __init__(self, member: Member) -> None:
        """Connect to the other members. Raises ``GroupIsBroken`` and ``OperationFailed``."""
        self._member: Final = member
        self._lock: Final = threading.Lock()
        self._is_finished = self._is_aborted = False
        # The member's worker waits until no more collectives are in flight; -1 if it does not.
        self._awaited_count = -1
        # The collectives in flight by sequence.
        self._in_flight: Final[dict[int, _Watched]] = {}
        # Those started since the last event, and what will watch them.
        self._unwatched: list[Job] = []
        self._next_watched = _Watched(0.0)
        self._examine_at = 0.0
        self._communicator: Final = self._joined(self._agreed_identifier())
        member.announce_ahead()

    def carry_out(self, job: Job, inputs: Sequence[Any]) -> None:
        """Start a collective; its outputs are delivered when it has finished.

        Raises ``GroupIsBroken`` and ``OperationFailed``.
        """
        self._member.await_agreement()
        if len(self._in_flight) >= MAX_IN_FLIGHT:
            self._await_in_flight(RESUME_IN_FLIGHT)
        if not self._unwatched:
            self._next_watched = _Watched(time.monotonic())
        with self._lock:
            self._in_flight[job.sequence] = self._next_watched
        self._unwatched.append(job)
        specs = [slot.spec for slot in job.outputs if slot.spec is not None]
        try:
            self._communicator.start(job.call, inputs, specs)
        except Exception as error:  # CuPy's errors have no common class
            raise _not_started(job, error) from error
        if (
            len(self._unwatched) >= MAX_TOGETHER
            # A collective that this session issued before the next one.
            or any(slot.is_lent for slot in job.outputs)
            or not self._member.can_begin_next()
        ):
            self._watch()

    def examine(self) -> None:
        """Raise ``OperationFailed`` if NCCL failed, or has not finished for a long time.

        Raises ``GroupIsBroken`` if the oldest collectives share an event with one that the group
        cannot carry out, so that it never passes. The others have time to finish theirs before.
        """
        now = time.monotonic()
        if now < self._examine_at:
            return
        self._examine_at = now + EXAMINE_SECONDS
        try:
            self._communicator.examine()
        except Exception as error:  # as above
            raise OperationFailed(f"NCCL failed: {error}") from error
        with self._lock:
            oldest = next(iter(self._in_flight.values()), None)
        if oldest is not None and self._member.cannot_carry_out(oldest.last):
            raise GroupIsBroken
        seconds = 2 * self._member.spec.issue_seconds  # a late member reports itself before this
        if oldest is not None and now - oldest.begin > seconds:
            raise OperationFailed(
                f"NCCL did not finish a collective within {seconds:g} seconds; {ADVICE}"
            )

    def finish(self) -> None:
        """Wait until all collectives are done. Raises ``GroupIsBroken`` and ``OperationFailed``."""
        self._await_in_flight(0)
        # Members that abort do not take part in freeing the communicator in order.
        self._is_finished = not self._member.is_broken

    def close(self) -> None:
        """Free the communicator; abort it unless all collectives are done."""
        self._is_aborted = not self._is_finished
        free = self._communicator.abort if self._is_aborted else self._communicator.close
        # In a thread, because NCCL may never return if other members are gone.
        closing = threading.Thread(target=_tried, args=(free,), name="nccl-close", daemon=True)
        closing.start()
        closing.join(self._member.spec.bound_seconds)

    # -- parts --------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Have the outputs of the collectives delivered that started since the last call."""
        jobs, watched = self._unwatched, self._next_watched
        if not jobs:
            return
        self._unwatched = []
        watched.last = jobs[-1].sequence
        try:
            watched.hurry = self._communicator.watch(partial(self._finished, jobs))
        except Exception as error:  # CuPy's errors have no common class
            raise _not_started(jobs[0], error) from error
        for job in jobs:
            for slot in job.outputs:
                slot.call_on_wait(watched.hurry)

    def _finished(self, jobs: Sequence[Job], outputs: Sequence[Sequence[Any]] | None) -> None:
        """Deliver the outputs of collectives, or report a failure. Another thread calls this."""
        if outputs is None:
            first = jobs[0]
            self._member.reject(first.sequence, f"the GPU failed in {first.call.describe()}")
        elif self._is_aborted:  # the outputs have what the abort left in them
            self._member.reject_aborted(jobs[0].sequence)
        else:
            for job, arrays in zip(jobs, outputs, strict=True):
                self._member.complete(job, arrays)
        with self._lock:
            for job in jobs:
                self._in_flight.pop(job.sequence, None)
        if len(self._in_flight) <= self._awaited_count:  # else waking only takes time from others
            self._member.wake()

    def _await_in_flight(self, count: int) -> None:
        """Wait until no more than ``count`` collectives are in flight."""
        self._watch()
        with self._lock:
            in_flight = [*self._in_flight.values()]
        if len(in_flight) > count and (hurry := in_flight[-1 - count].hurry) is not None:
            hurry()
        # Set before they are counted, so a collective that finishes after that wakes this thread.
        self._awaited_count = count
        try:
            while not self._has_at_most(count):
                self.examine()
                self._member.serve_links(SLICE_SECONDS, lambda: self._has_at_most(count))
        finally:
            self._awaited_count = -1

    def _has_at_most(self, count: int) -> bool:
        return len(self._in_flight) <= count

    def _agreed_identifier(self) -> bytes:
        """Return the identifier of member 0, once all members have it."""
        member = self._member
        # A member that still waits for its link to the next member refuses pieces. It announces
        # only after that, so pieces may follow once the members agree.
        member.agree(0, START_DIGEST, "the start of NCCL")
        if member.spec.rank:
            identifier = self._receive(0, IDENTIFIER_BYTES)
            self._send(0, identifier)
            signal = self._receive(IDENTIFIER_BYTES, 1)
            if member.spec.rank < member.size - 1:
                self._send(IDENTIFIER_BYTES, signal)
            return identifier
        identifier = member.backend.new_communicator_identifier()
        self._send(0, identifier)
        if self._receive(0, IDENTIFIER_BYTES) != identifier:
            raise ProtocolViolation(
                "the identifier of the NCCL communicator changed on its way around the ring"
            )
        self._send(IDENTIFIER_BYTES, b"\1")
        return identifier

    def _send(self, offset: int, data: bytes) -> None:
        self._member.send(Piece(0, offset, memoryview(data)))

    def _receive(self, offset: int, size: int) -> bytes:
        def place(sequence: int, seen_offset: int, seen_size: int) -> memoryview:
            if (sequence, seen_offset, seen_size) != (0, offset, size):
                raise ProtocolViolation(
                    f"received {seen_size:,} bytes at offset {seen_offset:,} of collective "
                    f"{sequence}; expected {size} bytes at offset {offset} of collective 0, to "
                    "start NCCL: run the same version of burn-remote-server for all members"
                )
            return memoryview(bytearray(size))

        return bytes(self._member.receive_piece(place))

    def _joined(self, identifier: bytes) -> Communicator:
        """Open the communicator in a thread, which may wait forever if a member fails meanwhile."""
        member = self._member
        opened: queue.SimpleQueue[Communicator | Exception] = queue.SimpleQueue()
        is_unwanted = threading.Event()
        open_communicator = partial(
            member.backend.open_communicator, identifier, member.size, member.spec.rank
        )
        thread = threading.Thread(
            target=_open,
            args=(open_communicator, opened, is_unwanted),
            name=f"member-{member.spec.rank}-nccl",
            daemon=True,
        )
        thread.start()
        deadline = time.monotonic() + START_SECONDS
        try:
            while True:
                member.serve_links(SLICE_SECONDS, lambda: not opened.empty())
                try:
                    found = opened.get_nowait()
                except queue.Empty:
                    if time.monotonic() > deadline:
                        raise OperationFailed(
                            f"NCCL did not start within {START_SECONDS:g} seconds; {ADVICE}"
                        ) from None
                    continue
                if isinstance(found, Exception):
                    raise OperationFailed(f"NCCL did not start: {found}") from found
                return found
        except (BurnRemoteError, GroupIsBroken):
            is_unwanted.set()
            _abort_unwanted(opened)
            raise


def _not_started(job: Job, error: Exception) -> OperationFailed:
    return OperationFailed(f"NCCL did not start {job.call.describe()}: {error}")


def _open(
    open_communicator: Callable[[], Communicator],
    opened: queue.SimpleQueue[Communicator | Exception],
    is_unwanted: threading.Event,
) -> None:
    try:
        communicator = open_communicator()
    except Exception as error:  # any: the member that waits raises it
        opened.put(error)
        return
    opened.put(communicator)
    if is_unwanted.is_set():
        _abort_unwanted(opened)


def _abort_unwanted(opened: queue.SimpleQueue[Communicator | Exception]) -> None:
    """Abort a communicator that opened after its member had given up."""
    with contextlib.suppress(queue.Empty):
        found = opened.get_nowait()
        if not isinstance(found, Exception):
            _tried(found.abort)


def _tried(free: Callable[[], None]) -> None:
    try:
        free()
    except Exception:  # the group has ended, so no member can report it
        logger.exception("nccl communicator not freed")
