"""The schedules of all members together compute the collective, with bounded memory."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind
from burn_remote_protocol.dtypes import I64
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.collectives.ring_schedule import (
    ROUND_BYTES,
    Copy,
    Receive,
    Send,
    Span,
    schedule,
)

Kind = CollectiveKind
CHUNK_ELEMENTS = 3


def expected(call: CollectiveCall, inputs: list[list[Any]], rank: int) -> list[Any]:
    """Return the elements of a member's outputs, computed by NumPy."""
    members = len(inputs)
    results = []
    for place in range(len(call.specs)):
        each = [one[place].reshape(-1) for one in inputs]
        match call.kind:
            case Kind.ALL_REDUCE:
                results.append(sum(each))
            case Kind.REDUCE:
                results.append(sum(each))
            case Kind.REDUCE_SCATTER:
                results.append(np.split(sum(each), members)[rank])
            case Kind.ALL_GATHER:
                results.append(np.concatenate(each))
            case Kind.BROADCAST:
                results.append(each[call.root])
            case Kind.ALL_TO_ALL:
                results.append(np.concatenate([np.split(one, members)[rank] for one in each]))
    return results


class Member:
    """Carries out one member's schedule, one action at a time."""

    def __init__(self, call: CollectiveCall, members: int, rank: int, inputs: list[Any]) -> None:
        self.actions = deque(schedule(call, members, rank, CHUNK_ELEMENTS * 8))
        self.inputs = [one.reshape(-1) for one in inputs]
        self.outputs = [
            np.full(spec.size, -1, np.int64) for spec in call.output_specs(members, rank)
        ]
        self.arrived: deque[Any] = deque()
        self.next: Member = self
        self.sent = 0

    def send(self, elements: Any) -> None:
        assert 0 < len(elements) <= CHUNK_ELEMENTS
        self.sent += len(elements)
        self.next.arrived.append(elements.copy())

    def advance(self) -> bool:
        """Carry out one action; return whether there was one that need not wait."""
        if not self.actions:
            return False
        match self.actions[0]:
            case Send((place, start, stop)):
                self.send(self.inputs[place][start:stop])
            case Copy((place, start, stop), (other, first, last)):
                self.outputs[other][first:last] = self.inputs[place][start:stop]
            case Receive(length, own, target, is_sent):
                if not self.arrived:
                    return False
                elements = self.arrived.popleft()
                assert len(elements) == length
                if own is not None:
                    elements = elements + self.inputs[own.place][own.start : own.stop]
                if target is not None:
                    self.outputs[target.place][target.start : target.stop] = elements
                if is_sent:
                    self.send(elements)
        self.actions.popleft()
        return True


def run(call: CollectiveCall, inputs: list[list[Any]]) -> list[Member]:
    members = [Member(call, len(inputs), rank, each) for rank, each in enumerate(inputs)]
    for rank, member in enumerate(members):
        member.next = members[(rank + 1) % len(members)]
    while sum(member.advance() for member in members):
        pass
    assert not any(member.actions or member.arrived for member in members)
    return members


def arrays(call: CollectiveCall, members: int) -> list[list[Any]]:
    random = np.random.default_rng(members)
    return [
        [random.integers(0, 1000, spec.size).reshape(spec.shape) for spec in call.specs]
        for _ in range(members)
    ]


@pytest.mark.parametrize("members", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.BARRIER], ids=str)
@pytest.mark.parametrize("rows", [(1,), (2, 1), (7, 3), (0, 5)], ids=str)
def test_the_members_together_compute_what_numpy_does(
    kind: Kind, members: int, rows: tuple[int, ...]
) -> None:
    specs = tuple(TensorSpec((count * members, 3), I64) for count in rows)
    for root in range(members):
        call = CollectiveCall(kind, specs, root=root)
        inputs = arrays(call, members)
        for rank, member in enumerate(run(call, inputs)):
            if kind is Kind.REDUCE and rank != root:
                continue
            for found, wanted in zip(member.outputs, expected(call, inputs, rank), strict=True):
                np.testing.assert_array_equal(found, wanted)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 6))
def test_an_all_reduce_of_tensors_of_any_sizes_is_their_sum(sizes: list[int], members: int) -> None:
    call = CollectiveCall(Kind.ALL_REDUCE, tuple(TensorSpec((size,), I64) for size in sizes))
    inputs = arrays(call, members)
    for member in run(call, inputs):
        for found, wanted in zip(member.outputs, expected(call, inputs, 0), strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("members", [2, 3, 4, 8])
def test_an_all_reduce_loads_each_link_with_the_least_possible(members: int) -> None:
    call = CollectiveCall(Kind.ALL_REDUCE, (TensorSpec((840,), I64),))
    for member in run(call, arrays(call, members)):
        assert member.sent == 2 * (members - 1) * 840 // members


def test_nobody_leaves_a_barrier_before_all_have_entered() -> None:
    call = CollectiveCall(Kind.BARRIER)
    for members in (2, 3, 5):
        for rank in range(members):
            actions = [*schedule(call, members, rank)]
            assert actions[0] == Send(Span(0, 0, 1))
            assert sum(isinstance(one, Receive) for one in actions) == members - 1


@pytest.mark.parametrize("kind", [Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL], ids=str)
@pytest.mark.parametrize("members", [2, 3, 5, 6])
def test_the_scratch_memory_of_a_round_is_bounded(kind: Kind, members: int) -> None:
    share = 2**23
    call = CollectiveCall(kind, (TensorSpec((members * share,), I64),))
    scratch, rounds = [0], 0
    before: object = None
    for action in schedule(call, members, 0):
        begins = isinstance(action, Send) and action.source.start // share == members - 1
        if begins and not isinstance(before, Send):
            scratch.append(0)
            rounds += 1
        if isinstance(action, Receive) and action.target is None:
            scratch[-1] += 8 * action.length
        before = action
    assert max(scratch) <= ROUND_BYTES
    assert rounds >= 8
