"""The engine ``memory``: members in one process read each other's elements where they are.

Members pass references to their inputs around the ring of memory links, so each member can read the
inputs of all. In an all-reduce, each member reduces one part of the elements, in one pass over all
inputs. Then members pass references to the reduced parts around in the same way. Each part is
reduced once, in the order of the ranks, so all members have the same bits; float16 and bfloat16 are
rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind
from burn_remote_protocol.errors import ProtocolViolation
from burn_remote_server.backends.byte_buffers import copy_bytes
from burn_remote_server.collectives.collective_engine import Job
from burn_remote_server.collectives.host_memory import input_bytes, outputs_of
from burn_remote_server.collectives.links import Piece
from burn_remote_server.collectives.member import Member
from burn_remote_server.collectives.ring_schedule import CHUNK_BYTES, Span, chunks, member_parts

__all__ = ["MemoryEngine"]

Buffers = list[memoryview]


class MemoryEngine:
    """Reduces and copies the elements of members in one process (``CollectiveEngine``)."""

    name: Final = "memory"

    def __init__(self, member: Member) -> None:
        self._member: Final = member

    def carry_out(self, job: Job, inputs: Sequence[Any]) -> Sequence[Any]:
        """Carry out a collective; return the shared arrays of its outputs.

        Raises ``GroupIsBroken``, ``ConnectionLost`` and ``ProtocolViolation``.
        """
        outputs = outputs_of(job, self._member)
        exchange = _Exchange(
            self._member, job, input_bytes(job, inputs, self._member), [o.memory for o in outputs]
        )
        _RUN[job.call.kind](exchange)
        return [output.finished() for output in outputs]

    def examine(self) -> None:
        """Do nothing: no collective is in progress after ``carry_out``."""

    def finish(self) -> None:
        """Do nothing: no collective is in progress after ``carry_out``."""

    def close(self) -> None:
        """Do nothing: the links belong to the member."""


class _Exchange:
    """One collective of one member."""

    def __init__(self, member: Member, job: Job, inputs: Buffers, outputs: Buffers) -> None:
        self._member: Final = member
        self._sequence: Final = job.sequence
        self._call: Final[CollectiveCall] = job.call
        self._members: Final = member.size
        self._rank: Final = member.spec.rank
        self._inputs: Final = inputs
        self._outputs: Final = outputs
        self._itemsize: Final = job.call.specs[0].dtype.itemsize if job.call.specs else 1
        self._sizes: Final = [spec.size for spec in job.call.specs]
        self._sent = 0
        self._received = 0

    # -- kinds --------------------------------------------------------------------------------

    def all_reduce(self) -> None:
        """Reduce this member's part, and copy the parts of the other members."""
        everything = self._gather_inputs()
        parts = member_parts(self._sizes, self._members)
        for span in parts[self._rank]:
            self._reduce(everything, span, span)
        lengths = [[self._length(span) for span in part] for part in parts]
        own = [self._bytes(self._outputs, span) for span in parts[self._rank]]
        for rank, found in enumerate(self._gather(own, lengths)):
            if rank != self._rank:
                for span, elements in zip(parts[rank], found, strict=True):
                    copy_bytes(self._bytes(self._outputs, span), elements)

    def reduce_scatter(self) -> None:
        """Reduce this member's share of each tensor."""
        everything = self._gather_inputs()
        for place, share in enumerate(self._shares()):
            target = Span(place, 0, share)
            self._reduce(everything, target.shifted(self._rank * share), target)

    def reduce(self) -> None:
        """Reduce everything, on the root only."""
        everything = self._gather_inputs()
        if self._rank == self._call.root:
            for place, size in enumerate(self._sizes):
                self._reduce(everything, Span(place, 0, size), Span(place, 0, size))

    def all_gather(self) -> None:
        """Copy the tensors of all members."""
        for rank, found in enumerate(self._gather_inputs()):
            for place, size in enumerate(self._sizes):
                target = Span(place, rank * size, (rank + 1) * size)
                copy_bytes(self._bytes(self._outputs, target), found[place])

    def all_to_all(self) -> None:
        """Copy this member's share of the tensors of all members."""
        for rank, found in enumerate(self._gather_inputs()):
            for place, share in enumerate(self._shares()):
                block = Span(place, 0, share)
                target = block.shifted(rank * share)
                source = block.shifted(self._rank * share)
                copy_bytes(self._bytes(self._outputs, target), self._bytes(found, source))

    def broadcast(self) -> None:
        """Copy the tensors of the root; references to them are passed on up to the last member."""
        distance = (self._rank - self._call.root) % self._members
        found = self._inputs
        if distance:
            found = self._receive([size * self._itemsize for size in self._sizes])
        if distance < self._members - 1:
            self._send(found)
        for output, elements in zip(self._outputs, found, strict=True):
            copy_bytes(output, elements)

    def barrier(self) -> None:
        """Wait for one byte of each member."""
        self._gather(self._inputs, [[1]] * self._members)

    # -- parts --------------------------------------------------------------------------------

    def _shares(self) -> list[int]:
        return [size // self._members for size in self._sizes]

    def _length(self, span: Span) -> int:
        return (span.stop - span.start) * self._itemsize

    def _bytes(self, tensors: Buffers, span: Span) -> memoryview:
        size = self._itemsize
        return tensors[span.place][span.start * size : span.stop * size]

    def _reduce(self, everything: list[Buffers], source: Span, target: Span) -> None:
        """Reduce a span of the inputs of all members, chunk by chunk."""
        reduce = self._member.backend.reducer(self._call.specs[0].dtype, self._call.reduction)
        for span in chunks([source], max(1, CHUNK_BYTES // self._itemsize)):
            reduce(
                [self._bytes(found, span) for found in everything],
                self._bytes(self._outputs, span.shifted(target.start - source.start)),
            )

    def _gather_inputs(self) -> list[Buffers]:
        lengths = [size * self._itemsize for size in self._sizes]
        return self._gather(self._inputs, [lengths] * self._members)

    def _gather(self, own: Buffers, lengths: Sequence[Sequence[int]]) -> list[Buffers]:
        """Return the buffers of all members, by rank.

        ``lengths`` are the lengths of each member's buffers in bytes.
        """
        found: list[Buffers] = [[] for _ in range(self._members)]
        passed = found[self._rank] = own
        for step in range(1, self._members):
            self._send(passed)
            origin = (self._rank - step) % self._members
            passed = found[origin] = self._receive(lengths[origin])
        return found

    def _send(self, buffers: Buffers) -> None:
        for elements in buffers:
            # A link in memory accepts everything at once, so handing pieces to another thread would
            # only cost time.
            self._member.send(Piece(self._sequence, self._sent, elements), directly=True)
            self._sent += len(elements)

    def _receive(self, lengths: Sequence[int]) -> Buffers:
        return [self._receive_one(length) for length in lengths]

    def _receive_one(self, length: int) -> memoryview:
        def place(sequence: int, offset: int, size: int) -> memoryview:
            if (sequence, offset, size) != (self._sequence, self._received, length):
                raise ProtocolViolation(
                    f"received {size:,} bytes at {offset:,} of collective {sequence}; expected "
                    f"{length:,} bytes at {self._received:,} of collective {self._sequence}"
                )
            return memoryview(b"")  # the piece refers to the elements

        elements = self._member.receive_piece(place)
        self._received += length
        return elements


_RUN: Final[dict[CollectiveKind, Callable[[_Exchange], None]]] = {
    CollectiveKind.ALL_REDUCE: _Exchange.all_reduce,
    CollectiveKind.REDUCE_SCATTER: _Exchange.reduce_scatter,
    CollectiveKind.ALL_GATHER: _Exchange.all_gather,
    CollectiveKind.BROADCAST: _Exchange.broadcast,
    CollectiveKind.REDUCE: _Exchange.reduce,
    CollectiveKind.ALL_TO_ALL: _Exchange.all_to_all,
    CollectiveKind.BARRIER: _Exchange.barrier,
}
