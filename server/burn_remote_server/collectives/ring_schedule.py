"""The schedule of a collective on a ring: what a member sends, receives and combines, in order.

Each member sends to the next one and receives from the previous one. The schedule of a member is a
pure function of the call, the number of members and its rank. The pieces that a member sends, in
order, are those that the next one receives.

- **all-reduce**: the elements are cut into one part for each of the n members. In the first n - 1
  steps, each member passes a part on, and the receiver combines it with its own (reduce-scatter).
  In the next n - 1 steps, the combined parts are passed on unchanged (all-gather). Each link
  carries 2 (n - 1) / n of the elements.
- **reduce-scatter** and **all-gather** are the two halves of an all-reduce.
- **broadcast** and **reduce** are chains of members; broadcast begins at the root, and reduce ends
  there.
- **all-to-all**: a block for the member at distance d travels d links. Blocks with the longest way
  go first.
- **barrier**: an all-gather of one byte.

A part travels in chunks, so that combining one overlaps with receiving the next. Elements that a
member has to pass on, but that are not its results, are in *scratch* memory until they are sent. To
bound this memory, reduce-scatter and all-to-all go through the elements in rounds of one or more
chunks: within a round of several chunks, a member's scratch memory is at most ``ROUND_BYTES``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind

__all__ = [
    "CHUNK_BYTES",
    "MAX_SCRATCH_BYTES",
    "ROUND_BYTES",
    "Action",
    "Copy",
    "Receive",
    "Send",
    "Span",
    "chunks",
    "member_parts",
    "schedule",
    "scratch_bytes",
]

# With larger chunks, there are fewer frames. With smaller ones, receiving and combining overlap
# more, and a chunk stays in the processor's cache.
CHUNK_BYTES: Final = 512 * 1024
ROUND_BYTES: Final = 8 * 2**20
# Scratch memory that waits to be sent: two rounds and a chunk. With less than one round and a
# chunk, the members could wait for each other forever.
MAX_SCRATCH_BYTES: Final = 2 * ROUND_BYTES + CHUNK_BYTES


class Span(NamedTuple):
    """A range of elements of the tensor at ``place`` among a member's inputs or outputs."""

    place: int
    start: int
    stop: int

    def shifted(self, elements: int) -> Span:
        """Return the span that begins ``elements`` later."""
        return Span(self.place, self.start + elements, self.stop + elements)


class Send(NamedTuple):
    """Send elements of an input to the next member."""

    source: Span


class Copy(NamedTuple):
    """Copy elements of an input to an output."""

    source: Span
    target: Span


class Receive(NamedTuple):
    """Receive a piece from the previous member.

    It is combined with the elements ``own`` of an input, unless that is ``None``. The result is
    stored in the span ``target`` of an output, or in scratch memory if that is ``None``.
    ``is_sent``: the result is sent to the next member. ``is_last``: after this action, the elements
    of all members are combined.
    """

    length: int
    own: Span | None
    target: Span | None
    is_sent: bool
    is_last: bool = False


Action = Send | Copy | Receive


