"""The engine ``ring``: members pass pieces to the next one and combine those that they receive.

The pieces that a member sends, receives and combines follow from the call (``ring_schedule``). Its
worker receives and combines while its sender sends, so that both overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind
from burn_remote_protocol.errors import ProtocolViolation
from burn_remote_server.backends.byte_buffers import copy_bytes, empty_bytes
from burn_remote_server.backends.interface import Combine
from burn_remote_server.collectives.collective_engine import Job
from burn_remote_server.collectives.host_memory import Output, input_bytes, outputs_of
from burn_remote_server.collectives.links import Piece
from burn_remote_server.collectives.member import Member
from burn_remote_server.collectives.packing import Packing
from burn_remote_server.collectives.ring_schedule import (
    CHUNK_BYTES,
    Action,
    Copy,
    Receive,
    Send,
    Span,
    schedule,
)

__all__ = ["RingEngine"]

# The worker itself sends the elements of calls up to this size. A larger call takes long enough for
# sending and receiving to overlap, in two threads.
DIRECT_BYTES: Final = 2 * 2**20
# How many calls' plans are kept, and the most actions of such a plan, of up to 500 bytes each.
MAX_PLANS: Final = 32
MAX_KEPT_ACTIONS: Final = 256


class RingEngine:
    """Exchanges elements over the links of a member (``CollectiveEngine``)."""

    name: Final = "ring"

    def __init__(self, member: Member) -> None:
        self._member: Final = member
        # Programs repeat their calls. The plans of small ones are kept, the latest last.
        self._plans: Final[dict[CollectiveCall, _Plan]] = {}
        # A chunk that arrives and is then combined. It is kept, because the system would clear new
        # memory for each collective.
        self._arriving = memoryview(b"")

    def carry_out(self, job: Job, inputs: Sequence[Any]) -> Sequence[Any]:
        """Carry out a collective; return the shared arrays of its outputs.

        Raises ``GroupIsBroken``, ``ConnectionLost`` and ``ProtocolViolation``.
        """
        given = input_bytes(job, inputs, self._member)
        outputs = outputs_of(job, self._member)
        plan = self._plan(job.call)
        if len(self._arriving) < plan.arriving_bytes:
            self._arriving = empty_bytes(plan.arriving_bytes)
        _Execution(self._member, job.sequence, plan, given, outputs, self._arriving).run()
        return [output.finished() for output in outputs]

    def _plan(self, call: CollectiveCall) -> _Plan:
        plan = self._plans.pop(call, None) or _Plan(call, self._member)
        if plan.is_kept:
            self._plans[call] = plan
            if len(self._plans) > MAX_PLANS:
                del self._plans[next(iter(self._plans))]
        return plan

    def examine(self) -> None:
        """Do nothing: no collective is in progress after ``carry_out``."""

    def finish(self) -> None:
        """Do nothing: no collective is in progress after ``carry_out``."""

    def close(self) -> None:
        """Do nothing: the links belong to the member."""


class _Plan:
    """What a member does in a call: its actions, and what else follows from the call alone."""

    def __init__(self, call: CollectiveCall, member: Member) -> None:
        self.packing: Final = Packing(call)
        packed = self.packing.call
        self._packed: Final = packed
        self._members: Final = member.size
        self._rank: Final = member.spec.rank
        self.itemsize: Final = packed.specs[0].dtype.itemsize if packed.specs else 1
        self.combine: Final[Combine | None] = (
            member.backend.combiner(packed.specs[0].dtype, packed.reduction, member.size)
            if packed.kind.reduces
            else None
        )
        total = sum(spec.nbytes for spec in packed.specs)
        self.is_small: Final = total <= DIRECT_BYTES
        self.arriving_bytes: Final = min(CHUNK_BYTES, total) if packed.kind.reduces else 0
        first = [*islice(self._schedule(), MAX_KEPT_ACTIONS + 1)]
        self.is_kept: Final = len(first) <= MAX_KEPT_ACTIONS
        self._actions: Final = tuple(first) if self.is_kept else ()

    def _schedule(self) -> Iterator[Action]:
        return schedule(self._packed, self._members, self._rank)

    def actions(self) -> Iterable[Action]:
        """Return the member's actions in order."""
        return self._actions if self.is_kept else self._schedule()


class _Execution:
    """The actions of one collective, over the bytes of its inputs and outputs."""

    def __init__(
        self,
        member: Member,
        sequence: int,
        plan: _Plan,
        inputs: list[memoryview],
        outputs: list[Output],
        arriving: memoryview,
    ) -> None:
        self._plan: Final = plan
        self._member: Final = member
        self._sequence: Final = sequence
        self._inputs: Final = plan.packing.pack(inputs)
        self._results: Final = [output.memory for output in outputs]
        is_barrier = plan.packing.call.kind is CollectiveKind.BARRIER
        self._outputs: Final = (
            [memoryview(bytearray(member.size))]
            if is_barrier
            else plan.packing.output_memory(self._results)
        )
        self._itemsize: Final = plan.itemsize
        self._arriving: Final = arriving
        self._sent = 0
        self._received = 0
        # The size and the memory of the piece that is expected.
        self._expected = 0
        self._memory = arriving

    def run(self) -> None:
        """Carry out all actions. See ``RingEngine.carry_out``."""
        for action in self._plan.actions():
            if isinstance(action, Receive):
                self._receive(action)
            elif isinstance(action, Send):
                self._send(self._bytes(self._inputs, action.source))
            elif isinstance(action, Copy):
                copy_bytes(
                    self._bytes(self._outputs, action.target),
                    self._bytes(self._inputs, action.source),
                )
        self._plan.packing.unpack(self._outputs, self._results)

    def _bytes(self, tensors: list[memoryview], span: Span) -> memoryview:
        size = self._itemsize
        return tensors[span.place][span.start * size : span.stop * size]

    def _send(self, elements: memoryview, scratch_bytes: int = 0) -> None:
        piece = Piece(self._sequence, self._sent, elements)
        self._sent += len(elements)
        self._member.send(piece, scratch_bytes, directly=self._plan.is_small)

    def _receive(self, action: Receive) -> None:
        size = action.length * self._itemsize
        scratch_bytes = 0
        if action.target is not None:
            target = self._bytes(self._outputs, action.target)
        else:
            target, scratch_bytes = empty_bytes(size), size
        self._expected = size
        self._memory = target if action.own is None else self._arriving[:size]
        elements = self._member.receive_piece(self._place)
        self._received += size
        if action.own is not None:
            assert self._plan.combine is not None
            own = self._bytes(self._inputs, action.own)
            self._plan.combine(own, elements, target, action.is_last)
        elif elements is not target:
            target[:] = elements
        if action.is_sent:
            self._send(target, scratch_bytes)

    def _place(self, sequence: int, offset: int, length: int) -> memoryview:
        if (sequence, offset, length) != (self._sequence, self._received, self._expected):
            raise ProtocolViolation(
                f"received {length:,} bytes at {offset:,} of collective {sequence}; expected "
                f"{self._expected:,} bytes at {self._received:,} of collective {self._sequence}"
            )
        return self._memory
