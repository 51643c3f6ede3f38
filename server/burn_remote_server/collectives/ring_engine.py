"""The engine ``ring``: members pass pieces to the next one and combine those that they receive.

The pieces that a member sends, receives and combines follow from the call (``ring_schedule``). Its
worker receives and combines while its sender sends, so that both overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind
from burn_remote_protocol.errors import ProtocolViolation
from burn_remote_server.backends.byte_buffers import copy_bytes
from burn_remote_server.backends.interface import Combine
from burn_remote_server.collectives.collective_engine import Job
from burn_remote_server.collectives.host_memory import Output, input_bytes, outputs_of
from burn_remote_server.collectives.links import Piece
from burn_remote_server.collectives.member import Member
from burn_remote_server.collectives.packing import Packing
from burn_remote_server.collectives.ring_schedule import Copy, Receive, Send, Span, schedule

__all__ = ["RingEngine"]


class RingEngine:
    """Exchanges elements over the links of a member (``CollectiveEngine``)."""

    name: Final = "ring"

    def __init__(self, member: Member) -> None:
        self._member: Final = member

    def carry_out(self, job: Job, inputs: Sequence[Any]) -> Sequence[Any]:
        """Carry out a collective; return the shared arrays of its outputs.

        Raises ``GroupIsBroken``, ``ConnectionLost`` and ``ProtocolViolation``.
        """
        given = input_bytes(job, inputs, self._member)
        outputs = outputs_of(job, self._member)
        _Execution(self._member, job, given, outputs).run()
        return [output.finished() for output in outputs]

    def examine(self) -> None:
        """Do nothing: no collective is in progress after ``carry_out``."""

    def finish(self) -> None:
        """Do nothing: no collective is in progress after ``carry_out``."""

    def close(self) -> None:
        """Do nothing: the links belong to the member."""


class _Execution:
    """The actions of one collective, over the bytes of its inputs and outputs."""

    def __init__(
        self, member: Member, job: Job, inputs: list[memoryview], outputs: list[Output]
    ) -> None:
        self._packing: Final = Packing(job.call)
        call = self._packing.call
        self._call: Final = call
        self._member: Final = member
        self._sequence: Final = job.sequence
        self._members: Final = member.size
        self._inputs: Final = self._packing.pack(inputs)
        self._results: Final = [output.memory for output in outputs]
        is_barrier = call.kind is CollectiveKind.BARRIER
        self._outputs: Final = (
            [memoryview(bytearray(self._members))]
            if is_barrier
            else self._packing.output_memory(self._results)
        )
        self._itemsize: Final = call.specs[0].dtype.itemsize if call.specs else 1
        self._combine: Final = self._combiner(call)
        self._sent = 0
        self._received = 0
        self._buffer = memoryview(b"")

    def _combiner(self, call: CollectiveCall) -> Combine | None:
        if not call.kind.reduces:
            return None
        return self._member.backend.combiner(call.specs[0].dtype, call.reduction, self._members)

    def run(self) -> None:
        """Carry out all actions. See ``RingEngine.carry_out``."""
        for action in schedule(self._call, self._members, self._member.spec.rank):
            if isinstance(action, Receive):
                self._receive(action)
            elif isinstance(action, Send):
                self._send(self._bytes(self._inputs, action.source))
            elif isinstance(action, Copy):
                copy_bytes(
                    self._bytes(self._outputs, action.target),
                    self._bytes(self._inputs, action.source),
                )
        self._packing.unpack(self._outputs, self._results)

    def _bytes(self, tensors: list[memoryview], span: Span) -> memoryview:
        size = self._itemsize
        return tensors[span.place][span.start * size : span.stop * size]

    def _send(self, elements: memoryview, scratch_bytes: int = 0) -> None:
        piece = Piece(self._sequence, self._sent, elements)
        self._sent += len(elements)
        self._member.send(piece, scratch_bytes)

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
                    f"received {length:,} bytes at {offset:,} of collective {sequence}; expected "
                    f"{size:,} bytes at {self._received:,} of collective {self._sequence}"
                )
            return buffer

        elements = self._member.receive_piece(place)
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
