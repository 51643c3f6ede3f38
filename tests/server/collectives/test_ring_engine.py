"""The engine ``ring``: what it keeps between collectives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.collectives import ring_engine, ring_schedule
from burn_remote_server.collectives.ring_schedule import Action
from support.members import Members

Kind = CollectiveKind


class Schedules:
    """How often a schedule was computed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._schedule = ring_schedule.schedule
        patch.setattr(ring_engine, "schedule", self)

    def __call__(self, call: CollectiveCall, members: int, rank: int) -> Iterator[Action]:
        self.count += 1
        return self._schedule(call, members, rank)


@pytest.fixture
def schedules(monkeypatch: pytest.MonkeyPatch) -> Schedules:
    return Schedules(monkeypatch)


def summed(members: Members, length: int, seed: int) -> None:
    """Check the sums of one all-reduce."""
    random = np.random.default_rng(seed)
    arrays = [random.normal(size=length).astype(np.float32) for _ in members.addresses]
    call = CollectiveCall(Kind.ALL_REDUCE, (TensorSpec((length,), F32),))
    slots = [members.issue(rank, call, array)[0] for rank, array in enumerate(arrays)]
    results = [slot.array() for slot in slots]
    np.testing.assert_allclose(results[0], np.sum(arrays, axis=0), rtol=1e-4, atol=1e-5)
    assert len({result.tobytes() for result in results}) == 1


def test_a_repeated_call_is_planned_once_by_each_member(schedules: Schedules) -> None:
    members = Members(3)
    for seed in range(4):
        summed(members, 1000, seed)
    assert schedules.count == 3
    members.leave()


def test_calls_of_several_sizes_do_not_mix_their_elements(schedules: Schedules) -> None:
    members = Members(2)
    for seed in range(3):
        for length in (1, 300_000, 7, 400_000, 1000):
            summed(members, length, seed)
    assert schedules.count == 2 * 5
    members.leave()


def test_a_bounded_number_of_plans_is_kept(schedules: Schedules) -> None:
    members = Members(2)
    lengths = range(1, 2 + ring_engine.MAX_PLANS)
    for length in lengths:
        summed(members, length, 0)
    summed(members, lengths[-1], 1)
    assert schedules.count == 2 * len(lengths)
    summed(members, lengths[0], 1)
    assert schedules.count == 2 * (len(lengths) + 1)
    members.leave()


def test_the_actions_of_a_long_call_are_not_kept(schedules: Schedules) -> None:
    members = Members(2)
    specs = (TensorSpec((1,), F32),) * ring_engine.MAX_KEPT_ACTIONS
    call = CollectiveCall(Kind.ALL_GATHER, specs)
    for _ in range(2):
        before = schedules.count
        given: list[list[Any]] = [
            [np.full(1, rank + 2 * place, np.float32) for place in range(len(specs))]
            for rank in range(2)
        ]
        slots = [members.issue(rank, call, *given[rank]) for rank in range(2)]
        for results in slots:
            for place, slot in enumerate(results):
                np.testing.assert_array_equal(slot.array(), [2 * place, 2 * place + 1])
        assert schedules.count > before
    members.leave()
