"""Patterns have the graph of their operations, and a session keeps a bounded number of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from burn_remote.sessions.native import patterns
from burn_remote.sessions.native.patterns import (
    FARTHEST_DROP,
    MAX_ALIKE,
    MAX_MISSES,
    MAX_PATTERNS,
    MAX_SEEN,
    Issued,
    Pattern,
    PatternStore,
    are_consecutive,
    pattern_of,
)
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorSpec
from support.kernels import signature

VECTOR = TensorSpec((2,), F32)
ADD = signature("Numeric.Add", VECTOR, VECTOR)
TWICE = signature("Numeric.MulScalar", VECTOR, rhs=2.0)
LINE = (lambda: None).__code__
OTHER_LINE = (lambda: 1).__code__


def numbered(count: int) -> list[Signature]:
    """Return signatures that differ in their number."""
    return [signature("Numeric.MulScalar", VECTOR, rhs=float(number)) for number in range(count)]


def pattern(
    *signatures: Signature, dead: Sequence[int] = (), code: object = LINE, first: int = 100
) -> Pattern:
    """Return the pattern of operations on the tensors 1 and 2 and the operations' own results."""
    issued = []
    latest = 1
    for output, signed in enumerate(signatures, first):
        inputs = [latest, 2] if signed is ADD else [latest]
        issued.append(Issued(signed, inputs, output))
        latest = output
    positions = [(code, 2 * place) for place in range(len(issued))]
    return pattern_of(issued, positions, {first + place for place in dead})  # type: ignore[arg-type]


# -- the graph of a sequence ----------------------------------------------------------------------


def test_the_graph_returns_what_the_program_has_not_dropped() -> None:
    found = pattern(ADD, TWICE, ADD, dead=[0, 1])
    assert found.graph.input_count == 2
    assert [step.inputs for step in found.graph.steps] == [(0, 1), (2,), (3, 1)]
    assert found.graph.output_slots == (4,)
    assert found.kept == (2,)
    assert found.dead == {0, 1}
    assert found.nbytes == 3 * VECTOR.nbytes


def test_at_least_the_last_result_is_kept() -> None:
    found = pattern(ADD, TWICE, dead=[0, 1])
    assert found.kept == (1,)
    assert found.dead == {0}


def test_outputs_that_turn_out_to_live_are_added() -> None:
    found = pattern(ADD, TWICE, ADD, dead=[0, 1]).keeping([0])
    assert found.kept == (0, 2)
    assert found.dead == {1}
    assert found.graph.output_slots == (2, 4)


def test_slots_of_inputs_do_not_depend_on_the_length() -> None:
    short, long = pattern(ADD, TWICE), pattern(ADD, TWICE, ADD)
    assert [step.slots for step in long.steps] == [(-1, -2), (0,), (1, -2)]
    assert [step.slots for step in short.steps] == [step.slots for step in long.steps[:2]]


def test_operations_are_the_same_only_on_the_same_tensors_and_line() -> None:
    first = pattern(ADD, TWICE, ADD)
    assert first.begins_like(pattern(ADD, TWICE, TWICE), 2)
    assert not first.begins_like(pattern(ADD, TWICE, TWICE), 3)
    assert not first.begins_like(pattern(ADD, TWICE, ADD, code=OTHER_LINE), 1)
    assert not pattern(ADD, TWICE).begins_like(first, 2)  # it has no operation after these two


def test_operations_are_consecutive_if_no_other_id_is_between() -> None:
    assert are_consecutive([Issued(ADD, [1, 2], 5), Issued(TWICE, [5], 6)])
    assert not are_consecutive([Issued(ADD, [1, 2], 5), Issued(TWICE, [5], 7)])


# -- what a session remembers ---------------------------------------------------------------------


def test_a_sequence_is_repeated_from_its_second_time_on() -> None:
    store = PatternStore()
    assert [store.is_repeated([Issued(ADD, [1, 2], 5)]) for _ in range(3)] == [False, True, True]