def schedule(
    call: CollectiveCall, members: int, rank: int, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Action]:
    """Yield the actions of a member in order. A barrier has one byte as its only input."""
    if call.kind is CollectiveKind.BARRIER:
        yield from _all_gather([1], members, rank, 1)
        return
    sizes = [spec.size for spec in call.specs]
    chunk = max(1, chunk_bytes // call.specs[0].dtype.itemsize)
    if call.kind is CollectiveKind.ALL_REDUCE:
        yield from _all_reduce(sizes, members, rank, chunk)
    elif call.kind is CollectiveKind.REDUCE_SCATTER:
        yield from _reduce_scatter(sizes, members, rank, chunk)
    elif call.kind is CollectiveKind.ALL_GATHER:
        yield from _all_gather(sizes, members, rank, chunk)
    elif call.kind is CollectiveKind.BROADCAST:
        yield from _broadcast(sizes, members, (rank - call.root) % members, chunk)
    elif call.kind is CollectiveKind.REDUCE:
        yield from _reduce(sizes, members, (rank - call.root) % members, chunk)
    else:
        yield from _all_to_all(sizes, members, rank, chunk)


def scratch_bytes(call: CollectiveCall, members: int) -> int:
    """Return the most memory that a member needs for a call besides its inputs and outputs.

    That is memory for one chunk that arrives and is then combined, and for combined elements until
    they are sent.
    """
    if call.kind is CollectiveKind.BARRIER or members == 1:
        return 0
    total = sum(spec.nbytes for spec in call.specs)
    share = total // members
    arriving = min(CHUNK_BYTES, total) if call.kind.reduces else 0
    passed_on = {
        CollectiveKind.REDUCE_SCATTER: share * (members - 2),
        CollectiveKind.REDUCE: total if members > 2 else 0,
        CollectiveKind.ALL_TO_ALL: share * ((members - 1) * (members - 2) // 2),
    }.get(call.kind, 0)
    # Besides the queued chunks, the sender holds the one that it is sending.
    return arriving + min(passed_on, MAX_SCRATCH_BYTES + CHUNK_BYTES)


def _whole(sizes: Sequence[int]) -> list[Span]:
    return [Span(place, 0, size) for place, size in enumerate(sizes)]


def chunks(spans: Iterable[Span], chunk: int) -> list[Span]:
    """Cut spans into chunks of at most ``chunk`` elements."""
    return [
        Span(place, at, min(at + chunk, stop))
        for place, start, stop in spans
        for at in range(start, stop, chunk)
    ]


def _length(span: Span) -> int:
    return span.stop - span.start


def member_parts(sizes: Sequence[int], members: int) -> list[list[Span]]:
    """Cut the tensors, one after the other, into one part of equal size for each member."""
    total = sum(sizes)
    edges = [total * part // members for part in range(members + 1)]
    parts: list[list[Span]] = [[] for _ in range(members)]
    begin = 0
    for place, size in enumerate(sizes):
        for part in range(members):
            start, stop = max(edges[part], begin), min(edges[part + 1], begin + size)
            if start < stop:
                parts[part].append(Span(place, start - begin, stop - begin))
        begin += size
    return parts


def _parts(sizes: Sequence[int], members: int, chunk: int) -> list[list[Span]]:
    """Return the chunks of each member's part."""
    return [chunks(part, chunk) for part in member_parts(sizes, members)]


def _all_reduce(sizes: Sequence[int], members: int, rank: int, chunk: int) -> Iterator[Action]:
    if members == 1:
        yield from (Copy(span, span) for span in chunks(_whole(sizes), chunk))
        return
    parts = _parts(sizes, members, chunk)
    yield from map(Send, parts[rank])
    for step in range(1, members):
        is_last = step == members - 1
        for span in parts[(rank - step) % members]:
            yield Receive(_length(span), span, span, is_sent=True, is_last=is_last)
    for step in range(members - 1):
        for span in parts[(rank - step) % members]:
            yield Receive(_length(span), None, span, is_sent=step < members - 2)


def _blocks(sizes: Sequence[int], members: int, chunk: int) -> list[Span]:
    """Return the chunks of one member's share of tensors that are split along their first axis."""
    return chunks(_whole([size // members for size in sizes]), chunk)


def _rounds(spans: Sequence[Span], kept: int) -> Iterator[Sequence[Span]]:
    """Yield groups of chunks, of which a member keeps each one ``kept`` times as scratch memory.

    A group of one chunk may exceed ``ROUND_BYTES``.
    """
    length = max(1, ROUND_BYTES // (CHUNK_BYTES * max(1, kept)))
    for at in range(0, len(spans), length):
        yield spans[at : at + length]


def _reduce_scatter(sizes: Sequence[int], members: int, rank: int, chunk: int) -> Iterator[Action]:
    shares = [size // members for size in sizes]
    blocks = _blocks(sizes, members, chunk)
    if members == 1:
        yield from (Copy(span, span) for span in blocks)
        return
    for spans in _rounds(blocks, members - 2):
        for span in spans:
            yield Send(span.shifted((rank - 1) % members * shares[span.place]))
        for step in range(1, members):
            is_last = step == members - 1
            part = (rank - 1 - step) % members
            for span in spans:
                own = span.shifted(part * shares[span.place])
                target = span if is_last else None
                yield Receive(_length(span), own, target, is_sent=not is_last, is_last=is_last)


def _all_gather(sizes: Sequence[int], members: int, rank: int, chunk: int) -> Iterator[Action]:
    spans = chunks(_whole(sizes), chunk)
    if members > 1:
        yield from map(Send, spans)
    for span in spans:
        yield Copy(span, span.shifted(rank * sizes[span.place]))
    for step in range(1, members):
        part = (rank - step) % members
        for span in spans:
            target = span.shifted(part * sizes[span.place])
            yield Receive(_length(span), None, target, is_sent=step < members - 1)


def _broadcast(sizes: Sequence[int], members: int, distance: int, chunk: int) -> Iterator[Action]:
    for span in chunks(_whole(sizes), chunk):
        if distance == 0:
            if members > 1:
                yield Send(span)
            yield Copy(span, span)
        else:
            yield Receive(_length(span), None, span, is_sent=distance < members - 1)


def _reduce(sizes: Sequence[int], members: int, distance: int, chunk: int) -> Iterator[Action]:
    for span in chunks(_whole(sizes), chunk):
        if members == 1:
            yield Copy(span, span)
        elif distance == 1:
            yield Send(span)
        elif distance == 0:
            yield Receive(_length(span), span, span, is_sent=False, is_last=True)
        else:
            yield Receive(_length(span), span, None, is_sent=True)


def _all_to_all(sizes: Sequence[int], members: int, rank: int, chunk: int) -> Iterator[Action]:
    shares = [size // members for size in sizes]
    blocks = _blocks(sizes, members, chunk)

    def block(span: Span, member: int) -> Span:
        return span.shifted(member % members * shares[span.place])

    for span in blocks:
        yield Copy(block(span, rank), block(span, rank))
    for spans in _rounds(blocks, (members - 1) * (members - 2) // 2):
        # What each member sends in one phase, as (links travelled, distance of the destination).
        sent: list[tuple[int, int]] = []
        for distance in range(members - 1, 0, -1):
            for span in spans:
                yield Send(block(span, rank + distance))
            sent = [*sent, (0, distance)]
            passed_on = []
            for travelled, goal in sent:
                arrives = travelled + 1 == goal
                origin = rank - 1 - travelled
                for span in spans:
                    target = block(span, origin) if arrives else None
                    yield Receive(_length(span), None, target, is_sent=not arrives)
                if not arrives:
                    passed_on.append((travelled + 1, goal))
            sent = passed_on
