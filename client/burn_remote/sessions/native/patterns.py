"""Sequences of operations that a program repeats, and the graphs that stand for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, final

from burn_remote.runner.operation_graph import CodePosition, Graph, GraphStep
from burn_remote_protocol.operations.row import Signature

__all__ = [
    "LOOP_STEPS",
    "MAX_STEPS",
    "MIN_STEPS",
    "Issued",
    "Pattern",
    "PatternStep",
    "PatternStore",
]

# The least and the most operations of one pattern. A call of a graph costs the client about as much
# as two operations, so shorter patterns would gain little. Longer ones would rarely be complete
# before the flush timer sends what was issued, and would delay drops, which are sent after 64
# (``DROP_TENSORS``).
MIN_STEPS: Final = 16
MAX_STEPS: Final = 64

# A sequence of at least this length ends where its first operation comes again, as at the end of a
# loop's body.
LOOP_STEPS: Final = 24

# The largest number of patterns of one session. A server keeps 256 graphs of a session, and
# compiled functions need some of them.
MAX_PATTERNS: Final = 64
# The largest number of sequences that are remembered after they were seen once.
MAX_SEEN: Final = 512
# The largest number of patterns that begin with the same operation.
MAX_ALIKE: Final = 4
# The largest number of steps in all definitions of one session together. The server counts
# about 650 bytes for each step in the quota, and 1,000 more for a fused one.
MAX_DEFINED_STEPS: Final = 4096
# After this many calls in a row in which the program kept tensors that the pattern counts as dead,
# they become outputs of the pattern.
MAX_ALIVE: Final = 2
# How far before a pattern's first output the ids of its usual drops may be. Variables of a loop's
# body refer to the results of the repetition before.
FARTHEST_DROP: Final = 2 * MAX_STEPS
# A pattern that was begun and left this often, without being completed in between, is discarded.
MAX_MISSES: Final = 4


class Issued(NamedTuple):
    """An operation as the program issued it; the ids of its outputs begin at ``first``."""

    signature: Signature
    inputs: Sequence[int]
    first: int


@final
class PatternStep:
    """One operation of a pattern, or its end.

    ``slots`` are the slots of the inputs; ``left`` and ``right`` are the first and the last of
    them. ``output`` is the slot of its first output. The outputs of the steps have the slots from 0
    on. The tensors that a pattern takes from outside have -1, -2, and so on, in the order of their
    first use. So patterns that begin with the same operations have the same slots for them.
    ``left`` and ``right`` count them from the start of the pattern's ``slot_count`` slots, because
    CPython takes four times as long for an index below 0.
    """

    __slots__ = (
        "code", "count", "depth", "instruction", "is_short", "left", "next", "number", "output",
        "place", "right", "signature", "slots",
    )  # fmt: skip

    def __init__(
        self,
        place: int,
        output: int,
        signature: Signature | None,
        slots: tuple[int, ...],
        slot_count: int,
        issued_at: CodePosition,
        following: PatternStep | None,
    ) -> None:
        self.place: Final = place
        self.output: Final = output
        # ``None``: the end, which no operation matches.
        self.signature: Final = signature
        self.count: Final = 0 if signature is None else len(signature.outputs)
        self.slots: Final = slots
        # Whether it has one or two inputs, and one output.
        self.is_short: Final = self.count == 1 and 1 <= len(slots) <= 2
        self.left: Final = slots[0] % slot_count if slots else 0
        self.right: Final = slots[-1] % slot_count if slots else 0
        self.code, self.instruction = issued_at
        # The number of frames from the session to the program's line, found when the step is first
        # followed. Never 0: a frame that refers to itself would keep the program's variables alive.
        self.depth = 1
        # The signature's number on the server.
        self.number = 0
        self.next: Final = following if following is not None else self

    def is_same(self, other: PatternStep) -> bool:
        """Return whether this is the same operation, on the same slots, of the same line."""
        return (
            self.signature is other.signature
            and self.slots == other.slots
            and self.code is other.code
            and self.instruction == other.instruction
        )


class UsualDrops(NamedTuple):
    """The tensors that a program drops while it repeats a pattern.

    Tensors are given by their offsets from the pattern's first output. There are ``length`` of
    them, at least two. ``taken_of`` takes a sequence of ids, the first of which belongs to the
    offset ``lowest``, and returns the ids of the dropped tensors. The server has only the tensors
    in ``remaining``, so only these drops are sent.
    """

    taken_of: Callable[[Sequence[int]], tuple[int, ...]]
    lowest: int
    length: int
    remaining: tuple[int, ...]


@final
class Pattern:
    """A sequence that was seen twice, and its graph.

    ``dead`` are the outputs of its operations that the program has dropped when the sequence ends,
    counted from the first output. The other outputs are those of the graph.
    """

    __slots__ = (
        "alive_count", "checked_at", "dead", "drops", "earlier_drops", "first", "graph",
        "graph_key", "input_count", "is_known", "is_recent", "kept", "misses", "nbytes", "number",
        "output_count", "steps", "successor", "usual_drops",
    )  # fmt: skip

    def __init__(self, graph: Graph) -> None:
        self.graph: Final = graph
        self.graph_key: Final = id(graph)  # the key of the graph in a session's table
        self.input_count: Final = graph.input_count
        self.output_count: Final = sum(len(step.signature.outputs) for step in graph.steps)
        self.kept: Final = tuple([slot - graph.input_count for slot in graph.output_slots])
        self.dead: Final = frozenset(range(self.output_count)).difference(self.kept)
        # The tensors that the program dropped in the last call, counted in the same way, and those
        # of them that are not in ``dead``.
        self.drops: tuple[int, ...] | None = None
        self.earlier_drops: tuple[int, ...] = ()
        # ``drops`` in the form that is compared fast; ``None`` if they are too few or too old for
        # it.
        self.usual_drops: UsualDrops | None = None
        self.nbytes: Final = sum(
            spec.nbytes for step in graph.steps for spec in step.signature.outputs
        )
        steps: list[PatternStep] = []
        following: PatternStep | None = None
        output = self.output_count
        slot_count = output + graph.input_count
        for place, step in reversed([*enumerate(graph.steps)]):
            assert step.issued_at is not None  # ``pattern_of`` sets it
            if following is None:
                following = PatternStep(
                    place + 1, output, None, (), slot_count, step.issued_at, None
                )
            slots = tuple([_pattern_slot(slot, graph.input_count) for slot in step.inputs])
            output -= len(step.signature.outputs)
            following = PatternStep(
                place, output, step.signature, slots, slot_count, step.issued_at, following
            )
            steps.append(following)
        self.steps: Final = tuple(reversed(steps))
        self.first: Final = self.steps[0]
        # The graph's number on the server, and how many signatures were defined when the numbers
        # of this pattern were last looked up.
        self.number = 0
        self.checked_at = -1
        self.misses = 0
        self.alive_count = 0  # calls in a row after which the program had tensors of ``dead``
        self.is_known = False  # whether it is in a ``PatternStore``
        # Whether it was complete since a ``PatternStore`` last looked, without ``note_completed``.
        self.is_recent = False
        # The pattern that came after this one.
        self.successor: Pattern | None = None

    def ids(self, base: int) -> list[int | None]:
        """Return what the slots contain before the first operation, whose first output is ``base``.

        These are the ids of the outputs, and ``None`` for each input.
        """
        return [*range(base, base + self.output_count), *[None] * self.input_count]

    def note_drops(self, drops: Sequence[int], earlier: Sequence[int]) -> None:
        """Note what the program dropped in the last call, and which of it the server has."""
        self.drops, self.earlier_drops, self.usual_drops = tuple(drops), tuple(earlier), None
        if len(drops) >= 2:
            lowest = min(0, *drops)
            if lowest >= -FARTHEST_DROP:
                taken_of = itemgetter(*[drop - lowest for drop in drops])
                self.usual_drops = UsualDrops(taken_of, lowest, len(drops), self.earlier_drops)

    def begins_like(self, other: Pattern, count: int) -> bool:
        """Return whether the first ``count`` operations are the same, and more follow."""
        if len(self.steps) <= count:
            return False
        pairs = zip(self.steps[:count], other.steps[:count], strict=True)
        return all(one.is_same(another) for one, another in pairs)

    def keeping(self, alive: Iterable[int]) -> Pattern:
        """Return a pattern of the same operations with more outputs."""
        kept = sorted({*self.kept, *alive})
        graph = self.graph
        count = graph.input_count
        return Pattern(Graph(count, graph.steps, [count + place for place in kept]))


def _pattern_slot(slot: int, input_count: int) -> int:
    return -1 - slot if slot < input_count else slot - input_count


def pattern_of(
    issued: Sequence[Issued], positions: Sequence[CodePosition], dead: Collection[int]
) -> Pattern:
    """Return the pattern of operations whose output ids are consecutive.

    ``dead`` has the ids that were dropped. At least one output is kept, because a failure of the
    graph is reported for its first output.
    """
    base = issued[0].first
    inputs: dict[int, int] = {}
    for operation in issued:
        for tensor in operation.inputs:
            if tensor < base:
                inputs.setdefault(tensor, len(inputs))
    count = len(inputs)
    steps = [
        GraphStep(
            operation.signature,
            tuple(
                [
                    inputs[tensor] if tensor < base else count + tensor - base
                    for tensor in operation.inputs
                ]
            ),
            issued_at=position,
        )
        for operation, position in zip(issued, positions, strict=True)
    ]
    last = issued[-1]
    end = last.first + len(last.signature.outputs)
    kept = [count + tensor - base for tensor in range(base, end) if tensor not in dead]
    return Pattern(Graph(count, steps, kept or [count + end - 1 - base]))


def are_consecutive(issued: Sequence[Issued]) -> bool:
    """Return whether no other ids were given out between the operations."""
    expected = issued[0].first
    for operation in issued:
        if operation.first != expected:
            return False
        expected += len(operation.signature.outputs)
    return True


@final
class PatternStore:
    """The sequences that a session has seen, and its patterns. Bounded; not thread-safe."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[int, ...], None] = OrderedDict()
        self._patterns: OrderedDict[int, Pattern] = OrderedDict()
        self._by_start: dict[int, list[Pattern]] = {}
        self._steps_left = MAX_DEFINED_STEPS

    def __len__(self) -> int:
        return len(self._patterns)

    def is_repeated(self, issued: Sequence[Issued]) -> bool:
        """Return whether this sequence of signatures was seen before, and remember it."""
        # By identity. An id may have belonged to another signature, which was freed. Then a
        # sequence becomes a pattern when it is seen for the first time, which is harmless.
        key = tuple([id(operation.signature) for operation in issued])
        if key in self._seen:
            self._seen.move_to_end(key)
            return True
        while len(self._seen) >= MAX_SEEN:
            self._seen.popitem(last=False)
        self._seen[key] = None
        return False

    def starting_with(self, signature: Signature) -> Sequence[Pattern]:
        """Return the patterns whose first operation has this signature, the newest first."""
        return self._by_start.get(id(signature), ())

    def add(self, pattern: Pattern) -> bool:
        """Keep a pattern, unless the session has defined too many; return whether it is kept."""
        if len(pattern.steps) > self._steps_left:
            return False
        self._steps_left -= len(pattern.steps)
        while len(self._patterns) >= MAX_PATTERNS:
            self._discard_oldest()
        alike = self._by_start.setdefault(id(pattern.first.signature), [])
        while len(alike) >= MAX_ALIKE:
            self.discard(alike[-1])
        # ``discard`` removes an empty list.
        self._by_start.setdefault(id(pattern.first.signature), alike).insert(0, pattern)
        self._patterns[id(pattern)] = pattern
        pattern.is_known = True
        return True

    def discard(self, pattern: Pattern) -> None:
        """Forget a pattern."""
        if self._patterns.pop(id(pattern), None) is None:
            return
        pattern.is_known = False
        key = id(pattern.first.signature)
        alike = self._by_start[key]
        alike.remove(pattern)
        if not alike:
            del self._by_start[key]

    def _discard_oldest(self) -> None:
        """Forget the pattern that was complete longest ago, or put a recent one at the end."""
        oldest = next(iter(self._patterns.values()))
        if oldest.is_recent:
            oldest.is_recent = False
            self._patterns.move_to_end(id(oldest))
        else:
            self.discard(oldest)

    def note_completed(self, pattern: Pattern) -> None:
        """Note that a pattern was followed to its end."""
        pattern.misses = 0
        if id(pattern) in self._patterns:
            self._patterns.move_to_end(id(pattern))

    def note_missed(self, pattern: Pattern) -> None:
        """Note that the program left a pattern before its end."""
        pattern.misses += 1
        if pattern.misses >= MAX_MISSES:
            self.discard(pattern)