def test_the_sequences_seen_last_are_remembered() -> None:
    store = PatternStore()
    signatures = numbered(MAX_SEEN + 1)
    sequences = [[Issued(signed, [1], 5)] for signed in signatures]
    for sequence in sequences[:MAX_SEEN]:
        assert not store.is_repeated(sequence)
    assert store.is_repeated(sequences[0])
    assert not store.is_repeated(sequences[MAX_SEEN])
    assert store.is_repeated(sequences[0])
    assert not store.is_repeated(sequences[1])


def test_a_new_pattern_takes_the_place_of_the_one_that_was_complete_longest_ago() -> None:
    store = PatternStore()
    kept = [pattern(signed) for signed in numbered(MAX_PATTERNS + 1)]
    for each in kept[:MAX_PATTERNS]:
        assert store.add(each)
    store.note_completed(kept[0])
    assert store.add(kept[MAX_PATTERNS])
    assert len(store) == MAX_PATTERNS
    assert [each.is_known for each in kept[:3]] == [True, False, True]
    assert not store.starting_with(kept[1].first.signature)  # type: ignore[arg-type]


def test_a_pattern_that_was_complete_since_the_last_look_keeps_its_place_once() -> None:
    store = PatternStore()
    kept = [pattern(signed) for signed in numbered(MAX_PATTERNS + 2)]
    for each in kept[:MAX_PATTERNS]:
        assert store.add(each)
        each.is_recent = True
    kept[1].is_recent = False
    assert store.add(kept[MAX_PATTERNS])
    assert [each.is_known for each in kept[:3]] == [True, False, True]
    assert store.add(kept[MAX_PATTERNS + 1])
    assert len(store) == MAX_PATTERNS
    assert sum(each.is_known for each in kept) == MAX_PATTERNS


def test_few_patterns_begin_with_the_same_operation() -> None:
    store = PatternStore()
    alike = [pattern(ADD, signed) for signed in numbered(MAX_ALIKE + 1)]
    for each in alike:
        assert store.add(each)
    assert list(store.starting_with(ADD)) == alike[:0:-1]
    assert not alike[0].is_known


def test_a_session_defines_a_bounded_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_DEFINED_STEPS", 5)
    store = PatternStore()
    first, second = pattern(ADD, TWICE, ADD), pattern(TWICE, ADD, ADD)
    assert store.add(first)
    store.discard(first)  # the server was sent its definition
    assert not store.add(second)
    assert not second.is_known
    assert store.add(pattern(TWICE, ADD))


def leave(store: PatternStore, each: Pattern) -> None:
    store.note_missed(each)


def complete_then_leave(store: PatternStore, each: Pattern) -> None:
    store.note_completed(each)
    store.note_missed(each)


@pytest.mark.parametrize(("use", "is_known"), [(leave, False), (complete_then_leave, True)])
def test_a_pattern_that_is_begun_and_never_completed_is_forgotten(
    use: Callable[[PatternStore, Pattern], None], is_known: bool
) -> None:
    store, each = PatternStore(), pattern(ADD, TWICE)
    store.add(each)
    for _ in range(MAX_MISSES - 1):
        use(store, each)
        assert each.is_known
    use(store, each)
    assert each.is_known is is_known
    assert len(store) == is_known


def test_usual_drops_are_found_among_consecutive_ids() -> None:
    each = pattern(ADD, TWICE, ADD, dead=[0, 1])
    each.note_drops([0, -2, 1], [-2])
    found = each.usual_drops
    assert found is not None
    assert found.taken_of([*range(100 + found.lowest, 103)]) == (100, 98, 101)
    assert (found.length, found.remaining) == (3, (-2,))


@pytest.mark.parametrize("drops", [(), (0,), (0, -FARTHEST_DROP - 1)])
def test_single_drops_and_those_of_old_tensors_are_not_usual(drops: tuple[int, ...]) -> None:
    each = pattern(ADD, TWICE, ADD)
    each.note_drops([0, 1], [])
    each.note_drops(drops, [])
    assert each.usual_drops is None
